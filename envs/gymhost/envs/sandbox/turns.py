"""Who comes next, where only so many may be in at once."""

import asyncio
import threading
from collections import deque

__all__ = ["Turns"]


class Turns:
    """Lets so many in at once, in the order in which they came. It belongs to no event loop: `async with turns`."""

    def __init__(self, places: int) -> None:
        self._lock = threading.Lock()
        self._places = places
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def __aenter__(self) -> None:
        with self._lock:
            if self._places > 0:
                self._places -= 1
                return
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            with self._lock:
                given = waiter not in self._waiting
                if not given:
                    self._waiting.remove(waiter)
            if given:
                self._leave()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._leave()

    def _leave(self) -> None:
        with self._lock:
            while self._waiting:
                waiter = self._waiting.popleft()
                try:
                    # Whoever gives up meanwhile passes the place on.
                    waiter.get_loop().call_soon_threadsafe(_let_in, waiter)
                except RuntimeError:  # Its event loop is closed, and nobody waits any more.
                    continue
                return
            self._places += 1


def _let_in(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)
