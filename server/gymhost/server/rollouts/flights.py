"""Rollouts in flight: the engine is given the next one when it has a place, and what ends in a fault is begun again."""

import asyncio
import itertools
import logging
import random
import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing

from gymhost.rollout.engine import RolloutEngine
from gymhost.rollout.flight import blank
from gymhost.rollout.generators.base import PromptTooLong
from gymhost.rollout.requests import RolloutRequest
from gymhost.rollout.trajectory import Outcome, Trajectory
from gymhost.server.rollouts.job import Flight, Job
from gymhost.server.rollouts.outcomes import Ended, Outcomes, lost
from gymhost.server.rollouts.queue import FairQueue
from gymhost.server.rollouts.store import JobStore
from gymhost.wire import errors

__all__ = ["Flights"]

logger = logging.getLogger(__name__)

# Pauses before another attempt, in seconds: twice as long each time.
_PAUSE, _PAUSE_MAX = 1.0, 30.0
# These count as faults of others than the environment, but are the same another time.
_HOPELESS = (errors.UnknownEnvironment.__name__, PromptTooLong.__name__)


class Flights:
    """Gives the engine rollouts of jobs, and takes what ends.

    Args:
        engine: What plays them.
        store: Where it is noted what has begun.
        queue: Whose turn it is.

    Attributes:
        outcomes: What becomes of those that have ended; to be set before anything begins.
        retries: How often a rollout was begun again after a fault.
    """

    def __init__(self, engine: RolloutEngine, store: JobStore, queue: FairQueue) -> None:
        self.outcomes: Outcomes
        self.retries = 0
        self._engine = engine
        self._store = store
        self._queue = queue
        self._flying: dict[str, Flight] = {}
        self._numbers = itertools.count()
        self._playing: asyncio.Task[None] | None = None
        self._draining = False

    def start(self) -> None:
        """Begins to give the engine rollouts."""
        self._playing = asyncio.get_running_loop().create_task(self._play())

    async def aclose(self) -> None:
        """Ends what is in flight; nothing comes of it, and it is begun again by whoever starts next."""
        if self._playing is not None:
            self._playing.cancel()
            await asyncio.gather(self._playing, return_exceptions=True)

    async def drain(self, seconds: float) -> bool:
        """Begins nothing more, and waits for what is in flight; returns whether all of it has ended in time."""
        self._draining = True
        self._queue.wake()
        if self._playing is not None:
            await asyncio.wait([self._playing], timeout=seconds)
        return not self._flying

    # -- what is in flight ---------------------------------------------------------------------------------------------

    def looks(self, job: Job) -> list[tuple[Flight, str, Trajectory | None]]:
        """What is in flight of a job, with its stage and its record so far where it is known in the engine."""
        found = {trajectory.id: (stage, trajectory) for stage, trajectory in self._engine.in_flight()}
        looks = ((flight, found.get(flight.id)) for flight in job.flights.values())
        return [(flight, *look) if look else (flight, "", None) for flight, look in looks]

    def hold(self, job: Job) -> None:
        """Lets what is in flight of a job begin no turn."""
        ids = {flight.id for flight in job.flights.values()}
        self._engine.hold(lambda trajectory: trajectory.id in ids)

    def release(self, job: Job) -> None:
        """Lets what is in flight of a job go on."""
        ids = {flight.id for flight in job.flights.values()}
        self._engine.release(lambda trajectory: trajectory.id in ids)

    def abort(self, job: Job, numbers: Iterable[int]) -> list[Ended]:
        """Ends rollouts of a job that are in flight, and returns what had come of them.

        One that has ended meanwhile and was not taken yet counts as what the engine says of it, if it says anything.
        """
        flights = [job.flights[number] for number in numbers]
        if not flights:
            return []
        ids = {flight.id for flight in flights}
        for flight in flights:
            self._land(flight)
        found: dict[str, Trajectory] = {}

        def among(trajectory: Trajectory) -> bool:
            if trajectory.id not in ids:
                return False
            found[trajectory.id] = trajectory
            return True

        self._engine.cancel(among)
        return [
            (flight.number, found.get(flight.id) or (None if flight.request is None else blank(flight.request)))
            for flight in flights
        ]

    # -- beginning -----------------------------------------------------------------------------------------------------

    async def _play(self) -> None:
        while not self._draining:
            try:
                async with aclosing(self._engine.run(self._requests())) as run:
                    async for trajectory in run:
                        self._ended(trajectory)
                        await self._keep_up()
                return
            except Exception:
                if self._store.broken:
                    raise
                # What the engine was playing has ended with it.
                logger.exception("the rollouts in flight were lost, and begin again")
                for flight in list(self._flying.values()):
                    self._back(flight)
                await asyncio.sleep(_PAUSE)

    async def _requests(self) -> AsyncGenerator[RolloutRequest]:
        """Yields the next rollout, chosen when the engine asks for it."""
        while not self._draining:  # it may be that it was asked for nothing since then
            await self._queue.offered()
            await self._keep_up()
            if self._draining:
                return
            job = self._queue.take()
            if job is None or not job.ready:
                continue
            flight = self._begin(job)
            self._queue.offer(job)
            place = flight.number // job.width
            try:
                if job.task(place) is None:
                    job.keep_tasks(*await self._store.tasks(job.row, place))
                readable = True
            except errors.ServerFault:
                readable = False
            if self._flying.get(flight.id) is not flight:
                continue  # it was cancelled meanwhile
            if job.paused or not readable:
                self._back(flight)
                continue
            try:
                flight.request = job.rollout(flight.number, flight.id)
            except errors.InvalidArgument as error:
                self._refuse(flight, error)
                continue
            yield flight.request

    def _begin(self, job: Job) -> Flight:
        number = job.begin()
        flight = Flight(job, number, f"{job.id}/{number}.{next(self._numbers)}", time.monotonic())
        job.flights[number] = self._flying[flight.id] = flight
        if not job.info.begun:
            job.info.begun = time.time()
        self._store.begun(job.row, number, job.attempts.get(number, 0))
        self._store.touch(job)
        return flight

    def _back(self, flight: Flight) -> None:
        """Puts a rollout back among those that begin first: nothing came of it, and it was no fault of its own."""
        self._land(flight)
        flight.job.begin_again(flight.number)
        self.outcomes.settle(flight.job)

    def _refuse(self, flight: Flight, error: errors.InvalidArgument) -> None:
        """A rollout fails whose task can't be read, which was well when it was submitted."""
        job = flight.job
        self._land(flight)
        trajectory = Trajectory(env_id=job.info.environment_id)
        trajectory.outcome = Outcome(
            kind="failed", fault="environment", cause=type(error).__name__, message=error.message
        )
        self.outcomes.take(job, flight.number, trajectory)

    async def _keep_up(self) -> None:
        """Waits where the disk is slower than what comes.

        Raises:
            ServerFault: The file is written no more.
        """
        while self._store.behind:
            try:
                await self._store.commit()
            except errors.ServerFault as error:
                if self._store.broken:
                    raise
                logger.error("no rollouts begin: %s", error)

    # -- ending --------------------------------------------------------------------------------------------------------

    def _ended(self, trajectory: Trajectory) -> None:
        flight = self._flying.get(trajectory.id)
        if flight is None:
            return  # it was aborted, and what had come of it was taken then
        self._land(flight)
        kept = self.outcomes.tally.ended
        try:
            self._take(flight, trajectory)
        except Exception as error:
            if self._store.broken:
                raise
            # The others in flight have no part in it. Nor is this one to be missing, so that its job would never end.
            names = {"job": flight.job.id, "rollout": f"{flight.job.id}/{flight.number}"}
            logger.exception("what comes of rollout %d of job %s went wrong", flight.number, flight.job.id, extra=names)
            if self.outcomes.tally.ended == kept and flight.number not in flight.job.again:
                self._take(flight, lost(trajectory, error))

    def _take(self, flight: Flight, trajectory: Trajectory) -> None:
        job, number, outcome = flight.job, flight.number, trajectory.outcome
        if outcome.kind == "cancelled":  # but not by us: a server went away, say
            outcome = trajectory.outcome = Outcome(
                kind="failed",
                fault="infrastructure",
                cause="Cancelled",
                message=outcome.message or "it was cancelled by the server that it was played on",
                turn=outcome.turn,
            )
        if outcome.fault in ("infrastructure", "generator"):
            job.faults_in_a_row += 1
            job.info.last_fault = str(outcome)
            attempts = job.attempts.get(number, 0) + 1
            if attempts < job.most_attempts and outcome.cause not in _HOPELESS:
                self._try_again(job, number, attempts)
                return
        else:
            job.faults_in_a_row = 0
        self.outcomes.take(job, number, trajectory)

    def _land(self, flight: Flight) -> None:
        """A rollout is in flight no more."""
        del self._flying[flight.id], flight.job.flights[flight.number]

    def _try_again(self, job: Job, number: int, attempts: int) -> None:
        job.attempts[number] = attempts
        job.info.retries += 1
        self.retries += 1
        self._store.begun(job.row, number, attempts)
        pause = min(_PAUSE * 2.0 ** (attempts - 1), _PAUSE_MAX) * random.uniform(0.5, 1.0)
        job.begin_again(number, asyncio.get_running_loop().call_later(pause, self._ripen, job, number))
        self.outcomes.settle(job)

    def _ripen(self, job: Job, number: int) -> None:
        job.ripen(number)
        self._queue.offer(job)
