"""A limit on how many things are done at once: by the threads and event loops of a process, or by several processes."""

import asyncio
import collections
import contextlib
import fcntl
import os
import random
import threading
from collections.abc import AsyncGenerator
from pathlib import Path

__all__ = ["Slots"]

# Seconds between two looks of whoever is next, when all slots are taken: another process may have freed one.
LOOK_AGAIN = 0.01


class Slots:
    """So many slots, each taken by one at a time; first come, first served within a process.

    Slots of several processes are locked files: those of a process that was killed are free at once.

    Args:
        number: How many there are.
        folder: Where processes share them; all must name the same number. None for slots of this process's own.
    """

    def __init__(self, number: int, folder: Path | None = None) -> None:
        self.number = number
        self._queue = _Queue()
        self._lock = threading.Lock()
        self._taken = 0
        self._files: list[Path] = []
        if folder is not None:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._files = [folder / f"slot-{each}" for each in range(number)]

    @contextlib.asynccontextmanager
    async def taken(self) -> AsyncGenerator[None]:
        """Waits for a slot, and frees it at the end. A wait that is cancelled holds nothing up."""
        await self._queue.enter()
        try:
            while (slot := self._take()) is None:  # noqa: ASYNC110 - another process may free one
                await asyncio.sleep(LOOK_AGAIN * random.uniform(0.5, 1.5))
        finally:
            self._queue.leave()
        try:
            yield
        finally:
            self._free(slot)

    def _take(self) -> int | None:
        """Takes a slot: a locked descriptor, or -1 for one of this process's own. None where all are taken."""
        with self._lock:
            if self._taken >= self.number:
                return None
            slot = -1
            if self._files:
                for file in random.sample(self._files, len(self._files)):
                    slot = _locked(file)
                    if slot >= 0:
                        break
                else:
                    return None
            self._taken += 1
            return slot

    def _free(self, slot: int) -> None:
        with self._lock:
            self._taken -= 1
        if slot >= 0:
            # Explicitly, for the sake of a copy of the descriptor in a process that was forked meanwhile.
            fcntl.flock(slot, fcntl.LOCK_UN)
            os.close(slot)


class _Place:
    """A place in the queue."""

    __slots__ = ("granted", "loop", "turn")

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.turn: asyncio.Future[None] = self.loop.create_future()
        self.granted = False

    def call(self) -> None:
        """Wakes whoever waits here. On its own loop."""
        if not self.turn.done():
            self.turn.set_result(None)


class _Queue:
    """A queue of coroutines of any threads and loops, the first of which is inside."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: collections.deque[_Place] = collections.deque()
        self._busy = False

    async def enter(self) -> None:
        while True:
            with self._lock:
                if not self._busy:
                    self._busy = True
                    return
                place = _Place()
                self._waiting.append(place)
            try:
                await place.turn
            except BaseException:
                self._give_up(place)
                raise
            if place.granted:
                return

    def leave(self) -> None:
        with self._lock:
            while self._waiting:
                place = self._waiting.popleft()
                # Whose loop stands still, since it was broken off, would hold up all: it queues anew if it goes on.
                place.granted = place.loop.is_running()
                try:
                    place.loop.call_soon_threadsafe(place.call)
                except RuntimeError:
                    continue  # the loop is closed
                if place.granted:
                    return
            self._busy = False

    def _give_up(self, place: _Place) -> None:
        with self._lock:
            if place in self._waiting:
                self._waiting.remove(place)
        if place.granted:
            self.leave()  # it was this one's turn already


def _locked(file: Path) -> int:
    """Opens and locks a file; -1 where another has it."""
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return -1
    return descriptor
