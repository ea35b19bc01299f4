"""The way of one rollout: INIT, RUN, EVAL, each with places of its own, and again after a fault that may pass."""

import asyncio
import itertools
import logging
import random
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from gymhost.rollout.agent_play import AgentPlay
from gymhost.rollout.chat import Chat
from gymhost.rollout.endpoint import Endpoints
from gymhost.rollout.faults import Abandoned, AgentFault, bound, outcome_of, retryable
from gymhost.rollout.flight import Flight
from gymhost.rollout.generators.base import ChatGenerator, Generator, Sampling
from gymhost.rollout.play import Play
from gymhost.rollout.requests import Concurrency, Limits, RolloutRequest
from gymhost.rollout.sessions import Session, Sessions
from gymhost.rollout.speaking import Speaker
from gymhost.rollout.status import Counts, Stage
from gymhost.rollout.trajectory import Trajectory
from gymhost.rollout.turnstile import Turnstile

__all__ = ["Stages"]

logger = logging.getLogger(__name__)

_RETRY_SECONDS = 0.1
_RETRY_SECONDS_MAX = 5.0


class Stages:
    """Takes rollouts through their stages.

    Args:
        sessions: Where their sessions come from.
        chat: Turns messages into ids and back; None with a chat endpoint.
        generator: Samples.
        sampling: How, unless a request says otherwise.
        limits: What ends a rollout, unless a request says otherwise.
        concurrency: How many there may be in each stage.
        agents: Loops that a request may ask for, by name.
        endpoints: Where agents get endpoints.
    """

    def __init__(
        self,
        sessions: Sessions,
        chat: Chat | None,
        generator: Generator | ChatGenerator,
        sampling: Sampling,
        limits: Limits,
        concurrency: Concurrency,
        agents: Mapping[str, Any],
        endpoints: Endpoints,
    ) -> None:
        self.counts = Counts()
        self.turnstile = Turnstile()
        self._sessions = sessions
        self._chat = chat
        self._generator = generator
        self._sampling = sampling
        self._limits = limits
        self._agents = agents
        self._endpoints = endpoints
        # Held from the beginning of INIT to the end of RUN: what keeps INIT from running further ahead than it may.
        self._begun = asyncio.Semaphore(concurrency.run + concurrency.ahead)
        self._init = asyncio.Semaphore(concurrency.init)
        self._run = asyncio.Semaphore(concurrency.run)
        self._eval = asyncio.Semaphore(concurrency.eval)
        self._numbers = itertools.count()

    async def fly(self, flight: Flight) -> None:
        """Plays one rollout, from scratch again after a fault that may pass."""
        limits = flight.request.limits or self._limits
        for attempt in itertools.count(1):
            try:
                await self._attempt(flight)
                break
            except Exception as error:
                if flight.settled:  # it was cancelled while its session was being closed
                    break
                trajectory = flight.trajectory
                flight.fail(outcome_of(error, len(trajectory.turns)))
                logger.debug("rollout of %s failed", trajectory.env_id, exc_info=True)
                if attempt > limits.retries or not retryable(error):
                    names = {"environment": trajectory.env_id, "rollout": trajectory.id}
                    logger.warning("a rollout of %s %s", trajectory.env_id, trajectory.outcome, extra=names)
                    break
            self.counts.retries += 1
            pause = min(_RETRY_SECONDS * 2**attempt, _RETRY_SECONDS_MAX)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            flight.begin_again()
        flight.settle()

    async def _attempt(self, flight: Flight) -> None:
        try:
            await self._through(flight)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Left as it is, it would look as if the whole batch had been cancelled.
            raise Abandoned("what the rollout waited for was cancelled") from error

    async def _through(self, flight: Flight) -> None:
        request, trajectory = flight.request, flight.trajectory
        limits = request.limits or self._limits
        lease = self._sessions.lease(request)
        try:
            async with self._place(flight, self._begun):
                in_time = bound("init_seconds", limits.init_seconds, "infrastructure")
                async with self._place(flight, self._init, "init"), in_time:
                    session, observation, info = await self._sessions.begin(lease, request, trajectory.id)
                flight.move("ready")
                async with self._place(flight, self._run, "run"):
                    speaker = Speaker(
                        self._chat,
                        self._generator,
                        trajectory,
                        limits,
                        request.sampling or self._sampling,
                        f"{id(self):x}-{next(self._numbers)}",
                        self.turnstile,
                        flight.gate,
                        settled=lambda: flight.settled,
                    )
                    play = self._play(request, session, trajectory, limits, speaker)
                    healthy = await play.run(observation, info)
            flight.move("eval")
            async with self._place(flight, self._eval, "eval"):
                async with bound("eval_seconds", limits.eval_seconds, "environment"):
                    await play.evaluate()
                flight.close(scored=True)
                await self._sessions.end(lease, healthy=healthy)
        except BaseException:
            # A command may still be running in it.
            flight.close(scored=False)
            await self._sessions.end(lease, healthy=False)
            raise

    def _play(
        self, request: RolloutRequest, session: Session, trajectory: Trajectory, limits: Limits, speaker: Speaker
    ) -> Play:
        how = self._chat, session, trajectory, limits, speaker
        if request.agent is None:
            return Play(*how)
        if (agent := self._agents.get(request.agent)) is None:
            known = ", ".join(sorted(self._agents)) or "none"
            raise AgentFault(f"the engine knows no agent {request.agent!r}; it has {known}") from LookupError()
        return AgentPlay(agent, request, self._endpoints, *how)

    @asynccontextmanager
    async def _place(
        self, flight: Flight, places: asyncio.Semaphore, stage: Stage | None = None
    ) -> AsyncGenerator[None]:
        """Holds a place, and books the time: that of waiting for it and, in a stage, that of being there."""
        timings = flight.trajectory.timings
        asked = time.perf_counter()
        async with places:
            begun = time.perf_counter()
            timings.queue += begun - asked
            if stage is None:
                yield
                return
            flight.move(stage)
            try:
                yield
            finally:
                setattr(timings, stage, getattr(timings, stage) + time.perf_counter() - begun)
