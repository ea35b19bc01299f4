"""Harnesses in sandboxes, as those meet them who play the model."""

import asyncio
import contextvars
import json
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import pytest

from gymhost.client import connect
from gymhost.envs.forking import afork
from gymhost.envs.harness import Harness
from gymhost.envs.sandbox import Sandbox
from gymhost.envs.shelf.scripted import call
from gymhost.wire.errors import Unimplemented
from support.arena import in_namespace
from support.docker_engine import DockerEngine
from support.episodes import play_one
from support.harness_environments import HarnessedDesk
from support.server import PATIENCE, ServerProcess

Start = Callable[..., Awaitable[tuple[HarnessedDesk, list[Any], dict[str, Any]]]]

WRITE = call("bash", command="echo '{url}' >answer.txt")
DONE = {"role": "assistant", "content": "I have done so."}


@pytest.fixture
async def start() -> AsyncGenerator[Start]:
    """Begins episodes; sees afterwards that nothing is left of them."""
    envs: list[HarnessedDesk] = []
    namespaces: list[str] = []

    async def begin(form: str, **settings: Any) -> tuple[HarnessedDesk, list[Any], dict[str, Any]]:
        env = HarnessedDesk(form, **settings)
        envs.append(env)
        try:
            return env, *await env.areset(seed=0)
        finally:
            namespaces.append((await sandbox_of(env).run(["readlink", "/proc/self/ns/pid"])).stdout.strip())
            assert in_namespace(namespaces[-1])

    yield begin
    for env in envs:
        await env.aclose()
    assert namespaces
    async with asyncio.timeout(PATIENCE):
        # What was ended is there until its parent has asked for its status.
        while any(map(in_namespace, namespaces)):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.02)


def sandbox_of(env: HarnessedDesk) -> Sandbox:
    assert env.sandbox is not None
    return env.sandbox


@pytest.mark.parametrize("form", ["plain", "streaming", "responses"])
async def test_what_is_new_is_observed_and_an_action_is_answered(form: str, start: Start) -> None:
    env, opening, info = await start(form)
    assert opening[-1] == {"role": "user", "content": "Write {url} to answer.txt."}
    assert [message["role"] for message in opening] == ["system", "user"][-len(opening) :]
    [tool] = info["tools"]
    assert (tool["name"], tool["parameters"]["required"]) == ("bash", ["command"])
    assert [tool.name for tool in env.tools] == ["bash"]
    message = {**call("bash", command="pwd"), "content": "Where am I?", "reasoning_content": "I wonder."}
    assert await env.astep(message) == (
        [{"role": "tool", "tool_call_id": "call_0", "name": "bash", "content": "0: /workspace\n"}],
        0.0,
        False,
        False,
        {},
    )
    observation, *_ = await env.astep(WRITE)
    assert [said["content"] for said in observation] == ["0: "]
    observation, reward, terminated, truncated, info = await env.astep(DONE)
    assert (observation, reward, terminated, truncated) == ([], 1.0, True, False)
    assert info["harness"] == {"exit_status": 0, "output": ""}
    assert "tiny/harness.py" not in env.running


async def test_wrong_work_is_scored_as_such(start: Start) -> None:
    env, *_ = await start("plain")
    assert (await env.astep("I would rather not."))[1:3] == (0.0, True)


async def test_a_malformed_call_is_told_as_text(start: Start) -> None:
    env, *_ = await start("plain")
    broken = {"id": "call_0", "type": "function", "function": {"name": "", "arguments": "<bash"}}
    assert (await env.astep({"role": "assistant", "content": "", "tool_calls": [broken]}))[2]
    assert env.turn is not None
    assert not env.turn.valid


async def test_where_history_is_rewritten_all_is_observed_anew(start: Start) -> None:
    env, *_ = await start("forgetful")
    assert (await env.astep("One"))[0] == [{"role": "user", "content": "And?"}]
    observation, _, _, _, info = await env.astep("two")
    assert [message["content"] for message in observation] == ["You are small.", "So far: One, two"]
    assert info == {"conversation": "anew", "tools": []}


