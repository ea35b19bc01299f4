"""The worker as a whole: its sessions, what the front asks of it, and the limits of what runs."""

import asyncio
import collections
import functools
import gc
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from gymhost.envs import registration, sandboxing, wrapping
from gymhost.server import link
from gymhost.server.board import IDLE, RUNNING, Board
from gymhost.server.meter import BOUNDS, Meter
from gymhost.server.worker import describe, output, watching
from gymhost.server.worker.follow import command_name
from gymhost.server.worker.fork import give_back
from gymhost.server.worker.links import DirectLink, FrontLink
from gymhost.server.worker.outlet import Outlet
from gymhost.server.worker.session import AsyncSession, Done, InlineSession, Session
from gymhost.server.worker.share import MemoryShare
from gymhost.server.worker.thread_session import ThreadSession
from gymhost.server.worker.watchdog import Watchdog
from gymhost.v1 import environments_pb2 as pb
from gymhost.wire import errors

if TYPE_CHECKING:
    from gymhost.envs.sandbox.backend import Backend

# How often the deadlines of running calls are looked at, and the idle limits of sessions, in seconds.
SWEEP = 0.1
IDLE_SWEEP = 1.0

_MODES: dict[str, type[Session]] = {"inline": InlineSession, "thread": ThreadSession, "async": AsyncSession}


class Turn:
    """A part of a turn of the loop whose replies leave together at its end. Entered for each frame that arrives.

    Args:
        meter: What was counted is written before they leave.
    """

    __slots__ = ("_laden", "_meter", "number", "open")

    def __init__(self, meter: Meter | None) -> None:
        self._meter = meter
        self.open = False
        self.number = 0
        self._laden: list[Outlet] = []

    def __enter__(self) -> None:
        self.open = True

    def __exit__(self, *exc: object) -> None:
        self.open = False
        self.number += 1
        if self._meter is not None:
            self._meter.write()
        laden, self._laden = self._laden, []
        for outlet in laden:
            outlet.flush()

    def add(self, outlet: Outlet) -> None:
        """Has an outlet flushed at the end."""
        self._laden.append(outlet)


class _Described:
    """Whose code runs while an environment is described."""

    def __init__(self, environment_id: str, share: MemoryShare | None) -> None:
        self._tag = output.tag(environment_id, 0)
        self.sandboxes = sandboxing.Scope(share)

    def __str__(self) -> str:
        return self._tag


