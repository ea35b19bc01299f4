"""Rollouts that are held one by one, and those with limits of their own."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from gymhost.rollout import Limits, RolloutRequest
from support.local_source import LocalSource
from support.rollouts import SAY, engine, requests, turns_of
from support.talk import Talk
from support.virtual_time import simulated

pytestmark = pytest.mark.heavy


def test_what_is_held_stops_before_its_next_turn_and_loses_no_time_by_it() -> None:
    async def main() -> None:
        begun = asyncio.Event()

        async def script(_prompt_ids: Sequence[int], name: str) -> list[int]:
            begun.set()
            await asyncio.sleep(1.0)
            return SAY

        source = LocalSource(lambda: Talk(lambda env, _message: turns_of(env, 3)))
        async with engine(source, script, limits=Limits(episode_seconds=10.0)) as rollouts:
            run = rollouts.run(requests(3))
            first = asyncio.ensure_future(anext(run))
            await begun.wait()
            assert rollouts.hold(lambda trajectory: trajectory.task in (0, 1)) == 2
            assert rollouts.hold(lambda trajectory: trajectory.task == 0) == 0  # it is held already
            assert (await first).task == 2
            await asyncio.sleep(1000.0)
            assert rollouts.status().generating == 0
            # A generation that had begun has ended, and what came of it was stepped with.
            held = [flight.trajectory for flow in rollouts._flows for flight in flow.flights]  # pyright: ignore[reportPrivateUsage]
            assert [len(trajectory.turns) for trajectory in held] == [1, 1]
            assert rollouts.release(lambda trajectory: trajectory.task == 1) == 1
            second = await anext(run)
            assert (second.task, str(second.outcome)) == (1, "terminated")
            assert rollouts.release() == 1
            assert rollouts.release() == 0
            last = await anext(run)
            assert (last.task, str(last.outcome)) == (0, "terminated")

    simulated(main())


async def test_what_is_held_can_be_cancelled_and_engine_and_rollout_may_both_be_stopped() -> None:
    source = LocalSource(lambda: Talk(lambda env, _message: turns_of(env, 2)))
    async with engine(source, lambda *_: SAY) as rollouts:
        rollouts.pause()
        run = rollouts.run(requests(2))
        results = asyncio.ensure_future(_all(run))
        for _ in range(50):
            await asyncio.sleep(0)
        assert rollouts.hold(lambda _: True) == 2
        rollouts.resume()
        for _ in range(50):
            await asyncio.sleep(0)
        assert rollouts.status().tokens == 0
        rollouts.pause()
        assert rollouts.release(lambda trajectory: trajectory.task == 1) == 1
        assert rollouts.cancel(lambda trajectory: trajectory.task == 0) == 1
        rollouts.resume()
        outcomes = {trajectory.task: str(trajectory.outcome) for trajectory in await results}
    assert outcomes == {0: "cancelled", 1: "terminated"}
    assert source.open == 0


async def test_a_request_may_have_limits_of_its_own() -> None:
    source = LocalSource(lambda: Talk(lambda env, _message: turns_of(env, 5)))
    asked = [RolloutRequest("Talk-v0", limits=limits) for limits in (Limits(turns=1), None, Limits(turn_tokens=1))]
    async with engine(source, lambda *_: SAY, limits=Limits(turns=3)) as rollouts:
        ended = [str(trajectory.outcome) for trajectory in await rollouts.collect(asked)]
    assert ended == ["truncated by turns", "truncated by turns", "truncated by turn_tokens"]


async def _all(run: Any) -> list[Any]:
    return [trajectory async for trajectory in run]
