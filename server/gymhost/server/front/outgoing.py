"""Replies that wait to be written to a stream, and what becomes of a client that does not read them."""

import asyncio
import logging
from collections.abc import Iterator

import grpc.aio

from gymhost.server.front.backlog import Backlog
from gymhost.v1 import environments_pb2 as pb
from gymhost.wire import errors, limits

log = logging.getLogger("gymhost.server")

# Frames go out as bytes, as they come from the workers.
Context = grpc.aio.ServicerContext[pb.InteractRequest, bytes]

# A frame above this has a single large reply in it.
LARGE = limits.FRAME_BYTES + limits.ENVELOPE

# Seconds without any progress after which a client reads too slowly for whom too much waits. One that reads as fast as
# its line allows may have much more waiting for a moment, as when many large replies come at once.
STALL = 20.0


class Outgoing:
    """The replies of one stream.

    Args:
        identity: Whose stream it is.
        backlog: What waits for all streams together.

    Attributes:
        identity: The name that its sessions belong to.
        cut: Set to what the stream is ended with.
        bulk: Where large frames go.
        queued: How many bytes of replies wait to be written.
    """

    def __init__(self, identity: str, backlog: Backlog) -> None:
        self.identity = identity
        self.cut: asyncio.Future[errors.Error] = asyncio.get_running_loop().create_future()
        self.bulk: Outgoing | None = None
        self.queued = 0
        # Serialized frames; those that follow each other in one message are merged by whoever parses it.
        self._frames: list[bytes] = []
        self._large: list[bytes] = []
        self._wake = asyncio.Event()
        self._closed = False
        # When something was last written, or began to wait; and what looks whether that is too long ago.
        self._moved = 0.0
        self._looking: asyncio.TimerHandle | None = None
        self._backlog = backlog
        backlog.readers.add(self)

    def put_frame(self, frame: bytes) -> None:
        """Queues a frame of replies; a large one for the bulk stream."""
        if len(frame) <= LARGE:
            self.put_here(frame)
        elif self.bulk is not None:
            self.bulk.put_here(frame)
        else:
            if not self._large:
                self.put_here(_frame(pb.Reply(code=pb.REPLY_CODE_WANT_BULK)))
            if self._takes(len(frame)):
                self._large.append(frame)

    def put_here(self, frame: bytes) -> None:
        """Queues a frame on this very stream, whatever its size."""
        if self._takes(len(frame)):
            self._frames.append(frame)
            self._wake.set()

    def _takes(self, size: int) -> bool:
        """Counts what is about to be queued; False where the stream takes no more."""
        if not self.queued:
            if self._closed:
                return False
            self._moved = asyncio.get_running_loop().time()
        self.queued += size
        backlog = self._backlog
        backlog.size += size
        if self.queued > limits.MAX_QUEUED and self._looking is None:
            self._look()
        if backlog.size > backlog.most:
            backlog.relieve()
        return not self._closed

    def _look(self) -> None:
        """Cuts the stream off where too much waits and nothing moves; looks again later where something does."""
        self._looking = None
        loop = asyncio.get_running_loop()
        if self.queued > limits.MAX_QUEUED:
            if loop.time() - self._moved >= STALL:
                self.cut_off()
            else:
                self._looking = loop.call_at(self._moved + STALL, self._look)

    def cut_off(self) -> None:
        """Ends the stream, since its client reads too slowly. It loses nothing: workers keep the last replies."""
        if not self.cut.done():
            about = {"identity": self.identity}
            log.info("a stream of %s is cut off: its client reads too slowly", self.identity, extra=about)
            self.cut.set_result(
                errors.TooLarge(
                    f"{self.queued} bytes of replies wait for this client: it reads too slowly and is cut off"
                )
            )
        self.close()

    def close(self) -> None:
        """Drops what is queued, and takes no more."""
        self._closed = True
        self._backlog.readers.discard(self)
        self._backlog.size -= self.queued
        self.queued = 0
        self._frames = []
        self._large = []
        if self._looking is not None:
            self._looking.cancel()

    def set_bulk(self, bulk: "Outgoing") -> None:
        """Sends large frames there from now on, those that wait first."""
        if self.bulk is not None and not self.bulk.cut.done():
            self.bulk.cut.set_result(errors.Detached("another bulk stream has taken the place of this one"))
        self.bulk = bulk
        waiting, self._large = self._large, []
        for frame in waiting:
            self._leaves(len(frame))
            bulk.put_here(frame)

    def _leaves(self, size: int) -> None:
        if not self._closed:
            self.queued -= size
            self._backlog.size -= size
            self._moved = asyncio.get_running_loop().time()

    def answer(self, number: int, payload: bytes) -> None:
        """Queues the reply to a command that is not numbered on a lane."""
        self.put_frame(_frame(pb.Reply(sequence=number, payload=payload)))

    def fail(self, lane: int, number: int, error: BaseException) -> None:
        """Queues a failure."""
        code, message = errors.to_wire(error)
        reply = pb.Reply(lane=lane, sequence=number, code=code, payload=message.SerializeToString())  # pyright: ignore[reportArgumentType]
        self.put_frame(_frame(reply))

    async def write(self, context: Context) -> None:
        """Writes what is queued, until cancelled."""
        wake = self._wake
        while True:
            await wake.wait()
            wake.clear()
            frames, self._frames = self._frames, []
            if len(frames) == 1:
                message = frames[0]
                await context.write(message)
                self._leaves(len(message))
            else:
                for message in _merged(frames):
                    await context.write(message)
                    self._leaves(len(message))


def _frame(reply: pb.Reply) -> bytes:
    return pb.InteractResponse(replies=[reply]).SerializeToString()


def _merged(frames: list[bytes]) -> Iterator[bytes]:
    """Joins frames to messages of at most the size of a frame; only a larger one stays as it is."""
    parts: list[bytes] = []
    size = 0
    for frame in frames:
        if parts and size + len(frame) > LARGE:
            yield b"".join(parts)
            parts = []
            size = 0
        parts.append(frame)
        size += len(frame)
    if parts:
        yield b"".join(parts)
