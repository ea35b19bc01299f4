"""Sessions: the numbering of a lane; and those whose code runs on the worker's event loop."""

import abc
import asyncio
import contextlib
import copy
import inspect
import time
from collections.abc import Callable, Coroutine, Generator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, cast

import gymnasium
from gymnasium.wrappers import OrderEnforcing

from gymhost.envs.registration import Hosting, make
from gymhost.envs.sandboxing import Scope
from gymhost.envs.wrapping import wrap
from gymhost.server import link
from gymhost.server.board import BLAMED, HURRIED, IDLE, RUNNING
from gymhost.server.worker import output, vector
from gymhost.server.worker.calls import CALLS, Call
from gymhost.server.worker.failure import failure, fault, unimplemented
from gymhost.server.worker.follow import Following
from gymhost.server.worker.fork import Forking
from gymhost.server.worker.output import current_session
from gymhost.server.worker.tally import CopiesTally, Tally
from gymhost.server.worker.terms import Terms
from gymhost.server.worker.vector_calls import VECTOR_CALLS
from gymhost.v1 import environments_pb2 as pb
from gymhost.wire import errors, values

if TYPE_CHECKING:
    from gymhost.server.worker.host import Host
    from gymhost.server.worker.links import DirectLink
    from gymhost.server.worker.outlet import Outlet

# Seconds that closing an environment may take, and that a coroutine gets to end once it is cancelled.
CLOSE_LIMIT = 10.0
CANCEL_GRACE = 2.0

T = TypeVar("T")

# What ends a make or a close: None, or the error.
Done = Callable[[BaseException | None], None]


