"""Commands in flight, and how their replies reach whoever waits: a coroutine on any event loop, or a thread."""

import asyncio
import collections
import concurrent.futures
import contextlib
import copy
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError as ProtobufDecodeError

from gymhost.client.direct import DirectLinks
from gymhost.v1 import environments_pb2 as pb
from gymhost.wire import errors

if TYPE_CHECKING:
    from gymhost.client.connection import Connection
    from gymhost.client.direct import DirectLink
    from gymhost.client.recovery import Recovery


# What tells that a session has ended.
_ENDS = (errors.SessionClosed, errors.SessionExpired, errors.SessionLost)

# What a command is answered with that was overtaken by the end of its session.
OVERTAKEN = (pb.REPLY_CODE_UNKNOWN_SESSION, pb.REPLY_CODE_CANCELLED)


class Pending:
    """A command from its submission to its reply.

    Args:
        lane: The lane that it is numbered on; None for a command that is answered on lane 0.
        number: The lane's number; 0 where the command is for the server itself.
        kind: The kind of command.
        payload: The message of that kind.
        time_left_ms: Milliseconds until the server is to stop it; 0: no limit of the caller's.
    """

    __slots__ = ("code", "error", "kind", "lane", "number", "payload", "reply", "sequence", "time_left_ms")

    def __init__(self, lane: "Lane | None", number: int, kind: int, payload: bytes, time_left_ms: int = 0) -> None:
        self.lane = lane
        self.number = number
        # The connection numbers those that the lane does not.
        self.sequence = 0
        self.kind = kind
        self.payload = payload
        self.time_left_ms = time_left_ms
        self.code = 0
        self.reply = b""
        # What went wrong on this side, in place of a reply.
        self.error: errors.Error | None = None

    @property
    def abandoned(self) -> bool:
        """Whether it is known that nobody waits for the reply."""
        return False

    def recovers(self, code: int, reply: bytes) -> bool:
        """Whether the session is lost and recovered, so that the reply is still to come."""
        lane = self.lane
        return lane is not None and lane.recovery is not None and lane.recovery.takes(self, code, reply)

    def resolve(self, code: int, reply: bytes) -> None:
        """Takes the reply. On the connection's loop only."""
        self.code = code
        self.reply = reply
        lane = self.lane
        if lane is not None:
            lane.free()
        self.wake()

    def settle(self, code: int, reply: bytes) -> None:
        """Takes the reply where it is waited for. On the loop of the link that it came on."""
        self.resolve(code, reply)

    def fail(self, error: errors.Error) -> None:
        """Takes an error in place of a reply."""
        self.error = error
        self.resolve(error.code, b"")

    def wake(self) -> None:
        """Wakes whoever waits. A command that nobody waits for wakes no one."""

    def result(self) -> bytes:
        """The reply's payload.

        Raises:
            Error: The command failed.
        """
        if self.code:
            # Never bound to a name here: with its traceback it would hold itself, and the session, until a collection.
            raise self._failure()
        return self.reply

    def _failure(self) -> errors.Error:
        lane = self.lane
        if self.error is not None:
            return copy.copy(self.error)
        if self.code in OVERTAKEN and lane is not None and lane.ended is not None:
            # The session's end says more: the command crossed its notice, or was cancelled for it.
            return copy.copy(lane.ended)
        error = failure(self.code, self.reply)
        if isinstance(error, _ENDS) and lane is not None and lane.ended is None:
            lane.ended = copy.copy(error)  # the notice that says so follows
        return error


def failure(code: int, payload: bytes) -> errors.Error:
    """The error that a reply stands for."""
    try:
        return errors.from_wire(code, pb.Error.FromString(payload))
    except ProtobufDecodeError:
        return errors.from_wire(code, pb.Error(message="the server's account of what went wrong can't be read"))


