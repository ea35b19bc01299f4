"""The server as a whole: workers, sessions and gRPC put together, started and stopped."""

import asyncio
import logging
import os
import secrets
import signal
import sys
from collections.abc import Callable
from typing import Any, cast

import grpc.aio
import uvloop
from grpc_health.v1 import health as health_v1
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from gymhost.server.addresses import ensure_free
from gymhost.server.config import ServerConfig
from gymhost.server.descriptors import allow_descriptors
from gymhost.server.front import leftovers
from gymhost.server.front.access import Access
from gymhost.server.front.pool import WorkerPool
from gymhost.server.front.rotation import Rotation
from gymhost.server.front.service import SERVICE, Service, handlers
from gymhost.server.front.sessions import GOING_AWAY, SessionTable
from gymhost.server.front.stream import Streams
from gymhost.server.front.workers import Worker
from gymhost.v1 import environments_pb2 as pb
from gymhost.wire import errors, limits
from gymhost.wire.host import host_name

# gRPC's asyncio health service, which has no types of its own.
health: Any = cast(Any, health_v1).aio

log = logging.getLogger("gymhost.server")


class Server:
    """A running environment server.

    Args:
        config: Its settings.
    """

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self.address = config.address
        self._access = Access(config)
        self._pool = WorkerPool(config, self)
        self._table = SessionTable(config, self._pool)
        direct = pb.DirectPath(folder=str(self._pool.folder), host=host_name(), user_id=os.getuid())
        self._streams = Streams(config, self._table, secrets.token_hex(16), direct)
        self._grpc: Any = None
        self._health: Any = health.HealthServicer()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Starts the workers, then listens.

        Raises:
            ServerUnavailable: A worker could not start, or the address is taken.
        """
        allow_descriptors()
        try:
            ensure_free(self.config.address)
            killed = await asyncio.to_thread(leftovers.clear)
            await self._pool.start(clears=killed > 0)
            self._listen()
            await self._grpc.start()
        except BaseException:
            await self._pool.stop(2.0)
            raise
        for problem in self._pool.problems:
            log.warning("could not be loaded: %s", problem)
        work = (self._table.sweep(), self._access.watch(self._streams), Rotation(self.config, self._pool).watch())
        self._tasks = [asyncio.get_running_loop().create_task(each) for each in work]
        for name in ("", SERVICE):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    def _listen(self) -> None:
        self._grpc = grpc.aio.server(options=server_options(self.config.max_payload))
        service = Service(self._access.identities, self._table, self._pool, self._streams, self.config.queue_timeout)
        self._grpc.add_generic_rpc_handlers((handlers(service),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._grpc)  # pyright: ignore[reportUnknownMemberType]
        names = (SERVICE, health_v1.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._grpc)
        port = self._access.listen(self._grpc)
        if not port:
            raise errors.ServerUnavailable(f"can't listen on {self.config.address}: is it taken? (--address)")
        if not self.config.address.startswith("unix:"):
            self.address = f"{self.config.address.rpartition(':')[0]}:{port}"

    @property
    def environments(self) -> dict[str, pb.EnvironmentInfo]:
        """What is hosted, by id."""
        return self._pool.catalog

    async def drain(self) -> None:
        """Takes no new sessions, and waits for those that there are to end, for as long as is set."""
        await self._refuse()
        if not self.config.drain:
            return
        if self._table.by_id:
            log.info(
                "draining: %d sessions go on, for at most %g s (--drain)", len(self._table.by_id), self.config.drain
            )
        try:
            async with asyncio.timeout(self.config.drain):
                await self._table.until_empty()
        except TimeoutError:
            log.warning("%d sessions went on after %g s (--drain)", len(self._table.by_id), self.config.drain)

    async def _refuse(self) -> None:
        """Has new sessions go elsewhere: whoever asks about the server's health is told, and so are its clients."""
        if self._table.accepting:
            self._table.refuse()
            self._streams.tell_all(errors.ServerUnavailable(GOING_AWAY))
        await self._health.enter_graceful_shutdown()

    async def stop(self) -> None:
        """Stops: no new sessions, a grace time for running commands, then everything is closed."""
        await self._refuse()
        for task in self._tasks:
            task.cancel()
        settled = await self._streams.settle(self.config.grace)
        self._streams.close_all(errors.SessionLost("the session is lost: the server was stopped"))
        await asyncio.sleep(0.05)  # for the notices to leave; streams end by themselves only when clients do
        await self._grpc.stop(0.2)
        # What did not end within the grace time will not end by being asked again.
        await self._pool.stop(self.config.grace + 5.0 if settled else 1.0)

    def abort(self) -> None:
        """Ends the workers without any grace, for a process that ends now."""
        for worker in self._pool.workers.values():
            if worker.pid:
                worker.kill("the server was stopped at once")
        self._pool.remove_folder()

    # -- WorkerEvents --------------------------------------------------------------------------------------------------

    def worker_died(self, worker: Worker) -> None:
        """Ends the sessions of a worker, and has another take its place."""
        if worker.pid and not self._pool.stopping:
            level = logging.INFO if worker.ended_as_asked else logging.WARNING
            log.log(level, "worker %d ended: %s", worker.number, worker.reason)
            if worker.ready and not worker.ended_as_asked and not worker.tainted:
                suspects, hurried = worker.suspects(self._table.environments_of(worker))
                self._pool.quarantine.died(suspects, worker.reason, apart=worker.dedicated, hurried=hurried)
        self._table.lose_all(worker)
        self._pool.forget(worker)

    def worker_tainted(self, worker: Worker) -> None:
        """Has another worker take the new sessions."""
        log.warning("worker %d takes no new sessions: %s", worker.number, worker.reason)
        self._pool.replace(worker)

    def session_ended(self, worker: Worker, lane: int, error: errors.Error) -> None:
        """Ends a session that its worker gave up, or that was idle for too long."""
        session = self._table.on_lane(lane)
        environment_id = worker.pending.get(lane) if session is None else session.environment_id
        if environment_id is not None and isinstance(error, errors.SessionLost):
            # The worker ends for it, in a while.
            hurried = error.limit == "command"
            self._pool.quarantine.died({environment_id}, error.message, apart=worker.dedicated, hurried=hurried)
        if session is not None and not (session.calls and isinstance(error, errors.SessionExpired)):
            # Whose fork waits for places is not idle, which is asked again.
            self._table.end(session, error)


