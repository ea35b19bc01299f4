"""Changing the weights of a generator between requests: what the generators share."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

from gymhost.rollout.generators.base import GeneratorError, InFlight

__all__ = ["Gate", "Updates", "WeightsRefused", "to_the_end"]

T = TypeVar("T")


class WeightsRefused(GeneratorError):
    """The weights were not taken; the old ones are still in place."""


class Gate:
    """What requests pass through, `async with gate`: none gets in while it is closed, and those inside are counted.

    It may be closed several times over; it is open again when each of these has opened it.
    """

    def __init__(self) -> None:
        self._inside = 0
        self.closed = 0
        """How many times over it is closed."""
        self._opened = asyncio.Event()
        self._left = asyncio.Event()

    async def __aenter__(self) -> None:
        await self.passed()
        self._inside += 1

    async def __aexit__(self, *_: object) -> None:
        self._inside -= 1
        if not self._inside:
            self._left.set()

    async def passed(self) -> None:
        """Waits while the gate is closed."""
        while self.closed:
            await self._opened.wait()

    def close(self) -> None:
        """Lets nobody in any more."""
        if not self.closed:
            self._opened = asyncio.Event()
        self.closed += 1

    def open(self) -> None:
        """Takes back one `close`."""
        self.closed = max(0, self.closed - 1)
        if not self.closed:
            self._opened.set()

    async def emptied(self, seconds: float) -> bool:
        """Waits until all have left; False if some are still inside after so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                while self._inside:
                    self._left = asyncio.Event()
                    await self._left.wait()
        except TimeoutError:
            return False
        return True


class Updates(ABC):
    """Makes an update out of `pause`, `load_weights` and `resume`; see `Updatable` for what each does."""

    def __init__(self) -> None:
        self._gate = Gate()
        self._updating = asyncio.Lock()

    async def update(
        self, weights: Any, version: int, *, in_flight: InFlight = "wait", patience: float = 300.0
    ) -> None:
        """Changes the weights; see `Updatable.update`."""
        async with self._updating:
            ready = await self._prepare(weights, version)
            await self.pause(in_flight, patience=patience)
            try:
                await self.load_weights(ready, version)
            finally:
                await self.resume()

    @abstractmethod
    async def pause(self, in_flight: InFlight = "wait", *, patience: float = 300.0) -> None:
        """Lets no request begin, and returns once those in flight have ended, or with "keep" stand still."""

    @abstractmethod
    async def load_weights(self, weights: Any, version: int) -> None:
        """Changes the weights of a generator that is paused, and forgets what older ones have cached."""

    @abstractmethod
    async def resume(self) -> None:
        """Lets requests begin again, and those that stand still go on."""

    async def _prepare(self, weights: Any, _version: int) -> Any:
        """Gets the weights ready while requests still run."""
        return weights


async def to_the_end(call: Callable[..., T], *arguments: Any) -> T:
    """Runs something on a thread, and returns once it has ended even when cancelled: nobody may go on beside it."""
    running = asyncio.ensure_future(asyncio.to_thread(call, *arguments))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise
