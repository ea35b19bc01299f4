"""The workers of a server: how many there are, which of them gets a session, another in place of one that died."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, TypeVar, cast

from gymhost.server import link
from gymhost.server.config import ServerConfig
from gymhost.server.front.crews import Crew, crews
from gymhost.server.front.leftovers import WORKERS_PREFIX
from gymhost.server.front.quarantine import Quarantine
from gymhost.server.front.workers import START_LIMIT, Worker, WorkerEvents
from gymhost.server.meter import Figures, Meters
from gymhost.v1 import environments_pb2 as pb
from gymhost.wire import errors
from gymhost.wire.folders import HeldFolder

log = logging.getLogger("gymhost.server")

T = TypeVar("T")

# The most seconds between two tries to replace a worker that dies as it starts.
MAX_BACKOFF = 30.0

# Workers of their own that environments in quarantine get, by the number of shared ones: beyond that the sessions of
# one environment share them.
APART = 8


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
        self._held = HeldFolder(WORKERS_PREFIX)
        self.folder = self._held.path
        self.quarantine = Quarantine(config)
        self._numbers = 0
        self.stopping = False
        self.meters = Meters()
        # How many ended without having been asked to.
        self.deaths = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self.workers: dict[int, Worker] = {}
        self._crews = crews(config)
        self._crew_of: dict[str, Crew] = {}
        self.catalog: dict[str, pb.EnvironmentInfo] = {}
        self.problems: list[str] = []
        # Set when a worker has started, or is no more.
        self._changed = asyncio.Event()

    async def start(self, *, clears: bool = False) -> None:
        """Starts the shared workers.

        Args:
            clears: Whether one of them clears away what sandboxes of servers left that were killed.

        Raises:
            ServerUnavailable: A worker could not start.
        """
        wanted = [crew for crew in self._crews for _ in range(crew.wanted)]
        told = await asyncio.gather(
            *(self._start_one(crew, clears=clears and not number) for number, crew in enumerate(wanted))
        )
        heard: set[Crew] = set()
        for crew, hosted in zip(wanted, told, strict=True):
            if crew in heard:
                continue
            heard.add(crew)
            self.problems += [crew.explain(problem) for problem in hosted.problems]
            for info in hosted.environments:
                # All crews have Gymnasium's own: where several have one, the first runs it.
                if info.environment_id not in self.catalog:
                    self.catalog[info.environment_id] = info
                    self._crew_of[info.environment_id] = crew

    async def stop(self, limit: float) -> None:
        """Ends all workers."""
        self.stopping = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*(worker.stop(limit) for worker in list(self.workers.values())))
        self.remove_folder()

    def remove_folder(self) -> None:
        """Removes the folder where the workers listen."""
        self._held.remove()

    @property
    def counts(self) -> bool:
        """Whether it counts what sessions do."""
        return self._config.metrics

    def count(self) -> dict[str, Figures]:
        """What was counted of each environment, since the server was started; nothing where it counts nothing."""
        if not self._config.metrics:
            return {}
        return self.meters.read(worker.meter for worker in self.workers.values() if worker.meter is not None)

    def count_sandboxes(self) -> dict[str, Figures]:
        """What was counted of each backend of sandboxes."""
        return self.meters.read_backends(worker.meter for worker in self.workers.values() if worker.meter is not None)

    @property
    def shared(self) -> list[Worker]:
        """The workers that take new sessions of all environments, the oldest first."""
        return [w for w in self.workers.values() if w.ready and not w.closing and not w.dedicated]

    async def pick(self, info: pb.EnvironmentInfo, places: int = 1, *, lasts: bool = True) -> Worker:
        """The worker for a new session: the one with the fewest, or one of its own.

        Args:
            info: The environment; one that is to be isolated, or is in quarantine, gets a worker of its own.
            places: How many sessions it counts as.
            lasts: Whether it is for a session, and not to look at an environment for a moment.

        Raises:
            EnvironmentFault: The environment has killed so many that it is refused for now.
            ServerUnavailable: There is none, and none came up in time.
        """
        environment_id = info.environment_id
        self.quarantine.admit(environment_id)
        if lasts and info.isolation == pb.ISOLATION_PROCESS:
            worker = await self._start_apart(info)
        elif self.quarantine.holds(environment_id):
            worker = await self._pick_apart(info)
        else:
            crew = self._crew(environment_id)
            worker = await self._wait_for(
                lambda: self._lightest(crew), "the server has no worker: see its log for why they end"
            )
            if worker.sessions and crew.can_grow and not crew.starting:
                self._grow(crew)
        worker.sessions += places
        worker.placed += 1
        return worker

    def release(self, worker: Worker, places: int = 1) -> None:
        """Ends what `pick` began; a dedicated worker, or one whose place was taken, ends with its last session."""
        worker.sessions -= places
        if worker.dedicated and not (worker.dead or worker.tainted):
            self.quarantine.ended_well(worker.environment_id)
        if worker.sessions == 0 and (worker.retired or (worker.dedicated and not worker.closing)):
            self._keep(worker.stop(link.CLOSE_ALL_LIMIT + 5))

    async def renew(self, worker: Worker, reason: str) -> None:
        """Has another worker take the place of one, which ends when its last session has left.

        Args:
            worker: The one.
            reason: Why.

        Raises:
            ServerUnavailable: The other one could not start; this one goes on.
        """
        log.info("worker %d is renewed: %s", worker.number, reason, extra={"worker": worker.number})
        crew = worker.crew
        await self._start_one(crew)
        if worker.closing:
            # It has died meanwhile, and one more was started in its place.
            if len(self._shared_of(crew)) + crew.starting <= crew.wanted:
                return
            worker = min(self._shared_of(crew), key=_load)
        worker.retire(reason)
        if worker.sessions == 0:
            self._keep(worker.stop(link.CLOSE_ALL_LIMIT + 5))

    def forget(self, worker: Worker) -> None:
        """Drops a worker that has died and starts another in its place."""
        self.workers.pop(worker.number, None)
        if worker.meter is not None:
            self.meters.retire(worker.meter)
        self._changed.set()
        self.replace(worker)

    def replace(self, worker: Worker) -> None:
        """Starts another worker where this one gets no more sessions."""
        crew = worker.crew
        live = len(self._shared_of(crew)) + crew.starting
        if not worker.dedicated and not self.stopping and live < crew.wanted:
            crew.starting += 1
            self._keep(self._start_again(crew))

    def _grow(self, crew: Crew) -> None:
        """Starts one more worker of a crew whose workers all have sessions."""
        if not self.stopping:
            crew.wanted += 1
            crew.starting += 1
            self._keep(self._start_again(crew))

    async def _start_apart(self, info: pb.EnvironmentInfo) -> Worker:
        worker = self._new(self._crew(info.environment_id), dedicated=True)
        worker.environment_id = info.environment_id
        worker.isolates = info.isolation == pb.ISOLATION_PROCESS
        worker.memory_limit = info.memory_limit_bytes
        await self._start(worker)
        return worker

    async def _pick_apart(self, info: pb.EnvironmentInfo) -> Worker:
        """A worker for an environment in quarantine: a new one, or where there are too many, one that it has."""
        most = APART * self._config.worker_count

        def place() -> Worker | bool | None:
            apart = [worker for worker in self.workers.values() if worker.dedicated and not worker.isolates]
            if len(apart) < most:
                return True
            own = [w for w in apart if w.environment_id == info.environment_id and w.ready and not w.closing]
            return min(own, key=_load, default=None)

        found = await self._wait_for(
            place, f"there are {most} workers for environments in quarantine, which is the most, and none became free"
        )
        return await self._start_apart(info) if found is True else cast(Worker, found)

    async def _wait_for(self, look: Callable[[], T | None], why: str) -> T:
        """What `look` finds, once it finds something: it looks again when a worker has started, or ended."""
        try:
            async with asyncio.timeout(START_LIMIT):
                while (found := look()) is None:
                    self._changed.clear()
                    await self._changed.wait()
                return found
        except TimeoutError:
            raise errors.ServerUnavailable(why) from None

    def _crew(self, environment_id: str) -> Crew:
        return self._crew_of.get(environment_id, self._crews[0])

    def _shared_of(self, crew: Crew) -> list[Worker]:
        return [worker for worker in self.shared if worker.crew is crew]

    def _lightest(self, crew: Crew) -> Worker | None:
        return min(self._shared_of(crew), key=_load, default=None)

    def _new(self, crew: Crew, *, dedicated: bool) -> Worker:
        worker = Worker(self._numbers, self._config, self._events, self.folder, crew, dedicated=dedicated)
        self._numbers += 1
        self.workers[worker.number] = worker
        return worker

    async def _start_one(self, crew: Crew, *, clears: bool = False) -> pb.ListEnvironmentsResponse:
        return await self._start(self._new(crew, dedicated=False), clears=clears)

    async def _start(self, worker: Worker, *, clears: bool = False) -> pb.ListEnvironmentsResponse:
        try:
            return await worker.start(clears=clears)
        except errors.Error as error:
            why = f"a worker could not start: {worker.crew.explain(error.message)}"
            raise errors.ServerUnavailable(why, exception=error.exception, traceback=error.traceback) from None
        except OSError as error:
            self.workers.pop(worker.number, None)
            raise errors.ServerUnavailable(f"a worker could not start: {error}") from error
        except asyncio.CancelledError:
            # Nobody wants it any more, and nobody else knows of it.
            self.workers.pop(worker.number, None)
            if worker.pid:
                worker.kill("its start was broken off")
            raise
        finally:
            self._changed.set()

    async def _start_again(self, crew: Crew) -> None:
        backoff = 0.0
        while True:
            try:
                await self._start_one(crew)
                crew.starting -= 1
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
