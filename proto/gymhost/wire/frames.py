"""Frames on byte streams: a length and a channel, each of four bytes, little-endian, then a serialized message.

The messages are those of the gRPC stream, InteractRequest and InteractResponse; gRPC frames its messages itself, Unix
and TCP sockets use what is here. The channel tells frames for different peers behind one socket apart: on the link
between a front and a worker it is the number of the client's stream, so that the front passes replies on unopened. It
is 0 for the peer itself.
"""

import struct
from collections.abc import Iterator

from gymhost.wire.errors import TooLarge

__all__ = ["FrameReader", "pack"]

_HEADER = struct.Struct("<II")
_SIZE = _HEADER.size


def pack(message: bytes, channel: int = 0) -> bytes:
    """Puts the header before a serialized message."""
    return _HEADER.pack(len(message), channel) + message


class FrameReader:
    """Cuts what arrives on a socket into messages.

    Args:
        limit: The largest message that is taken, in bytes.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Takes what arrived and yields each message that is now whole, with its channel.

        Raises:
            TooLarge: A message is above the limit. The stream can't be read on after this.
        """
        buffer = self._buffer
        if not buffer and len(data) >= _SIZE:
            # The common case: one whole frame in one read, without a copy into the buffer.
            length, channel = _HEADER.unpack_from(data)
            if _SIZE + length == len(data):
                self._check(length)
                yield channel, data[_SIZE:]
                return
        buffer += data
        start = 0
        have = len(buffer)
        while have - start >= _SIZE:
            length, channel = _HEADER.unpack_from(buffer, start)
            self._check(length)
            end = start + _SIZE + length
            if end > have:
                break
            yield channel, bytes(memoryview(buffer)[start + _SIZE : end])
            start = end
        if start:
            del buffer[:start]

    def _check(self, length: int) -> None:
        if length > self._limit:
            raise TooLarge(f"a frame of {length} bytes is above the limit of {self._limit} bytes (--max-payload)")
