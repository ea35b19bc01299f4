"""Where the replies of a worker go: a channel of the front's link, or the socket of a client on the same host."""

import asyncio
from typing import TYPE_CHECKING

from gymhost.server.worker.failure import failure
from gymhost.v1 import environments_pb2 as pb
from gymhost.wire.frames import pack
from gymhost.wire.limits import FRAME_BYTES, FRAME_ITEMS

if TYPE_CHECKING:
    from gymhost.server.worker.host import Host


class Outlet:
    """Collects replies; what is collected in one turn of the loop leaves in one frame. On the event loop only.

    Args:
        host: The worker.
        transport: The socket.
        channel: The channel of its frames.
    """

    __slots__ = ("_channel", "_host", "_queue", "_transport")

    def __init__(self, host: "Host", transport: asyncio.Transport, channel: int) -> None:
        self._host = host
        self._transport = transport
        self._channel = channel
        self._queue: list[tuple[int, int, int, bytes]] = []

    def send(self, lane: int, sequence: int, code: int, payload: bytes) -> None:
        """Queues a reply."""
        queue = self._queue
        if not queue:
            self._host.flush_later(self)
        queue.append((lane, sequence, code, payload))

    def send_error(self, lane: int, sequence: int, error: BaseException) -> None:
        """Queues a failure."""
        self.send(lane, sequence, *failure(error))

    def flush(self) -> None:
        """Sends what is queued; what is for a peer that is gone is dropped, the sessions keep their last replies."""
        queue, self._queue = self._queue, []
        if self._transport.is_closing():
            return
        frame = pb.InteractResponse()
        add = frame.replies.add
        items = size = 0
        for lane, sequence, code, payload in queue:
            length = len(payload)
            if items and (items == FRAME_ITEMS or size + length > FRAME_BYTES):
                self._transport.write(pack(frame.SerializeToString(), self._channel))
                frame = pb.InteractResponse()
                add = frame.replies.add
                items = size = 0
            add(lane=lane, sequence=sequence, code=code, payload=payload)  # pyright: ignore[reportArgumentType]
            items += 1
            size += length
        self._transport.write(pack(frame.SerializeToString(), self._channel))
