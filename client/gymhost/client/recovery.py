"""Making a lost session again: another one is created, told what the first was told, and takes its lane."""

import asyncio
import logging
import threading
import time
from typing import TYPE_CHECKING, Any

from gymhost.client.journal import Entry, Journal, digest, is_seeded_reset
from gymhost.client.pending import OVERTAKEN, Lane, Pending, failure
from gymhost.v1 import environments_pb2 as pb
from gymhost.wire import errors

if TYPE_CHECKING:
    from gymhost.client.connection import Connection
    from gymhost.client.session import SessionOptions

__all__ = ["Recovery", "arrange", "why_not"]

log = logging.getLogger("gymhost.client")

# How often a session is made again for the sake of one command, which may be what ends its workers.
MOST_TRIES = 4
# Seconds between two creates where the server can't take one just now: at first, and at most.
PAUSE, MOST_PAUSE = 0.25, 8.0

# Replies that tell of the time that something took, or of the machine, and not of what the environment did.
_PASSING = (
    errors.Cancelled,
    errors.CommandTimeout,
    errors.SandboxUnavailable,
    errors.ServerFault,
    errors.ServerUnavailable,
    errors.SessionError,
)


class Recovery:
    """Makes one session again whenever it is lost. The command in flight waits for that, and goes on from there.

    Args:
        lane: The session's lane, which is left to drive what comes in its place.
        options: What the session was made from.
        create_timeout: Seconds that each create may wait for a place; None for the server's default.

    Attributes:
        journal: What there is to repeat.
        count: How often the session was recovered.
    """

    def __init__(self, lane: Lane, options: "SessionOptions", create_timeout: float | None) -> None:
        self.journal = Journal()
        self.count = 0
        self._lane = lane
        self._connection: Connection = lane.connection
        self._options = options
        self._create_timeout = create_timeout
        # A loss may be noticed on the connection's loop and where its command is waited for at once.
        self._lock = threading.Lock()
        # The command that waits for the session to be made again; what is to be repeated before it; what does that.
        self._waiting: Pending | None = None
        self._entries: list[Entry] = []
        self._task: asyncio.Task[None] | None = None
        # A seeded reset for which nothing was repeated, since all begins anew with it, if it goes well.
        self._shortcut: Pending | None = None
        # For which command it was last made again, how often, and for how many seconds in all. How many restarts of the
        # server were known then: what these end is not the command's doing, and counts for the seconds alone.
        self._for: Pending | None = None
        self._tries = 0
        self._spent = 0.0
        self._restarts = lane.connection.restarts
        # Whether its owner has closed it, or it is lost for good.
        self._closed = False
        self._over = False

    def forked(self, lane: Lane) -> "Recovery":
        """That of a session that was just forked from this one: it is made again from what this one was told till now.

        Args:
            lane: The lane of the fork.
        """
        twin = Recovery(lane, self._options, self._create_timeout)
        twin.journal = self.journal.copy()
        return twin

    # -- from any thread -----------------------------------------------------------------------------------------------

    def can(self, error: errors.Error | None) -> bool:
        """Whether a session that has ended in this way is made again for the next command."""
        # A limit that has passed would pass again; and what was closed, or has run out, is not lost.
        return (
            type(error) is errors.SessionLost
            and not error.limit
            and not self._over
            and not self._closed
            and self._connection.dead is None
        )

    def takes(self, pending: Pending, code: int, reply: bytes) -> bool:
        """Takes a command that has failed because its session is lost: it is answered once that is recovered.

        Args:
            pending: The command.
            code: What it was answered with.
            reply: The same.

        Returns:
            Whether it does; else the command has failed.
        """
        lane = self._lane
        with self._lock:
            if self._waiting is pending:
                pending.error = None
                return True  # it was told before, in another way
            if lane.pending is not pending:
                return False
            error = pending.error
            if error is None and code in OVERTAKEN:
                error = lane.ended
            elif error is None and code == pb.REPLY_CODE_SESSION_LOST:
                error = failure(code, reply)
            if error is None and pending is self._shortcut:
                return self._go_the_long_way(pending, code, reply)
            if error is None or not self.can(error):
                return False
            if lane.ended is None:
                lane.ended = error
            if pending.abandoned:
                self.journal.drop(pending)
                return False
            return self._take(pending, error)

    def resumes(self, pending: Pending) -> bool:
        """Takes the first command after a loss that was noticed while there was none.

        Returns:
            Whether it does; else the session has ended, and `ended` of the lane says how.
        """
        lane = self._lane
        with self._lock:
            error = lane.ended
            if error is None or not self.can(error):
                return False
            self.journal.begin(pending)
            if not self._take(pending, error):
                return False
            lane.pending = pending
            return True

    def close(self) -> None:
        """Recovers the session no more, since it is being closed."""
        self._closed = True
        if self._waiting is not None:
            self._connection.thread.loop.call_soon_threadsafe(self._stop)

    def _take(self, pending: Pending, error: errors.Error) -> bool:
        entries = self.journal.before(pending)
        if entries is None:
            why = f"{error.message}; it was not recovered, since {self.journal.why_not}"
            pending.error = self._lane.ended = errors.SessionLost(why)
            self._over = True
            return False
        self._shortcut = pending if is_seeded_reset(pending.kind, pending.payload) else None
        self._begin(pending, entries)
        return True

    def _go_the_long_way(self, pending: Pending, code: int, reply: bytes) -> bool:
        """Has the episode repeated that a reset was to end, which has failed and so has left it as it was."""
        self._shortcut = None
        why = f"the session was lost, and the reset that followed failed: {failure(code, reply).message}"
        self._connection.forget(pb.COMMAND_KIND_CLOSE, self._lane.number)
        if self.journal.why_not is not None:
            self._lane.ended = errors.SessionLost(f"{why}; it was not recovered, since {self.journal.why_not}")
            self._over = True
            return False
        self._lane.ended = errors.SessionLost(why)
        self._begin(pending, self.journal.entries())
        return True

    def _begin(self, pending: Pending, entries: list[Entry]) -> None:
        pending.error = None
        self._waiting = pending
        self._entries = entries
        self._connection.thread.loop.call_soon_threadsafe(self._start, pending)

    # -- on the connection's loop --------------------------------------------------------------------------------------

    def _start(self, pending: Pending) -> None:
        self._connection.recovering[self._lane] = self
        self._connection.in_flight.let_go(self._lane)
        self._task = asyncio.get_running_loop().create_task(self._run(pending))
        if self._closed:
            self._stop()

    def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def stopped(self) -> None:
        """Stops what is under way, and waits until that is done."""
        self._stop()
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self, pending: Pending) -> None:
        lost, limit = self._lane.ended, self._connection.recovery_timeout
        assert lost is not None
        if self._for is not pending:
            self._for, self._tries, self._spent = pending, 0, 0.0
        began = time.monotonic()
        error: errors.Error
        try:
            async with asyncio.timeout(limit - self._spent):
                new = await self._make_again(lost)
            self._go_on(new, pending)
            log.info(
                "a session of %s was recovered in %.2f s, by repeating %d commands: %s",
                self._options.environment_id,
                time.monotonic() - began,
                len(self._entries),
                lost.message,
            )
            return
        except TimeoutError:
            error = errors.SessionLost(
                f"{lost.message}; it could not be recovered within {limit:g} s (recovery_timeout)"
            )
        except asyncio.CancelledError:
            error = self._connection.dead or errors.SessionClosed("the session was closed")
        except errors.Error as raised:
            error = raised
        except Exception as raised:  # noqa: BLE001 - whoever waits must be told, whatever it was
            error = errors.SessionLost(f"{lost.message}; recovering it failed: {type(raised).__name__}: {raised}")
        finally:
            self._spent += time.monotonic() - began
            self._connection.recovering.pop(self._lane, None)
            self._task = None
        self._give_up(pending, error)

    async def _make_again(self, lost: errors.Error) -> Lane:
        """Creates a session and brings it to where the lost one was.

        Raises:
            SessionLost: That can't be done.
            ConnectionLost: The connection could not be restored.
        """
        why: str | None = lost.message
        while (restarted := self._restarts != self._connection.restarts) or self._tries < MOST_TRIES:
            self._restarts = self._connection.restarts
            self._tries += not restarted
            new = await self._create(lost)
            try:
                why = await self._repeat(new)
            except BaseException:
                if new.ended is None:
                    new.ended = errors.SessionClosed("the session was closed")
                    self._connection.forget(pb.COMMAND_KIND_CLOSE, new.number)
                raise
            if why is None:
                return new
        raise errors.SessionLost(
            f"{why}; it was recovered {MOST_TRIES} times, and lost each time before the next command was answered"
        )

    async def _create(self, lost: errors.Error) -> Lane:
        """Creates a session with the options of the lost one."""
        in_flight, pause = self._connection.in_flight, PAUSE
        while True:
            create = _Told(None, 0, pb.COMMAND_KIND_CREATE, self._options.request().SerializeToString())
            create.time_left_ms = max(1, round(self._create_timeout * 1000)) if self._create_timeout is not None else 0
            create.sequence = next(in_flight.numbers)
            self._connection.submit(create)
            try:
                await create.future
            except asyncio.CancelledError:
                in_flight.abandon(create)
                raise
            try:
                number = pb.CreateSessionResponse.FromString(create.result()).lanes[0]
            except errors.ConnectionLost:
                raise
            except errors.ServerUnavailable as error:
                # It is going away, for another one to take its place; or its workers have all ended just now.
                await asyncio.sleep(error.retry_after or pause)
            except errors.Error as error:
                raise errors.SessionLost(f"{lost.message}; it could not be made again: {error}") from None
            else:
                if (lane := in_flight.lanes.get(number)) is not None:
                    return lane
                await asyncio.sleep(pause)  # it ended as soon as it was made
            pause = min(2 * pause, MOST_PAUSE)

    async def _repeat(self, new: Lane) -> str | None:
        """Tells a new session what the lost one was told, and compares what it answers.

        Returns:
            What has become of it, where it is lost too; else None.

        Raises:
            ReplayDiverged: It answers something else.
        """
        for position, entry in enumerate(self._entries, 1):
            told = _Told(new, new.number, entry.kind, entry.payload)
            if new.ended is None:
                new.begin(told)
                self._connection.submit_all((told,))
                await told.future
                if digest(told.code, told.reply) == entry.digest:
                    continue
                self._differs(told, position)
            break
        return None if new.ended is None else new.ended.message

    def _differs(self, told: Pending, position: int) -> None:
        """Says what it means that a repeated command was answered in another way.

        Raises:
            Error: Unless it was lost with its session.
        """
        kind = pb.CommandKind.Name(told.kind).removeprefix("COMMAND_KIND_")  # pyright: ignore[reportArgumentType]
        which = f"the session is lost: when it was recovered, command {position} of {len(self._entries)} ({kind})"
        try:
            told.result()
        except errors.ConnectionLost:
            raise
        except _PASSING as error:
            if type(error) is errors.SessionLost and not error.limit:
                return
            raise errors.SessionLost(f"{which} failed: {error}") from None
        except errors.Error:
            pass  # a reply like any other
        raise errors.ReplayDiverged(
            f"{which} was answered in another way than before, so {self._options.environment_id} is not replayable as "
            "it claims: gymhost check finds out more"
        )

    def _go_on(self, new: Lane, pending: Pending) -> None:
        """Puts a new session in the place of the lost one."""
        lane, connection = self._lane, self._connection
        self._become(new)
        with self._lock:
            self._waiting = None
            self.count += 1
            # In this order, since `Lane.close` has the other.
            lane.ended = None
            closed = self._closed
        if closed:
            lane.ended = errors.SessionClosed("the session was closed")
            connection.forget(pb.COMMAND_KIND_CLOSE, lane.number)
            self._fail(pending, lane.ended)
        elif pending.abandoned:
            self.journal.drop(pending)
            lane.free()
        else:
            lane.sequence += 1
            pending.number, pending.sequence = lane.number, lane.sequence
            connection.submit_all((pending,))

    def _become(self, new: Lane) -> None:
        lane = self._lane
        self._connection.in_flight.lanes[new.number] = lane
        lane.number, lane.session_id, lane.token = new.number, new.session_id, new.token
        lane.direct, lane.asking, lane.sequence = None, not new.token, new.sequence

    def _give_up(self, pending: Pending, error: errors.Error) -> None:
        with self._lock:
            self._over = True
            self._waiting = None
            if not isinstance(self._lane.ended, errors.SessionClosed):
                self._lane.ended = error
        self._fail(pending, error)

    def _fail(self, pending: Pending, error: errors.Error) -> None:
        pending.fail(error)
        self._connection.in_flight.wake_bridges()


