"""The server as a whole: workers, sessions and gRPC put together, started and stopped."""

import asyncio
import logging
import os
import secrets
from collections.abc import Callable

from gymhost.server import link, process
from gymhost.server.access import Access
from gymhost.server.addresses import ensure_free
from gymhost.server.config import ServerConfig
from gymhost.server.descriptors import allow_descriptors
from gymhost.server.front import leftovers
from gymhost.server.front.pool import WorkerPool
from gymhost.server.front.rotation import Rotation
from gymhost.server.front.sandbox_memory import SandboxMemory
from gymhost.server.front.service import SERVICE, Service, handlers
from gymhost.server.front.sessions import DRAINED, GOING_AWAY, SessionTable
from gymhost.server.front.stream import Streams
from gymhost.server.front.workers import Worker
from gymhost.server.identity import Identities, SideDoor
from gymhost.server.listener import Listener
from gymhost.server.operations.observer import Observer
from gymhost.server.tokens import hash_of
from gymhost.v1 import environments_pb2 as pb
from gymhost.v1 import operations_pb2 as operations
from gymhost.wire import errors
from gymhost.wire.host import host_name
from gymhost.wire.words import counted

log = logging.getLogger("gymhost.server")


class Server:
    """A running environment server.

    Args:
        config: Its settings.
        side_token: A token by which a process of its own is let in at `side_address`; empty for none.
    """

    def __init__(self, config: ServerConfig, side_token: str = "") -> None:
        self.config = config
        self._pool = WorkerPool(config, self)
        self.side_address = f"unix:{self._pool.folder / 'side'}" if side_token else ""
        side = SideDoor(self.side_address, hash_of(side_token), "rollouts") if side_token else None
        try:
            self._access = Access(config, side=side)
        except BaseException:
            self._pool.remove_folder()
            raise
        self._table = SessionTable(config, self._pool)
        self._memory = SandboxMemory(config, self._table.owner_of)
        direct = pb.DirectPath(folder=str(self._pool.folder), host=host_name(), user_id=os.getuid())
        self._streams = Streams(config, self._table, secrets.token_hex(16), direct)
        service = Service(self._access.identities, self._table, self._pool, self._streams, config.queue_timeout)
        self._observer = Observer(config, self._access.identities, self, self._table, self._pool, self._streams)
        services = {SERVICE: handlers(service), **self._observer.services}
        self._listener = Listener(config.address, self._access, config.max_payload, services)
        self._leaving = False
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
            await self._memory.listen(str(self._pool.folder / link.MEMORY_SOCKET))
            await self._pool.start(clears=killed > 0)
            await self._listener.start()
        except BaseException:
            self._memory.close()
            await self._pool.stop(2.0)
            raise
        for problem in self._pool.problems:
            log.warning("could not be loaded: %s", problem)
        work = (
            self._table.sweep(),
            self._access.watch(self),
            Rotation(self.config, self._pool).watch(),
            self._observer.watch(),
        )
        self._tasks = [asyncio.get_running_loop().create_task(each) for each in work]
        await self._listener.serving()

    @property
    def address(self) -> str:
        """Where it listens."""
        return self._listener.address

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
                "draining: %s left, for at most %g s (--drain)",
                counted(len(self._table.by_id), "session"),
                self.config.drain,
            )
        try:
            async with asyncio.timeout(self.config.drain):
                await self._table.until_empty()
        except TimeoutError:
            log.warning("%s left after %g s (--drain)", counted(len(self._table.by_id), "session"), self.config.drain)

    async def _refuse(self) -> None:
        """Has new sessions go elsewhere: whoever asks about the server's health is told, and so are its clients."""
        self._leaving = True
        if self._table.accepting:
            self._table.refuse()
            self._streams.tell_all(errors.ServerUnavailable(GOING_AWAY))
        await self._listener.leaving()

    async def set_draining(self, draining: bool) -> int:
        """Takes no new sessions until it is told to; returns how many there are.

        Raises:
            ServerUnavailable: It is about to stop.
        """
        if self._leaving:
            raise errors.ServerUnavailable(GOING_AWAY)
        if draining and self._table.accepting:
            log.warning("the server is drained: it takes no new sessions until it is resumed")
            self._table.refuse(DRAINED)
            self._streams.tell_all(errors.ServerUnavailable(DRAINED))
            await self._listener.serving(well=False)
        elif not draining and not self._table.accepting:
            log.warning("the server is resumed: it takes new sessions")
            self._table.accept()
            self._streams.tell_resumed()
            await self._listener.serving()
        return len(self._table.by_id)

    def revoke(self, identities: Identities) -> None:
        """Ends what those have who are no longer let in."""
        self._streams.revoke(identities)
        self._observer.revoke(identities)

    async def stop(self) -> None:
        """Stops: no new sessions, a grace time for running commands, then everything is closed."""
        await self._refuse()
        for task in self._tasks:
            task.cancel()
        settled = await self._streams.settle(self.config.grace)
        self._streams.close_all(errors.SessionLost("the session is lost: the server was stopped"))
        await asyncio.sleep(0.05)  # for the notices to leave; streams end by themselves only when clients do
        await self._listener.stop(0.2)
        # What did not end within the grace time will not end by being asked again.
        await self._pool.stop(self.config.grace + 5.0 if settled else 1.0)
        self._memory.close()

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
            log.log(level, "worker %d ended: %s", worker.number, worker.reason, extra={"worker": worker.number})
            if worker.ready and not worker.ended_as_asked and not worker.tainted:
                suspects, hurried = worker.suspects(self._table.environments_of(worker))
                self._pool.quarantine.died(suspects, worker.reason, apart=worker.dedicated, hurried=hurried)
        if not (self._pool.stopping or worker.ended_as_asked):
            self._pool.deaths += 1
            self._observer.lost(worker)
        self._table.lose_all(worker)
        self._pool.forget(worker)

    def worker_tainted(self, worker: Worker) -> None:
        """Has another worker take the new sessions."""
        about = {"worker": worker.number}
        log.warning("worker %d takes no new sessions: %s", worker.number, worker.reason, extra=about)
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

    def owner_of(self, lane: int) -> str | None:
        """Whose a lane is; None where nothing is on it."""
        return self._table.owner_of(lane)

    def environment_failed(self, worker: Worker, lane: int, failure: operations.Failure) -> None:
        """Keeps what went wrong."""
        self._observer.failed(lane, failure)
        log.debug(
            "%s of %s failed: %s",
            failure.command,
            failure.environment_id,
            failure.message,
            extra={
                "session": failure.session,
                "environment": failure.environment_id,
                "rollout": failure.label,
                "worker": worker.number,
                "identity": self._table.last_owner_of(lane),
            },
        )


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
    process.run(lambda: Server(config), config.log_level, config.log_format, on_ready=on_ready, parent_fd=parent_fd)