async def test_an_agent_that_asks_beside_another_one(start: Start) -> None:
    env, [first], _ = await start("several")
    [second], _, _, _, info = await env.astep("Yes?")
    assert {first["content"][-1], second["content"][-1]} == {"a", "b"}
    assert info["conversation"] == "anew"
    third, _, _, _, info = await env.astep("Yes?")
    # Either of them may be the first to ask again: it goes on, or what was said with it is told anew.
    told = [message["content"] for message in third]
    assert told in (["And?"], [first["content"], "Yes?", "And?"])
    assert (info.get("conversation") == "anew") is (len(told) > 1)
    await env.astep("Yes?")
    assert (await env.astep("Yes?"))[2]


async def test_who_asks_again_gets_the_answer_that_it_did_not_wait_for(start: Start) -> None:
    env, *_ = await start("impatient")
    gave_up = await sandbox_of(env).run("until [ -e gave_up ]; do sleep 0.02; done")
    assert gave_up.ok
    observation, *_ = await env.astep("Here.")
    assert observation == [{"role": "user", "content": "And?"}]
    assert env.turns == 1


async def test_what_can_not_be_had_is_refused_without_a_turn(start: Start) -> None:
    env, [told], _ = await start("refused")
    names, statuses, errors = json.loads(told["content"])
    assert names == ["policy"]
    assert statuses == [400, 400, 400, 404, 404, 413, 415, 400]
    assert "no JSON" in errors[0]
    assert "n = 2" in errors[2]
    assert "/embeddings" in errors[3]
    assert "messages" in errors[7]
    assert env.turns == 0


