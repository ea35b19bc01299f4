"""The session table: creating, finding and ending sessions, their leases, and the queue for places."""

import asyncio
import collections
import dataclasses
import difflib
import logging
import secrets
from typing import Any

from gymhost.server import link
from gymhost.server.config import ServerConfig
from gymhost.server.front.pool import WorkerPool
from gymhost.server.front.workers import Sink, Worker
from gymhost.v1 import environments_pb2 as pb
from gymhost.wire import errors

log = logging.getLogger("gymhost.server")

# How long an ended session is remembered, and a create's key after it was answered, in seconds.
REMEMBER = 300.0
# What a worker gets beyond the environment's own limit to answer a create, and to close a session.
WORKER_GRACE = 30.0


@dataclasses.dataclass(slots=True, eq=False)
class Session:
    """One session, as the front knows it.

    Attributes:
        id: The secret name that the client has.
        identity: Who made it.
        lane: Its lane, which is also where its worker keeps it.
        sink: The stream that drives it now, if any.
        heard: When its client was last heard of, for a session without a stream.
        places: How many places of the server's capacity it takes: one, or one a copy.
        calls: Unary calls that are running on it.
    """

    id: str
    identity: str
    lane: int
    worker: Worker
    environment_id: str
    created: float
    heard: float
    places: int = 1
    sink: Sink | None = None
    calls: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Ended:
    """What is remembered of a session that has ended."""

    identity: str
    lane: int
    when: float
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
        self._ended: collections.OrderedDict[str, Ended] = collections.OrderedDict()
        self._ended_lanes: dict[int, str] = {}
        # Creates by the caller's key: running, or answered not long ago.
        self._creates: dict[tuple[str, bytes], asyncio.Task[tuple[Session, bytes]]] = {}
        self._answered: collections.deque[tuple[float, tuple[str, bytes]]] = collections.deque()
        self._places = 0
        # Those who wait for places, and for how many.
        self._queue: collections.deque[tuple[asyncio.Future[None], int]] = collections.deque()
        self._closing: set[asyncio.Task[Any]] = set()
        self.accepting = True

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
        task = self._creates.get(key)
        if task is None:
            # A task of its own: a caller that goes away and repeats the create finds it still running.
            task = asyncio.get_running_loop().create_task(self._create(identity, request, limit))
            self._creates[key] = task
            task.add_done_callback(lambda _: self._remember(key))
        return await asyncio.shield(task)

    def _remember(self, key: tuple[str, bytes]) -> None:
        task = self._creates[key]
        if task.cancelled() or task.exception() is not None:
            del self._creates[key]
        else:
            self._answered.append((asyncio.get_running_loop().time(), key))

    async def _create(self, identity: str, request: pb.CreateSessionRequest, limit: float) -> tuple[Session, bytes]:
        info = self._pool.catalog.get(request.environment_id)
        if info is None:
            raise unknown_environment(request.environment_id, self._pool)
        loop = asyncio.get_running_loop()
        asked = loop.time()
        places = max(request.num_envs, 1)
        await self._take_places(places, limit)
        try:
            queued = loop.time() - asked
            try:
                return await self._place(identity, request, info, queued)
            except errors.ServerUnavailable:
                # The worker died: perhaps of a neighbour, in which case another one can do it. Once, since it may also
                # have been this environment.
                return await self._place(identity, request, info, queued)
        except BaseException:
            self._free_places(places)
            raise

    async def _place(
        self, identity: str, request: pb.CreateSessionRequest, info: pb.EnvironmentInfo, queued: float
    ) -> tuple[Session, bytes]:
        places = max(request.num_envs, 1)
        worker = await self._pool.pick(dedicated=info.isolation == pb.ISOLATION_PROCESS, places=places)
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
        now = asyncio.get_running_loop().time()
        session = Session(
            id=f"{worker.number:x}-{secrets.token_hex(16)}",
            identity=identity,
            lane=lane,
            worker=worker,
            environment_id=info.environment_id,
            created=now,
            heard=now,
            places=max(request.num_envs, 1),
        )
        self.by_id[session.id] = session
        self._by_lane[lane] = session
        # Serialized messages that follow each other are merged by whoever parses them.
        head = pb.CreateSessionResponse(
            session_id=session.id, lanes=[lane], queued_ms=round(queued * 1000), direct_token=token.hex()
        )
        return session, head.SerializeToString() + made

    async def _take_places(self, count: int, limit: float) -> None:
        if not self.accepting:
            raise errors.ServerUnavailable("the server is going away and takes no new sessions")
        capacity = self._config.capacity
        if count > capacity:
            raise errors.CapacityExhausted(
                f"a vector session of {count} copies is above the server's capacity of {capacity} (--capacity)"
            )
        if self._places + count <= capacity and not self._queue:
            self._places += count
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter = (turn, count)
        self._queue.append(waiter)
        try:
            await asyncio.wait_for(turn, limit)
        except TimeoutError:
            if turn.done() and not turn.cancelled():
                return  # it came in the very moment in which the time was up
            raise errors.CapacityExhausted(
                f"the server is full: {self._places} of {capacity} sessions, {len(self._queue)} creates "
                f"waiting, no place within {limit:g} s (--capacity, --queue-timeout)"
            ) from None
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._free_places(count)
            raise
        finally:
            if waiter in self._queue:
                self._queue.remove(waiter)
                self._hand_on()  # whoever comes next may want fewer

    def _free_places(self, count: int) -> None:
        self._places -= count
        self._hand_on()

    def _hand_on(self) -> None:
        """Gives free places to those who wait, in the order in which they came."""
        while self._queue:
            turn, count = self._queue[0]
            if not turn.done():
                if self._places + count > self._config.capacity:
                    return
                self._places += count
                turn.set_result(None)
            self._queue.popleft()

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

    def end_of(self, lane: int, identity: str) -> errors.Error | None:
        """How the session of a lane ended, if it was this caller's and not long ago."""
        ended = self._ended.get(self._ended_lanes.get(lane, ""))
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
        del self._by_lane[session.lane]
        now = asyncio.get_running_loop().time()
        self._ended[session.id] = Ended(session.identity, session.lane, now, why, self.info(session, why))
        self._ended_lanes[session.lane] = session.id
        if session.sink is not None and tell:
            session.sink.notice(session.lane, why)
        worker = session.worker
        if isinstance(why, errors.SessionExpired):
            log.info("session %s#%d expired: %s", session.environment_id, session.lane & 0xFFFFFFFF, why.message)
        closing = asyncio.ensure_future(self._close_in_worker(worker, session.lane, session.places))
        self._closing.add(closing)
        closing.add_done_callback(self._closed)
        return closing

    async def _close_in_worker(self, worker: Worker, lane: int, places: int) -> bytes:
        try:
            async with asyncio.timeout(WORKER_GRACE):
                return await worker.request(pb.COMMAND_KIND_CLOSE, lane, b"")
        except errors.CommandTimeout:
            raise  # the worker's own word, which is a TimeoutError too
        except (errors.SessionLost, TimeoutError):
            return b""  # gone with its worker, or given up by it
        finally:
            self._pool.release(worker, places)
            self._free_places(places)

    def _closed(self, closing: "asyncio.Task[bytes]") -> None:
        self._closing.discard(closing)
        if not closing.cancelled() and (error := closing.exception()) is not None:
            log.info("closing an environment: %s", error)

    def lose_all(self, worker: Worker) -> None:
        """Ends the sessions of a worker that has died."""
        lost = [session for session in self.by_id.values() if session.worker is worker]
        if lost and self.accepting:
            log.warning("%d sessions are lost with worker %d", len(lost), worker.number)
        why = errors.SessionLost(f"the session is lost: worker {worker.number} is gone: {worker.reason}")
        for session in lost:
            self.end(session, why)

    async def sweep(self) -> None:
        """Ends sessions whose lease has run out, for ever; forgets what is old."""
        loop = asyncio.get_running_loop()
        lease = self._config.lease
        while True:
            await asyncio.sleep(min(lease / 20, 5.0))
            now = loop.time()
            for session in list(self.by_id.values()):
                heard = session.heard if session.sink is None else getattr(session.sink, "heard", now)
                if now - heard > lease and not session.calls:
                    why = f"nothing was heard of the session's client for {lease:g} s (--lease)"
                    self.end(session, errors.SessionExpired(why))
            while self._ended and next(iter(self._ended.values())).when < now - REMEMBER:
                _, ended = self._ended.popitem(last=False)
                del self._ended_lanes[ended.lane]
            while self._answered and self._answered[0][0] < now - REMEMBER:
                self._creates.pop(self._answered.popleft()[1], None)

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
            reason=why.message if why else "",
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
