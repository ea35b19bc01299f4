"""Has the rollout service play a plan's rollouts: `python -m tests.benchmarks.service_client PLAN SERVICE ...`."""

import asyncio
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

from tests.benchmarks.rollout_plan import Plan, report

from gymhost.rollout import RolloutEngine, RolloutRequest, Trajectory
from gymhost.rollout.service import RolloutClient


def requests(plan: Plan) -> list[RolloutRequest]:
    """A plan's rollouts."""
    return [
        RolloutRequest(plan.environment, task=rollout, kwargs={"plan": plan.write()})
        for rollout in range(plan.rollouts)
    ]


def turns_of(trajectories: Sequence[Trajectory]) -> list[int]:
    """How many turns each rollout had.

    Raises:
        RuntimeError: One did not end as it should, or was there twice.
    """
    if bad := [trajectory.outcome for trajectory in trajectories if trajectory.outcome.kind != "terminated"]:
        raise RuntimeError(f"a rollout {bad[0]}")
    if len({trajectory.id for trajectory in trajectories}) < len(trajectories):
        raise RuntimeError("a rollout came twice")
    return [len(trajectory.turns) for trajectory in trajectories]


async def measure(plan: Plan, player: RolloutEngine | RolloutClient) -> None:
    """Has a plan's rollouts played, marks begin and end for the runner, and prints what came of it as JSON."""
    turns_of(await player.collect(requests(replace(plan, rollouts=2))))  # the first use is slow
    print("begin", flush=True)
    begun = time.perf_counter()
    trajectories = await player.collect(requests(plan))
    seconds = time.perf_counter() - begun
    print("end", flush=True)
    report(plan, turns_of(trajectories), seconds)


async def main(plan: Plan, service: str) -> None:
    async with RolloutClient(service) as rollouts:
        await measure(plan, rollouts)


if __name__ == "__main__":
    asyncio.run(main(Plan.read(sys.argv[1]), sys.argv[2]))
