"""Replies that wait for clients to read them, of all streams of a server together."""

from typing import Protocol

from gymhost.wire.limits import MAX_QUEUED

# The most that may wait for all streams together.
MAX_BACKLOG = 8 * MAX_QUEUED


class Reader(Protocol):
    """A stream, as the backlog knows it."""

    queued: int

    def cut_off(self) -> None:
        """Ends the stream, and drops what waits for it."""
        ...


class Backlog:
    """What waits for all streams together; where that is too much, the slowest reader is cut off.

    Attributes:
        size: How many bytes wait. Streams keep it right themselves.
        readers: The streams.
    """

    def __init__(self) -> None:
        self.size = 0
        self.readers: set[Reader] = set()

    def relieve(self) -> None:
        """Cuts off those for which most is waiting, until there is not too much."""
        while self.size > MAX_BACKLOG and self.readers:
            slowest = max(self.readers, key=lambda reader: reader.queued)
            self.readers.discard(slowest)
            slowest.cut_off()