class Session(abc.ABC):
    """One environment and the lane that drives it. Subclasses say where the environment's code runs.

    Args:
        host: The worker that it lives in.
        lane: Its lane.
        request: What the client asked for.
        hosting: How the environment runs.
    """

    # What counts for a session of one environment.
    TALLY: ClassVar[type[Tally]] = Tally

    __slots__ = (
        "board", "busy", "calls", "code", "deadline", "direct", "env", "environment_id", "following", "host", "hosting",
        "idle_limit", "is_vector", "kind", "lane", "last", "limit", "outlet", "place", "repeated", "reply", "sandboxes",
        "since", "tally", "terms", "token",
    )  # fmt: skip

    def __init__(self, host: "Host", lane: int, request: pb.CreateSessionRequest, hosting: Hosting) -> None:
        self.host = host
        self.lane = lane
        self.environment_id = request.environment_id
        self.hosting = hosting
        self.env: Any = None
        self.is_vector = bool(request.num_envs)
        self.calls: Mapping[int, Call] = VECTOR_CALLS if self.is_vector else CALLS
        # Those who follow it, if anybody does: `calls` are theirs then.
        self.following: Following | None = None
        self.terms = Terms(request, hosting, host.config)
        # What it counts, where anything is counted.
        self.tally: Tally | None = None
        if host.meter is not None:
            self.tally = (CopiesTally if self.is_vector else self.TALLY)(host.meter, self.environment_id)
        # What its code makes, and leaves behind when it ends in whatever way.
        self.sandboxes = Scope(host.share_of(lane))
        self.idle_limit = request.idle_timeout_ms / 1000
        # The front puts it there: what opens the session to a client on the same host, and the socket that did.
        self.token = request.idempotency_key.hex()
        self.direct: DirectLink | None = None
        # Where the last command came from, and its reply goes.
        self.outlet: Outlet | None = None
        # The last number and its reply, `b""` and code 0 while it runs.
        self.last = 0
        self.code = 0
        self.reply = b""
        # The turn and the outlet in which the last reply was last sent once more.
        self.repeated: tuple[int, Outlet] | None = None
        self.busy = False
        # The kind of the last command, and when it began or, since it has ended, when that was.
        self.kind = 0
        self.since = time.monotonic()
        # Where the front sees, when the worker has died, that code ran here.
        self.board, self.place = host.board.bytes, host.board.place(lane)
        # While a call runs: when it has to end (monotonic), and the name of the limit that says so.
        self.deadline = 0.0
        self.limit = ""

    def __str__(self) -> str:
        return output.tag(self.environment_id, self.lane, self.terms.label)

    # -- the lane ------------------------------------------------------------------------------------------------------

    def submit(self, command: pb.Command, outlet: "Outlet") -> None:
        """Takes a numbered command: runs it, answers it from the store, or refuses it."""
        sequence = command.sequence
        if sequence == self.last + 1 and not self.busy:
            self.last = sequence
            self.busy = True
            self.since = time.monotonic()
            self.board[self.place] = RUNNING
            self.outlet = outlet
            kind = self.kind = command.kind
            call = self.calls.get(kind)
            if call is None:
                self._take_other(command)
            else:
                self.run(call, command.payload, command.time_left_ms)
        elif sequence == self.last and sequence:
            # Running still: its reply goes the way of the newest asker, once it is there.
            self.outlet = outlet
            repeated = self.host.turn.number, outlet
            # One answer serves all that ask in one turn: small commands must not make heaps of large replies.
            if not self.busy and self.repeated != repeated:
                self.repeated = repeated
                outlet.send(self.lane, sequence, self.code, self.reply)
        else:
            running = ", which is running" if self.busy else ""
            error = errors.OutOfSequence(
                f"command {sequence} came after command {self.last}{running}", last_sequence=self.last
            )
            outlet.send_error(self.lane, sequence, error)

    def _take_other(self, command: pb.Command) -> None:
        """Takes a command that is not in the tables of calls, which is no step."""
        try:
            if command.kind == pb.COMMAND_KIND_FORK:
                forking = Forking(self, pb.ForkResult.FromString(command.payload))
                self.run(forking.call, b"", command.time_left_ms)
            elif command.kind == link.REPLY:
                reply = pb.Reply.FromString(command.payload)
                self.since = time.monotonic()
                self.finish(reply.code, reply.payload)
            else:
                raise unimplemented(command.kind)
        except Exception as error:  # noqa: BLE001 - whatever it was, the lane goes on
            self.finish(*failure(error))

    def finish(self, code: int, reply: bytes) -> None:
        """Stores the reply of the running command and sends it. On the event loop only."""
        self.code = code
        self.reply = reply
        self.end_command()
        if self.outlet is not None:
            self.outlet.send(self.lane, self.last, code, reply)
        if code:
            self.host.watching.failed(self, self.kind, code, reply)

    def end_command(self) -> None:
        """Takes note of the end of a command, whose reply is there and not sent yet."""
        # What a client asks of attributes that there are not is none of the environment's failures.
        if self.code and self.tally is not None and self.kind != pb.COMMAND_KIND_GET_ATTR:
            self.tally.failed(self.code)
        self.busy = False
        self.board[self.place] = IDLE

    def set_limit(self, call: Call, time_left_ms: int) -> None:
        """Sets `deadline` and `limit` for a command: the caller's time left, or the environment's own limit."""
        limit = call.limit
        seconds = self.seconds(limit)
        if time_left_ms and (seconds is None or time_left_ms < seconds * 1000):
            seconds, limit = time_left_ms / 1000, "command"
        self.limit = limit
        self.deadline = time.monotonic() + seconds if seconds else 0.0

    def seconds(self, limit: str) -> float | None:
        """The environment's own limit for a reset or a step; None where it has none."""
        return self.hosting.reset_timeout if limit == "reset" else self.hosting.step_timeout

    @contextlib.contextmanager
    def resetting(self) -> Generator[None]:
        """Puts a reset that is part of a step under the limit of resets; its time is not the step's."""
        limit, deadline, began = self.limit, self.deadline, time.monotonic()
        seconds = self.hosting.reset_timeout
        until = began + seconds if seconds else 0.0
        changed = (limit != "command" or 0.0 < until < deadline) and self.unwatch()
        if changed:
            self.limit, self.deadline = "reset", until
            self.watch()
        yield  # what the reset raises is the end of the step
        # Unless the session was given up meanwhile, or a close waits, which has brought its own limit.
        if changed and self.limit == "reset" and self.unwatch():
            own = deadline and limit != "command"
            self.limit, self.deadline = limit, deadline + time.monotonic() - began if own else deadline
            self.watch()

    def watch(self) -> None:
        """Has the running call ended when `deadline` passes."""
        self.host.watch(self)

    def unwatch(self) -> bool:
        """Ends that; False where the call was given up meanwhile."""
        return self.host.unwatch(self)

    def blame(self) -> None:
        """Marks the session as what its worker ends for."""
        self.board[self.place] = HURRIED if self.limit == "command" else BLAMED

    def mark(self, mark: int) -> None:
        """Marks whether code runs, other than a command: the environment is made or closed."""
        if self.board[self.place] < BLAMED:
            self.board[self.place] = mark

    def overrun(self) -> str:
        """What to say of a call that went past its deadline."""
        setting = {
            "command": "the caller's timeout",
            "reset": f"reset_timeout={self.hosting.reset_timeout} s",
            "step": f"step_timeout={self.hosting.step_timeout} s",
        }.get(self.limit, f"{CLOSE_LIMIT:g} s")
        return f"{self.limit} of {self.environment_id} ran past its limit ({setting})"

    # -- the environment -----------------------------------------------------------------------------------------------

    def execute(self, call: Call, payload: bytes) -> tuple[int, bytes]:
        """Runs a command on the calling thread; whatever goes wrong becomes the reply."""
        returned: Any = None
        try:
            returned = call.run(self.env, call.decode(payload, self.terms))
            reply = call.encode(returned)
            if len(reply) > self.host.max_payload:
                raise self.host.too_large(reply)
            code = 0
        except BaseException as error:  # noqa: BLE001 - SystemExit of an environment must not end its neighbours
            returned = None
            code, reply = fault(error)
        began, self.since = self.since, time.monotonic()
        if self.tally is not None:
            self.tally.add(self.kind, len(payload), len(reply), self.since - began, returned)
        return code, reply

    def outcome(self, error: BaseException) -> tuple[int, bytes]:
        """What a command is answered that raised this."""
        return fault(error)

    def follow(self, follower: int, answer: Callable[[bytes], None]) -> None:
        """Has somebody told what came since the last time that they asked. On the event loop, as what follows."""
        if self.following is None:
            self.following = Following(self)
        self.following.ask(follower, answer)

    def unfollow(self, follower: int) -> None:
        """Ends the following of one."""
        if self.following is not None and self.following.leave(follower):
            self.following = None

    def make(self, request: pb.CreateSessionRequest) -> None:
        """Makes the environment on the calling thread."""
        kwargs: Any = values.decode(request.kwargs) if request.HasField("kwargs") else {}
        if request.num_envs:
            self.env = vector.make(request, kwargs, self.terms.wrappers, self.resetting)
            if isinstance(self.tally, CopiesTally):
                self.tally.episodes = self.env.episodes
        else:
            self.env = wrap(make(self.environment_id, **kwargs), self.terms.wrappers)

    def twin(self, lane: int, token: bytes) -> Self:
        """Makes a session like this one that has no environment yet, and is in no table."""
        request = pb.CreateSessionRequest(
            environment_id=self.environment_id,
            idempotency_key=token,
            idle_timeout_ms=round(self.idle_limit * 1000),
        )
        twin = type(self)(self.host, lane, request, self.hosting)
        twin.terms = copy.copy(self.terms)
        twin.tally = self.tally and self.tally.twin()
        return twin

    def abandon(self) -> None:
        """Ends what `twin` made and nobody got."""
        self.sandboxes.close()

    def on_loop(self, act: Callable[[], T]) -> T:
        """Calls something on the event loop, from where the environment's code runs.

        Raises:
            ServerFault: It was not called in time.
        """
        return act()

    def leave(self, *, tell: bool = True) -> None:
        """Ends the direct path, if the session is driven there.

        Args:
            tell: Whether the client is told to go on with the stream; not so where the session has ended.
        """
        if self.direct is not None:
            if tell:
                self.direct.detach(self)
            else:
                self.direct.end(self)

    # -- where it runs; each subclass has its own ----------------------------------------------------------------------

    @abc.abstractmethod
    def run(self, call: Call, payload: bytes, time_left_ms: int) -> None:
        """Starts a command; `finish` is called when it has ended."""

    @abc.abstractmethod
    def start(self, request: pb.CreateSessionRequest, done: Done) -> None:
        """Makes the environment, then calls `done` on the event loop."""

    def cancel(self) -> None:  # noqa: B027 - most have no way to stop it
        """Stops the running command where that can be done; else it goes on to its end or its limit."""

    @abc.abstractmethod
    def close(self, done: Done) -> None:
        """Closes the environment, once a running command has ended, then calls `done` on the event loop."""

    def expire(self) -> None:
        """Called on the event loop when `deadline` has passed."""
        self.host.give_up(self, self.overrun())


