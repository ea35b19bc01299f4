"""Whole games of GuessNumber on an embedded server, which the model `player()` can play."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from renderers import Qwen3RendererConfig

from gymhost.client import RemoteServer, connect
from gymhost.rollout import Chat, Limits, RolloutEngine, RolloutRequest, Sampling, Trajectory
from gymhost.rollout.generators import Generator
from support.tokenizers import qwen3_tokenizer

__all__ = ["GAME", "LENGTH", "play_games", "played"]

GAME = "gymhost/GuessNumber-v0"
LENGTH = 512
"""What the models of these games take: prompt and completion together."""


class _Counted:
    """Sessions whose steps are counted, so that a test can act in the middle of a game."""

    def __init__(self, remote: RemoteServer, steps: int) -> None:
        self._remote = remote
        self._left = steps
        self.middle = asyncio.Event()

    @asynccontextmanager
    async def session(
        self, env_id: str, /, *, task: int | None = None, split: str | None = None, **kwargs: Any
    ) -> AsyncGenerator[Any]:
        async with self._remote.session(env_id, task=task, split=split, **kwargs) as session:
            yield _CountedSession(session, self)

    def step(self) -> None:
        self._left -= 1
        if self._left <= 0:
            self.middle.set()


class _CountedSession:
    def __init__(self, session: Any, counted: _Counted) -> None:
        self._session = session
        self._counted = counted

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    async def step(self, action: Any, **kwargs: Any) -> Any:
        self._counted.step()
        return await self._session.step(action, **kwargs)


async def play_games(
    generator: Generator,
    count: int,
    *,
    sampling: Sampling | None = None,
    after: int = 0,
    act: Callable[[], Awaitable[None]] | None = None,
) -> list[Trajectory]:
    """Plays games of up to six guesses, all at once.

    Args:
        generator: Samples.
        count: How many.
        sampling: How to sample.
        after: After so many steps, of all games together, `act` is called.
        act: Does something in the middle of the games.
    """
    async with connect() as remote:
        counted = _Counted(remote, after)
        async with RolloutEngine(
            counted,
            Chat(qwen3_tokenizer(), Qwen3RendererConfig()),
            generator,
            sampling=sampling,
            limits=Limits(turn_tokens=48, context_tokens=LENGTH, retries=0),
        ) as engine:
            games = asyncio.create_task(
                engine.collect([RolloutRequest(GAME, task=task, kwargs={"guesses": 6}) for task in range(count)])
            )
            try:
                if act is not None:
                    await asyncio.wait_for(counted.middle.wait(), 60)
                    await act()
                return await games
            finally:
                games.cancel()


def played(trajectories: list[Trajectory]) -> None:
    """Asserts that these were games: of several turns, with calls that the environment answered, and none was lost."""
    kinds = {str(trajectory.outcome) for trajectory in trajectories}
    assert kinds <= {"terminated", "truncated by turn_tokens", "truncated by context_tokens"}, kinds
    assert sum(len(trajectory.turns) >= 3 for trajectory in trajectories) > len(trajectories) / 3
    said = [message for item in trajectories for message in item.messages if message["role"] == "assistant"]
    assert sum("tool_calls" in message for message in said) > len(said) / 2
    answers = [message["content"] for item in trajectories for message in item.messages if message["role"] == "tool"]
    assert any(answer.startswith("Too ") for answer in answers)
