"""The session table: creating, finding and ending sessions, and their leases."""

import asyncio
import dataclasses
import difflib
import logging
import secrets
from typing import TYPE_CHECKING, Any, NamedTuple

from gymhost.server import link
from gymhost.server.config import ServerConfig
from gymhost.server.front.admission import Admission
from gymhost.server.front.lanes import name_of
from gymhost.server.front.memory import Memory
from gymhost.server.front.pool import WorkerPool
from gymhost.server.front.workers import Sink, Worker
from gymhost.v1 import environments_pb2 as pb
from gymhost.wire import errors
from gymhost.wire.words import counted

if TYPE_CHECKING:
    from gymhost.server.front.forks import Fork

log = logging.getLogger("gymhost.server")

# How many bytes the requests may have of all creates together that wait, or are being answered.
MAX_REQUESTED = 256 * 1024 * 1024
# How long the words about the end of a session may be.
MAX_REASON = 1000
# What a worker gets beyond the environment's own limit to answer a create, and to close a session.
WORKER_GRACE = 30.0
# Seconds that a timer may be late before the server is taken to have stood still.
STILL = 1.0
GOING_AWAY = "the server is going away and takes no new sessions"
DRAINED = "the server is being drained and takes no new sessions until it is resumed"


class Making(NamedTuple):
    """An environment in the making, on a lane that no session has yet.

    Attributes:
        identity: Who asked for it.
        environment_id: What it is.
        since: Since when, by the loop's clock.
        num_envs: Copies of a vector session.
        is_session: It is for a session, and not to be looked at for a moment.
    """

    identity: str
    environment_id: str
    since: float
    num_envs: int = 0
    is_session: bool = True


# What the end of a session counts as, by its error; all others are losses.
_ENDS: dict[type[errors.Error], str] = {errors.SessionClosed: "closed", errors.SessionExpired: "expired"}

# A create's: its caller and what it names the create by.
Key = tuple[str, bytes]


@dataclasses.dataclass(slots=True, eq=False)
class Session:
    """One session, as the front knows it.

    Attributes:
        id: The secret name that the client has.
        identity: Who made it.
        lane: Its lane, which is also where its worker keeps it.
        sink: The stream that drives it now, if any.
        heard: When its client was last heard of, for a session without a stream.
        num_envs: Copies of a vector session; 0 for a scalar one.
        closed: When it was ended, by the loop's clock.
        calls: Unary calls that are running on it, and forks of it that wait for places.
        fork: The last of these.
    """

    id: str = dataclasses.field(repr=False)
    identity: str
    lane: int
    worker: Worker
    environment_id: str
    created: float
    heard: float
    num_envs: int = 0
    closed: float = 0.0
    sink: Sink | None = None
    calls: int = 0
    fork: "Fork | None" = None

    @property
    def places(self) -> int:
        """How many places of the server's capacity it takes: one, or one a copy."""
        return self.num_envs or 1

    @property
    def name(self) -> str:
        """What operators call it."""
        return name_of(self.lane)

    @property
    def about(self) -> dict[str, Any]:
        """What a line of the log is about that is about it."""
        return {
            "session": self.name,
            "environment": self.environment_id,
            "worker": self.worker.number,
            "identity": self.identity,
        }


class Creating:
    """A create that is not answered yet.

    Attributes:
        task: What does it.
        callers: How many wait for it.
        placed: It has its place.
    """

    def __init__(self) -> None:
        self.task: asyncio.Task[tuple[Session, bytes]]
        self.callers = 0
        self.placed = False


@dataclasses.dataclass(frozen=True, slots=True)
class Ended:
    """What is remembered of a session that has ended."""

    identity: str
    error: errors.Error
    info: pb.SessionInfo


