"""A worker that does not take what is sent to it as fast as it comes: who waits, so that nobody else has to."""

import asyncio
import collections
from typing import Protocol

# How many bytes may wait for a worker before streams are told apart; and below which that is over.
HIGH, LOW = 4 * 1024 * 1024, 1024 * 1024
# How many bytes each stream may still send there meanwhile: small commands of others pass the large ones of one.
SHARE = 1024 * 1024


class Receiver(Protocol):
    """A worker, as those know it who send to it."""

    congested: "Congestion | None"


class Congestion:
    """The time in which a worker does not take what is sent."""

    def __init__(self) -> None:
        self._sent: collections.Counter[int] = collections.Counter()
        self._over = asyncio.Event()

    def admits(self, channel: int, size: int) -> bool:
        """Counts what a stream sends; False where that is more than its share."""
        if self._sent[channel] + size > SHARE:
            return False
        self._sent[channel] += size
        return True

    def end(self) -> None:
        """Lets those go on who wait: the worker has taken what it was sent, or is dead."""
        self._over.set()

    async def ended(self) -> None:
        """Waits for that."""
        await self._over.wait()


async def until_admitted(worker: Receiver, channel: int, size: int) -> None:
    """Waits until a stream may send so many bytes to a worker. One that takes nothing for too long is killed."""
    while (congestion := worker.congested) is not None and not congestion.admits(channel, size):
        await congestion.ended()
