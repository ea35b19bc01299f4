"""Replies that wait for clients to read them, of all streams of a server together."""

from typing import Protocol

from gymhost.wire.limits import MAX_QUEUED


class Reader(Protocol):
    """A stream, as the backlog knows it."""

    queued: int

    def cut_off(self) -> None:
        """Ends the stream, and drops what waits for it."""
        ...


class Backlog:
    """What waits for all streams together; where that is too much, the slowest reader is cut off.

    Args:
        max_payload: The largest reply, in bytes.

    Attributes:
        size: How many bytes wait. Streams keep it right themselves.
        most: How many may.
        readers: The streams.
    """

    def __init__(self, max_payload: int) -> None:
        self.size = 0
        self.most = 8 * max(MAX_QUEUED, max_payload)
        self.readers: set[Reader] = set()

    def relieve(self) -> None:
        """Cuts off those for which most is waiting, until there is not too much."""
        while self.size > self.most and self.readers:
            slowest = max(self.readers, key=lambda reader: reader.queued)
            self.readers.discard(slowest)
            slowest.cut_off()