class SessionTable:
    """All sessions of a server.

    Args:
        config: The server's settings.
        pool: Where sessions are placed.
    """

    def __init__(self, config: ServerConfig, pool: WorkerPool) -> None:
        self._config = config
        self._pool = pool
        self.by_id: dict[str, Session] = {}
        self._by_lane: dict[int, Session] = {}
        # What is on lanes that have no session, or not yet; and sessions that have ended, until their workers say so.
        self.making: dict[int, Making] = {}
        self.closing: dict[int, Session] = {}
        self.admission = Admission(config)
        # Those that ended not long ago, by id and by lane.
        self._ended: Memory[str, Ended] = Memory()
        # Done when a session ends, by its lane, for those who wait for that.
        self._awaited: dict[int, set[asyncio.Future[errors.Error]]] = {}
        self._ended_lanes: Memory[int, Ended] = Memory()
        # Creates by the caller's key: running, with the bytes of their requests, and answered not long ago.
        self._creates: dict[Key, Creating] = {}
        self._requested = 0
        self._answered: Memory[Key, tuple[Session, bytes]] = Memory()
        self._closing: set[asyncio.Task[Any]] = set()
        # Why it takes no new sessions; empty where it does.
        self.refusal = ""
        # Set when a session has ended, or is no longer in the making.
        self._fewer = asyncio.Event()

    # -- create --------------------------------------------------------------------------------------------------------

    async def create(self, identity: str, request: pb.CreateSessionRequest, limit: float) -> tuple[Session, bytes]:
        """Creates a session, or finds the one that the same key created.

        Args:
            identity: Who asks.
            request: What for.
            limit: Seconds to wait for a place.

        Returns:
            The session, and the serialized CreateSessionResponse.

        Raises:
            Error: It could not be created.
        """
        key = (identity, request.idempotency_key)
        if len(request.idempotency_key) != 16:
            raise errors.InvalidArgument(f"idempotency_key must have 16 bytes, not {len(request.idempotency_key)}")
        creating = self._creates.get(key)
        if creating is None:
            answered = self._answered.get(key)
            if answered is not None:
                return answered
            size = request.ByteSize()
            if self._requested and self._requested + size > MAX_REQUESTED:
                raise errors.CapacityExhausted(
                    f"the creates that wait have {self._requested} bytes of arguments, and with {size} more there are "
                    f"more than {MAX_REQUESTED}",
                    retry_after=self.admission.retry_after(),
                )
            self._requested += size
            creating = self._creates[key] = Creating()
            # A task of its own: a caller that goes away and repeats the create finds it still running.
            creating.task = asyncio.get_running_loop().create_task(self._create(creating, identity, request, limit))
            creating.task.add_done_callback(lambda _: self._remember(key, size, creating))
        creating.callers += 1
        try:
            return await asyncio.shield(creating.task)
        finally:
            creating.callers -= 1
            if not creating.callers and not creating.placed:
                # A place would be lost on it. Whoever repeats it waits again.
                creating.task.cancel()
                if self._creates.get(key) is creating:
                    del self._creates[key]
                    self._fewer.set()

    def _remember(self, key: Key, size: int, creating: Creating) -> None:
        if self._creates.get(key) is creating:
            del self._creates[key]
            self._fewer.set()
        self._requested -= size
        task = creating.task
        if not task.cancelled() and task.exception() is None:
            session, response = task.result()
            self._answered.put(key, (session, response), len(response))

    async def _create(
        self, creating: Creating, identity: str, request: pb.CreateSessionRequest, limit: float
    ) -> tuple[Session, bytes]:
        info = self._pool.catalog.get(request.environment_id)
        if info is None:
            raise unknown_environment(request.environment_id, self._pool)
        loop = asyncio.get_running_loop()
        asked = loop.time()
        places = max(request.num_envs, 1)
        if not self.accepting:
            raise errors.ServerUnavailable(self.refusal)
        await self.admission.take(identity, places, limit, request.priority)
        creating.placed = True
        try:
            queued = loop.time() - asked
            self._pool.meters.front.row(info.environment_id).took("queue", queued)
            try:
                return await self._place(identity, request, info, queued)
            except errors.ServerUnavailable:
                # The worker died: perhaps of a neighbour, in which case another one can do it. Once, since it may also
                # have been this environment.
                return await self._place(identity, request, info, queued)
        except BaseException:
            self.admission.free(identity, places)
            raise

    async def _place(
        self, identity: str, request: pb.CreateSessionRequest, info: pb.EnvironmentInfo, queued: float
    ) -> tuple[Session, bytes]:
        places = max(request.num_envs, 1)
        worker = await self._pool.pick(info, places)
        try:
            return await self._make(identity, request, info, worker, queued)
        except BaseException:
            self._pool.release(worker, places)
            raise

    async def _make(
        self, identity: str, request: pb.CreateSessionRequest, info: pb.EnvironmentInfo, worker: Worker, queued: float
    ) -> tuple[Session, bytes]:
        lane = worker.new_lane()
        token = secrets.token_bytes(16)
        request.idempotency_key = token  # of no more use here; the worker takes it for the session's token
        patience = info.reset_timeout_ms / 1000 + WORKER_GRACE if info.reset_timeout_ms else None
        worker.pending[lane] = info.environment_id
        began = asyncio.get_running_loop().time()
        self.making[lane] = Making(identity, info.environment_id, began, request.num_envs)
        try:
            async with asyncio.timeout(patience):
                made = await worker.request(link.CREATE, lane, request.SerializeToString())
        except errors.SessionLost as error:
            raise errors.ServerUnavailable(f"{info.environment_id} could not be made: {error.message}") from None
        except errors.CommandTimeout:
            raise  # the worker's own word, which is a TimeoutError too
        except TimeoutError:
            worker.request(pb.COMMAND_KIND_CLOSE, lane, b"")
            raise errors.CommandTimeout(
                f"making {info.environment_id} took more than {patience:g} s", limit="reset"
            ) from None
        finally:
            del worker.pending[lane], self.making[lane]
        now = asyncio.get_running_loop().time()
        session = Session(
            id=f"{worker.number:x}-{secrets.token_hex(16)}",
            identity=identity,
            lane=lane,
            worker=worker,
            environment_id=info.environment_id,
            created=now,
            heard=now,
            num_envs=request.num_envs,
        )
        self.by_id[session.id] = session
        self._by_lane[lane] = session
        self._count(session, "created")
        log.debug("a session of %s began", session.environment_id, extra=session.about)
        # Serialized messages that follow each other are merged by whoever parses them.
        head = pb.CreateSessionResponse(
            session_id=session.id, lanes=[lane], queued_ms=round(queued * 1000), direct_token=token.hex()
        )
        return session, head.SerializeToString() + made

    def add_twin(self, session: Session) -> Session:
        """Puts a session into the table that its worker is to fork from another one. It has its places already."""
        now = asyncio.get_running_loop().time()
        worker = session.worker
        twin = dataclasses.replace(
            session,
            id=f"{worker.number:x}-{secrets.token_hex(16)}",
            lane=worker.new_lane(),
            created=now,
            heard=now,
            sink=None,
            calls=0,
            fork=None,
        )
        self.by_id[twin.id] = twin
        self._by_lane[twin.lane] = twin
        self._count(twin, "created")
        worker.sessions += twin.places
        worker.placed += 1
        return twin

    def refuse(self, why: str = GOING_AWAY) -> None:
        """Takes no new sessions from now on; those who wait for a place are turned away."""
        self.refusal = why
        self.admission.turn_away(errors.ServerUnavailable(why))

    def accept(self) -> None:
        """Takes new sessions again."""
        self.refusal = ""

    @property
    def accepting(self) -> bool:
        """Whether it takes new sessions."""
        return not self.refusal

    async def until_empty(self) -> None:
        """Waits until there is no session, and none in the making."""
        while self.by_id or self._creates:
            self._fewer.clear()
            await self._fewer.wait()

    # -- find ----------------------------------------------------------------------------------------------------------

    def find(self, session_id: str, identity: str) -> Session:
        """The session of this id, if it is this caller's.

        Raises:
            SessionClosed, SessionExpired, SessionLost: It has ended, not long ago.
            UnknownSession: It never existed, or is another's: the two can't be told apart.
        """
        session = self.by_id.get(session_id)
        if session is not None and session.identity == identity:
            return session
        ended = self._ended.get(session_id)
        if ended is not None and ended.identity == identity:
            raise ended.error
        raise errors.UnknownSession("no such session")

    def describe(self, session_id: str, identity: str) -> pb.SessionInfo | None:
        """What is remembered of a session that has ended; None for one that has not."""
        ended = self._ended.get(session_id)
        return ended.info if ended is not None and ended.identity == identity else None

    def on_lane(self, lane: int) -> Session | None:
        """The session of a lane."""
        return self._by_lane.get(lane)

    def owner_of(self, lane: int) -> str | None:
        """Whose a lane is; None where nothing is on it any more."""
        session = self._by_lane.get(lane)
        if session is not None:
            return session.identity
        making = self.making.get(lane)
        return making and making.identity

    def last_owner_of(self, lane: int) -> str | None:
        """Whose a lane is, or was not long ago."""
        ended = self._ended_lanes.get(lane)
        return self.owner_of(lane) or (ended and ended.identity)

    def end_of(self, lane: int, identity: str) -> errors.Error | None:
        """How the session of a lane ended, if it was this caller's and not long ago."""
        ended = self._ended_lanes.get(lane)
        return ended.error if ended is not None and ended.identity == identity else None

    def of(self, identity: str) -> list[Session]:
        """All sessions of an identity."""
        return [session for session in self.by_id.values() if session.identity == identity]

    # -- drive ---------------------------------------------------------------------------------------------------------

    def attach(self, session: Session, sink: Sink) -> None:
        """Gives the replies of a session to a sink; the one that had them is told."""
        before = session.sink
        if before is not None and before is not sink:
            before.notice(session.lane, errors.Detached("another stream drives the session now"))
        session.sink = sink

    def detach(self, session: Session, sink: Sink) -> None:
        """Ends what `attach` began, unless another sink has the session by now."""
        if session.sink is sink:
            session.sink = None
            session.heard = asyncio.get_running_loop().time()

    # -- end -----------------------------------------------------------------------------------------------------------

    async def close(self, session: Session, by: Sink | None = None) -> None:
        """Closes a session at its client's wish; returns when its environment is closed.

        Args:
            session: The session.
            by: The stream that asks for it; another one that drives the session is told.

        Raises:
            EnvironmentFault: Its close raised. It is closed all the same.
        """
        closing = self.end(session, errors.SessionClosed("the session was closed"), tell=session.sink is not by)
        if closing is not None:
            await closing

    def end(self, session: Session, why: errors.Error, *, tell: bool = True) -> "asyncio.Future[bytes] | None":
        """Takes a session out of the table, has its worker close it, and tells whoever drives it.

        Returns:
            What is done when the environment is closed; None if the session had ended before.
        """
        if self.by_id.pop(session.id, None) is None:
            return None
        self._fewer.set()
        self._count(session, _ENDS.get(type(why), "lost"))
        del self._by_lane[session.lane]
        for awaiting in self._awaited.pop(session.lane, ()):
            if not awaiting.done():
                awaiting.set_result(why)
        if session.fork is not None:
            session.fork.making.cancel()
            # Else a session that was forked holds on to its forks, those to theirs, and so on, ended or not.
            session.fork = None
        ended = Ended(session.identity, why, self.info(session, why))
        self._ended.put(session.id, ended, MAX_REASON)
        self._ended_lanes.put(session.lane, ended, MAX_REASON)
        if session.sink is not None and tell:
            session.sink.notice(session.lane, why)
        worker = session.worker
        log.debug("a session of %s ended: %s", session.environment_id, why.message, extra=session.about)
        if isinstance(why, errors.SessionExpired):
            log.info("a session of %s expired: %s", session.environment_id, why.message, extra=session.about)
        closing = asyncio.ensure_future(self._close_in_worker(worker, session))
        self._closing.add(closing)
        closing.add_done_callback(lambda done: self._closed(session, done))
        return closing

    def _count(self, session: Session, what: str) -> None:
        self._pool.meters.front.row(session.environment_id).add(what, session.places)

    async def _close_in_worker(self, worker: Worker, session: Session) -> bytes:
        lane, places = session.lane, session.places
        worker.pending[lane] = session.environment_id
        session.closed = asyncio.get_running_loop().time()
        self.closing[lane] = session
        try:
            async with asyncio.timeout(WORKER_GRACE):
                return await worker.request(pb.COMMAND_KIND_CLOSE, lane, b"")
        except errors.CommandTimeout:
            raise  # the worker's own word, which is a TimeoutError too
        except (errors.SessionLost, TimeoutError):
            return b""  # gone with its worker, or given up by it
        finally:
            del worker.pending[lane], self.closing[lane]
            self._pool.release(worker, places)
            self.admission.free(session.identity, places)

    def _closed(self, session: Session, closing: "asyncio.Task[bytes]") -> None:
        self._closing.discard(closing)
        if not closing.cancelled() and (error := closing.exception()) is not None:
            log.info("closing an environment: %s", error, extra=session.about)

    def when_ended(self, session: Session) -> "asyncio.Future[errors.Error]":
        """What is done, with the reason, when a session has ended; whoever waits no longer cancels it."""
        awaiting: asyncio.Future[errors.Error] = asyncio.get_running_loop().create_future()
        if session.id not in self.by_id:
            ended = self._ended.get(session.id)
            awaiting.set_result(ended.error if ended else errors.SessionClosed("the session has ended"))
            return awaiting
        waiting = self._awaited.setdefault(session.lane, set())
        waiting.add(awaiting)
        awaiting.add_done_callback(waiting.discard)
        return awaiting

    def environments_of(self, worker: Worker) -> dict[int, str]:
        """The environments of a worker's sessions, by their lanes."""
        return {session.lane: session.environment_id for session in self.by_id.values() if session.worker is worker}

    def lose_all(self, worker: Worker) -> None:
        """Ends the sessions of a worker that has died."""
        lost = [session for session in self.by_id.values() if session.worker is worker]
        if lost and self.accepting:
            about = {"worker": worker.number}
            log.warning("%s lost with worker %d", counted(len(lost), "session"), worker.number, extra=about)
        why = errors.SessionLost(f"the session is lost: worker {worker.number} is gone: {worker.reason}")
        for session in lost:
            self.end(session, why)

    async def sweep(self) -> None:
        """Ends sessions whose lease has run out, for ever; forgets what is old."""
        loop = asyncio.get_running_loop()
        lease = self._config.lease
        pause = min(lease / 20, 5.0)
        while True:
            began = loop.time()
            await asyncio.sleep(pause)
            now = loop.time()
            if now - began > pause + STILL:
                continue  # the server has stood still itself: what its clients sent meanwhile is to be heard first
            for session in list(self.by_id.values()):
                heard = session.heard if session.sink is None else getattr(session.sink, "heard", now)
                if now - heard > lease and not session.calls:
                    why = f"nothing was heard of the session's client for {lease:g} s (--lease)"
                    self.end(session, errors.SessionExpired(why))
            for memory in (self._ended, self._ended_lanes, self._answered):
                memory.forget_old()

    def info(self, session: Session, why: errors.Error | None = None) -> pb.SessionInfo:
        """Describes a session, as far as the front knows it."""
        states: dict[type[errors.Error] | None, Any] = {
            None: pb.SESSION_STATE_READY,
            errors.SessionClosed: pb.SESSION_STATE_CLOSED,
            errors.SessionExpired: pb.SESSION_STATE_EXPIRED,
        }
        return pb.SessionInfo(
            environment_id=session.environment_id,
            state=states.get(why and type(why), pb.SESSION_STATE_LOST),
            reason=why.message[:MAX_REASON] if why else "",
            attached=session.sink is not None,
            age_ms=round((asyncio.get_running_loop().time() - session.created) * 1000),
            worker=session.worker.number,
        )


def unknown_environment(environment_id: str, pool: WorkerPool) -> errors.UnknownEnvironment:
    """The error for an id that is not registered, with what may have been meant and what could not be loaded."""
    close = difflib.get_close_matches(environment_id, pool.catalog, n=3)
    hint = f"; did you mean {' or '.join(close)}?" if close else ""
    broken = f" Could not be loaded: {'; '.join(pool.problems)}." if pool.problems else ""
    return errors.UnknownEnvironment(
        f"no environment {environment_id!r} on this server{hint or '.'} Environments must be registered when the "
        f"server starts: gymhost serve MODULE imports a module that registers some.{broken}"
    )
