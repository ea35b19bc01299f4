"""The jobs of a rollout service: what callers may ask of them."""

import asyncio
import itertools
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from gymhost.rollout.engine import RolloutEngine
from gymhost.server.rollouts import telling
from gymhost.server.rollouts.config import RolloutsConfig
from gymhost.server.rollouts.deliveries import Deliveries
from gymhost.server.rollouts.flights import Flights
from gymhost.server.rollouts.intake import check_key, check_quotas, make_job, pack
from gymhost.server.rollouts.job import ENDED, Caller, Job
from gymhost.server.rollouts.outcomes import Outcomes
from gymhost.server.rollouts.queue import FairQueue
from gymhost.server.rollouts.store import JobStore
from gymhost.server.rollouts.tally import Tally
from gymhost.v1 import rollouts_pb2 as pb
from gymhost.wire import errors

__all__ = ["Jobs", "JobsCounts"]

logger = logging.getLogger(__name__)

_STATES = {
    name.removeprefix("JOB_STATE_").lower(): number
    for name, number in pb.JobState.items()
    if number  # but UNSPECIFIED
}
_LISTED_JOBS, _LISTED_ROLLOUTS = 100, 1000
# So many jobs that have ended are kept of an identity for each that it may have at once: the oldest go first.
_ENDED_PER_JOB = 10
_SWEEP_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class JobsCounts:
    """All jobs at one moment.

    Args:
        jobs: Those that have not ended.
        queued: Rollouts that have not begun, or are to begin again.
        unacknowledged: Results that wait to be acknowledged.
        unacknowledged_bytes: The bytes that these take.
        ended: Rollouts that have ended since the service was started.
        retries: How often one was begun again after a fault since then.
        states: Jobs by state, those that have ended too, as long as they are kept.
    """

    jobs: int
    queued: int
    unacknowledged: int
    unacknowledged_bytes: int
    ended: int
    retries: int
    states: Mapping[str, int]


