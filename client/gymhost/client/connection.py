"""One connection to one server, shared by all sessions of the process: a stream that is kept up and resumed."""

import asyncio
import collections
import itertools
import logging
import weakref
from collections.abc import Iterable
from importlib import metadata
from typing import Any

import grpc.aio
from google.protobuf.message import DecodeError as ProtobufDecodeError

from gymhost.client.direct import DirectLink, DirectLinks, folder_of
from gymhost.client.loop import LoopThread, loop_thread, on_fork
from gymhost.client.options import channel_options
from gymhost.client.pending import AsyncPending, Bridge, Lane, Pending, ThreadPending, failure
from gymhost.v1 import environments_pb2 as pb
from gymhost.v1 import environments_pb2_grpc as rpc
from gymhost.wire import errors, limits

log = logging.getLogger("gymhost.client")

# Seconds for a first connection, for restoring a broken one, and for a heartbeat's reply.
CONNECT_TIMEOUT = 10.0
RECONNECT_TIMEOUT = 60.0
HEARTBEAT_REPLY = 20.0
# Seconds beyond a call's own limit, for calls that the server bounds.
CALL_GRACE = 30.0

# Where the server puts the code and the Error of a failed call.
CODE_KEY, ERROR_KEY = "gymhost-code", "gymhost-error-bin"

# Statuses of a stream that a new attempt can't change.
_FINAL = (
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.UNIMPLEMENTED,
)


