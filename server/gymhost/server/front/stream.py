"""The Interact stream: frames of commands in, frames of replies out."""

import asyncio
import collections
import contextlib
import itertools
import logging
import math
import secrets
import weakref
from collections.abc import Awaitable, Coroutine, Generator
from typing import Any

import grpc.aio

from gymhost.server import link
from gymhost.server.calls import as_error
from gymhost.server.config import ServerConfig
from gymhost.server.front.backlog import Backlog
from gymhost.server.front.congestion import until_admitted
from gymhost.server.front.forks import Fork, Forks
from gymhost.server.front.outgoing import Context, Outgoing
from gymhost.server.front.sessions import Session, SessionTable
from gymhost.server.front.workers import Worker
from gymhost.server.identity import Caller, Identities
from gymhost.v1 import environments_pb2 as pb
from gymhost.wire import errors, fields, limits
from gymhost.wire.words import counted

log = logging.getLogger("gymhost.server")

# Of these the front reads the envelope alone.
FIRST, LAST, CANCEL = pb.COMMAND_KIND_RESET, pb.COMMAND_KIND_EVALUATE, pb.COMMAND_KIND_CANCEL

# Seconds for the first command of a stream.
HELLO_LIMIT = 5.0
# What a client is told to wait whose streams are too many.
RETRY_SECONDS = 5.0
# The most streams of all clients together.
MAX_STREAMS = 32_768
# The most commands to the server itself that one stream may have unanswered; and the most attaches, before it is heard
# no further until there are fewer.
MAX_ASKED = 65_536
MAX_ATTACHING = 1024

_channels = itertools.count(1)


class Stream(Outgoing):
    """One Interact call: the lanes that are attached to it, and the replies that wait to be written.

    Attributes:
        id: What a bulk stream names this one by.
        channel: What workers name it by.
        caller: Who opened it.
        is_bulk: It is another one's bulk stream.
        asked: How many commands to the server itself are not answered yet, and how many of them are attaches.
        heard: When a command last came, by the loop's clock.
    """

    def __init__(self, caller: Caller, table: SessionTable, backlog: Backlog) -> None:
        super().__init__(caller.identity, backlog)
        self.id = secrets.token_hex(16)
        self.channel = next(_channels)
        self.caller = caller
        self.heard = asyncio.get_running_loop().time()
        self.is_bulk = False
        self.asked = 0
        self.attaching = 0
        self.attached = asyncio.Event()
        # Creates that are not answered; nobody waits for them any more when the stream ends.
        self.creates: set[asyncio.Task[None]] = set()
        # Which worker has the lane of a command: all that the way of a step needs to know.
        self.lanes: dict[int, Worker] = {}
        self._table = table
        # Those that are gone drop out by themselves.
        self._workers: weakref.WeakSet[Worker] = weakref.WeakSet()

    def notice(self, lane: int, error: errors.Error) -> None:
        """Queues what is told about a lane without a command: it is no longer this stream's."""
        self.lanes.pop(lane, None)
        self.fail(lane, 0, error)

    # -- lanes ---------------------------------------------------------------------------------------------------------

    def attach(self, session: Session) -> None:
        """Makes this the stream of a session."""
        self._table.attach(session, self)
        self.lanes[session.lane] = session.worker
        session.worker.channels[self.channel] = self
        self._workers.add(session.worker)

    async def until_attached(self) -> None:
        """Waits until not too many attaches are unanswered; the workers answer them in time, or die."""
        while self.attaching > MAX_ATTACHING:
            self.attached.clear()
            await self.attached.wait()

    def detach_all(self) -> None:
        """Lets go of all lanes; their sessions live on as long as their leases."""
        for lane in list(self.lanes):
            session = self._table.on_lane(lane)
            if session is not None:
                self._table.detach(session, self)
        self.lanes.clear()
        for worker in self._workers:
            worker.forget_channel(self.channel)