class InlineSession(Session):
    """On the event loop itself; the watchdog ends the worker when a call overruns."""

    __slots__ = ()

    def run(self, call: Call, payload: bytes, time_left_ms: int) -> None:
        self.set_limit(call, time_left_ms)
        watchdog = self.host.watchdog
        watchdog.session = self
        watchdog.deadline = self.deadline
        output.inline = self
        code, reply = self.execute(call, payload)
        output.inline = ""
        watchdog.deadline = 0.0
        self.finish(code, reply)

    def watch(self) -> None:
        self.host.watchdog.deadline = self.deadline

    def unwatch(self) -> bool:
        self.host.watchdog.deadline = 0.0
        return True

    def start(self, request: pb.CreateSessionRequest, done: Done) -> None:
        self._guarded("reset", self.hosting.reset_timeout, lambda: self.make(request), done)

    def close(self, done: Done) -> None:
        self._guarded("close", CLOSE_LIMIT, lambda: None if self.env is None else self.env.close(), done)

    def _guarded(self, limit: str, seconds: float | None, call: Callable[[], None], done: Done) -> None:
        watchdog = self.host.watchdog
        self.limit = limit
        watchdog.session = self
        watchdog.deadline = time.monotonic() + seconds if seconds else 0.0
        output.inline = self
        error: BaseException | None = None
        try:
            call()
        except BaseException as raised:  # noqa: BLE001 - SystemExit too
            error = raised
        finally:
            output.inline = ""
            watchdog.deadline = 0.0
        done(error)


