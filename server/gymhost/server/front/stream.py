"""The Interact stream: frames of commands in, frames of replies out."""

import asyncio
import itertools
import logging
import secrets
from collections.abc import Iterator
from typing import Any

import grpc.aio

from gymhost.server import link
from gymhost.server.config import ServerConfig
from gymhost.server.front.sessions import Session, SessionTable
from gymhost.server.front.workers import Worker
from gymhost.v1 import environments_pb2 as pb
from gymhost.wire import errors, limits

log = logging.getLogger("gymhost.server")

# A frame above this has a single large reply in it.
LARGE = limits.FRAME_BYTES + limits.ENVELOPE

# Of these the front reads the envelope alone.
FIRST, LAST, CANCEL = pb.COMMAND_KIND_RESET, pb.COMMAND_KIND_EVALUATE, pb.COMMAND_KIND_CANCEL

# Frames go out as bytes, as they come from the workers.
Context = grpc.aio.ServicerContext[pb.InteractRequest, bytes]

_channels = itertools.count(1)


class Stream:
    """One Interact call: the lanes that are attached to it, and the replies that wait to be written.

    Attributes:
        id: What a bulk stream names this one by.
        channel: What workers name it by.
        identity: Who opened it.
        heard: When a command last came, by the loop's clock.
    """

    def __init__(self, identity: str, table: SessionTable) -> None:
        self.id = secrets.token_hex(16)
        self.channel = next(_channels)
        self.identity = identity
        self.heard = asyncio.get_running_loop().time()
        # Which worker has the lane of a command: all that the way of a step needs to know.
        self.lanes: dict[int, Worker] = {}
        self.bulk: Stream | None = None
        self._table = table
        self._workers: set[Worker] = set()
        # Serialized frames; those that follow each other in one message are merged by whoever parses it.
        self._frames: list[bytes] = []
        self._large: list[bytes] = []
        self._queued = 0
        self._wake = asyncio.Event()
        self._cut_off = False

    # -- replies -------------------------------------------------------------------------------------------------------

    def put_frame(self, frame: bytes) -> None:
        """Queues a frame of replies; a large one for the bulk stream."""
        size = len(frame)
        if self._queued and self._queued + size > limits.MAX_QUEUED:
            self._cut_off = True
        elif size <= LARGE:
            self._queued += size
            self._frames.append(frame)
        elif self.bulk is not None:
            self.bulk.put_here(frame)
        else:
            self._queued += size
            if not self._large:
                self._frames.append(_frame(pb.Reply(code=pb.REPLY_CODE_WANT_BULK)))
            self._large.append(frame)
        self._wake.set()

    def put_here(self, frame: bytes) -> None:
        """Queues a frame on this very stream, whatever its size."""
        if self._queued and self._queued + len(frame) > limits.MAX_QUEUED:
            self._cut_off = True
        else:
            self._queued += len(frame)
            self._frames.append(frame)
        self._wake.set()

    def set_bulk(self, bulk: "Stream") -> None:
        """Sends large frames there from now on, those that wait first."""
        self.bulk = bulk
        waiting, self._large = self._large, []
        for frame in waiting:
            self._queued -= len(frame)
            bulk.put_here(frame)

    def answer(self, number: int, payload: bytes) -> None:
        """Queues the reply to a command that is not numbered on a lane."""
        self.put_frame(_frame(pb.Reply(sequence=number, payload=payload)))

    def fail(self, lane: int, number: int, error: BaseException) -> None:
        """Queues a failure."""
        code, message = errors.to_wire(error)
        reply = pb.Reply(lane=lane, sequence=number, code=code, payload=message.SerializeToString())  # pyright: ignore[reportArgumentType]
        self.put_frame(_frame(reply))

    def notice(self, lane: int, error: errors.Error) -> None:
        """Queues what is told about a lane without a command: it is no longer this stream's."""
        self.lanes.pop(lane, None)
        self.fail(lane, 0, error)

    async def write(self, context: Context) -> None:
        """Writes what is queued, until cancelled.

        Raises:
            TooLarge: The client reads too slowly; it is cut off, and loses nothing: replies are kept by the workers.
        """
        wake = self._wake
        while True:
            await wake.wait()
            wake.clear()
            if self._cut_off:
                raise errors.TooLarge(
                    f"more than {limits.MAX_QUEUED} bytes of replies wait for this client: it reads too slowly and is "
                    "cut off"
                )
            frames, self._frames = self._frames, []
            if len(frames) == 1:
                message = frames[0]
                await context.write(message)
                self._queued -= len(message)
            else:
                for message in _merged(frames):
                    await context.write(message)
                    self._queued -= len(message)

    # -- lanes ---------------------------------------------------------------------------------------------------------

    def attach(self, session: Session) -> None:
        """Makes this the stream of a session."""
        self._table.attach(session, self)
        self.lanes[session.lane] = session.worker
        session.worker.channels[self.channel] = self
        self._workers.add(session.worker)

    def detach_all(self) -> None:
        """Lets go of all lanes; their sessions live on as long as their leases."""
        for lane in list(self.lanes):
            session = self._table.on_lane(lane)
            if session is not None:
                self._table.detach(session, self)
        self.lanes.clear()
        for worker in self._workers:
            worker.forget_channel(self.channel)


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


