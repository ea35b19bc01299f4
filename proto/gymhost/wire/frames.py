"""Frames on byte streams: a length of four bytes, little-endian, then a serialized InteractRequest or InteractResponse.

gRPC frames its messages itself; Unix and TCP sockets use what is here. The same messages travel on all of them.
"""

import struct
from collections.abc import Iterator

from gymhost.wire.errors import TooLarge

__all__ = ["FrameReader", "pack"]

_LENGTH = struct.Struct("<I")


def pack(message: bytes) -> bytes:
    """Puts the length before a serialized message."""
    return _LENGTH.pack(len(message)) + message


class FrameReader:
    """Cuts what arrives on a socket into messages.

    Args:
        limit: The largest message that is taken, in bytes.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Takes what arrived and yields each message that is now whole.

        Raises:
            TooLarge: A message is above the limit. The stream can't be read on after this.
        """
        if not self._buffer:
            # The common case: one whole frame in one read, without a copy into the buffer.
            if len(data) >= 4:
                end = 4 + _LENGTH.unpack_from(data)[0]
                if end == len(data):
                    self._check(end - 4)
                    yield data[4:]
                    return
        buffer = self._buffer
        buffer += data
        start = 0
        have = len(buffer)
        while have - start >= 4:
            length: int = _LENGTH.unpack_from(buffer, start)[0]
            self._check(length)
            if have - start - 4 < length:
                break
            yield bytes(memoryview(buffer)[start + 4 : start + 4 + length])
            start += 4 + length
        if start:
            del buffer[:start]

    def _check(self, length: int) -> None:
        if length > self._limit:
            raise TooLarge(f"a frame of {length} bytes is above the limit of {self._limit} bytes (--max-payload)")