class AsyncSession(Session):
    """A coroutine on the event loop; it is cancelled when it overruns."""

    __slots__ = ("_bereft", "_closing", "_stopped_by", "_task")

    def __init__(self, host: "Host", lane: int, request: pb.CreateSessionRequest, hosting: Hosting) -> None:
        super().__init__(host, lane, request, hosting)
        self._task: asyncio.Task[None] | None = None
        self._stopped_by: errors.Error | None = None
        # Whether the sandboxes of the running code were destroyed.
        self._bereft = False
        self._closing = False

    def run(self, call: Call, payload: bytes, time_left_ms: int) -> None:
        self.set_limit(call, time_left_ms)
        self._stopped_by = None
        self._bereft = False
        self.host.watch(self)
        self._task = self.host.loop.create_task(self._run(call, payload))

    async def _run(self, call: Call, payload: bytes) -> None:
        current_session.set(self)
        returned: Any = None
        try:
            argument = call.decode(payload, self.terms)
            returned = await call.run_async(self.env, argument) if call.run_async else call.run(self.env, argument)
            code, reply = 0, call.encode(returned)
            if len(reply) > self.host.max_payload:
                raise self.host.too_large(reply)
        except BaseException as error:  # noqa: BLE001 - SystemExit of an environment must not end its neighbours
            returned = None
            code, reply = self.outcome(error)
        began, self.since = self.since, time.monotonic()
        if self.tally is not None:
            self.tally.add(self.kind, len(payload), len(reply), self.since - began, returned)
        if self.host.unwatch(self):
            self.finish(code, reply)

    def outcome(self, error: BaseException) -> tuple[int, bytes]:
        if isinstance(error, asyncio.CancelledError):
            return failure(self._stopped_by or errors.Cancelled("the command was cancelled"))
        return fault(self._stopped_by or error)

    def start(self, request: pb.CreateSessionRequest, done: Done) -> None:
        async def make_async() -> None:
            await asyncio.to_thread(self._make, request)
            # Gymnasium's wrappers hide coroutines. What keeps the order of calls may go, what changes results may not.
            env: Any = self.env
            while isinstance(env, OrderEnforcing):
                env = cast(Any, env).env
            self.env = env
            if not (hasattr(self.env, "areset") and hasattr(self.env, "astep")):
                wrapped = isinstance(self.env, gymnasium.Wrapper)
                raise errors.InvalidArgument(
                    f"{self.environment_id} is registered with mode='async' but "
                    + (
                        f"{type(self.env).__name__} wraps its coroutines"
                        if wrapped
                        else "has no coroutines areset and astep"
                    )
                )

        self._call("reset", self.hosting.reset_timeout, make_async, done)

    def _make(self, request: pb.CreateSessionRequest) -> None:
        self.make(request)
        if self._closing:
            # It took too long, nobody waits for it any more, and the close found nothing to close.
            self.env.close()

    def cancel(self) -> None:
        self._stop(errors.Cancelled("the command was cancelled"))

    def close(self, done: Done) -> None:
        self._closing = True
        self.cancel()
        self._call("close", CLOSE_LIMIT, self._close, done)

    async def _close(self) -> None:
        # On the loop where the environment's coroutines ran: what they opened may belong to it.
        if (aclose := getattr(self.env, "aclose", None)) is not None:
            await aclose()
        elif self.env is not None:
            await asyncio.to_thread(self.env.close)

    def expire(self) -> None:
        if self._stopped_by is None:
            self._stop(errors.CommandTimeout(self.overrun(), limit=self.limit))
        elif not self._bereft and self.sandboxes.kill():
            # It may be that what a sandbox does is hard to stop.
            self._bereft = True
            self.deadline = time.monotonic() + CANCEL_GRACE
        else:
            self.host.give_up(self, f"{self._stopped_by.message} and went on when it was cancelled")

    def _stop(self, why: errors.Error) -> None:
        task = self._task
        if task is not None and not task.done():
            self._stopped_by = why
            self.deadline = time.monotonic() + CANCEL_GRACE
            self.host.watch(self)
            if inspect.getcoroutinestate(cast("Coroutine[Any, Any, None]", task.get_coro())) == inspect.CORO_CREATED:
                # What is cancelled before it began ends without a word, and nobody would be answered.
                self.host.loop.call_soon(task.cancel)
            else:
                task.cancel()

    def _call(
        self, limit: str, seconds: float | None, call: Callable[[], Coroutine[Any, Any, None]], done: Done
    ) -> None:
        """Makes or closes the environment, once a command that was stopped has ended."""

        async def run() -> None:
            current_session.set(self)
            before = self._task
            if before is not None:
                await asyncio.wait([before], timeout=CANCEL_GRACE)
            allowed = asyncio.timeout(seconds)
            error: BaseException | None = None
            try:
                async with allowed:
                    await call()
            except BaseException as raised:  # noqa: BLE001 - whoever asked is told what the environment's code raised
                error = errors.CommandTimeout(self.overrun(), limit=limit) if allowed.expired() else raised
            done(error)

        self.limit = limit
        self.host.keep(self.host.loop.create_task(run()))
