"""Frames on byte streams: a length and a channel, each of four bytes, little-endian, then a serialized message.

The messages are those of the gRPC stream, InteractRequest and InteractResponse; gRPC frames its messages itself, Unix
and TCP sockets use what is here. The channel tells frames for different peers behind one socket apart: on the link
between a front and a worker it is the number of the client's stream, so that the front passes replies on unopened. It
is 0 for the peer itself.
"""

import socket
import struct
from collections.abc import Iterator

from gymhost.wire.errors import TooLarge

__all__ = ["FrameReader", "SocketFrames", "pack"]

_HEADER = struct.Struct("<II")
_SIZE = _HEADER.size

# What one read takes at most; larger messages are read to where they belong.
_READ_SIZE = 64 * 1024


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


class SocketFrames:
    """Frames of channel 0 on a blocking socket, for a thread that waits for each.

    Args:
        end: The socket.
        limit: The largest message that is taken, in bytes.
    """

    __slots__ = ("_buffer", "_have", "_limit", "_view", "end")

    def __init__(self, end: socket.socket, limit: int) -> None:
        self.end = end
        self._limit = limit
        self._buffer = bytearray(_READ_SIZE)
        self._view = memoryview(self._buffer)
        # How much of a frame that is not whole yet is at the buffer's beginning.
        self._have = 0

    def read(self) -> bytes | None:
        """Waits for a message; None at the end of the socket.

        Raises:
            OSError: The socket broke, or its timeout ran out.
            TooLarge: The message is above the limit. The socket can't be read on after this.
        """
        view, have = self._view, self._have
        receive = self.end.recv_into
        while have < _SIZE:
            got = receive(view[have:])
            if not got:
                return None
            have += got
        length, _ = _HEADER.unpack_from(self._buffer)
        if length > self._limit:
            raise TooLarge(f"a frame of {length} bytes is above the limit of {self._limit} bytes (--max-payload)")
        end = _SIZE + length
        if end > _READ_SIZE:
            return self._read_large(have, length)
        while have < end:
            got = receive(view[have:])
            if not got:
                return None
            have += got
        message = bytes(view[_SIZE:end])
        self._have = have - end
        if have > end:
            view[: have - end] = view[end:have]
        return message

    def _read_large(self, have: int, length: int) -> bytes | None:
        message = bytearray(length)
        whole = memoryview(message)
        done = have - _SIZE
        whole[:done] = self._view[_SIZE:have]
        while done < length:
            got = self.end.recv_into(whole[done:])
            if not got:
                return None
            done += got
        self._have = 0
        return bytes(message)

    def write(self, message: bytes) -> None:
        """Sends a message.

        Raises:
            OSError: The socket broke, or its timeout ran out.
        """
        self.end.sendall(pack(message))
