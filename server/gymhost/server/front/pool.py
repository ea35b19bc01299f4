"""The workers of a server: how many there are, which of them gets a session, another in place of one that died."""

import asyncio
import logging
import shutil
import tempfile
from pathlib import Path
from typing import Any

from gymhost.server import link
from gymhost.server.config import ServerConfig
from gymhost.server.front.workers import START_LIMIT, Worker, WorkerEvents
from gymhost.v1 import environments_pb2 as pb
from gymhost.wire import errors

log = logging.getLogger("gymhost.server")

# The most seconds between two tries to replace a worker that dies as it starts.
MAX_BACKOFF = 30.0


class WorkerPool:
    """The shared workers, kept at their number, and the dedicated ones.

    Args:
        config: The server's settings.
        events: Who is told of deaths.
    """

    def __init__(self, config: ServerConfig, events: WorkerEvents) -> None:
        self._config = config
        self._events = events
        # Where the workers listen for clients on this host; nobody else can open it.
        self.folder = Path(tempfile.mkdtemp(prefix="gymhost-workers-"))
        self._numbers = 0
        self.stopping = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self._starting = 0
        self.workers: dict[int, Worker] = {}
        self.catalog: dict[str, pb.EnvironmentInfo] = {}
        self.problems: list[str] = []
        self._ready = asyncio.Event()

    async def start(self) -> None:
        """Starts the shared workers.

        Raises:
            ServerUnavailable: A worker could not start.
        """
        first, *_ = await asyncio.gather(*(self._start_one() for _ in range(self._config.worker_count)))
        self.catalog = {info.environment_id: info for info in first.environments}
        self.problems = list(first.problems)

    async def stop(self, limit: float) -> None:
        """Ends all workers."""
        self.stopping = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*(worker.stop(limit) for worker in list(self.workers.values())))
        shutil.rmtree(self.folder, ignore_errors=True)

    async def pick(self, *, dedicated: bool, places: int = 1) -> Worker:
        """The worker for a new session: the one with the fewest, or one of its own.

        Args:
            dedicated: Whether it gets one of its own.
            places: How many sessions it counts as.

        Raises:
            ServerUnavailable: There is none, and none came up in time.
        """
        if dedicated:
            worker = self._new(dedicated=True)
            await worker.start()
        else:
            worker = self._least_loaded() or await self._wait_for_one()
        worker.sessions += places
        return worker

    def release(self, worker: Worker, places: int = 1) -> None:
        """Ends what `pick` began; a dedicated worker ends with its session."""
        worker.sessions -= places
        if worker.dedicated and not worker.closing:
            self._keep(worker.stop(link.CLOSE_ALL_LIMIT + 5))

    def forget(self, worker: Worker) -> None:
        """Drops a worker that has died and starts another in its place."""
        self.workers.pop(worker.number, None)
        self.replace(worker)

    def replace(self, worker: Worker) -> None:
        """Starts another worker where this one gets no more sessions."""
        live = sum(w.ready and not w.closing and not w.dedicated for w in self.workers.values())
        if not worker.dedicated and not self.stopping and live + self._starting < self._config.worker_count:
            self._starting += 1
            self._keep(self._start_again())

    def _least_loaded(self) -> Worker | None:
        open_ones = [w for w in self.workers.values() if w.ready and not w.closing and not w.dedicated]
        return min(open_ones, key=_load, default=None)

    async def _wait_for_one(self) -> Worker:
        try:
            async with asyncio.timeout(START_LIMIT):
                while (worker := self._least_loaded()) is None:
                    self._ready.clear()
                    await self._ready.wait()
                return worker
        except TimeoutError:
            raise errors.ServerUnavailable("the server has no worker: see its log for why they end") from None

    def _new(self, *, dedicated: bool) -> Worker:
        worker = Worker(self._numbers, self._config, self._events, self.folder, dedicated=dedicated)
        self._numbers += 1
        self.workers[worker.number] = worker
        return worker

    async def _start_one(self) -> pb.ListEnvironmentsResponse:
        worker = self._new(dedicated=False)
        try:
            return await worker.start()
        except errors.Error as error:
            why = f"a worker could not start: {error.message}"
            raise errors.ServerUnavailable(why, exception=error.exception, traceback=error.traceback) from None
        finally:
            self._ready.set()

    async def _start_again(self) -> None:
        backoff = 0.0
        while True:
            try:
                await self._start_one()
                self._starting -= 1
                return
            except errors.Error as error:
                backoff = min(max(1.0, 2 * backoff), MAX_BACKOFF)
                log.error("%s; another try in %g s", error.message, backoff)
                await asyncio.sleep(backoff)

    def _keep(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _load(worker: Worker) -> int:
    return worker.sessions