class Streams:
    """Serves Interact.

    Args:
        config: The server's settings.
        table: The sessions.
        instance: Names this run of the server.
        direct: Where clients on the same host find the workers.

    Attributes:
        forks: The forks of sessions.
        instance: Names this run of the server.
    """

    def __init__(self, config: ServerConfig, table: SessionTable, instance: str, direct: pb.DirectPath) -> None:
        self.forks = Forks(table, config.queue_timeout)
        self._config = config
        self._direct = direct
        self._table = table
        self.instance = instance
        self._streams: dict[str, Stream] = {}
        self._backlog = Backlog(config.max_payload)
        # Interact calls, those included that are ending; and the streams of each identity, without its bulk streams.
        self._calls = 0
        self._of: collections.Counter[str] = collections.Counter()
        self._tasks: set[asyncio.Task[Any]] = set()

    async def serve(self, caller: Caller, context: Context) -> None:
        """Serves one stream until either side ends it.

        Raises:
            Error: What to end the call with.
        """
        try:
            async with asyncio.timeout(HELLO_LIMIT):
                frame = await self._read(context)
        except TimeoutError:
            raise errors.CommandTimeout(f"no HELLO came within {HELLO_LIMIT:g} s", limit="hello") from None
        if frame is None:
            return
        if not frame.commands or frame.commands[0].kind != pb.COMMAND_KIND_HELLO:
            raise errors.InvalidArgument("the first command of a stream must be HELLO")
        hello = pb.Hello.FromString(frame.commands[0].payload)
        fields.check(hello)
        main: Stream | None = None
        if hello.bulk_of:
            main = self._streams.get(hello.bulk_of)
            if main is None or main.identity != caller.identity or main.is_bulk:
                raise errors.InvalidArgument("bulk_of names no stream of this caller")
        with contextlib.closing(Stream(caller, self._table, self._backlog)) as stream, self._counted(caller, main):
            stream.is_bulk = main is not None
            await self._serve(main or stream, stream, frame, context)

    @contextlib.contextmanager
    def counted(self) -> Generator[errors.CapacityExhausted | None]:
        """Counts an Interact call; yields what to refuse it with where there are too many."""
        self._calls += 1
        try:
            if self._calls <= MAX_STREAMS:
                yield None
            else:
                yield errors.CapacityExhausted(
                    f"the server has {MAX_STREAMS} streams, which is the most; retry after about {RETRY_SECONDS:g} s",
                    retry_after=RETRY_SECONDS,
                )
        finally:
            self._calls -= 1

    @contextlib.contextmanager
    def _counted(self, caller: Caller, main: Stream | None) -> Generator[None]:
        """Counts a stream of a caller; bulk streams are not counted, since each stream has one at most."""
        identity = caller.identity
        quota = self._config.quota("streams", identity)
        if main is not None:
            yield
            return
        if 0 < quota <= self._of[identity]:
            raise errors.CapacityExhausted(
                f"{identity!r} has {counted(self._of[identity], 'stream')}, which is its quota (--quota-streams); "
                f"retry after about {RETRY_SECONDS:g} s",
                retry_after=RETRY_SECONDS,
            )
        self._of[identity] += 1
        try:
            yield
        finally:
            self._of[identity] -= 1
            if not self._of[identity]:
                del self._of[identity]

    async def _serve(self, main: Stream, stream: Stream, frame: pb.InteractRequest, context: Context) -> None:
        # By itself: gRPC can't end a call whose metadata are on their way with the first message.
        await context.send_initial_metadata(())
        self._streams[stream.id] = stream
        self._welcome(stream, frame.commands[0].sequence)
        del frame.commands[0]
        if main is not stream:
            main.set_bulk(stream)
        tasks = [
            asyncio.ensure_future(self._take_all(main, stream, frame, context)),
            asyncio.ensure_future(stream.write(context)),
        ]
        try:
            done, _ = await asyncio.wait([*tasks, stream.cut], return_when=asyncio.FIRST_COMPLETED)
            if stream.cut.done():
                raise stream.cut.result()
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            del self._streams[stream.id]
            for create in stream.creates:
                create.cancel()
            if main is stream:
                stream.detach_all()
                if stream.bulk is not None and not stream.bulk.cut.done():
                    stream.bulk.cut.set_result(errors.Detached("the stream whose bulk stream this is has ended"))
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

    def revoke(self, identities: Identities) -> None:
        """Cuts the streams of callers who are no longer let in; closes the sessions of those who have no token left."""
        for stream in self._streams.values():
            if not identities.is_valid(stream.caller) and not stream.cut.done():
                about = {"identity": stream.identity}
                log.info("a stream of %s is cut: its token was revoked", stream.identity, extra=about)
                stream.cut.set_result(errors.Unauthenticated("the token was revoked on this server"))
        if not identities.revoked:
            return
        why = errors.SessionClosed("the session was closed: its caller's tokens were revoked")
        for session in list(self._table.by_id.values()):
            if session.identity in identities.revoked:
                # Its stream has a word of its own; on the direct path the end of the session is all that there is.
                self._table.end(session, why, tell=not isinstance(session.sink, Stream))

    async def _until_idle(self, session: Session) -> None:
        try:
            # A worker says whether a command runs when it is asked, and never by itself.
            while pb.SessionInfo.FromString(await session.worker.request(link.INFO, session.lane, b"")).busy:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        except errors.Error:
            pass  # it has ended

    @property
    def count(self) -> int:
        """How many streams there are, without bulk streams."""
        return self._of.total()

    def tell_all(self, error: errors.Error) -> None:
        """Tells every client what concerns the server as a whole."""
        for stream in self._streams.values():
            stream.fail(0, 0, error)

    def tell_resumed(self) -> None:
        """Tells every client that the server takes new sessions again."""
        for stream in self._streams.values():
            stream.answer(0, b"")

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
        cancel_fork = self.forks.cancel
        while frame is not None:
            stream.heard = own.heard = loop.time()
            if len(frame.commands) > limits.FRAME_ITEMS:
                raise errors.InvalidArgument(
                    f"a frame of {len(frame.commands)} commands: {limits.FRAME_ITEMS} is the most"
                )
            batches: dict[Worker, pb.InteractRequest] = {}
            for command in frame.commands:
                worker = lanes.get(command.lane)
                kind = command.kind
                if worker is not None and (FIRST <= kind <= LAST or (kind == CANCEL and not cancel_fork(command.lane))):
                    batch = batches.get(worker)
                    if batch is None:
                        batch = batches[worker] = pb.InteractRequest()
                    batch.commands.append(command)
                else:
                    self._control(stream, command)
            for worker, batch in batches.items():
                if worker.congested is not None:
                    await self._hold(stream, until_admitted(worker, channel, batch.ByteSize()))
                worker.send(batch, channel)
            if stream.attaching > MAX_ATTACHING:
                await self._hold(stream, stream.until_attached())
            frame = await self._read(context)

    async def _hold(self, stream: Stream, until: Awaitable[None]) -> None:
        """Hears a stream no further for a while. Its client is not the one that is silent then."""
        stream.heard = math.inf
        try:
            await until
        finally:
            stream.heard = asyncio.get_running_loop().time()

    async def _read(self, context: Context) -> pb.InteractRequest | None:
        frame: Any = await context.read()
        return None if frame is grpc.aio.EOF else frame

    # -- commands to the server itself ---------------------------------------------------------------------------------

    def _control(self, stream: Stream, command: pb.Command) -> None:
        kind, number, lane = command.kind, command.sequence, command.lane
        try:
            stream.caller.check_command(kind)
            if kind == pb.COMMAND_KIND_HEARTBEAT:
                stream.answer(number, b"")
            elif kind == pb.COMMAND_KIND_CREATE:
                request = pb.CreateSessionRequest.FromString(command.payload)
                fields.check(request)
                if stream.asked >= MAX_ASKED:
                    raise _too_many(stream)
                limit = command.time_left_ms / 1000 or self._config.queue_timeout
                create = self._run(stream, number, self._create(stream, number, request, limit))
                stream.creates.add(create)
                create.add_done_callback(stream.creates.discard)
            elif kind == pb.COMMAND_KIND_ATTACH:
                attach = pb.Attach.FromString(command.payload)
                fields.check(attach)
                session = self._table.find(attach.session_id, stream.identity)
                stream.attach(session)
                stream.attaching += 1
                self._run(stream, number, self._attached(stream, number, session))
            elif kind == pb.COMMAND_KIND_CLOSE and lane in stream.lanes:
                session = self._table.on_lane(lane)
                del stream.lanes[lane]
                if session is not None:
                    self._run(stream, number, self._close(stream, number, session))
            elif kind == pb.COMMAND_KIND_FORK and lane in stream.lanes and (forked := self._table.on_lane(lane)):
                if stream.asked >= MAX_ASKED:
                    stream.fail(lane, number, _too_many(stream))
                else:
                    self._run(stream, number, self._fork(stream, forked, command, self.forks.begin(forked, command)))
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
            server_instance=self.instance,
            stream_id=stream.id,
            max_payload_bytes=self._config.max_payload,
            lease_ms=round(self._config.lease * 1000),
            heartbeat_ms=round(self._config.heartbeat * 1000),
            direct=self._direct,
            workers=self._config.worker_count,
        )
        stream.answer(number, welcome.SerializeToString())
        if not self._table.accepting:
            stream.fail(0, 0, errors.ServerUnavailable(self._table.refusal))

    async def _create(self, stream: Stream, number: int, request: pb.CreateSessionRequest, limit: float) -> None:
        session, response = await self._table.create(stream.identity, request, limit)
        if session.id in self._table.by_id and stream.id in self._streams:
            stream.attach(session)
        stream.answer(number, response)

    async def _fork(self, stream: Stream, session: Session, command: pb.Command, fork: Fork) -> None:
        """Has a session forked in its worker, which answers. What is forked is this stream's from the beginning."""
        try:
            forwarded, twins = await self.forks.prepare(session, command, fork)
            await until_admitted(session.worker, stream.channel, forwarded.ByteSize())
        except Exception as error:  # noqa: BLE001 - its client waits for it on the lane
            stream.fail(command.lane, command.sequence, as_error(error))
            return
        if session.sink is not stream:
            return  # it is another stream's by now, where its client repeats the command
        for twin in twins:
            if twin.id in self._table.by_id:
                stream.attach(twin)
        session.worker.send(pb.InteractRequest(commands=[forwarded]), stream.channel)

    async def _attached(self, stream: Stream, number: int, session: Session) -> None:
        try:
            stream.answer(number, await session.worker.request(link.LAST_SEQUENCES, session.lane, b""))
        finally:
            stream.attaching -= 1
            stream.attached.set()

    async def _close(self, stream: Stream, number: int, session: Session) -> None:
        try:
            await self._table.close(session, by=stream)
        finally:
            # A close that raised is in the log; for the client the session is closed.
            stream.answer(number, b"")

    def _run(self, stream: Stream, number: int, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        async def guarded() -> None:
            try:
                await work
            except Exception as error:  # noqa: BLE001 - one bad command must not end the stream
                stream.fail(0, number, as_error(error))
            finally:
                stream.asked -= 1

        stream.asked += 1
        task = asyncio.get_running_loop().create_task(guarded())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _too_many(stream: Stream) -> errors.CapacityExhausted:
    return errors.CapacityExhausted(
        f"{stream.asked} commands to the server are not answered yet, which is the most of one stream",
        retry_after=RETRY_SECONDS,
    )