class Streams:
    """Serves Interact.

    Args:
        config: The server's settings.
        table: The sessions.
        instance: Names this run of the server.
        direct: Where clients on the same host find the workers.
    """

    def __init__(self, config: ServerConfig, table: SessionTable, instance: str, direct: pb.DirectPath) -> None:
        self._config = config
        self._direct = direct
        self._table = table
        self._instance = instance
        self._streams: dict[str, Stream] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    async def serve(self, identity: str, context: Context) -> None:
        """Serves one stream until either side ends it.

        Raises:
            Error: What to end the call with.
        """
        stream = Stream(identity, self._table)
        frame = await self._read(context)
        if frame is None:
            return
        if not frame.commands or frame.commands[0].kind != pb.COMMAND_KIND_HELLO:
            raise errors.InvalidArgument("the first command of a stream must be HELLO")
        hello = pb.Hello.FromString(frame.commands[0].payload)
        self._streams[stream.id] = stream
        main = stream
        if hello.bulk_of:
            found = self._streams.get(hello.bulk_of)
            if found is None or found.identity != identity:
                raise errors.InvalidArgument("bulk_of names no stream of this caller")
            main = found
        self._welcome(stream, frame.commands[0].sequence)
        del frame.commands[0]
        if main is not stream:
            main.set_bulk(stream)
        tasks = [
            asyncio.ensure_future(self._take_all(main, stream, frame, context)),
            asyncio.ensure_future(stream.write(context)),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            del self._streams[stream.id]
            if main is stream:
                stream.detach_all()
            elif main.bulk is stream:
                main.bulk = None

    async def settle(self, limit: float) -> bool:
        """Waits until no command is running, at most for a time; returns whether none is."""
        busy = list(self._table.by_id.values())
        try:
            async with asyncio.timeout(limit):
                await asyncio.gather(*(self._until_idle(session) for session in busy))
        except TimeoutError:
            log.info("commands were still running after %g s (--grace)", limit)
            return False
        return True

    async def _until_idle(self, session: Session) -> None:
        try:
            # A worker says whether a command runs when it is asked, and never by itself.
            while pb.SessionInfo.FromString(await session.worker.request(link.INFO, session.lane, b"")).busy:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        except errors.Error:
            pass  # it has ended

    def close_all(self, error: errors.Error) -> None:
        """Tells every stream about every lane of it."""
        for stream in self._streams.values():
            for lane in list(stream.lanes):
                stream.notice(lane, error)

    # -- the way of a step ---------------------------------------------------------------------------------------------

    async def _take_all(self, stream: Stream, own: Stream, frame: pb.InteractRequest | None, context: Context) -> None:
        """Takes frames of commands; those of a bulk stream count as its main stream's."""
        loop = asyncio.get_running_loop()
        lanes, channel = stream.lanes, stream.channel
        while frame is not None:
            stream.heard = own.heard = loop.time()
            batches: dict[Worker, pb.InteractRequest] = {}
            for command in frame.commands:
                worker = lanes.get(command.lane)
                kind = command.kind
                if worker is not None and (FIRST <= kind <= LAST or kind == CANCEL):
                    batch = batches.get(worker)
                    if batch is None:
                        batch = batches[worker] = pb.InteractRequest()
                    batch.commands.append(command)
                else:
                    self._control(stream, command)
            for worker, batch in batches.items():
                worker.send(batch, channel)
            frame = await self._read(context)

    async def _read(self, context: Context) -> pb.InteractRequest | None:
        frame: Any = await context.read()
        return None if frame is grpc.aio.EOF else frame

    # -- commands to the server itself ---------------------------------------------------------------------------------

    def _control(self, stream: Stream, command: pb.Command) -> None:
        kind, number, lane = command.kind, command.sequence, command.lane
        try:
            if kind == pb.COMMAND_KIND_HEARTBEAT:
                stream.answer(number, b"")
            elif kind == pb.COMMAND_KIND_CREATE:
                request = pb.CreateSessionRequest.FromString(command.payload)
                limit = command.time_left_ms / 1000 or self._config.queue_timeout
                self._run(stream, number, self._create(stream, number, request, limit))
            elif kind == pb.COMMAND_KIND_ATTACH:
                session = self._table.find(pb.Attach.FromString(command.payload).session_id, stream.identity)
                stream.attach(session)
                self._run(stream, number, self._attached(stream, number, session))
            elif kind == pb.COMMAND_KIND_CLOSE and lane in stream.lanes:
                session = self._table.on_lane(lane)
                del stream.lanes[lane]
                if session is not None:
                    self._run(stream, number, self._close(stream, number, session))
            elif kind == pb.COMMAND_KIND_CLOSE:
                stream.answer(number, b"")  # ended before: closing twice is no error
            elif kind == pb.COMMAND_KIND_CANCEL:
                pass  # what it was to cancel has ended
            else:
                self._refuse(stream, command)
        except Exception as error:  # noqa: BLE001 - one bad command must not end the stream
            stream.fail(0, number, as_error(error))

    def _refuse(self, stream: Stream, command: pb.Command) -> None:
        """Answers a command for a lane that is not this stream's, or of a kind that is not known."""
        kind = command.kind
        if kind in pb.CommandKind.values() and command.lane:
            error: errors.Error = self._table.end_of(command.lane, stream.identity) or errors.UnknownSession(
                "this lane is not attached to the stream: attach its session first"
            )
        else:
            error = errors.Unimplemented(f"this server does not know commands of kind {kind} on lane {command.lane}")
        stream.fail(command.lane, command.sequence, error)

    def _welcome(self, stream: Stream, number: int) -> None:
        welcome = pb.Welcome(
            protocol_minor=limits.PROTOCOL_MINOR,
            server_instance=self._instance,
            stream_id=stream.id,
            max_payload_bytes=self._config.max_payload,
            lease_ms=round(self._config.lease * 1000),
            heartbeat_ms=round(self._config.heartbeat * 1000),
            direct=self._direct,
            workers=self._config.worker_count,
        )
        stream.answer(number, welcome.SerializeToString())

    async def _create(self, stream: Stream, number: int, request: pb.CreateSessionRequest, limit: float) -> None:
        session, response = await self._table.create(stream.identity, request, limit)
        if session.id in self._table.by_id and stream.id in self._streams:
            stream.attach(session)
        stream.answer(number, response)

    async def _attached(self, stream: Stream, number: int, session: Session) -> None:
        stream.answer(number, await session.worker.request(link.LAST_SEQUENCES, session.lane, b""))

    async def _close(self, stream: Stream, number: int, session: Session) -> None:
        try:
            await self._table.close(session, by=stream)
        finally:
            # A close that raised is in the log; for the client the session is closed.
            stream.answer(number, b"")

    def _run(self, stream: Stream, number: int, work: Any) -> None:
        async def guarded() -> None:
            try:
                await work
            except Exception as error:  # noqa: BLE001 - one bad command must not end the stream
                stream.fail(0, number, as_error(error))

        task = asyncio.get_running_loop().create_task(guarded())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def as_error(error: Exception) -> errors.Error:
    """What an exception in the front is told as; a fault of the front's own goes to the log."""
    if isinstance(error, errors.Error):
        return error
    if type(error).__name__ == "DecodeError":
        return errors.DecodeError(f"the payload is no message of its kind: {error}")
    log.exception("a fault of the server", exc_info=error)
    return errors.ServerFault(f"{type(error).__name__}: {error}")