class ThreadPending(Pending):
    """A command that a thread waits for."""

    __slots__ = ("_lock", "answered", "told")

    def __init__(self, lane: "Lane | None", number: int, kind: int, payload: bytes, time_left_ms: int = 0) -> None:
        super().__init__(lane, number, kind, payload, time_left_ms)
        self._lock = threading.Lock()
        self._lock.acquire()
        # A command that went two ways, since the first was given up, has a reply on each.
        self.answered = False
        # Called when the reply is there, for a thread that waits for the first of several.
        self.told: Callable[[], None] | None = None

    def resolve(self, code: int, reply: bytes) -> None:
        """Takes the reply; the first one, where there are more."""
        # In this order, since an interrupt may end it anywhere: while the lane is not free it can be done again.
        if self.answered or (code and self.recovers(code, reply)):
            return
        self.code = code
        self.reply = reply
        lane = self.lane
        if lane is not None and lane.pending is self:
            lane.free()
        self.answered = True
        self.wake()

    def wake(self) -> None:
        """Wakes the thread."""
        if self._lock.locked():
            self._lock.release()
        if self.told is not None:
            self.told()

    def wait(self) -> bytes:
        """Blocks until the reply is there; the connection sees to it that one comes."""
        self._lock.acquire()
        return self.result()


class AsyncPending(Pending):
    """A command that a coroutine waits for."""

    __slots__ = ("_bridge", "future")

    def __init__(
        self, bridge: "Bridge", lane: "Lane | None", number: int, kind: int, payload: bytes, time_left_ms: int = 0
    ) -> None:
        # What the base class does, without a call more on the way of every step.
        self.lane = lane
        self.number = number
        self.sequence = 0
        self.kind = kind
        self.payload = payload
        self.time_left_ms = time_left_ms
        self.code = 0
        self.reply = b""
        self.error = None
        self._bridge = bridge
        self.future: asyncio.Future[None] = bridge.loop.create_future()

    @property
    def abandoned(self) -> bool:
        """Whether its caller was cancelled."""
        return self.future.cancelled()

    def resolve(self, code: int, reply: bytes) -> None:
        """Takes the reply, and has the bridge carry it over. On the connection's loop only."""
        if code and self.recovers(code, reply):
            return
        self.code = code
        self.reply = reply
        lane = self.lane
        if lane is not None:
            lane.pending = None
            if lane.waiting:
                lane.free()
        self._bridge.deliver(self)

    def settle(self, code: int, reply: bytes) -> None:
        """Takes the reply on the very loop that waits for it."""
        # The first half of `resolve`, again without a call more on the way of every step.
        if code and self.recovers(code, reply):
            return
        self.code = code
        self.reply = reply
        lane = self.lane
        if lane is not None:
            lane.pending = None
            if lane.waiting:
                lane.free()
        future = self.future
        if not future.done():
            future.set_result(None)


class Bridge:
    """Carries commands from one event loop to a connection's, and replies back.

    Each way what has gathered in a turn of the loop costs one wake-up of the other thread.

    Args:
        loop: The user's event loop.
        connection: Where commands go.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, connection: "Connection") -> None:
        self.loop = loop
        self._thread = threading.get_ident()
        self.links = DirectLinks(connection, loop)
        self._connection = weakref.ref(connection)
        self._out: list[Pending] = []
        # Commands that were handed over and are not answered yet.
        self._away = 0
        self._done: collections.deque[AsyncPending] = collections.deque()
        # The bridges that have replies to carry at the end of this frame: the connection's list.
        self._laden = connection.laden_bridges
        self._is_laden = False

    def is_here(self) -> bool:
        """Whether the bridge's loop is the one that runs in this thread."""
        # A thread runs one loop at a time: this is get_running_loop() without its system call.
        return self._thread == threading.get_ident() and self.loop.is_running()

    def submit(self, pending: Pending) -> None:
        """Hands a command over at the end of this turn of the loop; at once while it is the only one."""
        self._out.append(pending)
        if not self._away:
            self._flush()
        elif len(self._out) == 1:
            self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        out, self._out = self._out, []
        self._away += len(out)
        connection = self._connection()
        if connection is not None:
            connection.submit_all(out)

    def deliver(self, pending: AsyncPending) -> None:
        """Takes a command that has its reply. On the connection's loop."""
        self._done.append(pending)
        if not self._is_laden:
            self._is_laden = True
            self._laden.append(self)

    def wake(self) -> None:
        """Has the user's loop take what was delivered. On the connection's loop."""
        self._is_laden = False
        try:
            self.loop.call_soon_threadsafe(self._take)
        except RuntimeError:
            self._done.clear()  # the loop was closed: nobody waits any more

    def _take(self) -> None:
        done = self._done
        while done:
            self._away -= 1
            future = done.popleft().future
            if not future.done():
                future.set_result(None)
        if self._away < 0:
            self._away = 0  # some were handed over elsewhere first


