"""The streams of a process in a container, over a connection that the engine hands over.

Docker answers a request to attach, or to start a process, by handing over the connection: what is written to it is the
process's standard input, and what it writes comes back in frames of a stream's number, a size and as many bytes. No
clock runs on such a connection, so a command may be silent for as long as it likes.
"""

import asyncio
import contextlib
import json
import select
import socket
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from gymhost.envs.sandbox.backend import Stream, StreamEnded, Take

__all__ = ["AttachedStream", "Frames", "Refused", "hand_over"]

_HEADER = 8
_CHUNK = 2**18
_LONGEST_ANSWER = 2**16


class Frames:
    """Takes apart what comes from a process: frames may come in any pieces, and each piece is given at once."""

    def __init__(self) -> None:
        self._header = bytearray()
        self._stream = 1
        self._left = 0

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Yields the number of the stream and the bytes of each frame, or part of one, that is in `data`."""
        at = 0
        while at < len(data):
            if self._left:
                piece = data[at : at + self._left]
                at += len(piece)
                self._left -= len(piece)
                yield self._stream, piece
                continue
            missing = data[at : at + _HEADER - len(self._header)]
            at += len(missing)
            self._header += missing
            if len(self._header) == _HEADER:
                self._stream = self._header[0]
                self._left = int.from_bytes(self._header[4:], "big")
                self._header.clear()


class AttachedStream(Stream):
    """The standard streams of a process over such a connection.

    Args:
        connection: The connection, which is the stream's from now on.
        early: What came over it already.
    """

    def __init__(self, connection: socket.socket, early: bytes = b"") -> None:
        connection.setblocking(False)
        self._socket = connection
        self._frames = Frames()
        # What comes after the end of an exchange belongs to the next one.
        self._waiting = deque(self._frames.feed(early))
        self._lock = threading.Lock()
        self._busy = False
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether this end was closed."""
        return self._closed

    @property
    def ended(self) -> bool:
        """Whether it was closed, or the other end is gone, as far as this one can see."""
        with self._lock:
            if self._closed:
                return True
            poll = select.poll()
            poll.register(self._socket, select.POLLRDHUP)
            return bool(poll.poll(0))

    async def exchange(self, data: bytes, take: Take) -> None:
        """Sends bytes and takes what comes until `take` has all; see `Stream.exchange`."""
        with self._lock:
            if self._closed:
                raise StreamEnded("the stream was closed")
            self._busy = True
        try:
            await self._exchange(memoryview(data), take)
        finally:
            with self._lock:
                self._busy = False
                if self._closed:
                    self._socket.close()

    async def _exchange(self, rest: memoryview, take: Take) -> None:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def write() -> None:
            nonlocal rest
            try:
                rest = rest[self._socket.send(rest) :]
            except BlockingIOError:
                return
            except OSError:
                # The other end is gone. What it wrote before is still to be read, and then the end shows.
                rest = rest[len(rest) :]
            if not rest:
                loop.remove_writer(self._socket)

        def read() -> None:
            try:
                data = self._socket.recv(_CHUNK)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if data:
                self._waiting.extend(self._frames.feed(data))
                give()
            elif not done.done():
                done.set_exception(StreamEnded("the process is gone, or the engine is"))

        def give() -> None:
            try:
                while self._waiting and not done.done():
                    if take(*self._waiting.popleft()):
                        done.set_result(None)
            except Exception as error:  # noqa: BLE001 - it is the caller's, and goes to the caller
                done.set_exception(error)

        loop.add_reader(self._socket, read)
        try:
            write()
            if rest:
                loop.add_writer(self._socket, write)
            give()
            await done
        finally:
            loop.remove_reader(self._socket)
            loop.remove_writer(self._socket)

    def close(self) -> None:
        """Closes the connection; the engine closes the process's standard input then."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            # This wakes an exchange that waits, in whatever thread; the descriptor is closed when it is done.
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            if not self._busy:
                self._socket.close()


class Refused(Exception):
    """The engine did not hand the connection over.

    Attributes:
        status: The status of its answer; 0 where it gave none.
        message: What it said.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def hand_over(base_url: str, path: str, body: Mapping[str, Any] | None, timeout: float) -> AttachedStream:
    """Asks the engine for something that ends with the connection handed over; blocks.

    Args:
        base_url: Where the engine listens: `unix://PATH` or `tcp://HOST:PORT`.
        path: The path and the query of the request.
        body: What is sent with it, as JSON.
        timeout: Seconds for each wait until the connection is handed over; none after that.

    Raises:
        Refused: The engine said no.
        OSError: It can't be reached, or does not answer in time.
    """
    content = b"" if body is None else json.dumps(body).encode()
    request = (
        f"POST {path} HTTP/1.1\r\nHost: docker\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    connection = _connect(base_url, timeout)
    try:
        connection.sendall(request.encode() + content)
        answer = bytearray()
        while b"\r\n\r\n" not in answer:
            piece = connection.recv(_CHUNK)
            answer += piece
            if not piece or len(answer) > _LONGEST_ANSWER:
                raise Refused(0, "the engine's answer can't be read")
        head, _, early = bytes(answer).partition(b"\r\n\r\n")
        status = int(head.split(None, 2)[1])
        # An engine of old answers 200 where others say that they switch protocols.
        if status not in (101, 200):
            raise Refused(status, _message(early, connection))
        return AttachedStream(connection, early)
    except BaseException:
        connection.close()
        raise


def _connect(base_url: str, timeout: float) -> socket.socket:
    url = urlsplit(base_url)
    if url.scheme == "tcp":
        connection = socket.create_connection((url.hostname or "127.0.0.1", url.port or 2375), timeout)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A command may be silent for long, and what lies between is to see that it is still there.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return connection
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout)
        connection.connect(url.path)
    except BaseException:
        connection.close()
        raise
    return connection


def _message(start: bytes, connection: socket.socket) -> str:
    """Returns what an answer that is no hand-over says; its body is JSON, at times in chunks."""
    body = bytearray(start)
    with contextlib.suppress(OSError):
        while b"}" not in body and len(body) < _LONGEST_ANSWER and (piece := connection.recv(_CHUNK)):
            body += piece
    text = bytes(body[body.find(b"{") : body.rfind(b"}") + 1])
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace").strip()