class _Told(Pending):
    """A command whose reply is awaited on the connection's own loop."""

    __slots__ = ("future",)

    def __init__(self, lane: Lane | None, number: int, kind: int, payload: bytes) -> None:
        super().__init__(lane, number, kind, payload)
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake(self) -> None:
        """Ends the wait."""
        if not self.future.done():
            self.future.set_result(None)


def arrange(lane: Lane, made: Any, options: "SessionOptions", create_timeout: float | None) -> None:
    """Has a new session recovered whenever it is lost, if it says that it can be.

    Args:
        lane: Its lane.
        made: What the server said of it, a `Made`.
        options: What it was made from.
        create_timeout: Seconds that each create may wait for a place; None for the server's default.
    """
    if made.replayable and lane.connection.recovery_timeout:
        lane.recovery = Recovery(lane, options, create_timeout)


def why_not(lane: Lane, made: Any) -> str | None:
    """Why a session can't be recovered; None where it can."""
    if not made.replayable:
        return (
            "the environment does not say that it is replayable (gymhost.envs.register(..., replayable=True), or "
            "gymhost serve --replayable ID)"
        )
    recovery = lane.recovery
    if recovery is None:
        return "it was asked not to be (recovery_timeout=0)"
    if lane.ended is not None and not recovery.can(lane.ended):
        return f"it has ended: {lane.ended.message}"
    return recovery.journal.why_not
