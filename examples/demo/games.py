"""Whole games, played on a server through gymhost's client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from gymhost.client import connect

Message = dict[str, Any]


class Player(Protocol):
    """Whoever answers the new messages of an environment with a message."""

    def act(self, messages: list[Message]) -> Message: ...


@dataclass(frozen=True)
class Game:
    """A game that was played: what was said in it, with which tools (as chat templates take them), and how it ended."""

    messages: list[Message]
    tools: list[dict[str, Any]]
    won: bool


async def play_games(
    address: str,
    token: str,
    environment: str,
    tasks: Iterable[int],
    *,
    split: str,
    player: Callable[[int], Player],
    at_once: int = 64,
    **kwargs: Any,
) -> list[Game]:
    """Plays one game a task, many at once, and returns them in the order of the tasks.

    Args:
        address: The server's address.
        token: The server's token.
        environment: The environment's id.
        tasks: The indices of the tasks.
        split: The tasks' split.
        player: Makes the player of a task.
        at_once: How many sessions to play in.
        **kwargs: The environment's keyword arguments.
    """
    waiting = iter(list(enumerate(tasks)))
    games: dict[int, Game] = {}

    async def play_in_one_session() -> None:
        async with server.session(environment, **kwargs) as session:
            for place, task in waiting:  # the sessions take turns at one iterator
                observation, _ = await session.reset(options={"task": task, "split": split})
                messages, who, over, info = list(observation), player(task), False, {}
                while not over:
                    action = who.act(observation)
                    observation, _, terminated, truncated, info = await session.step(action)
                    messages += [action, *observation]
                    over = terminated or truncated
                games[place] = Game(messages, _tools(session.tools), won=info["rewards"]["win"] == 1.0)

    # Over gRPC although the server is on this machine, as it would be from another.
    async with connect(address, token=token, direct=False) as server:
        await asyncio.gather(*(play_in_one_session() for _ in range(at_once)))
    return [games[place] for place in sorted(games)]


def _tools(tools: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"type": "function", "function": tool} for tool in tools]
