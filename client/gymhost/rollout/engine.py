"""The rollout engine: many rollouts in flight, each finishing when it finishes."""

import asyncio
import itertools
import logging
import random
import time
from collections.abc import AsyncGenerator, Coroutine, Iterable, Iterator
from contextlib import aclosing, asynccontextmanager
from typing import Any, Self, TypeVar

from gymhost.rollout.chat import Chat
from gymhost.rollout.faults import Abandoned, bound, outcome_of, retryable
from gymhost.rollout.generators.base import Generator, Sampling
from gymhost.rollout.loop_thread import LoopThread
from gymhost.rollout.play import Play
from gymhost.rollout.requests import Concurrency, Limits, RolloutRequest
from gymhost.rollout.sessions import Lease, Sessions, Source
from gymhost.rollout.trajectory import Timings, Trajectory
from gymhost.rollout.turnstile import Turnstile

__all__ = ["RolloutEngine"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

_RETRY_SECONDS = 0.1
_RETRY_SECONDS_MAX = 5.0


class RolloutEngine:
    """Plays rollouts: sessions from a source, tokens from a generator, trajectories out.

    Each rollout goes through three stages with places of their own: INIT (session and reset), RUN (turns), EVAL (the
    session is given back or closed). A rollout that is slow in one stage does not hold the others. Whatever happens to
    a rollout, a trajectory comes out that says so in its outcome; only cancellation and what is no `Exception` pass
    through, and then no session is left behind.

    An engine works in one event loop: that of its async methods, or a thread of its own for `collect_sync` and
    `run_sync`; not both.

    Args:
        source: Opens sessions, such as the connection that `gymhost.client.connect` gives.
        chat: Turns messages into ids and back.
        generator: Samples. The engine does not close it.
        sampling: How to sample, unless a request says otherwise. `max_tokens` above `limits.turn_tokens` has no effect.
        limits: What ends a rollout.
        concurrency: How many rollouts at once.
        reuse_sessions: Whether a session plays one episode after another.
    """

    def __init__(
        self,
        source: Source,
        chat: Chat,
        generator: Generator,
        *,
        sampling: Sampling | None = None,
        limits: Limits | None = None,
        concurrency: Concurrency | None = None,
        reuse_sessions: bool = True,
    ) -> None:
        self.generator = generator
        self.limits = limits or Limits()
        self.concurrency = concurrency or Concurrency()
        self.sampling = sampling or Sampling()
        self._chat = chat
        self._sessions = Sessions(source, reuse=reuse_sessions)
        self._init = asyncio.Semaphore(self.concurrency.init)
        self._run = asyncio.Semaphore(self.concurrency.run)
        self._eval = asyncio.Semaphore(self.concurrency.eval)
        self._turnstile = Turnstile()
        self._numbers = itertools.count()
        self._thread: LoopThread | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes the sessions that were kept for further episodes."""
        await self._sessions.aclose()

    async def run(self, requests: Iterable[RolloutRequest]) -> AsyncGenerator[Trajectory, None]:
        """Yields each trajectory as it finishes. Closing the iterator cancels what is still in flight."""
        async with aclosing(self._finished(requests)) as finished:
            async for _, trajectory in finished:
                yield trajectory

    async def collect(self, requests: Iterable[RolloutRequest]) -> list[Trajectory]:
        """Returns one trajectory for each request, in their order."""
        asked = list(requests)
        places: list[Trajectory | None] = [None] * len(asked)
        async with aclosing(self._finished(asked)) as finished:
            async for place, trajectory in finished:
                places[place] = trajectory
        return [trajectory for trajectory in places if trajectory is not None]

    def collect_sync(self, requests: Iterable[RolloutRequest]) -> list[Trajectory]:
        """`collect` for callers without an event loop.

        Ctrl-C cancels the rollouts and is raised once they have ended.
        """
        return self._loop_thread().run(self.collect(requests))

    def run_sync(self, requests: Iterable[RolloutRequest]) -> Iterator[Trajectory]:
        """`run` for callers without an event loop."""
        return self._loop_thread().iterate(self.run(requests))

    def call_sync(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs any coroutine in the event loop of the `_sync` methods, such as one that closes the generator."""
        return self._loop_thread().run(coroutine)

    def close_sync(self) -> None:
        """`aclose` for callers without an event loop; ends the engine's thread too."""
        thread = self._loop_thread()
        thread.run(self.aclose())
        thread.close()
        self._thread = None

    def _loop_thread(self) -> LoopThread:
        if self._thread is None:
            self._thread = LoopThread("gymhost-rollout")
        return self._thread

    async def _finished(self, requests: Iterable[RolloutRequest]) -> AsyncGenerator[tuple[int, Trajectory], None]:
        """Plays the requests, so many in flight as may be, and yields place and trajectory of each that has ended."""
        done: asyncio.Queue[asyncio.Task[tuple[int, Trajectory]]] = asyncio.Queue()
        running: set[asyncio.Task[tuple[int, Trajectory]]] = set()
        waiting = iter(enumerate(requests))
        try:
            while True:
                room = self.concurrency.in_flight - len(running)
                for place, request in itertools.islice(waiting, room):
                    task = asyncio.create_task(self._place(place, request))
                    task.add_done_callback(done.put_nowait)
                    running.add(task)
                if not running:
                    return
                task = await done.get()
                running.discard(task)
                yield task.result()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _place(self, place: int, request: RolloutRequest) -> tuple[int, Trajectory]:
        return place, await self._rollout(request)

    async def _rollout(self, request: RolloutRequest) -> Trajectory:
        """Plays one rollout, from scratch again after a fault that may pass."""
        for attempt in itertools.count(1):
            trajectory = Trajectory(
                env_id=request.env_id,
                task=request.task,
                seed=request.seed,
                split=request.split,
                group=request.group,
                index=request.index,
                labels=dict(request.labels),
                attempts=attempt,
            )
            try:
                await self._attempt(trajectory, request)
                return trajectory
            except Exception as error:
                trajectory.outcome = outcome_of(error, len(trajectory.turns))
                trajectory.reward = None
                logger.debug("rollout of %s failed", request.env_id, exc_info=True)
                if attempt > self.limits.retries or not retryable(error):
                    logger.warning("a rollout of %s %s", request.env_id, trajectory.outcome)
                    return trajectory
            pause = min(_RETRY_SECONDS * 2**attempt, _RETRY_SECONDS_MAX)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
        raise AssertionError("unreachable")

    async def _attempt(self, trajectory: Trajectory, request: RolloutRequest) -> None:
        try:
            await self._stages(trajectory, request)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Left as it is, it would look as if the whole batch had been cancelled.
            raise Abandoned("what the rollout waited for was cancelled") from error

    async def _stages(self, trajectory: Trajectory, request: RolloutRequest) -> None:
        timings = trajectory.timings
        in_time = bound("init_seconds", self.limits.init_seconds, "infrastructure")
        async with self._stage(self._init, timings, "init"), in_time:
            lease, observation, info = await self._sessions.begin(request)
        healthy = False
        try:
            async with self._stage(self._run, timings, "run"):
                sampling = request.sampling or self.sampling
                name = f"{id(self):x}-{next(self._numbers)}"
                play = Play(
                    self._chat,
                    self.generator,
                    lease.session,
                    trajectory,
                    self.limits,
                    sampling,
                    name,
                    self._turnstile,
                )
                healthy = await play.run(observation, info)
        finally:
            async with self._stage(self._eval, timings, "eval"):
                await self._end(lease, healthy=healthy)

    async def _end(self, lease: Lease, *, healthy: bool) -> None:
        try:
            async with bound("eval_seconds", self.limits.eval_seconds, "infrastructure"):
                await self._sessions.end(lease, healthy=healthy)
        except Exception:
            logger.warning("a session could not be closed; its lease will end it", exc_info=True)

    @asynccontextmanager
    async def _stage(self, places: asyncio.Semaphore, timings: Timings, name: str) -> AsyncGenerator[None]:
        """Holds a place in a stage, and books the time."""
        asked = time.perf_counter()
        async with places:
            begun = time.perf_counter()
            timings.queue += begun - asked
            try:
                yield
            finally:
                setattr(timings, name, getattr(timings, name) + time.perf_counter() - begun)