def server_options(max_payload: int) -> list[tuple[str, int]]:
    """The channel options of the server's side."""
    message = max_payload + limits.ENVELOPE
    return [
        ("grpc.max_receive_message_length", message),
        ("grpc.max_send_message_length", message),
        # Beyond 1000 calls that come at once gRPC would drop some at random, health checks too; what is too much is
        # refused here, with a reason.
        ("grpc.server.max_pending_requests", 65_536),
        ("grpc.server.max_pending_requests_hard_limit", 131_072),
        # Two servers never share a port silently.
        ("grpc.so_reuseport", 0),
        # Clients may ping while a model thinks: by default gRPC takes that for abuse and sends GOAWAY.
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 1000),
        ("grpc.http2.max_ping_strikes", 0),
        # Notices a peer that is gone without a word.
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
    ]


def run(
    config: ServerConfig, *, on_ready: Callable[[Server], None] | None = None, parent_fd: int | None = None
) -> None:
    """Runs a server until SIGTERM, Ctrl-C, or the end of the process that started it.

    After SIGTERM its sessions go on for a while, as is set; Ctrl-C, and the end of the process, don't wait for them.

    Args:
        config: The server's settings.
        on_ready: Called once the server listens.
        parent_fd: A pipe whose end of file means that the server's parent is gone.

    Raises:
        ServerUnavailable: The server could not start.
    """
    logging.basicConfig(
        level=config.log_level.upper(), format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr
    )
    uvloop.run(_run(config, on_ready, parent_fd))


async def _run(config: ServerConfig, on_ready: Callable[[Server], None] | None, parent_fd: int | None) -> None:
    loop = asyncio.get_running_loop()
    # Set by what stops the server in whatever way, and by what does not wait for sessions.
    stop, at_once = asyncio.Event(), asyncio.Event()
    server = Server(config)
    came: set[int] = set()

    def on_signal(number: int) -> None:
        """The first signal stops with grace; the same one again at once."""
        if number in came:
            server.abort()
            os._exit(128 + number)
        came.add(number)
        stop.set()
        if number != signal.SIGTERM:
            at_once.set()

    def on_parents_end() -> None:
        loop.remove_reader(cast(int, parent_fd))
        stop.set()
        at_once.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal, number)
    if parent_fd is not None:
        loop.add_reader(parent_fd, on_parents_end)
    starting = loop.create_task(server.start())
    stopping = loop.create_task(stop.wait())
    await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        await asyncio.wait([starting])
        return
    starting.result()
    log.debug("serving %d environments on %s", len(server.environments), server.address)
    if on_ready is not None:
        on_ready(server)
    await stopping
    if not at_once.is_set():
        draining, hurry = loop.create_task(server.drain()), loop.create_task(at_once.wait())
        await asyncio.wait([draining, hurry], return_when=asyncio.FIRST_COMPLETED)
        for task in (draining, hurry):
            task.cancel()
    log.info("stopping")
    await server.stop()
