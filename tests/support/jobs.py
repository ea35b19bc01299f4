"""Jobs of a rollout service over environments in this process, and what they are asked."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from gymhost.rollout import Concurrency
from gymhost.rollout.agents import load_agent
from gymhost.rollout.generators import ScriptedGenerator
from gymhost.server.rollouts.config import RolloutsConfig
from gymhost.server.rollouts.jobs import Jobs
from gymhost.server.rollouts.store import JobStore
from gymhost.v1 import rollouts_pb2 as pb
from support.local_source import LocalSource
from support.rollouts import SAY, engine
from support.talk import Answer, Talk, end, go_on, tool

SMALL = Concurrency(init=4, run=4, eval=4, ahead=0)


class World(LocalSource):
    """Environments with two turns, whose end a test may hold back, and whose rewards and faults it decides.

    Args:
        pay: The reward, given the task and the how-manieth play of it this is.
        fault: What the reset raises, likewise.
    """

    def __init__(
        self,
        pay: Callable[[int, int], float | None] = lambda _task, _play: 1.0,
        fault: Callable[[int, int], Exception | None] = lambda _task, _play: None,
    ) -> None:
        super().__init__(lambda: _Played(self))
        self.pay = pay
        self.fault = fault
        self.order: list[int] = []
        """The tasks, in the order in which rollouts of them have begun."""
        self.plays: Counter[int] = Counter()
        self.held: set[int | tuple[int, int]] = set()
        """Tasks that are not to end, or single plays of a task: the first is 1."""
        self.turned: defaultdict[int, asyncio.Event] = defaultdict(asyncio.Event)
        """Set when a rollout of the task has taken its first turn."""
        self._news = asyncio.Event()

    def release(self, *held: int | tuple[int, int]) -> None:
        """Lets what is held end, all without a name."""
        self.held.difference_update(held or set(self.held))
        self._news.set()
        self._news = asyncio.Event()

    async def may_end(self, task: int, play: int) -> None:
        while not self.held.isdisjoint((task, (task, play))):
            await self._news.wait()


class _Played(Talk):
    def __init__(self, world: World) -> None:
        super().__init__(lambda _env, _message: end())
        self.world = world

    async def areset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        opened = self.reset(seed=seed, options=options)
        task, world = self.options["task"], self.world
        world.order.append(task)
        world.plays[task] += 1
        self.play = world.plays[task]
        if (fault := world.fault(task, self.play)) is not None:
            raise fault
        return opened

    async def astep(self, action: Any) -> Answer:
        task, world = self.options["task"], self.world
        self.said.append(action)
        if len(self.said) == 1:
            world.turned[task].set()
            return go_on(tool("more"))
        await world.may_end(task, self.play)
        return end(reward=world.pay(task, self.play))


class Service:
    """Jobs, and what they are made of.

    Attributes:
        jobs: The jobs.
        world: Where they are played.
        generator: What samples.
    """

    def __init__(self, path: Path, world: World, **settings: Any) -> None:
        self.path = path
        self.world = world
        self.concurrency: Concurrency = settings.pop("concurrency", SMALL)
        self.config = RolloutsConfig(store=str(path), **settings)
        self.jobs: Jobs
        self.store: JobStore
        self.version = 0
        self._sizes: Counter[str] = Counter()
        self._widths: dict[str, int] = {}
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        self.generator = ScriptedGenerator(lambda *_: SAY, self.version)
        agents = {name: load_agent(place) for name, place in self.config.agents.items()}
        self.engine = engine(self.world, self.generator, concurrency=self.concurrency, agents=agents)
        self._stack.push_async_callback(self.engine.aclose)
        self.store = JobStore(self.path)
        self._stack.push_async_callback(self.store.aclose)
        self.jobs = Jobs(self.config, self.store, self.engine)
        await self.jobs.start()
        self._stack.push_async_callback(self.jobs.aclose)

    async def stop(self) -> None:
        await self._stack.aclose()

    async def restart(self) -> None:
        """Stops, and starts on the same file."""
        await self.stop()
        await self.start()

    def announce(self, version: int) -> None:
        self.version = self.generator.policy_version = version
        self.jobs.policy_changed(version)

    async def submit(self, request: pb.SubmitJobRequest, identity: str = "me") -> pb.Job:
        job, known = await self.jobs.submit(identity, request)
        assert not known
        self._widths[job.id] = job.samples + request.grouping.extra
        self._sizes[job.id] = len(request.tasks) * self._widths[job.id]
        return job

    async def extend(self, job: pb.Job, numbers: Sequence[int] = (), **fields: Any) -> pb.Job:
        """Extends a job by its next extension."""
        number = self.look(job).extensions + 1
        request = pb.ExtendJobRequest(job_id=job.id, number=number, tasks=tasks(numbers), **fields)
        told = await self.jobs.extend(job.identity, request)
        self._sizes[job.id] += len(numbers) * self._widths[job.id]
        return told

    async def cancel(self, *jobs: pb.Job) -> int:
        """Cancels jobs of one identity."""
        request = pb.CancelRolloutsRequest(job_ids=[job.id for job in jobs])
        return await self.jobs.cancel(jobs[0].identity, request)

    def look(self, job: pb.Job) -> pb.Job:
        """The job as it is now; its counts add up."""
        now = self.jobs.get(job.identity, job.id)
        assert total(now) == self._sizes[job.id], now
        return now

    async def until(self, job: pb.Job, condition: Callable[[pb.Job], Any]) -> pb.Job:
        """Waits until a job is as it should be."""
        async with asyncio.timeout(20):
            while not condition(now := self.look(job)):  # noqa: ASYNC110 - what changes it is what is tested
                await asyncio.sleep(0.002)
        return now

    async def ended(self, job: pb.Job) -> pb.Job:
        return await self.until(job, lambda now: now.ended)

    async def results(self, job: pb.Job, after: int = 0) -> list[pb.Result]:
        """All results of a job that are to come, which ends with them."""
        async with asyncio.timeout(20):
            return [result async for batch in self.jobs.results(job.identity, [job.id], after) for result in batch]

    async def there(self, job: pb.Job, after: int = 0) -> list[pb.Result]:
        """The results of a job that are there now."""
        request = pb.FetchResultsRequest(job_ids=[job.id], after=after, limit=1000)
        return list((await self.jobs.fetch(job.identity, request)).results)


@asynccontextmanager
async def served(path: Path, world: World | None = None, **settings: Any) -> AsyncGenerator[Service]:
    """Runs jobs on a file in a folder."""
    service = Service(path / "jobs.sqlite", world or World(), **settings)
    try:
        await service.start()
        yield service
    finally:
        await service.stop()


def tasks(numbers: Sequence[int]) -> list[pb.RolloutTask]:
    return [pb.RolloutTask(environment_id="Talk-v0", task=number) for number in numbers]


def job(key: str, numbers: Sequence[int], samples: int = 1, **fields: Any) -> pb.SubmitJobRequest:
    """What submits tasks by their numbers."""
    return pb.SubmitJobRequest(key=key, tasks=tasks(numbers), samples=samples, **fields)


def numbers(results: Sequence[pb.Result]) -> list[int]:
    """Which rollouts of their job these are."""
    return [int(result.rollout_id.partition("/")[2]) for result in results]


def total(job: pb.Job) -> int:
    """The rollouts of a job: each is counted in one of these."""
    return job.queued + job.in_flight + job.terminated + job.truncated + job.failed + job.cancelled + job.dropped
