"""Episodes of scripted policies over a server, side by side."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from gymhost.client import RemoteServer
from gymhost.envs import make
from gymhost.envs.toolenv import ToolEnv

Policy = Callable[[list[Any]], Any]

AT_ONCE = 8


class Played(NamedTuple):
    """How an episode went.

    Attributes:
        task: Which one.
        reward: The sum of its rewards.
        info: That of the last step.
        messages: All of them.
    """

    task: int
    reward: float
    info: dict[str, Any]
    messages: list[Any]


def policies_of(environment_id: str) -> tuple[str, Sequence[str]]:
    """Returns where the expert of an environment is, and where its cheats are."""
    env = make(environment_id).unwrapped
    assert isinstance(env, ToolEnv)
    assert env.expert is not None
    assert env.cheats
    return env.expert, env.cheats


def talk(messages: list[Any]) -> str:
    """Only talks."""
    return "I am done."


async def play_one(
    remote: RemoteServer, environment_id: str, policy: Policy, task: int = 0, *, split: str = "test", **kwargs: Any
) -> Played:
    """Plays one episode."""
    async with remote.session(environment_id, **kwargs) as session:
        opening, info = await session.reset(options={"task": task, "split": split})
        messages, reward = list(opening), 0.0
        ended = False
        while not ended:
            action = policy(messages)
            observation, gained, terminated, truncated, info = await session.step(action)
            messages += [action if isinstance(action, dict) else {"role": "assistant", "content": action}, *observation]
            reward += gained
            ended = terminated or truncated
        return Played(task, reward, info, messages)


async def play_all(remote: RemoteServer, environment_id: str, policy: Policy, tasks: int) -> list[Played]:
    """Plays the first tasks of the split to test on."""
    turn = asyncio.Semaphore(AT_ONCE)

    async def play(task: int) -> Played:
        async with turn:
            return await play_one(remote, environment_id, policy, task)

    return await asyncio.gather(*(play(task) for task in range(tasks)))
