"""Each environment of the shelf, forked in mid-episode: parent and forks play on, each to its own end."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import pytest

from gymhost.client import RemoteServer, Session, Unimplemented, connect
from gymhost.envs import ToolEnv, make
from gymhost.envs.shelf.reasoning_gym_expert import SOLVED
from gymhost.envs.shelf.scripted import call
from gymhost.envs.shelf.terminal_chores import chore
from gymhost.envs.trials import load_expert
from support.episodes import Policy
from support.server import ServerProcess, until_sessions

pytestmark = pytest.mark.timeout(180)

PLAIN = (
    "gymhost/ConnectFour-v0",
    "gymhost/GuessNumber-v0",
    "gymhost/Math-v0",
    "gymhost/ReasoningGym-v0",
    "gymhost/Search-v0",
    "gymhost/TextArena-v0",
    "gymhost/Wordle-v0",
)
SANDBOXED = ("gymhost/PythonCode-v0", "gymhost/RepoRepair-v0", "gymhost/Sql-v0", "gymhost/Terminal-v0")
KWARGS: dict[str, dict[str, Any]] = {"gymhost/ReasoningGym-v0": {"datasets": list(SOLVED)}}
# How many tasks are played of those without a sandbox, and of those with one.
TASKS, SANDBOXED_TASKS = 6, 2


@pytest.fixture(scope="module")
def bubblewrap() -> Iterator[ServerProcess]:
    with ServerProcess(modules=[], sandbox_creations=4) as server:
        yield server


@pytest.fixture
async def remote(bubblewrap: ServerProcess) -> AsyncGenerator[RemoteServer]:
    async with connect(bubblewrap.address) as remote:
        yield remote
        await until_sessions(remote, 0)


class Played:
    """An episode that is being played."""

    def __init__(self, session: Session, messages: list[Any], reward: float = 0.0) -> None:
        self.session = session
        self.messages = messages
        self.reward = reward
        self.steps = 0
        self.ended = False
        self.info: dict[str, Any] = {}

    async def step(self, action: Any) -> None:
        new, reward, terminated, truncated, self.info = await self.session.step(action)
        self.messages += [action, *new]
        self.reward += reward
        self.steps += 1
        self.ended = terminated or truncated

    async def forked(self, number: int) -> "list[Played]":
        forks = await self.session.fork(number)
        return [Played(fork, list(self.messages), self.reward) for fork in forks]


async def play(remote: RemoteServer, environment: str, task: int, policy: Policy) -> None:
    """Plays a task, with two forks before each of the first steps, and a fork of one of them."""
    async with remote.session(environment, **KWARGS.get(environment, {})) as session:
        opening, _ = await session.reset(options={"task": task, "split": "test"})
        parent = Played(session, list(opening))
        left: list[Played] = []
        while not parent.ended:
            if parent.steps < 3:
                one, other = await parent.forked(2)
                left += [one, other, *await one.forked(1)]
            await parent.step(policy(parent.messages))
        for one in left:
            while not one.ended:
                await one.step(policy(one.messages))
        for one in (parent, *left):
            assert one.reward == pytest.approx(1.0), one.messages
            assert not one.info.get("reward_invalid"), one.info
        await asyncio.gather(*(one.session.close() for one in left))


@pytest.mark.parametrize("environment", PLAIN + SANDBOXED)
async def test_parent_and_forks_are_all_played_to_the_full_reward(environment: str, remote: RemoteServer) -> None:
    env = make(environment, **KWARGS.get(environment, {})).unwrapped
    assert isinstance(env, ToolEnv)
    policy = load_expert(env)
    assert policy is not None
    tasks = [task for task in range(20) if environment != "gymhost/Terminal-v0" or not _is_about_processes(task)]
    for task in tasks[: SANDBOXED_TASKS if environment in SANDBOXED else TASKS]:
        await play(remote, environment, task, policy)


async def test_echo_goes_on(remote: RemoteServer) -> None:
    async with remote.session("gymhost/Echo-v0", length=3) as session:
        await session.reset()
        await session.step("a")
        (fork,) = await session.fork()
        assert [(await each.step("b"))[2] for each in (fork, session, session)] == [False, False, True]
        await fork.close()


def _is_about_processes(task: int) -> bool:
    return any(want.live for want in chore(f"test {task}").start.wants)


async def test_chores_about_processes_are_not_forked(remote: RemoteServer) -> None:
    task = next(task for task in range(100) if _is_about_processes(task))
    async with remote.session("gymhost/Terminal-v0") as session:
        await session.reset(options={"task": task, "split": "test"})
        with pytest.raises(Unimplemented, match="about processes that run"):
            await session.fork()
        observation, *_ = await session.step(call("bash", command="echo still there"))
        assert "still there" in observation[0]["content"]


async def test_each_has_files_of_its_own_and_a_shell_that_begins_anew(remote: RemoteServer) -> None:
    task = next(task for task in range(100) if not _is_about_processes(task))

    async def bash(session: Session, command: str) -> str:
        observation, *_ = await session.step(call("bash", command=command))
        return observation[0]["content"]

    async with remote.session("gymhost/Terminal-v0") as session:
        await session.reset(options={"task": task, "split": "test"})
        await bash(session, "mkdir -p deep; cd deep; A=1; echo before >both; sleep 1000 & echo >>both")
        one, other = await session.fork(2)
        # The shell that was there is not, and the model is told so, once.
        assert "the shell was started anew" in await bash(one, 'cat deep/both; echo "A is $A"; pgrep sleep')
        assert "the shell was started anew" not in await bash(one, "echo one >mine; rm deep/both")
        said = await bash(other, 'cat deep/both; ls; echo "A is $A"; pgrep sleep || echo nothing runs')
        assert "before" in said
        assert "A is \n" in said
        assert "nothing runs" in said
        assert "mine" not in said
        assert "mine" not in await bash(session, "ls ..")
        assert "before" in await bash(session, "cat both")
        await session.close()
        assert "one" in await bash(one, "cat mine")
        await one.close()
        assert "before" in await bash(other, "cat deep/both")
        await other.close()
