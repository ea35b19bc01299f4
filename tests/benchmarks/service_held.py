"""Submits more rollouts than are played at once: `python -m tests.benchmarks.service_held PLAN SERVICE RUN`.

It prints a line of JSON after each phase, and goes on when it gets a line: first when one rollout has been played; then
when all have been taken by the service and as many as there are places take turns; and when all results have come.
"""

import asyncio
import sys
import time
from dataclasses import replace

from tests.benchmarks.gymhost_idle import phase
from tests.benchmarks.rollout_plan import Plan
from tests.benchmarks.service_client import requests, turns_of

from gymhost.rollout.service import RolloutClient

# Seconds between looks at the service.
_LOOK = 0.1


async def main(plan: Plan, service: str, run: int) -> None:
    async with RolloutClient(service) as rollouts:
        await rollouts.collect(requests(replace(plan, rollouts=1)))
        await phase(played=True)

        begun = time.perf_counter()
        job = await rollouts.submit(requests(plan))
        submitted = time.perf_counter() - begun
        while True:
            status = await rollouts.status()
            if status.run == run:
                break
            await asyncio.sleep(_LOOK)
        await phase(submit_seconds=submitted, still_queued=status.queued)

        answered: list[float] = []

        async def ask() -> None:
            while True:
                asked = time.perf_counter()
                await rollouts.status()
                answered.append(time.perf_counter() - asked)
                await asyncio.sleep(_LOOK)

        asking = asyncio.create_task(ask())
        trajectories = [trajectory async for trajectory in job.results()]
        asking.cancel()
        await asyncio.wait([asking])
        seconds = time.perf_counter() - begun
        turns = sum(turns_of(trajectories))
        answered.sort()
        await phase(
            results=len(trajectories),
            turns=turns,
            seconds=seconds,
            status_p50_seconds=answered[len(answered) // 2],
            status_most_seconds=answered[-1],
        )


if __name__ == "__main__":
    asyncio.run(main(Plan.read(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