class Jobs:
    """Takes jobs, has them played, and keeps their results.

    What a call tells of is on disk when it returns, and what it was told too. After `start` it goes on with what is in
    the file. Everything is called in one event loop.

    Args:
        config: The settings of the service.
        store: The file; whoever opened it closes it after `aclose`.
        engine: What plays rollouts, for nobody else.
    """

    def __init__(self, config: RolloutsConfig, store: JobStore, engine: RolloutEngine) -> None:
        self._config = config
        self._store = store
        self._jobs: dict[str, Job] = {}
        self._rows: dict[int, Job] = {}
        self._keys: dict[tuple[str, str], Job] = {}
        self._callers: dict[str, Caller] = {}
        self._last_row = 0
        self._queue = FairQueue()
        self._flights = Flights(engine, store, self._queue)
        self._outcomes = Outcomes(store, engine.generator.policy_version, self._flights.abort, self._queue.offer)
        self._flights.outcomes = self._outcomes
        self._deliveries = Deliveries(store, self._rows, self._released)
        self._sweeping: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Reads what is in the file, and goes on with it.

        Raises:
            InvalidArgument: A setting makes no sense together with a job that is there.
        """
        found = await self._store.load()
        for row in found.jobs:
            caller = self._caller(pb.Job.FromString(row.info).identity)
            job = Job.found(row, caller, found.requests[row.job], self._config)
            self._add(job)
            count, size = found.unacknowledged.get(row.job, (0, 0))
            job.info.unacknowledged, job.info.unacknowledged_bytes = count, size
            caller.unacknowledged_bytes += size
        for rollout in found.rollouts:
            self._rows[rollout.job].restore(rollout)
        for job in list(self._jobs.values()):
            job.pass_over()
            if not job.ended:
                self._watch_time(job)
            if not job.ended:
                self._outcomes.judge(job)
            self._store.touch(job)
        await self._store.commit()
        self._flights.start()
        self._sweeping = asyncio.get_running_loop().create_task(self._sweep())

    async def drain(self, seconds: float) -> bool:
        """Begins nothing more, and waits for what is in flight; returns whether all of it has ended in time."""
        return await self._flights.drain(seconds)

    async def failed(self) -> str:
        """Waits until nothing can be kept any more, by a fault of gymhost's, and returns why: it can't go on then.

        A disk that is full is no such fault: it is waited for.
        """
        return await self._store.failed()

    async def aclose(self) -> None:
        """Ends what is in flight, which begins again when the file is opened the next time.

        Raises:
            ServerFault: The file can't be written.
        """
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.wait([self._sweeping])
        await self._flights.aclose()
        for job in self._jobs.values():
            job.stop()
        await self._store.commit()

    # -- what callers ask ----------------------------------------------------------------------------------------------

    async def submit(self, identity: str, request: pb.SubmitJobRequest) -> tuple[pb.Job, bool]:
        """Takes a job, or finds the one with the same key.

        Returns:
            The job, and whether it was there already.

        Raises:
            InvalidArgument: Something in it makes no sense.
            CapacityExhausted: A quota is used up; the message names it.
            ServerFault: The file can't be written.
        """
        check_key(request.key)
        place = identity, request.key
        if place not in self._keys:
            job, packed = await make_job(self._config, self._caller(identity), request)
            if place not in self._keys:  # nor was meanwhile
                check_quotas(self._config, job)
                self._last_row += 1
                job.row = self._last_row
                self._add(job)
                self._store.add_job(job.row, job.request, packed)
                self._watch_time(job)
                self._outcomes.settle(job)
                await self._store.commit()
                return telling.of_job(job), False
        await self._store.commit()
        return telling.of_job(self._keys[place]), True

    async def extend(self, identity: str, request: pb.ExtendJobRequest) -> pb.Job:
        """Gives an open job more to do, or closes it. The last extension once more changes nothing.

        Raises:
            UnknownJob: There is no such job of the caller's.
            InvalidArgument: The number is neither that of the last extension nor the next one, or the job is not open.
            CapacityExhausted: A quota is used up; the message names it.
            ServerFault: The file can't be written.
        """
        job = self._find(identity, request.job_id)
        async with job.lock:
            if request.number != job.info.extensions or not request.number:
                if request.number != job.info.extensions + 1:
                    raise errors.InvalidArgument(
                        f"extension {request.number} of job {job.id}, after {job.info.extensions} that were taken"
                    )
                packed = await pack(request.tasks, job.tasks)
                if job.ended or not job.info.open:
                    raise errors.InvalidArgument(f"job {job.id} can't be extended: it has ended, or is not open")
                if request.more_groups and not job.info.target:
                    raise errors.InvalidArgument("more_groups is for jobs with a target: see RolloutGrouping.target")
                check_quotas(self._config, job, len(request.tasks) * job.width)
                self._store.add_tasks(job.row, job.tasks, packed)
                job.tasks += len(request.tasks)
                job.info.target += request.more_groups
                job.info.extensions = request.number
                job.info.open = not request.close
                if not job.info.environment_id and request.tasks:
                    job.info.environment_id = request.tasks[0].environment_id
                self._outcomes.judge(job)
            await self._store.commit()
        return telling.of_job(job)

    def get(self, identity: str, job_id: str = "", key: str = "", *, admin: bool = False) -> pb.Job:
        """Returns a job.

        Raises:
            UnknownJob: There is no such job of the caller's.
        """
        if not job_id:
            found = self._keys.get((identity, key))
            if found is None or not found.kept:
                raise errors.UnknownJob(f"no job with the key {key!r}")
            return telling.of_job(found)
        return telling.of_job(self._find(identity, job_id, admin))

    def rollouts(self, identity: str, job_id: str, limit: int = 0, *, admin: bool = False) -> list[pb.RolloutInfo]:
        """Returns what is in flight of a job or waits, in this order.

        Args:
            identity: Whose.
            job_id: Of which job.
            limit: At most so many; 0 for 1000.
            admin: Whether it may be anybody's.

        Raises:
            UnknownJob: There is no such job of the caller's.
        """
        job = self._find(identity, job_id, admin)
        most = limit or _LISTED_ROLLOUTS
        found = [telling.in_flight(*look) for look in self._flights.looks(job)[:most]]
        waiting = itertools.islice(job.waiting(), most - len(found))
        found.extend(telling.queued(job, number) for number in waiting)
        return found

    async def cancel(self, identity: str, request: pb.CancelRolloutsRequest, *, admin: bool = False) -> int:
        """Cancels rollouts and jobs; returns how many rollouts had not ended.

        Raises:
            UnknownJob: There is no such job or rollout of the caller's; then nothing is cancelled.
            ServerFault: The file can't be written.
        """
        jobs = [self._find(identity, job_id, admin) for job_id in request.job_ids]
        single: dict[str, set[int]] = {}
        for rollout_id in request.rollout_ids:
            job_id, _, number = rollout_id.partition("/")
            job = self._find(identity, job_id, admin)
            if not number.isdecimal() or int(number) >= job.total:
                raise errors.UnknownJob(f"no rollout {rollout_id!r}")
            single.setdefault(job_id, set()).add(int(number))
        if request.all:
            jobs.extend(self._caller(identity).jobs.values())
        count = sum(self._outcomes.finish(job, pb.JOB_STATE_CANCELLED) for job in jobs)
        for job_id, numbers in single.items():
            if not self._jobs[job_id].ended:
                count += self._outcomes.cancel(self._jobs[job_id], numbers)
        await self._store.commit()
        return count

    async def pause(self, identity: str, job_id: str, in_flight: bool, *, admin: bool = False) -> pb.Job:
        """Begins no more rollouts of a job, and with `in_flight` lets those that have begun take no more turns.

        Raises:
            UnknownJob: There is no such job of the caller's.
            ServerFault: The file can't be written.
        """
        job = self._find(identity, job_id, admin)
        if not job.ended:
            job.paused = True
            if in_flight:
                self._flights.hold(job)
            self._outcomes.settle(job)
        await self._store.commit()
        return telling.of_job(job)

    async def resume(self, identity: str, job_id: str, *, admin: bool = False) -> pb.Job:
        """Goes on with a job after `pause`.

        Raises:
            UnknownJob: There is no such job of the caller's.
            ServerFault: The file can't be written.
        """
        job = self._find(identity, job_id, admin)
        if not job.ended:
            job.paused = False
            self._flights.release(job)
            self._outcomes.settle(job)
        await self._store.commit()
        return telling.of_job(job)

    # -- results -------------------------------------------------------------------------------------------------------

    async def results(
        self, identity: str, job_ids: Sequence[str] = (), after: int = 0, *, admin: bool = False
    ) -> AsyncGenerator[list[pb.Result]]:
        """Yields batches of results as they come, those first that are there.

        Args:
            identity: Whose.
            job_ids: Of which jobs: it ends when they have ended and all was sent. Without any, of all, and never ends.
            after: Only those after this cursor.
            admin: Whether the jobs may be anybody's.

        Raises:
            UnknownJob: There is no such job of the caller's.
        """
        jobs = [self._find(identity, job_id, admin) for job_id in job_ids]
        async with aclosing(self._deliveries.stream(self._caller(identity), jobs, after)) as stream:
            async for batch in stream:
                yield batch

    async def fetch(
        self, identity: str, request: pb.FetchResultsRequest, *, admin: bool = False
    ) -> pb.FetchResultsResponse:
        """Returns results that are there, or the first that come.

        Args:
            identity: Whose.
            request: Of which jobs, and how many.
            admin: Whether the jobs may be anybody's.

        Raises:
            UnknownJob: There is no such job of the caller's.
        """
        jobs = [self._find(identity, job_id, admin) for job_id in request.job_ids]
        caller = self._caller(identity)
        return await self._deliveries.fetch(caller, jobs, request.after, request.limit, request.wait)

    async def acknowledge(self, identity: str, cursors: Iterable[int]) -> int:
        """Lets results of the caller's go; returns how many were still kept.

        Raises:
            ServerFault: The file can't be written.
        """
        return await self._deliveries.acknowledge(cursors, identity)

    # -- for the service -----------------------------------------------------------------------------------------------

    def counts(self) -> JobsCounts:
        """All jobs at this moment."""
        jobs = self._jobs.values()
        states = Counter(job.state for job in jobs)
        return JobsCounts(
            jobs=sum(not job.ended for job in jobs),
            queued=sum(job.queued for job in jobs),
            unacknowledged=sum(job.info.unacknowledged for job in jobs),
            unacknowledged_bytes=sum(job.info.unacknowledged_bytes for job in jobs),
            ended=self.tally.ended,
            retries=self._flights.retries,
            states={name: states[number] for name, number in _STATES.items()},
        )

    @property
    def tally(self) -> Tally:
        """What has ended since the service was started."""
        return self._outcomes.tally

    def policy_changed(self, version: int) -> None:
        """Says which policy version the generators have from now on."""
        self._outcomes.policy_changed([job for job in self._jobs.values() if not job.ended], version)

    def list(
        self, identity: str | None, states: Collection[pb.JobState.ValueType] = (), limit: int = 0
    ) -> list[pb.Job]:
        """Returns jobs, the latest first.

        Args:
            identity: Whose; None for everybody's.
            states: In which states; none for any.
            limit: At most so many; 0 for 100.
        """
        jobs = self._jobs if identity is None else self._caller(identity).jobs
        found: list[pb.Job] = []
        for job in reversed(jobs.values()):
            if len(found) == (limit or _LISTED_JOBS):
                break
            if job.kept and (not states or job.view.state in states):
                found.append(telling.of_job(job))
        return found

    # ------------------------------------------------------------------------------------------------------------------

    def _caller(self, identity: str) -> Caller:
        if (found := self._callers.get(identity)) is None:
            found = self._callers[identity] = Caller(identity)
        return found

    def _add(self, job: Job) -> None:
        self._jobs[job.id] = self._rows[job.row] = job
        self._keys[job.info.identity, job.info.key] = job
        job.caller.jobs[job.id] = job
        self._last_row = max(self._last_row, job.row)

    def _find(self, identity: str, job_id: str, admin: bool = False) -> Job:
        job = self._jobs.get(job_id)
        if job is None or not job.kept or not (admin or job.info.identity == identity):
            raise errors.UnknownJob(f"no job {job_id!r}")
        return job

    def _released(self, caller: Caller) -> None:
        """Lets jobs go on that waited for results to be acknowledged."""
        for job in caller.live:
            self._queue.offer(job)

    def _watch_time(self, job: Job) -> None:
        """Has a job expire when its time is up, which may be now."""
        if not job.request.time_limit:
            return
        if (left := job.time_left) > 0:
            loop = asyncio.get_running_loop()
            job.deadline = loop.call_later(left, self._outcomes.finish, job, pb.JOB_STATE_EXPIRED)
        else:
            self._outcomes.finish(job, pb.JOB_STATE_EXPIRED)

    async def _sweep(self) -> None:
        """Lets go, now and then, of what was kept for long enough."""
        config = self._config
        pause = min(_SWEEP_SECONDS, config.retention / 4, config.keep_ended / 4)
        while True:
            await asyncio.sleep(pause)
            try:
                await self._deliveries.expire(config.retention)
                self._forget_old()
                await self._store.commit()
            except errors.ServerFault as error:
                logger.error("nothing old is let go of: %s", error)

    def _forget_old(self) -> None:
        oldest = time.time() - self._config.keep_ended
        for caller in self._callers.values():
            over = [job for job in caller.jobs.values() if job.view.state in ENDED and not job.info.unacknowledged]
            most = _ENDED_PER_JOB * self._config.quota("jobs", caller.identity)
            surplus = len(over) - most if most else 0
            for place, job in enumerate(over):
                if place < surplus or job.touched < oldest:
                    self._forget(job)

    def _forget(self, job: Job) -> None:
        del (
            self._jobs[job.id],
            self._rows[job.row],
            self._keys[job.info.identity, job.info.key],
            job.caller.jobs[job.id],
        )
        job.forgotten = True
        self._store.forget_job(job.row)
        self._store.touch(job)
