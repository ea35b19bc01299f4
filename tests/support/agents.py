"""Agents that tests play, and how they play them."""

from collections.abc import Awaitable, Callable
from typing import Any

from gymhost.rollout import RolloutRequest, Seat, Trajectory
from support.local_source import LocalSource
from support.rollouts import engine, whole
from support.talk import Answer, Talk, end, tool

What = Callable[[Seat], Awaitable[None]]


class Doing:
    """An agent that does what a test says."""

    def __init__(self, what: What) -> None:
        self.what = what

    async def run(self, seat: Seat) -> None:
        await self.what(seat)


def done(_env: Talk, _message: Any) -> Answer:
    return end(tool("done"))


async def play(
    what: What, script: Any, answer: Callable[[Talk, Any], Answer] = done, env: type[Talk] = Talk, **settings: Any
) -> Trajectory:
    """Plays one rollout, and sees that it leaves nothing behind.

    Args:
        what: What the agent does.
        script: What the model says.
        answer: What the environment says.
        env: The environment's class.
        settings: Of the engine; `options` are those of the agent.
    """
    source = LocalSource(lambda: env(answer))
    options = settings.pop("options", {})
    async with engine(source, script, agents={"doing": Doing(what)}, **settings) as rollouts:
        [trajectory] = await rollouts.collect([RolloutRequest("Talk-v0", agent="doing", agent_options=options)])
    assert source.open == 0
    whole(trajectory)
    return trajectory