class Lane:
    """What a client keeps of a session: its numbering, and the command in flight.

    Args:
        connection: The connection that drives it.
        number: The lane's number.
        session_id: The session's id.
        token: What opens it on the direct path; empty where there is none.
    """

    __slots__ = (
        "__weakref__",
        "asking",
        "connection",
        "direct",
        "ended",
        "number",
        "pending",
        "recovery",
        "sequence",
        "session_id",
        "token",
        "waiting",
    )

    def __init__(self, connection: "Connection", number: int, session_id: str, token: str) -> None:
        self.connection = connection
        self.number = number
        self.session_id = session_id
        self.token = token
        # Where commands go past gRPC, while they do; and whether a worker was asked for that.
        self.direct: DirectLink | None = None
        self.asking = not token
        self.sequence = 0
        self.pending: Pending | None = None
        # Why no more commands are taken, once that is so.
        self.ended: errors.Error | None = None
        # One a waiter, since one that is cancelled must not take the others with it.
        self.waiting: tuple[concurrent.futures.Future[None], ...] = ()
        # What makes the session again when it is lost; None where that can't be done.
        self.recovery: Recovery | None = None

    def begin(self, pending: Pending) -> bool:
        """Makes a command the one in flight. The lane must be free.

        Returns:
            Whether it is to be sent; else the session is being recovered, and the command sent after that.

        Raises:
            Error: The session has ended.
        """
        recovery = self.recovery
        if self.ended is not None:
            if recovery is None or not recovery.resumes(pending):
                raise copy.copy(self.ended)
            return False
        self.sequence += 1
        pending.sequence = self.sequence
        self.pending = pending
        if recovery is not None:
            recovery.journal.begin(pending)
        return True

    def first_seed(self) -> int | None:
        """The seed for a reset without one: drawn here while the environment would draw one that nobody knew."""
        return None if self.recovery is None else self.recovery.journal.first_seed()

    @property
    def lost(self) -> bool:
        """Whether the session has ended other than by `close`, and is not recovered."""
        ended = self.ended
        if ended is None or isinstance(ended, errors.SessionClosed):
            return False
        return self.recovery is None or not self.recovery.can(ended)

    def cancel(self) -> None:
        """Asks for the end of the command in flight."""
        if self.ended is None:  # else the number may be another session's by now
            self.connection.forget(pb.COMMAND_KIND_CANCEL, self.number)

    def close(self, why: str) -> bool:
        """Takes no more commands.

        Args:
            why: What to say to those that come.

        Returns:
            Whether the session has to be closed on the server.
        """
        recovery = self.recovery
        if recovery is not None:
            recovery.close()
        is_open = self.ended is None
        if is_open or (recovery is not None and isinstance(self.ended, errors.SessionLost)):
            self.ended = errors.SessionClosed(why)
        return is_open

    def free(self) -> None:
        """Called when the command in flight has its reply. On the connection's loop."""
        self.pending = None
        if self.waiting:
            waiting, self.waiting = self.waiting, ()
            for future in waiting:
                _settle(future)

    def until_free(self) -> concurrent.futures.Future[None]:
        """What is done when the command in flight has its reply, as after one whose caller was cancelled."""
        future: concurrent.futures.Future[None] = concurrent.futures.Future()
        self.waiting += (future,)
        if self.pending is None:
            # It came between the look and the making of the future.
            _settle(future)
        return future


def _settle(future: concurrent.futures.Future[None]) -> None:
    with contextlib.suppress(concurrent.futures.InvalidStateError):
        future.set_result(None)
