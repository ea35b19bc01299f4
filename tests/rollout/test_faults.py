"""Rollouts that fail: whose fault it was, and what is tried again."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from gymhost.rollout import (
    Concurrency,
    GeneratorError,
    Limits,
    RolloutRequest,
)
from gymhost.wire import errors
from support.local_source import LocalSource
from support.rollouts import SAY, engine, requests, turns_of
from support.talk import Answer, Talk
from support.virtual_time import now, simulated

pytestmark = pytest.mark.heavy


async def test_failures_are_places_in_a_batch_that_stays_whole() -> None:
    """Case S07: 16 rollouts; number 5 raises in its third step, number 9 is cut off from the network."""

    def answer(env: Talk, _message: Any) -> Answer:
        if env.options["task"] == 5 and len(env.said) == 3:
            raise errors.EnvironmentFault("ValueError: boom", exception="ValueError", traceback="Traceback: boom")
        if env.options["task"] == 9 and len(env.said) == 2:
            raise errors.ConnectionLost("the connection is gone")
        return turns_of(env, 4)

    source = LocalSource(lambda: Talk(answer))
    async with engine(source, lambda *_: SAY, limits=Limits(retries=1)) as rollouts:
        trajectories = await rollouts.collect(requests(16))
        assert [item.task for item in trajectories] == list(range(16))
        good = [item for place, item in enumerate(trajectories) if place not in (5, 9)]
        assert all((item.outcome.kind, item.reward, item.outcome.turn) == ("terminated", 1.0, 4) for item in good)
        fault, cut = trajectories[5].outcome, trajectories[9].outcome
        assert (fault.kind, fault.fault, fault.cause, fault.turn) == ("failed", "environment", "EnvironmentFault", 3)
        assert "boom" in fault.message
        assert (cut.kind, cut.fault, cut.cause, cut.turn) == ("failed", "infrastructure", "ConnectionLost", 2)
        assert (trajectories[5].attempts, trajectories[9].attempts) == (1, 2)
        assert trajectories[5].reward is None
        assert trajectories[9].reward is None
    assert source.open == 0


async def test_a_fault_that_passes_is_tried_again_from_scratch_with_task_and_seed() -> None:
    envs: list[Talk] = []

    def answer(env: Talk, _message: Any) -> Answer:
        if env is envs[0]:
            raise errors.SessionLost("its worker died")
        return turns_of(env, 2)

    def make() -> Talk:
        envs.append(Talk(answer))
        return envs[-1]

    async with engine(LocalSource(make), lambda *_: SAY) as rollouts:
        [trajectory] = await rollouts.collect([RolloutRequest("Talk-v0", task=3, seed=11)])
    assert (trajectory.outcome.kind, trajectory.attempts, len(trajectory.turns)) == ("terminated", 2, 2)
    assert [(env.seed, env.options["task"], env.closed) for env in envs] == [(11, 3, True), (11, 3, True)]


async def test_a_generator_that_fails_is_tried_again_so_often_and_no_more() -> None:
    def script(_prompt_ids: Sequence[int], _name: str) -> list[int]:
        raise GeneratorError("out of order")

    source = LocalSource(lambda: Talk(lambda env, _message: turns_of(env, 1)))
    async with engine(source, script, limits=Limits(retries=2)) as rollouts:
        [trajectory] = await rollouts.collect(requests(1))
    assert (trajectory.outcome.fault, trajectory.attempts, trajectory.outcome.turn) == ("generator", 3, 1)


async def test_whatever_a_generator_raises_is_the_generators_fault() -> None:
    def script(_prompt_ids: Sequence[int], _name: str) -> list[int]:
        raise ValueError("no such setting")

    source = LocalSource(lambda: Talk(lambda env, _message: turns_of(env, 1)))
    async with engine(source, script, limits=Limits(retries=0)) as rollouts:
        [trajectory] = await rollouts.collect(requests(1))
    assert (trajectory.outcome.fault, trajectory.outcome.message) == ("generator", "ValueError: no such setting")


async def test_a_cancellation_that_nobody_asked_of_the_rollout_does_not_end_the_batch() -> None:
    class Cut(Talk):
        async def astep(self, action: Any) -> Answer:
            if self.options["task"] == 1:
                waiting: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
                waiting.cancel()
                return await waiting
            return self.step(action)

    source = LocalSource(lambda: Cut(lambda env, _message: turns_of(env, 2)))
    async with engine(source, lambda *_: SAY, limits=Limits(retries=1)) as rollouts:
        trajectories = await rollouts.collect(requests(3))
    assert [item.outcome.kind for item in trajectories] == ["terminated", "failed", "terminated"]
    assert (trajectories[1].outcome.fault, trajectories[1].attempts) == ("infrastructure", 2)
    assert source.open == 0


@pytest.mark.parametrize(
    ("error", "fault", "attempts"),
    [
        (errors.CommandTimeout("a step", limit="step_timeout"), "environment", 1),
        (errors.CapacityExhausted("full"), "infrastructure", 2),
        (errors.UnknownEnvironment("no such"), "infrastructure", 1),
        (ZeroDivisionError("oops"), "environment", 1),
    ],
)
async def test_faults_before_the_first_turn(error: Exception, fault: str, attempts: int) -> None:
    def opening(_env: Talk) -> Any:
        raise error

    source = LocalSource(lambda: Talk(lambda env, _message: turns_of(env, 1), opening))
    async with engine(source, [SAY], limits=Limits(retries=1)) as rollouts:
        [trajectory] = await rollouts.collect(requests(1))
    outcome = trajectory.outcome
    assert (outcome.kind, outcome.fault, outcome.turn, trajectory.attempts) == ("failed", fault, 0, attempts)
    assert outcome.limit == (getattr(error, "limit", None) or None)
    assert trajectory.rows() == []
    assert source.open == 0


def interrupted(_env: Talk, _message: Any) -> Answer:
    raise KeyboardInterrupt


def test_what_is_no_exception_passes_through() -> None:
    """Case S07: a keyboard interrupt passes through, wherever it comes up."""

    async def main() -> None:
        async with engine(source, lambda *_: SAY) as rollouts:
            await rollouts.collect(requests(4))

    source = LocalSource(lambda: Talk(interrupted))
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    assert source.open == 0


def test_what_is_no_exception_passes_through_to_a_caller_without_an_event_loop() -> None:
    source = LocalSource(lambda: Talk(interrupted))
    rollouts = engine(source, lambda *_: SAY)
    with pytest.raises(KeyboardInterrupt):
        rollouts.collect_sync(requests(4))
    assert source.open == 0
    rollouts.close_sync()


@pytest.mark.parametrize("what", ["opening", "steps", "generator", "stuck"])
def test_a_storm_of_failures_ends_in_time_with_the_batch_whole(what: str) -> None:
    class Broken(Talk):
        async def areset(self, **kwargs: Any) -> Any:
            if what == "opening":
                raise errors.ServerUnavailable("down")
            if what == "stuck":
                await asyncio.Event().wait()
            return self.reset(**kwargs)

    def answer(_env: Talk, _message: Any) -> Answer:
        raise errors.SessionLost("its worker died")

    def script(_prompt_ids: Sequence[int], _name: str) -> list[int]:
        if what == "generator":
            raise GeneratorError("out of order")
        return SAY

    async def main() -> None:
        source = LocalSource(lambda: Broken(answer))
        limits = Limits(retries=2, init_seconds=10)
        places = Concurrency(init=16, run=32, eval=16, ahead=16)
        async with engine(source, script, limits=limits, concurrency=places) as rollouts:
            trajectories = await rollouts.collect(requests(320))
            status = rollouts.status()
        assert [item.task for item in trajectories] == list(range(320))
        assert {(item.outcome.kind, item.attempts, item.reward) for item in trajectories} == {("failed", 3, None)}
        assert (status.done, status.retries, status.in_flight) == (320, 640, 0)
        assert source.open == 0
        # So many at a time, each three times, with pauses of half a second in all; those that are stuck, 16 at a time.
        assert now() < (320 / 64 + 1) * 0.7 if what != "stuck" else now() < (320 / 16 + 1) * 3 * 10

    simulated(main())


async def test_a_session_in_which_a_step_may_still_run_plays_no_other_episode() -> None:
    stepping = asyncio.Event()

    class Stuck(Talk):
        async def astep(self, action: Any) -> Answer:
            if len(envs) == 1:
                stepping.set()
                await asyncio.Event().wait()
            return self.step(action)

    envs: list[Stuck] = []

    def make() -> Stuck:
        envs.append(Stuck(lambda env, _message: turns_of(env, 1)))
        return envs[-1]

    async with engine(LocalSource(make), lambda *_: SAY) as rollouts:
        batch = asyncio.create_task(rollouts.collect(requests(1)))
        await stepping.wait()
        rollouts.cancel()
        assert [item.outcome.kind for item in await batch] == ["cancelled"]
        assert [item.outcome.kind for item in await rollouts.collect(requests(1))] == ["terminated"]
        assert [env.closed for env in envs] == [True, False]


async def test_an_opening_that_never_comes_is_given_up() -> None:
    class Stuck(Talk):
        async def areset(self, **_: Any) -> Any:
            await asyncio.Event().wait()

    source = LocalSource(lambda: Stuck(lambda env, _message: turns_of(env, 1)))
    async with engine(source, [SAY], limits=Limits(init_seconds=0.05, retries=0)) as rollouts:
        [trajectory] = await rollouts.collect(requests(1))
    assert (trajectory.outcome.fault, trajectory.outcome.limit) == ("infrastructure", "init_seconds")
    assert "Limits.init_seconds" in trajectory.outcome.message
    assert source.open == 0
