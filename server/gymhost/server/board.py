"""Which lanes of a worker have code running, in memory that outlives it: so its front can tell what killed it."""

import mmap
import os
from collections.abc import Iterable

__all__ = ["BLAMED", "HURRIED", "IDLE", "RUNNING", "Board"]

# What a byte says: no code runs; some does; it is what the worker ends for; so it is, by the caller's own time limit.
IDLE, RUNNING, BLAMED, HURRIED = 0, 1, 2, 3

# Lanes that differ by this share a byte. A worker has far fewer at once.
SIZE = 65536


class Board:
    """A byte for each lane: whether code runs on it, and whether it is what the worker ends for.

    Args:
        descriptor: The memory of another process's board; None for a new one.

    Attributes:
        bytes: The bytes, by the lane's place.
        descriptor: The memory of a new one, to be handed to another process and closed.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        if descriptor is None:
            descriptor = os.memfd_create("gymhost-board", os.MFD_CLOEXEC)
            os.truncate(descriptor, SIZE)
        self.descriptor = descriptor
        self.bytes = mmap.mmap(descriptor, SIZE)

    @staticmethod
    def place(lane: int) -> int:
        """Where the byte of a lane is."""
        return lane % SIZE

    def is_busy(self, lane: int) -> bool:
        """Whether code runs on a lane."""
        return self.bytes[lane % SIZE] != IDLE

    def suspects(self, lanes: Iterable[int]) -> tuple[list[int], bool]:
        """Those of the lanes that the worker ended for; where that was not said, those that had code running.

        Returns:
            The lanes, and whether it ended by a caller's own time limit.
        """
        marks = [(lane, self.bytes[lane % SIZE]) for lane in lanes]
        blamed = [(lane, mark) for lane, mark in marks if mark >= BLAMED]
        suspects = blamed or [(lane, mark) for lane, mark in marks if mark == RUNNING]
        return [lane for lane, _ in suspects], any(mark == HURRIED for _, mark in blamed)