async def test_a_harness_sees_neither_a_network_nor_a_secret(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SECRET", "hidden")
    _, [told], _ = await start("looks", env={"MINE": "{folder} {model} {nothing}"}, model="small")
    seen = json.loads(told["content"])
    assert seen["interfaces"] == ["lo"]
    assert seen["outside"] == []
    assert "hidden" not in told["content"]
    environment = seen["environment"]
    assert environment["OPENAI_API_KEY"] == "in-sandbox"
    assert environment["OPENAI_BASE_URL"].startswith("http://127.0.0.1:")
    assert environment["MINE"] == f"{environment['HOME']} small {{nothing}}"
    assert seen["argv"] == ["looks", "Write {url} to answer.txt."]
    assert seen["prompt"] == "Write {url} to answer.txt."
    assert seen["files"] == ["prompt.txt", "tiny"]


async def test_packages_are_there_for_the_harness_and_nothing_else_is(start: Start) -> None:
    _, [told], _ = await start("imports", python=("{python}",), packages=("pytest",))
    found, version, by_others = json.loads(told["content"])
    assert found == [True, True, False]  # what it needs too, but not what tests gymhost here
    assert version == list(sys.version_info[:2])
    assert by_others == "0: [False, False, False]\n"


async def test_a_harness_that_fails_before_it_asks_is_a_fault(start: Start) -> None:
    with pytest.raises(RuntimeError, match=r"before it asked.*status 1(?s:.*)about to fail\nthe harness has a bug"):
        await start("fails")
    env = HarnessedDesk()
    env.harness = Harness(command=("nowhere",))
    with pytest.raises(RuntimeError, match=r"before it asked.*exit status 127.*nowhere"):
        await env.areset()
    await env.aclose()


async def test_a_harness_that_never_asks_is_a_fault(start: Start) -> None:
    with pytest.raises(TimeoutError, match=r"within 0.5 s \(first_seconds\)"):
        await start("silent", first_seconds=0.5)


async def test_a_harness_that_fails_later_is_scored_unless_that_is_not_its_way(start: Start) -> None:
    env, *_ = await start("fails_later")
    _, reward, terminated, _, info = await env.astep("Well?")
    assert (reward, terminated, info["harness"]["exit_status"]) == (0.0, True, 1)
    assert "the harness has a bug" in info["harness"]["output"]
    env, *_ = await start("fails_later", statuses=(0,))
    with pytest.raises(RuntimeError, match=r"the harness failed: exit status 1(?s:.*)has a bug"):
        await env.astep("Well?")


async def test_a_harness_that_asks_nonsense_on_and_on_is_a_fault(start: Start) -> None:
    with pytest.raises(RuntimeError, match="took no turn"):
        await start("asks_nonsense")


async def test_what_was_killed_is_scored(start: Start) -> None:
    env, *_ = await start("ends_itself")
    assert (await env.astep("Well?"))[4]["harness"]["exit_status"] == -9
    # The agent ends all that it can, our own program too.
    env, *_ = await start("plain")
    await env.astep(WRITE)
    _, reward, terminated, _, info = await env.astep(call("bash", command="kill -9 -1"))
    assert (reward, terminated, info["harness"]["exit_status"]) == (1.0, True, None)


async def test_a_turn_that_takes_too_long_ends_the_episode(start: Start) -> None:
    env, *_ = await start("slow", turn_seconds=0.5)
    _, reward, terminated, truncated, info = await env.astep("Well?")
    assert (reward, terminated, truncated, info["limit"]) == (0.0, False, True, "turn_seconds")
    assert "sleep 600" not in env.running


async def test_whoever_plays_may_end_it(start: Start) -> None:
    env, *_ = await start("plain")
    await env.astep(WRITE)
    _, reward, _, truncated, info = await env.aevaluate("context_tokens")
    assert (reward, truncated, info["limit"]) == (1.0, True, "context_tokens")
    assert "tiny/harness.py" not in env.running


async def test_turns_are_counted(start: Start) -> None:
    env, *_ = await start("plain")
    for _ in range(9):
        assert not (await env.astep(call("bash", command="true")))[3]
    assert (await env.astep(call("bash", command="true")))[4]["limit"] == "max_turns"


@pytest.mark.parametrize(
    "lie",
    [
        """echo '{"id": 1, "path": "/v1/chat/completions", "length": -5}'""",
        """echo '{"exit": Infinity, "length": 0}'""",
        """python3 -c 'print("[" * 4000)'""",
        """yes '{"got": true, "length": 0}'""",
    ],
)
async def test_what_lies_is_not_believed(start: Start, lie: str) -> None:
    env, *_ = await start("plain", turn_seconds=20)
    command = f"{lie} >/proc/$(pgrep -o python3)/fd/1; sleep 9"
    _, reward, terminated, _, info = await env.astep(call("bash", command=command))
    assert (reward, terminated, info["harness"]["exit_status"]) == (0.0, True, None)


async def test_an_episode_begins_anew_in_the_same_environment(start: Start) -> None:
    env, *_ = await start("plain")
    await env.astep(WRITE)
    opening, _ = await env.areset(seed=0)
    assert len(opening) == 2
    assert (await env.astep(call("bash", command="ls")))[0][0]["content"] == "0: "
    assert (await env.astep(DONE))[1] == 0.0


async def test_an_episode_with_a_harness_is_not_forked(start: Start) -> None:
    env, *_ = await start("plain")
    with pytest.raises(Unimplemented, match="a harness that runs can't be copied"):
        await afork(env, [contextvars.copy_context()])
    assert (await env.astep(WRITE))[0][0]["content"] == "0: "


@pytest.mark.docker
async def test_in_docker_too(docker_engine: DockerEngine) -> None:
    options = {"base_url": docker_engine.base_url}
    modules = ["support.harness_environments"]
    with ServerProcess(modules=modules, workers=1, sandbox="docker", sandbox_options=options) as server:
        async with connect(server.address) as remote:
            played = await play_one(remote, "test/HarnessedDesk-v0", lambda _: DONE, split="train")
            assert (played.reward, played.info["harness"]["exit_status"]) == (0.0, 0)
            script = iter([WRITE, DONE])
            played = await play_one(remote, "test/HarnessedDesk-v0", lambda _: next(script), split="train")
            assert (played.reward, played.info["harness"]["exit_status"]) == (1.0, 0)


def test_what_is_no_harness() -> None:
    with pytest.raises(ValueError, match="command is a program"):
        Harness(command=())
    with pytest.raises(ValueError, match="first_seconds must be above 0"):
        Harness(command=("x",), first_seconds=0.0)
    with pytest.raises(ModuleNotFoundError, match=r"needs no-such-package.*pip install 'an\[extra\]'"):
        Harness(command=("x",), packages=("no-such-package",), install="an[extra]").software()
