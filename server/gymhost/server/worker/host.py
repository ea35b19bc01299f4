"""The worker's side of the link: takes frames of commands, hands them to sessions, sends frames of replies."""

import asyncio
import collections
import gc
import os
import socket
import time
from collections.abc import Callable
from typing import Any

from google.protobuf.message import DecodeError as ProtobufDecodeError

from gymhost.envs import registration
from gymhost.server import link
from gymhost.server.worker import describe
from gymhost.server.worker.session import MODES, Session, failure
from gymhost.server.worker.watchdog import Watchdog
from gymhost.v1 import environments_pb2 as pb
from gymhost.wire import errors, values
from gymhost.wire.frames import FrameReader, pack
from gymhost.wire.limits import ENVELOPE, FRAME_BYTES, FRAME_ITEMS

# How often the deadlines of running calls are looked at, and the idle limits of sessions, in seconds.
SWEEP = 0.1
IDLE_SWEEP = 1.0


class Host(asyncio.Protocol):
    """All that one worker does, on one event loop.

    Args:
        config: What the front says.
    """

    def __init__(self, config: link.WorkerConfig) -> None:
        self.config = config
        self.loop: asyncio.AbstractEventLoop
        self.watchdog = Watchdog(config.alive_fd, config.loop_limit)
        self.sessions: dict[int, Session] = {}
        self.problems: list[registration.Problem] = []
        self._import_failure: ImportError | None = None
        self._reader = FrameReader(config.max_payload + ENVELOPE)
        self._outbox: list[tuple[int, int, int, bytes]] = []
        self._flushing = False
        # Calls that other threads hand to the loop; one wake-up serves all that have gathered.
        self._posted: collections.deque[tuple[Callable[[Any], None], Any]] = collections.deque()
        self._woken = False
        self._watched: dict[int, Session] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._tainted = False
        self._transport: asyncio.Transport
        self._closed: asyncio.Future[None]

    def load(self) -> None:
        """Imports the modules that register environments; the front is told of one that fails when it asks."""
        try:
            self.problems = registration.load(self.config.modules)
        except ImportError as error:
            self._import_failure = error
        # What was imported stays for good: the collector need not look at it again.
        gc.collect()
        gc.freeze()

    async def serve(self, end: socket.socket) -> None:
        """Serves the link until the front closes it, then closes what is left."""
        self.loop = asyncio.get_running_loop()
        self._closed = self.loop.create_future()
        await self.loop.create_unix_connection(lambda: self, sock=end)
        sweeps = [self.loop.create_task(self._sweep()), self.loop.create_task(self._sweep_idle())]
        await self._closed
        for sweep in sweeps:
            sweep.cancel()
        await self._close_all()

    # -- the link ------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Part of asyncio.Protocol."""
        self._transport = transport  # pyright: ignore[reportAttributeAccessIssue]

    def connection_lost(self, exc: Exception | None) -> None:
        """Part of asyncio.Protocol."""
        if not self._closed.done():
            self._closed.set_result(None)

    def data_received(self, data: bytes) -> None:
        """Part of asyncio.Protocol: runs all commands of a frame, then sends their replies together."""
        self._flushing = True
        sessions = self.sessions
        for message in self._reader.feed(data):
            for command in pb.InteractRequest.FromString(message).commands:
                session = sessions.get(command.lane)
                kind = command.kind
                if session is not None and pb.COMMAND_KIND_RESET <= kind <= pb.COMMAND_KIND_CALL:
                    session.submit(command)
                else:
                    self._control(session, command)
        self.flush()

    def send(self, lane: int, sequence: int, code: int, payload: bytes) -> None:
        """Queues a reply; what is queued in one turn of the loop leaves in one frame. On the event loop only."""
        self._outbox.append((lane, sequence, code, payload))
        if not self._flushing:
            self._flushing = True
            self.loop.call_soon(self.flush)

    def send_error(self, lane: int, sequence: int, error: BaseException) -> None:
        """Queues a failure."""
        self.send(lane, sequence, *failure(error))

    def flush(self) -> None:
        """Sends what is queued."""
        self._flushing = False
        outbox, self._outbox = self._outbox, []
        frame = pb.InteractResponse()
        add = frame.replies.add
        items = size = 0
        for lane, sequence, code, payload in outbox:
            length = len(payload)
            if items and (items == FRAME_ITEMS or size + length > FRAME_BYTES):
                self._transport.write(pack(frame.SerializeToString()))
                frame = pb.InteractResponse()
                add = frame.replies.add
                items = size = 0
            add(lane=lane, sequence=sequence, code=code, payload=payload)  # pyright: ignore[reportArgumentType]
            items += 1
            size += length
        if items:
            self._transport.write(pack(frame.SerializeToString()))

    def post(self, call: Callable[[Any], None], argument: Any) -> None:
        """Has the event loop make a call. From any thread."""
        self._posted.append((call, argument))
        if not self._woken:
            self._woken = True
            self.loop.call_soon_threadsafe(self._run_posted)

    def _run_posted(self) -> None:
        self._woken = False
        posted = self._posted
        while posted:
            call, argument = posted.popleft()
            call(argument)

    def keep(self, task: asyncio.Task[None]) -> None:
        """Keeps a task from being collected while it runs."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def check_size(self, reply: bytes) -> None:
        """Refuses a reply that is above the limit.

        Raises:
            TooLarge: It is.
        """
        if len(reply) > self.config.max_payload:
            raise errors.TooLarge(
                f"the environment's reply of {len(reply)} bytes is above the limit of {self.config.max_payload} bytes "
                "(gymhost serve --max-payload)"
            )

    # -- control -------------------------------------------------------------------------------------------------------

    def _control(self, session: Session | None, command: pb.Command) -> None:
        """Takes a command that is not numbered on a lane. Its reply goes to lane 0 with the front's number."""
        kind, number = command.kind, command.sequence
        try:
            if kind == link.CREATE:
                self._create(command.lane, number, pb.CreateSessionRequest.FromString(command.payload))
            elif kind == link.CATALOG:
                if self._import_failure is not None:
                    raise describe.import_fault(self._import_failure)
                self._answer(number, describe.catalog(self.problems))
            elif kind == link.DESCRIBE:
                request = pb.GetEnvironmentRequest.FromString(command.payload)
                self.keep(self.loop.create_task(self._describe(number, request)))
            elif kind == pb.COMMAND_KIND_CANCEL:
                if session is not None:
                    session.cancel()
            elif kind == pb.COMMAND_KIND_CLOSE:
                self._close(command.lane, number)
            elif session is None and kind < link.CREATE:
                # A lane that ended while the command was on its way; the front has told its client, or will.
                self.send_error(command.lane, number, errors.SessionLost("the session has ended"))
            elif session is None:
                raise errors.SessionLost("the session has ended")
            elif kind == link.LAST_SEQUENCES:
                self._answer(number, pb.Attached(last_sequences=[session.last]))
            elif kind == link.INFO:
                self._answer(number, pb.SessionInfo(busy=session.busy, steps=session.last))
            else:
                raise errors.ServerFault(f"no worker command of kind {kind}")
        except (errors.Error, ProtobufDecodeError) as error:
            self.send_error(0, number, error)

    def _answer(self, number: int, message: Any) -> None:
        self.send(0, number, 0, message.SerializeToString())

    def _create(self, lane: int, number: int, request: pb.CreateSessionRequest) -> None:
        hosting = registration.hosted(request.environment_id)
        if request.num_envs:
            raise errors.Unimplemented("this server does not host vector sessions; make one session a copy")
        kwargs: Any = values.decode(request.kwargs) if request.HasField("kwargs") else {}
        session = MODES[hosting.mode](self, lane, request, hosting)
        started = time.monotonic()

        def made(error: BaseException | None) -> None:
            if error is None:
                try:
                    reply = describe.created(session.env, round((time.monotonic() - started) * 1000))
                except Exception as unsuitable:  # noqa: BLE001 - the environment's own attributes were looked at
                    error = unsuitable
                else:
                    self._answer(number, reply)
                    return
            self.sessions.pop(lane, None)
            self.send_error(0, number, error)
            session.close(lambda _: None)
            self._leave_if_done()

        self.sessions[lane] = session
        session.start(kwargs, made)

    async def _describe(self, number: int, request: pb.GetEnvironmentRequest) -> None:
        try:
            self._answer(number, await asyncio.to_thread(describe.describe, request))
        except BaseException as error:  # noqa: BLE001 - the environment's own code ran
            self.send_error(0, number, error)

    def _close(self, lane: int, number: int) -> None:
        session = self.sessions.pop(lane, None)
        if session is None:
            self.send(0, number, 0, b"")
            return

        def closed(error: BaseException | None) -> None:
            if error is None:
                self.send(0, number, 0, b"")
            else:
                self.send_error(0, number, error)
            self._leave_if_done()

        session.cancel()
        session.close(closed)

    async def _close_all(self) -> None:
        """Closes every environment, for at most as long as one close may take."""
        done = asyncio.Event()
        left = set(self.sessions)

        def closed(lane: int) -> None:
            left.discard(lane)
            if not left:
                done.set()

        for lane, session in list(self.sessions.items()):
            session.cancel()
            session.close(lambda _, lane=lane: closed(lane))
        if left:
            try:
                await asyncio.wait_for(done.wait(), link.CLOSE_ALL_LIMIT)
            except TimeoutError:
                print(f"{len(left)} environments did not close in {link.CLOSE_ALL_LIMIT:g} s", flush=True)

    # -- limits --------------------------------------------------------------------------------------------------------

    def watch(self, session: Session) -> None:
        """Has `session.expire` called when its deadline passes."""
        if session.deadline:
            self._watched[session.lane] = session

    def unwatch(self, session: Session) -> bool:
        """Ends the watch. False when the session was given up meanwhile, and what it did no longer counts."""
        self._watched.pop(session.lane, None)
        return session.deadline >= 0

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP)
            now = time.monotonic()
            self.watchdog.loop_beat = now
            for session in [each for each in self._watched.values() if now > each.deadline]:
                session.expire()

    async def _sweep_idle(self) -> None:
        while True:
            await asyncio.sleep(IDLE_SWEEP)
            now = time.monotonic()
            idle = [s for s in self.sessions.values() if s.idle_limit and not s.busy and now > s.touched + s.idle_limit]
            for session in idle:
                why = f"no command came for {session.idle_limit:g} s (the session's idle_timeout)"
                self.send_error(session.lane, 0, errors.SessionExpired(why))

    def give_up(self, session: Session, why: str) -> None:
        """Declares a session lost whose code can't be stopped, and asks for no more sessions.

        The worker ends when its other sessions have left, or after the grace time.
        """
        self._watched.pop(session.lane, None)
        session.deadline = -1.0
        self.sessions.pop(session.lane, None)
        lost = errors.SessionLost(f"{why} and could not be stopped: the session is lost", limit=session.limit)
        if session.busy:
            self.send_error(session.lane, session.last, lost)
        self.send_error(session.lane, 0, lost)
        if not self._tainted:
            self._tainted = True
            self.send_error(0, 0, errors.ServerUnavailable(why))
            self.loop.call_later(self.config.grace, self._leave)
        self._leave_if_done()

    def _leave_if_done(self) -> None:
        if self._tainted and not self.sessions:
            # After the replies of this turn have been sent.
            self.loop.call_soon(self.loop.call_soon, self._leave)

    def _leave(self) -> None:
        os._exit(link.EXIT_OVERRUN)