class Host:
    """All that one worker does, on one event loop.

    Args:
        config: What the front says.
    """

    def __init__(self, config: link.WorkerConfig) -> None:
        self.config = config
        self.max_payload = config.max_payload
        self.loop: asyncio.AbstractEventLoop
        self.watchdog = Watchdog(config.alive_fd, config.loop_limit)
        self.board = Board(config.board_fd)
        self.meter = Meter.of(config.meter_fd) if config.meter_fd >= 0 else None
        self.sessions: dict[int, Session] = {}
        self.problems: list[registration.Problem] = []
        self._failure: errors.EnvironmentFault | None = None
        self._sandboxes_to_try: Backend | None = None
        # The sessions by the token that opens them to clients on the same host.
        self.by_token: dict[str, Session] = {}
        # The lanes of sessions that are being forked.
        self.promised: set[int] = set()
        self.turn = Turn(self.meter)
        # Calls that other threads hand to the loop; one wake-up serves all that have gathered.
        self._posted: collections.deque[tuple[Callable[[Any], None], Any]] = collections.deque()
        self._woken = False
        self._watched: dict[int, Session] = self.watchdog.watched
        self._tasks: set[asyncio.Task[None]] = set()
        self._tainted = False
        self._front: FrontLink
        self.watching = watching.Watching(self)
        sandboxing.configure(sandboxing.Settings(**config.sandboxes))
        sandboxing.tell_owner_by(_owner)

    def load(self) -> None:
        """Imports the modules that register environments; the front is told of one that fails when it asks."""
        try:
            self.problems = registration.load(self.config.modules)
            for wrapper in self.config.wrappers:
                if wrapper != "*":
                    wrapping.load(wrapper)
            self._make_sandbox_backend()
        except ImportError as error:
            self._failure = describe.import_fault(error)
        except (errors.InvalidArgument, errors.SandboxUnavailable) as error:
            self._failure = errors.EnvironmentFault(f"{error.message} (--sandbox, --sandbox-option)")
        # What was imported stays for good: the collector need not look at it again.
        gc.collect()
        gc.freeze()

    async def serve(self, end: socket.socket) -> None:
        """Serves the link until the front closes it, then closes what is left."""
        self.loop = asyncio.get_running_loop()
        self.watchdog.loop_beat = time.monotonic()
        self._front = FrontLink(self)
        direct = await self.loop.create_unix_server(lambda: DirectLink(self), self.config.direct_path, backlog=1024)
        await self.loop.create_unix_connection(lambda: self._front, sock=end)
        sweeps = [self.loop.create_task(self._sweep()), self.loop.create_task(self._sweep_idle())]
        self.keep(self.loop.create_task(self._try_sandboxes()))
        if self.config.clears:
            self.keep(self.loop.create_task(self._clear_sandboxes()))
        await self._front.closed
        direct.close()
        for sweep in sweeps:
            sweep.cancel()
        await self._close_all()
        await self._destroy_sandboxes()

    def flush_later(self, outlet: Outlet) -> None:
        """Has an outlet flushed at the end of this turn of the loop. On the event loop only."""
        turn = self.turn
        turn.add(outlet)
        if not turn.open:
            turn.open = True
            self.loop.call_soon(turn.__exit__)

    def tell_front(self, lane: int, error: BaseException) -> None:
        """Sends the front a notice: of a lane, or of the worker itself on lane 0."""
        self.outlet.send_error(lane, 0, error)

    @property
    def outlet(self) -> Outlet:
        """What is for the front itself."""
        return self._front.outlet(0)

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

    def share_of(self, lane: int) -> MemoryShare | None:
        """What the sandboxes of a lane may have of memory; None for any amount."""
        return MemoryShare(self.config.memory_path, lane) if self.config.memory_path else None

    def too_large(self, reply: bytes) -> errors.TooLarge:
        """The error for a reply that is above the limit."""
        return errors.TooLarge(
            f"the environment's reply of {len(reply)} bytes is above the limit of {self.max_payload} bytes "
            "(gymhost serve --max-payload)"
        )

    # -- control -------------------------------------------------------------------------------------------------------

    def control(self, session: Session | None, command: pb.Command, outlet: Outlet) -> None:
        """Takes a command of the front that is not numbered on a lane. Its reply goes to lane 0 with its number."""
        kind, number = command.kind, command.sequence
        try:
            if kind == link.CREATE:
                self._create(command.lane, number, pb.CreateSessionRequest.FromString(command.payload))
            elif kind == link.CATALOG:
                if self._failure is not None:
                    raise self._failure
                self._answer(number, describe.catalog(self.problems, self.config.replayable))
            elif kind == link.DESCRIBE:
                request = pb.GetEnvironmentRequest.FromString(command.payload)
                look = functools.partial(describe.describe, patterns=self.config.replayable)
                self.keep(self.loop.create_task(self._describe(command, look, request)))
            elif kind == link.TASKS:
                request = pb.ListTasksRequest.FromString(command.payload)
                self.keep(self.loop.create_task(self._describe(command, describe.tasks, request)))
            elif kind == pb.COMMAND_KIND_CANCEL:
                if session is not None:
                    session.cancel()
            elif kind == pb.COMMAND_KIND_CLOSE:
                self._close(command.lane, number)
            elif session is not None and kind in (pb.COMMAND_KIND_FORK, link.REPLY):
                session.submit(command, outlet)
                if kind == pb.COMMAND_KIND_FORK:
                    # A repeated one has its sessions already; one that is out of sequence gets none.
                    give_back(self, pb.ForkResult.FromString(command.payload))
            elif kind == pb.COMMAND_KIND_FORK:
                outlet.send_error(command.lane, number, errors.SessionLost("the session has ended"))
                give_back(self, pb.ForkResult.FromString(command.payload))
            elif session is None and (kind < link.CREATE or kind == link.REPLY):
                # A lane that ended while the command was on its way; the front has told its client, or will.
                outlet.send_error(command.lane, number, errors.SessionLost("the session has ended"))
            elif kind == link.MEMORY:
                lanes = [int(lane) for lane in json.loads(command.payload)]
                self.keep(self.loop.create_task(self._tell_memory(number, lanes)))
            elif kind == link.FORGET_CHANNEL:
                self._front.forget(number)
            elif kind in watching.KINDS:
                self.watching.control(session, command, self.outlet)
            elif session is None:
                raise errors.SessionLost("the session has ended")
            elif kind == link.LAST_SEQUENCES:
                # A stream has attached the session: from now on it is driven there.
                session.leave()
                self._answer(number, pb.Attached(last_sequences=[session.last]))
            elif kind == link.INFO:
                self._answer(number, pb.SessionInfo(busy=session.busy, steps=session.last))
            else:
                raise errors.ServerFault(f"no worker command of kind {kind}")
        except Exception as error:  # noqa: BLE001 - whatever one command does must not end the worker
            self._refuse(number, error)

    def _answer(self, number: int, message: Any = None) -> None:
        payload = message.SerializeToString() if message is not None else b""
        self.outlet.send(0, number, 0, payload)

    def _refuse(self, number: int, error: BaseException) -> None:
        self.outlet.send_error(0, number, error)

    def _create(self, lane: int, number: int, request: pb.CreateSessionRequest) -> None:
        hosting = registration.hosted(request.environment_id)
        # The copies of a vector session are stepped in a loop, which is for a thread whatever they are.
        # So is what a client wraps around an environment: its author knows nothing of how long that takes.
        on_thread = request.num_envs or (request.wrappers and hosting.mode == "inline")
        mode = ThreadSession if on_thread else _MODES[hosting.mode]
        session = mode(self, lane, request, hosting)
        started = time.monotonic()

        def made(error: BaseException | None) -> None:
            session.mark(IDLE)
            if session.tally is not None:
                session.tally.took("make", time.monotonic() - started)
            if error is None:
                try:
                    took = round((time.monotonic() - started) * 1000)
                    terms = session.terms
                    reply = describe.created(session.env, took, terms.attributes.names, is_replayable=terms.replayable)
                except Exception as unsuitable:  # noqa: BLE001 - the environment's own attributes were looked at
                    error = unsuitable
                else:
                    self._answer(number, reply)
                    return
            self._forget(session)
            self.watching.raised(session, "make", error)
            self._refuse(number, error)
            self._end(session, lambda _: None)
            self._leave_if_done()

        if lane in self.sessions:
            raise errors.ServerFault(f"lane {lane} has a session already")
        self.sessions[lane] = session
        self.by_token[session.token] = session
        session.mark(RUNNING)
        session.start(request, made)

    async def _describe(self, command: pb.Command, look: Callable[[Any], Any], request: Any) -> None:
        owner, number = _Described(request.environment_id, self.share_of(command.lane)), command.sequence
        place = self.board.place(command.lane)
        output.current_session.set(owner)
        self.board.bytes[place] = RUNNING
        try:
            self._answer(number, await asyncio.to_thread(look, request))
        except BaseException as error:  # noqa: BLE001 - the environment's own code ran
            self._refuse(number, error)
        finally:
            self.board.bytes[place] = IDLE
            owner.sandboxes.close()

    async def _tell_memory(self, number: int, lanes: Sequence[int]) -> None:
        scopes = {lane: session.sandboxes for lane in lanes if (session := self.sessions.get(lane)) is not None}
        used = await sandboxing.memory(scopes, link.MEMORY_LIMIT)
        self.outlet.send(0, number, 0, json.dumps(used).encode())

    def _close(self, lane: int, number: int) -> None:
        session = self.sessions.get(lane)
        if session is None:
            self.promised.discard(lane)
            self._answer(number)
            return

        def closed(error: BaseException | None) -> None:
            if error is None:
                self._answer(number)
            else:
                self.watching.raised(session, "close", error)
                self._refuse(number, error)
            self._leave_if_done()

        self._forget(session)
        session.cancel()
        self._end(session, closed)

    def _end(self, session: Session, done: Done) -> None:
        """Closes a session's environment, and destroys the sandboxes that it left behind."""

        def closed(error: BaseException | None) -> None:
            session.mark(IDLE)
            session.sandboxes.close()
            if session.tally is not None:
                session.tally.took("close", time.monotonic() - began)
            done(error)

        began = time.monotonic()
        session.mark(RUNNING)
        session.close(closed)

    def _forget(self, session: Session) -> None:
        """Takes a session out of the tables: no command reaches it any more."""
        self.sessions.pop(session.lane, None)
        self.by_token.pop(session.token, None)
        session.leave(tell=False)
        self.watching.ended(session)

    async def _close_all(self) -> None:
        """Closes every environment, for at most as long as one close may take."""
        done = asyncio.Event()
        left = set(self.sessions)

        def closed(lane: int) -> None:
            left.discard(lane)
            if not left:
                done.set()

        for lane, session in list(self.sessions.items()):
            # A client that comes past the front must not meet what is closed here, nor be told of its cancellation as
            # if it had asked for that: it goes on with the stream, where it learns that the session is lost.
            session.outlet = None
            session.leave()
            self._forget(session)
            session.cancel()
            self._end(session, lambda _, lane=lane: closed(lane))
        if left:
            try:
                await asyncio.wait_for(done.wait(), link.CLOSE_ALL_LIMIT)
            except TimeoutError:
                print(f"{len(left)} environments did not close in {link.CLOSE_ALL_LIMIT:g} s", flush=True)

    def _make_sandbox_backend(self) -> None:
        """Makes what was asked for by name, so that mistakes show at the start.

        Raises:
            InvalidArgument: There is no such backend, or it does not take its options.
            SandboxUnavailable: It needs a library that is not installed.
        """
        how = sandboxing.settings()
        # Without sandboxes a worker need not import what needs no service, and is there whenever it is wanted.
        if how.options or how.backend not in ("bubblewrap", "local"):
            from gymhost.envs.sandbox.registry import process_backend

            self._sandboxes_to_try = process_backend()

    async def _try_sandboxes(self) -> None:
        """Says why sandboxes can't be made; the service that makes them may still come, so the server goes on."""
        if self._sandboxes_to_try is not None and self.config.number == 0:
            problem = await self._sandboxes_to_try.problem()
            if problem is not None:
                print(f"sandboxes can't be made: {problem}", flush=True)

    async def _clear_sandboxes(self) -> None:
        """Removes what sandboxes left that were killed with their worker: most of it goes with them, groups do not."""
        from gymhost.envs.sandbox.bubblewrap import cgroups

        await asyncio.to_thread(cgroups.sweep)

    async def _destroy_sandboxes(self) -> None:
        """Destroys all sandboxes, whoever they were made for; what is not gone in time goes with the process."""
        registry = sys.modules.get("gymhost.envs.sandbox.registry")
        if registry is not None:
            try:
                await asyncio.wait_for(registry.close(), link.CLOSE_ALL_LIMIT)
            except TimeoutError:
                print(f"sandboxes were not destroyed in {link.CLOSE_ALL_LIMIT:g} s", flush=True)

    # -- limits --------------------------------------------------------------------------------------------------------

    def watch(self, session: Session) -> None:
        """Has `session.expire` called when its deadline passes."""
        if session.deadline:
            self._watched[session.lane] = session

    def unwatch(self, session: Session) -> bool:
        """Ends the watch. False when the session was given up meanwhile, and what it did no longer counts.

        From any thread: whoever takes a session out of the table decides.
        """
        return self._watched.pop(session.lane, None) is not None or not session.deadline

    @property
    def running(self) -> int:
        """How many calls with a limit are running."""
        return len(self._watched)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP)
            now = time.monotonic()
            self.watchdog.loop_beat = now
            # A copy, since the threads of sessions put themselves in and take themselves out.
            for session in list(self._watched.values()):
                if now > session.deadline:
                    session.expire()

    async def _sweep_idle(self) -> None:
        while True:
            await asyncio.sleep(IDLE_SWEEP)
            now = time.monotonic()
            idle = [s for s in self.sessions.values() if s.idle_limit and not s.busy and now > s.since + s.idle_limit]
            for session in idle:
                why = f"no command came for {session.idle_limit:g} s (the session's idle_timeout)"
                self.tell_front(session.lane, errors.SessionExpired(why))
            self.watching.sweep()
            self._count_sandboxes()

    def _count_sandboxes(self) -> None:
        """Counts those of this process, if there ever were some."""
        counting = sys.modules.get("gymhost.envs.sandbox.counting")
        if counting is not None and self.meter is not None:
            for name, figures in counting.told(BOUNDS).items():
                if (row := self.meter.backend(name)) is not None:
                    row.put(figures)

    def give_up(self, session: Session, why: str) -> bool:
        """Declares a session lost whose code can't be stopped, and asks for no more sessions.

        The worker ends when its other sessions have left, or after the grace time.

        Returns:
            False where its code came to its end meanwhile, on its thread.
        """
        if not self.unwatch(session):
            return False
        session.blame()
        session.deadline = -1.0
        self._forget(session)
        session.sandboxes.close()
        lost = errors.SessionLost(f"{why} and could not be stopped: the session is lost", limit=session.limit)
        self.watching.raised(session, command_name(session.kind) if session.busy else session.limit, lost)
        if session.busy and session.outlet is not None:
            session.outlet.send_error(session.lane, session.last, lost)
        self.tell_front(session.lane, lost)
        if not self._tainted:
            self._tainted = True
            self.tell_front(0, errors.ServerUnavailable(why))
            self.loop.call_later(self.config.grace, self._leave)
        self._leave_if_done()
        return True

    def _leave_if_done(self) -> None:
        if self._tainted and not self.sessions:
            # After the replies of this turn have been sent.
            self.loop.call_soon(self.loop.call_soon, self._leave)

    def _leave(self) -> None:
        os._exit(link.EXIT_OVERRUN)


def _owner() -> sandboxing.Scope | None:
    """Where the sandboxes belong that the running code makes."""
    running = output.running()
    return running.sandboxes if isinstance(running, Session | _Described) else None
