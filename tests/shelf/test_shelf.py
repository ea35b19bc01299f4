"""Each environment of the shelf that needs no sandbox, over a real server: expert, idler, cheats, seeds, its check."""

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from gymhost.client import Session, connect
from gymhost.envs import ToolEnv, checks, make
from gymhost.envs.check import check
from gymhost.envs.shelf.reasoning_gym_expert import SOLVED
from gymhost.envs.trials import load_expert, load_policy
from support.server import ServerProcess

Policy = Callable[[list[dict[str, Any]]], Any]

HELD_OUT = 50
FEWER = 20


class Case(NamedTuple):
    """An environment of the shelf.

    Attributes:
        id: Its id.
        kwargs: What it is made with.
        expert: A policy that solves every task, where that is not the environment's own expert.
    """

    id: str
    kwargs: dict[str, Any] = {}
    expert: Policy | None = None


CASES = [
    Case("gymhost/ConnectFour-v0"),
    Case("gymhost/GuessNumber-v0"),
    Case("gymhost/Math-v0"),
    Case("gymhost/ReasoningGym-v0", {"datasets": list(SOLVED)}),
    Case("gymhost/Search-v0"),
    Case("gymhost/TextArena-v0"),
    Case("gymhost/TextArena-v0", {"game": "GuessTheNumber-v0"}),
    Case("gymhost/Wordle-v0"),
]
each = pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join((case.id, *map(str, case.kwargs.values()))))


def tool_env(case: Case) -> ToolEnv:
    env = make(case.id, **case.kwargs)
    assert isinstance(env, ToolEnv)
    return env


def expert_of(case: Case) -> Policy:
    expert = case.expert or load_expert(tool_env(case))
    assert expert is not None
    return expert


async def played(session: Session, policy: Policy, **options: Any) -> tuple[float, list[dict[str, Any]]]:
    """Plays an episode to its end; returns its reward and the conversation."""
    opening, info = await session.reset(seed=7, options=options)
    assert set(info) <= {"task", "split"}
    messages, reward, ended = list(opening), 0.0, False
    while not ended:
        action = policy(messages)
        new, step_reward, terminated, truncated, info = await session.step(action)
        messages += [{"role": "assistant", "content": action} if isinstance(action, str) else action, *new]
        reward += step_reward
        ended = terminated or truncated
    assert not info.get("reward_invalid"), info
    return reward, messages


async def rewards(server: ServerProcess, case: Case, policy: Policy, tasks: int) -> list[float]:
    async with connect(server.address) as remote, remote.session(case.id, **case.kwargs) as session:
        return [(await played(session, policy, task=task, split="test"))[0] for task in range(tasks)]


@each
async def test_the_expert_solves_what_was_held_out(server: ServerProcess, case: Case) -> None:
    assert await rewards(server, case, expert_of(case), HELD_OUT) == [1.0] * HELD_OUT


@each
async def test_an_idler_gets_next_to_nothing(server: ServerProcess, case: Case) -> None:
    got = await rewards(server, case, lambda messages: "I can't do this.", FEWER)
    assert sum(got) / FEWER < 0.2


@pytest.mark.parametrize(
    ("case", "place"),
    [(case, place) for case in CASES for place in tool_env(case).cheats],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_cheat_gets_nothing(server: ServerProcess, case: Case, place: str) -> None:
    assert await rewards(server, case, load_policy(place), HELD_OUT) == [0.0] * HELD_OUT


@each
async def test_the_same_seed_gives_the_same_episode(server: ServerProcess, case: Case) -> None:
    expert = expert_of(case)
    async with connect(server.address) as remote:
        async with remote.session(case.id, **case.kwargs) as session:
            first = await played(session, expert)
        async with remote.session(case.id, **case.kwargs) as session:
            await played(session, expert, task=3)
            assert await played(session, expert) == first


@each
async def test_listed_tasks_tell_what_is_public_and_no_more(server: ServerProcess, case: Case) -> None:
    public = set(tool_env(case).public_fields)
    async with connect(server.address) as remote:
        for split, least in (("train", 200), ("test", HELD_OUT)):
            listed = await remote.tasks(case.id, split=split, limit=50, **case.kwargs)
            assert listed.count is not None
            assert listed.count >= least
            assert all(set(task) <= public for task in listed.tasks.values())


@each
def test_no_task_is_in_both_splits(case: Case) -> None:
    def key(task: dict[str, Any]) -> str:
        return json.dumps(task, sort_keys=True, default=repr)

    splits = tool_env(case).splits
    trained = {key(task) for task in splits["train"][:1000]}
    assert not trained & {key(task) for task in splits["test"][:200]}


@each
def test_gymhost_check_finds_nothing_to_mend(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    # An episode of some takes a quarter of a second.
    monkeypatch.setattr(checks, "_LEAK_EPISODES", 20)
    report = check(case.id, case.kwargs)
    assert report.ok, report


def test_registering_the_shelf_imports_none_of_what_it_needs() -> None:
    code = """
import sys
import gymhost.envs.shelf
print(sorted({"math_verify", "reasoning_gym", "sympy", "textarena"} & set(sys.modules)))
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert said.stdout == "[]\n"


@pytest.mark.parametrize(
    ("id", "module"),
    [
        ("gymhost/Math-v0", "math_verify"),
        ("gymhost/ReasoningGym-v0", "reasoning_gym"),
        ("gymhost/TextArena-v0", "textarena"),
    ],
)
def test_what_is_not_installed_is_named_with_its_extra(id: str, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ModuleNotFoundError, match=rf"{id} needs {module}.* pip install 'gymhost\[shelf\]'"):
        make(id)
