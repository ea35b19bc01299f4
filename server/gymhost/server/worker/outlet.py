"""Where the replies of a worker go: a channel of the front's link, or the socket of a client on the same host."""

import asyncio
import contextlib
import os
import socket
import threading
from typing import TYPE_CHECKING

from gymhost.server.worker.failure import failure
from gymhost.v1 import environments_pb2 as pb
from gymhost.wire.frames import pack
from gymhost.wire.limits import FRAME_BYTES, FRAME_ITEMS

if TYPE_CHECKING:
    from gymhost.server.worker.host import Host


# What the kernel takes of a frame as a whole, or not at all.
_ATOMIC = 16 * 1024


class Writer:
    """Writes frames to a socket that an event loop serves; small ones from other threads too.

    Args:
        transport: The socket.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._lock = threading.Lock()
        self._socket = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))

    def write(self, data: bytes) -> None:
        """Writes a frame, on the event loop; for a peer that is gone it does nothing."""
        with self._lock:
            if not self._transport.is_closing():
                self._transport.write(data)

    def write_now(self, data: bytes) -> bool:
        """Writes a frame from any thread; False where that is left to the event loop."""
        if len(data) > _ATOMIC:
            return False
        with self._lock:
            if self._transport.is_closing() or self._transport.get_write_buffer_size():
                return False
            with contextlib.suppress(OSError):  # it is full, or gone
                return self._socket.send(data, socket.MSG_DONTWAIT) == len(data)
            return False

    def close(self) -> None:
        """Lets go of the socket."""
        with self._lock:
            self._transport.close()
            self._socket.close()


class Outlet:
    """Collects replies; what is collected in one turn of the loop leaves in one frame. On the event loop only.

    Args:
        host: The worker.
        writer: The socket.
        channel: The channel of its frames.
    """

    __slots__ = ("_channel", "_host", "_queue", "_writer")

    def __init__(self, host: "Host", writer: Writer, channel: int) -> None:
        self._host = host
        self._writer = writer
        self._channel = channel
        self._queue: list[tuple[int, int, int, bytes]] = []

    def send(self, lane: int, sequence: int, code: int, payload: bytes) -> None:
        """Queues a reply."""
        queue = self._queue
        if not queue:
            self._host.flush_later(self)
        queue.append((lane, sequence, code, payload))

    def send_now(self, lane: int, sequence: int, code: int, payload: bytes) -> bool:
        """Sends a reply from any thread; False where that is left to the event loop."""
        if self._queue:
            return False
        response = pb.InteractResponse()
        response.replies.add(lane=lane, sequence=sequence, code=code, payload=payload)  # pyright: ignore[reportArgumentType]
        return self._writer.write_now(pack(response.SerializeToString(), self._channel))

    def send_error(self, lane: int, sequence: int, error: BaseException) -> None:
        """Queues a failure."""
        self.send(lane, sequence, *failure(error))

    def flush(self) -> None:
        """Sends what is queued; what is for a peer that is gone is dropped, the sessions keep their last replies."""
        queue, self._queue = self._queue, []
        write = self._writer.write
        frame = pb.InteractResponse()
        add = frame.replies.add
        items = size = 0
        for lane, sequence, code, payload in queue:
            length = len(payload)
            if items and (items == FRAME_ITEMS or size + length > FRAME_BYTES):
                write(pack(frame.SerializeToString(), self._channel))
                frame = pb.InteractResponse()
                add = frame.replies.add
                items = size = 0
            add(lane=lane, sequence=sequence, code=code, payload=payload)  # pyright: ignore[reportArgumentType]
            items += 1
            size += length
        write(pack(frame.SerializeToString(), self._channel))