class Connection:
    """A connection that is kept up: when it breaks it is made anew, its lanes attached, unanswered commands repeated.

    Args:
        address: `HOST:PORT` or `unix:PATH`.
        token: The bearer token, if the server wants one.
        connect_timeout: Seconds for the first connection.
        reconnect_timeout: Seconds for restoring it, after which all that waits fails with ConnectionLost.
        direct: Whether to go past gRPC to the workers of a server on the same host.
    """

    def __init__(
        self,
        address: str,
        token: str | None = None,
        *,
        connect_timeout: float = CONNECT_TIMEOUT,
        reconnect_timeout: float = RECONNECT_TIMEOUT,
        direct: bool = True,
    ) -> None:
        self.address = address
        self.welcome = pb.Welcome(max_payload_bytes=limits.MAX_PAYLOAD)
        self.max_payload = limits.MAX_PAYLOAD
        self.thread: LoopThread = loop_thread()
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()
        self._connect_timeout = connect_timeout
        self._reconnect_timeout = reconnect_timeout
        self._lanes: dict[int, Lane] = {}
        # The ways past gRPC: the folder with the workers' sockets, all that are open, and those for threads.
        self._may_go_direct = direct
        self.folder: str | None = None
        self.links: set[DirectLink] = set()
        self._thread_links = DirectLinks(self, self.thread.loop)
        # Commands that wait to be sent, from any thread; then by lane, or by number, those that wait for a reply.
        self._outbox: collections.deque[Pending] = collections.deque()
        self._woken = False
        self.on_lanes: dict[int, Pending] = {}
        self._calls: dict[int, Pending] = {}
        # Creates whose callers went away, by number: what they make is closed again.
        self._abandoned: set[int] = set()
        self._numbers = itertools.count(1)
        self._bridges: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Bridge] = weakref.WeakKeyDictionary()
        # Bridges that have replies to carry over at the end of the frame.
        self.laden_bridges: list[Bridge] = []
        self._bulk_outbox: collections.deque[pb.Command] = collections.deque()
        self._wake_writer: asyncio.Event
        self._wake_bulk: asyncio.Event
        self._channels: list[grpc.aio.Channel] = []
        self._stub: Any = None
        self._supervisor: asyncio.Task[None] | None = None
        self._up = False
        self._opened: asyncio.Future[None]
        # Why nothing is taken any more.
        self.dead: errors.Error | None = None
        on_fork(self)

    # -- from any thread -----------------------------------------------------------------------------------------------

    def submit(self, pending: Pending) -> None:
        """Sends a command; its reply, or an error, is certain to come.

        Raises:
            Error: The connection is closed.
        """
        if self.dead is not None:
            raise self.dead.with_traceback(None)
        self.submit_all((pending,))

    def submit_all(self, batch: Iterable[Pending]) -> None:
        """Sends commands on the stream."""
        self._outbox.extend(batch)
        if not self._woken:
            self._woken = True
            self.thread.loop.call_soon_threadsafe(self._wake)

    def submit_from_thread(self, pending: Pending, lane: Lane) -> None:
        """Sends a command of a lane, which a thread waits for: past gRPC where there is such a way.

        Raises:
            Error: The connection is closed.
        """
        link = lane.direct
        if link is not None and link.links is self._thread_links:
            link.send([pending])
        else:
            if self.folder is not None and not lane.asking:
                self.thread.loop.call_soon_threadsafe(self._thread_links.of, lane)
            self.submit(pending)

    def bridge(self) -> Bridge:
        """The bridge to the event loop that runs here."""
        loop = asyncio.get_running_loop()
        bridge = self._bridges.get(loop)
        if bridge is None:
            bridge = self._bridges[loop] = Bridge(loop, self)
        return bridge

    async def acall(self, kind: int, message: Any, *, lane: int = 0, timeout: float | None = None) -> bytes:
        """Makes a command to the server itself, from any event loop."""
        if self.dead is not None:
            raise self.dead.with_traceback(None)
        bridge = self.bridge()
        payload = message.SerializeToString() if message is not None else b""
        pending = AsyncPending(bridge, None, lane, kind, payload, _milliseconds(timeout))
        pending.sequence = next(self._numbers)
        bridge.submit(pending)
        try:
            await pending.future
        except asyncio.CancelledError:
            self.thread.loop.call_soon_threadsafe(self._abandon, pending)
            raise
        return pending.result()

    def call(self, kind: int, message: Any, *, lane: int = 0, timeout: float | None = None) -> bytes:
        """Makes a command to the server itself, from any thread."""
        payload = message.SerializeToString() if message is not None else b""
        pending = ThreadPending(None, lane, kind, payload, _milliseconds(timeout))
        pending.sequence = next(self._numbers)
        self.submit(pending)
        try:
            return pending.wait()
        except KeyboardInterrupt:
            self.thread.loop.call_soon_threadsafe(self._abandon, pending)
            raise

    def forget(self, kind: int, lane: int) -> None:
        """Makes a command whose reply nobody waits for: CLOSE or CANCEL. From anywhere, the garbage collector included."""
        if self.dead is None:
            pending = Pending(None, lane, kind, b"")
            pending.sequence = next(self._numbers)
            self.submit(pending)

    def forked(self) -> None:
        """Called in a forked child, where gRPC no longer works."""
        self.dead = errors.ConnectionLost("this connection was made before a fork: connect after the fork, or spawn")
        for lane in self._lanes.values():
            lane.ended = self.dead
            lane.pending = None

    def too_large(self, payload: bytes) -> errors.TooLarge:
        """The error for a payload that is above the server's limit."""
        return errors.TooLarge(
            f"a command of {len(payload)} bytes is above the server's limit of {self.max_payload} bytes "
            "(gymhost serve --max-payload)"
        )

    # -- on the loop: opening and closing ------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connects.

        Raises:
            Unauthenticated: The server did not take the token.
            ServerUnavailable: It could not be reached in time.
        """
        loop = asyncio.get_running_loop()
        self._wake_writer = asyncio.Event()
        self._wake_bulk = asyncio.Event()
        self._opened = loop.create_future()
        self._stub = rpc.EnvironmentServiceStub(self._channel())
        self._supervisor = loop.create_task(self._supervise())
        self.thread.at_exit(self, self.close)
        try:
            await asyncio.shield(self._opened)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Closes the connection, and the sessions that nobody closed."""
        self.thread.at_exit(self, None)
        for lane in list(self._lanes.values()):
            if lane.ended is None:
                self.forget(pb.COMMAND_KIND_CLOSE, lane.number)
        if self.dead is None:
            self.dead = errors.ConnectionLost("the connection was closed")
        if self._supervisor is not None:
            # What was submitted before the close still leaves, CLOSE commands above all.
            await self._drain()
            self._supervisor.cancel()
            await asyncio.wait([self._supervisor])
            self._supervisor = None
        self._fail_all(self.dead)
        for link in list(self.links):
            link.dispose()
        for channel in self._channels:
            await channel.close()
        self._channels.clear()

    async def unary(self, method: str, request: Any, timeout: float) -> Any:
        """Makes a unary call.

        Raises:
            Error: It failed.
        """
        if self.dead is not None:
            raise self.dead.with_traceback(None)
        try:
            return await getattr(self._stub, method)(request, metadata=self._metadata, timeout=timeout)
        except grpc.aio.AioRpcError as error:
            raise _from_rpc(error, self.address) from None

    async def _drain(self) -> None:
        try:
            async with asyncio.timeout(2.0):
                while self._outbox or any(p.kind == pb.COMMAND_KIND_CLOSE for p in self._calls.values()):
                    await asyncio.sleep(0.005)
        except TimeoutError:
            pass

    def _channel(self) -> grpc.aio.Channel:
        channel = grpc.aio.insecure_channel(self.address, options=channel_options(self.welcome.max_payload_bytes))
        self._channels.append(channel)
        return channel

    # -- on the loop: keeping the stream up ----------------------------------------------------------------------------

    async def _supervise(self) -> None:
        """Opens streams one after the other, until the connection is closed or can't be had."""
        loop = asyncio.get_running_loop()
        down_since = loop.time()
        pause = 0.05
        while True:
            try:
                await self._serve_once()
                error: errors.Error = errors.ConnectionLost("the server ended the stream")
            except grpc.aio.AioRpcError as raised:
                error = _from_rpc(raised, self.address)
                if raised.code() in _FINAL:
                    self._give_up(error)
                    return
            except errors.ConnectionLost as raised:
                error = raised
            except asyncio.InvalidStateError:
                # What gRPC raises for a write on a stream that has just broken.
                error = errors.ConnectionLost("the stream broke")
            except TimeoutError:
                error = errors.ConnectionLost("the server did not answer in time")
            except Exception as raised:  # noqa: BLE001 - whoever waits must be told, whatever it was
                self._give_up(errors.ConnectionLost(f"{type(raised).__name__}: {raised}"))
                return
            if self._up:
                log.info("the connection to %s broke, and will be restored: %s", self.address, error.message)
                down_since, pause = loop.time(), 0.05
            limit = self._reconnect_timeout if self._opened.done() else self._connect_timeout
            if loop.time() - down_since > limit:
                if not self._opened.done():
                    where = f"can't reach a gymhost server at {self.address} within {limit:g} s (connect_timeout)"
                    self._give_up(
                        errors.ServerUnavailable(f"{where}: is `gymhost serve` running there? ({error.message})")
                    )
                    return
                where = f"the connection to {self.address} could not be restored within {limit:g} s (reconnect_timeout)"
                self._fail_all(errors.ConnectionLost(f"{where}: {error.message}"))
                down_since = loop.time()
            await asyncio.sleep(pause)
            pause = min(2 * pause, 1.0)

    async def _serve_once(self) -> None:
        """Opens a stream and serves it until it ends; `_up` says afterwards whether it was ever up."""
        self._up = False
        call = self._stub.Interact(metadata=self._metadata)
        tasks: list[asyncio.Task[Any]] = []
        try:
            hello = pb.Hello(protocol_minor=limits.PROTOCOL_MINOR, client=f"gymhost-python/{_version()}")
            welcome, early = await self._greet(call, hello)
            self._adopt(welcome)
            self._up = True
            if not self._opened.done():
                self._opened.set_result(None)
            again = self._resume()
            loop = asyncio.get_running_loop()
            tasks = [
                loop.create_task(self._write(call, again)),
                loop.create_task(self._read(call, early)),
                loop.create_task(self._beat()),
                loop.create_task(self._serve_bulk()),
            ]
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            call.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _greet(self, call: Any, hello: pb.Hello) -> tuple[pb.Welcome, pb.InteractResponse]:
        """Sends HELLO on a new stream; gives the Welcome, and what came with it."""
        command = pb.Command(
            sequence=next(self._numbers), kind=pb.COMMAND_KIND_HELLO, payload=hello.SerializeToString()
        )
        async with asyncio.timeout(self._connect_timeout):
            try:
                await call.write(pb.InteractRequest(commands=[command]))
                response: Any = await call.read()
            except asyncio.InvalidStateError:
                response = grpc.aio.EOF
        if response is grpc.aio.EOF:
            # The stream ended instead of greeting: its status says why.
            raise grpc.aio.AioRpcError(
                await call.code(), await call.initial_metadata(), await call.trailing_metadata(), await call.details()
            )
        first = response.replies[0]
        if first.code:
            raise failure(first.code, first.payload)
        del response.replies[0]
        return pb.Welcome.FromString(first.payload), response

    def _adopt(self, welcome: pb.Welcome) -> None:
        """Takes a Welcome; if the server is another one by now, the sessions are gone."""
        before = self.welcome.server_instance
        self.welcome = welcome
        self.max_payload = welcome.max_payload_bytes
        self.folder = folder_of(welcome) if self._may_go_direct else None
        if before and before != welcome.server_instance:
            lost = errors.SessionLost(f"the session is lost: the server at {self.address} was restarted")
            for lane in list(self._lanes.values()):
                self._end_lane(lane, lost)

    def _resume(self) -> list[pb.Command]:
        """What to send first on a new stream: an attach for each lane, then what was not answered."""
        for number in [n for n, p in self._calls.items() if p.kind in _NOT_REPEATED]:
            del self._calls[number]
        calls = list(self._calls.values())
        commands: list[pb.Command] = []
        # Attaches come first, for the sake of a CLOSE that is repeated.
        for lane in list(self._lanes.values()):
            attach = _Attach(lane, next(self._numbers), self)
            self._calls[attach.sequence] = attach
            commands.append(_command(attach))
        commands += [_command(pending) for pending in calls]
        self._bulk_outbox.clear()
        for pending in self.on_lanes.values():
            large = len(pending.payload) > limits.FRAME_BYTES
            (self._bulk_outbox if large else commands).append(_command(pending))
        if self._bulk_outbox:
            self._wake_bulk.set()
        return commands

    def _give_up(self, error: errors.Error) -> None:
        self.dead = error
        if not self._opened.done():
            self._opened.set_exception(error)
        self._fail_all(error)

    def _fail_all(self, error: errors.Error) -> None:
        """Fails everything that waits. What a command did is then unknown, so its session is given up too."""
        while self._outbox:
            self._outbox.popleft().fail(error)
        for lane in list(self._lanes.values()):
            self._end_lane(lane, error)
        for pending in list(self.on_lanes.values()) + list(self._calls.values()):
            pending.fail(error)
        self.on_lanes.clear()
        self._calls.clear()
        self._abandoned.clear()
        self._wake_bridges()

    # -- on the loop: the way of a step --------------------------------------------------------------------------------

    def _wake(self) -> None:
        self._woken = False
        if self.dead is not None and (self._supervisor is None or self._supervisor.done()):
            self._fail_all(self.dead)  # submitted while the connection was being given up
        self._wake_writer.set()

    async def _write(self, call: Any, commands: list[pb.Command]) -> None:
        """Sends what is submitted, as much as there is in a frame."""
        outbox, wake = self._outbox, self._wake_writer
        for start in range(0, len(commands), limits.FRAME_ITEMS):
            await call.write(pb.InteractRequest(commands=commands[start : start + limits.FRAME_ITEMS]))
        wake.set()
        while True:
            await wake.wait()
            wake.clear()
            while outbox:
                frame = self._next_frame()
                if frame.commands:
                    await call.write(frame)

    def _next_frame(self) -> pb.InteractRequest:
        outbox, on_lanes = self._outbox, self.on_lanes
        frame = pb.InteractRequest()
        add = frame.commands.add
        items = size = 0
        while outbox and items < limits.FRAME_ITEMS and size < limits.FRAME_BYTES:
            pending = outbox.popleft()
            payload = pending.payload
            if len(payload) > limits.FRAME_BYTES:
                self._send_large(pending)
                continue
            size += len(payload)
            if size > limits.FRAME_BYTES and items:
                outbox.appendleft(pending)
                break
            items += 1
            lane = pending.lane
            if lane is not None:
                on_lanes[lane.number] = pending
            elif pending.kind != pb.COMMAND_KIND_CANCEL:
                self._calls[pending.sequence] = pending
            add(
                lane=pending.number,
                sequence=pending.sequence,
                kind=pending.kind,  # pyright: ignore[reportArgumentType]
                time_left_ms=pending.time_left_ms,
                payload=payload,
            )
        return frame

    def _send_large(self, pending: Pending) -> None:
        if pending.lane is not None:
            self.on_lanes[pending.lane.number] = pending
        else:
            self._calls[pending.sequence] = pending
        self._bulk_outbox.append(_command(pending))
        self._wake_bulk.set()

    async def _read(self, call: Any, early: pb.InteractResponse) -> None:
        self._take(early)
        read = call.read
        while (response := await read()) is not grpc.aio.EOF:
            self._take(response)

    def _take(self, response: pb.InteractResponse) -> None:
        """Hands the replies of a frame to whoever waits for them."""
        claim = self.on_lanes.pop
        for reply in response.replies:
            # Whoever takes a command out of the table answers it; a copy of the reply finds it gone.
            pending = claim(reply.lane, None)
            if pending is not None and pending.sequence == reply.sequence:
                pending.resolve(reply.code, reply.payload)
            else:
                if pending is not None:
                    self.on_lanes[reply.lane] = pending
                self._control(reply)
        self._wake_bridges()

    def _wake_bridges(self) -> None:
        for bridge in self.laden_bridges:
            bridge.wake()
        self.laden_bridges.clear()

    def _control(self, reply: pb.Reply) -> None:
        if reply.lane == 0 and reply.sequence:
            pending = self._calls.pop(reply.sequence, None)
            if pending is not None:
                self._answered(pending, reply)
        elif reply.code == pb.REPLY_CODE_WANT_BULK:
            self._wake_bulk.set()
        elif reply.sequence == 0 and (lane := self._lanes.get(reply.lane)) is not None:
            self._end_lane(lane, failure(reply.code, reply.payload))

    def _answered(self, pending: Pending, reply: pb.Reply) -> None:
        """Takes the reply to a command that is not numbered on a lane."""
        if pending.kind == pb.COMMAND_KIND_CREATE and not reply.code:
            try:
                self._created(pb.CreateSessionResponse.FromString(reply.payload))
            except ProtobufDecodeError as error:
                pending.fail(errors.DecodeError(f"the server's reply is no CreateSessionResponse: {error}"))
                return
        elif pending.kind == pb.COMMAND_KIND_CLOSE and (lane := self._lanes.get(pending.number)) is not None:
            # The server drops the reply of a command that a close overtakes.
            self._end_lane(lane, errors.SessionClosed("the session was closed"))
        pending.resolve(reply.code, reply.payload)
        if pending.sequence in self._abandoned:
            self._abandoned.discard(pending.sequence)
            self._abandon(pending)

    def _abandon(self, pending: Pending) -> None:
        """Closes what a create made, or will have made, since its caller is gone."""
        if pending.kind != pb.COMMAND_KIND_CREATE:
            return
        if not pending.reply:
            self._abandoned.add(pending.sequence)
        elif not pending.code:
            for number in pb.CreateSessionResponse.FromString(pending.reply).lanes:
                self.forget(pb.COMMAND_KIND_CLOSE, number)

    # -- on the loop: lanes --------------------------------------------------------------------------------------------

    def _created(self, made: pb.CreateSessionResponse) -> None:
        """Has the lanes of a new session attached again whenever the connection is restored."""
        for number in made.lanes:
            self._lanes[number] = Lane(self, number, made.session_id, made.direct_token)

    def lane(self, number: int) -> Lane:
        """The lane of a session that was created just now. From any thread.

        Raises:
            SessionLost: It has ended already.
        """
        lane = self._lanes.get(number)
        if lane is None:
            raise errors.SessionLost("the session ended as soon as it was made")
        return lane

    def _end_lane(self, lane: Lane, error: errors.Error) -> None:
        if lane.ended is None:
            lane.ended = error
        self._lanes.pop(lane.number, None)
        pending = self.on_lanes.pop(lane.number, None)
        if pending is not None:
            pending.fail(error)

    # -- on the loop: beside the stream --------------------------------------------------------------------------------

    async def _beat(self) -> None:
        """Renews the leases, and notices a server that no longer answers."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self.welcome.heartbeat_ms / 1000 or limits.HEARTBEAT_SECONDS)
            beat = _Beat(loop, next(self._numbers))
            self._outbox.append(beat)
            self._wake_writer.set()
            async with asyncio.timeout(HEARTBEAT_REPLY):
                await beat.future

    async def _serve_bulk(self) -> None:
        """Opens the bulk stream when it is first needed, and serves it."""
        await self._wake_bulk.wait()
        channel = self._channel()
        try:
            stub: Any = rpc.EnvironmentServiceStub(channel)
            call = stub.Interact(metadata=self._metadata)
            hello = pb.Hello(protocol_minor=limits.PROTOCOL_MINOR, bulk_of=self.welcome.stream_id)
            _, early = await self._greet(call, hello)
            tasks = [asyncio.ensure_future(self._write_bulk(call)), asyncio.ensure_future(self._read(call, early))]
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                for task in tasks:
                    task.cancel()
                call.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        except grpc.aio.AioRpcError as error:
            # Whatever it was, the main stream decides whether it is final.
            raise errors.ConnectionLost(f"the bulk stream broke: {_from_rpc(error, self.address).message}") from None
        finally:
            self._channels.remove(channel)
            await channel.close()

    async def _write_bulk(self, call: Any) -> None:
        while True:
            self._wake_bulk.clear()
            while self._bulk_outbox:
                await call.write(pb.InteractRequest(commands=[self._bulk_outbox.popleft()]))
            await self._wake_bulk.wait()


class _Beat(Pending):
    """A heartbeat; its reply is awaited on the connection's own loop."""

    __slots__ = ("future",)

    def __init__(self, loop: asyncio.AbstractEventLoop, sequence: int) -> None:
        super().__init__(None, 0, pb.COMMAND_KIND_HEARTBEAT, b"")
        self.sequence = sequence
        self.future: asyncio.Future[None] = loop.create_future()

    def wake(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


class _Attach(Pending):
    """An attach after a reconnect; where it fails the lane has ended."""

    __slots__ = ("_connection", "_lane")

    def __init__(self, lane: Lane, sequence: int, connection: Connection) -> None:
        super().__init__(None, 0, pb.COMMAND_KIND_ATTACH, pb.Attach(session_id=lane.session_id).SerializeToString())
        self.sequence = sequence
        self._lane = lane
        self._connection = connection

    def wake(self) -> None:
        if self.code:
            self._connection._end_lane(self._lane, failure(self.code, self.reply))  # pyright: ignore[reportPrivateUsage]


# Sent once a stream, and not again on the next.
_NOT_REPEATED = (pb.COMMAND_KIND_HEARTBEAT, pb.COMMAND_KIND_ATTACH)


def _command(pending: Pending) -> pb.Command:
    return pb.Command(
        lane=pending.number,
        sequence=pending.sequence,
        kind=pending.kind,  # pyright: ignore[reportArgumentType]
        time_left_ms=pending.time_left_ms,
        payload=pending.payload,
    )


def _milliseconds(timeout: float | None) -> int:
    return 0 if timeout is None else max(1, round(timeout * 1000))


def _from_rpc(error: grpc.aio.AioRpcError, address: str) -> errors.Error:
    """The error of gymhost that a failed call stands for."""
    trailing = {key: value for key, value in error.trailing_metadata() or ()}
    code = str(trailing.get(CODE_KEY, ""))
    if ERROR_KEY in trailing and code.isdecimal():
        return failure(int(code), trailing[ERROR_KEY])  # pyright: ignore[reportArgumentType]
    by_status: dict[Any, type[errors.Error]] = {
        grpc.StatusCode.DEADLINE_EXCEEDED: errors.CommandTimeout,
        grpc.StatusCode.RESOURCE_EXHAUSTED: errors.TooLarge,
        grpc.StatusCode.UNIMPLEMENTED: errors.Unimplemented,
    }
    kind = by_status.get(error.code(), errors.ConnectionLost)
    return kind(f"{address}: {error.code().name}: {error.details()}")


def _version() -> str:
    try:
        return metadata.version("gymhost")
    except metadata.PackageNotFoundError:
        return "0"
