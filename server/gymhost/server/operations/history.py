"""How it went over the last hour: a line of figures every few seconds."""

import asyncio
import collections
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

from gymhost.v1 import operations_pb2 as pb

__all__ = ["INTERVAL", "History"]

log = logging.getLogger("gymhost.server")

# Seconds between points, and how many are kept.
INTERVAL = 5.0
POINTS = 720


class History:
    """A server's history.

    Args:
        series: The names of its figures.
        look: Gives them, by name, each time that it is called; NaN where there was nothing to measure. What it leaves
            out is NaN too.
    """

    def __init__(self, series: Sequence[str], look: Callable[[], Awaitable[Mapping[str, float]]]) -> None:
        self._series = tuple(series)
        self._look = look
        self._points: collections.deque[tuple[float, tuple[float, ...]]] = collections.deque(maxlen=POINTS)

    async def watch(self) -> None:
        """Adds a point every few seconds, for ever."""
        loop = asyncio.get_running_loop()
        due = loop.time() + INTERVAL
        while True:
            await asyncio.sleep(due - loop.time())
            # Not late by how long each look takes; what was missed while the process stood still stays missing.
            due = max(due + INTERVAL, loop.time())
            try:
                await self.add()
            except Exception:
                log.exception("a fault of the server as it looked at how it fares")

    async def add(self) -> None:
        """Adds a point."""
        figures = await self._look()
        nan = float("nan")
        self._points.append((time.time(), tuple(figures.get(name, nan) for name in self._series)))

    def since(self, after: float) -> pb.GetHistoryResponse:
        """What there is after a time, in seconds since 1970."""
        points = (pb.HistoryPoint(time=at, values=values) for at, values in self._points if at > after)
        return pb.GetHistoryResponse(interval=INTERVAL, series=self._series, points=points)
