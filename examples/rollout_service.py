"""Everything that a trainer asks of a rollout service: `python rollout_service.py HOST:PORT`.

`gymhost serve --rollouts --tokenizer MODEL_FOLDER --generator http://gpu3:8000` is such a service, beside the
environments that it plays. This trainer needs neither the model nor an environment: tasks go in, trajectories come out,
scored and exact to the token.
"""

import asyncio
import sys
from contextlib import aclosing

from gymhost.rollout import RolloutRequest, group_advantages
from gymhost.rollout.service import GroupRules, RolloutClient

TASKS = [RolloutRequest("gymhost/GuessNumber-v0", task=task, split="train") for task in range(4)]


async def main(address: str) -> None:
    async with RolloutClient(address) as rollouts:
        there = await rollouts.describe(TASKS[0].env_id)
        print(f"{there.id} has {', '.join(f'{count} tasks in {split}' for split, count in there.splits.items())}")

        # A job: four tasks, four rollouts of each. The key is its name: submitting it again gives the same job.
        job = await rollouts.submit(TASKS, samples=4, key="run 1, step 0", limits={"turns": 8}, label="an example")
        taken = 0
        async with aclosing(job.results()) as results:
            async for trajectory in results:  # as they end; one is acknowledged when the next is asked for
                taken += 1
                print(f"task {trajectory.task}, rollout {trajectory.index}: {trajectory.outcome}, {trajectory.reward}")
                if taken == 5:
                    break  # here the trainer is killed

    async with RolloutClient(address) as rollouts:  # and started again: the rest is there, or still to come
        job = await rollouts.submit(TASKS, samples=4, key="run 1, step 0", limits={"turns": 8})
        rest = [trajectory async for trajectory in job.results(acknowledge=False)]
        print(f"{len(rest)} more, and {(await job.status()).unacknowledged} of them are kept until they are in safety")
        await job.acknowledge(rest)
        print(f"the job is {(await job.status()).state}, and keeps {(await job.status()).unacknowledged}")

        # Whole groups, of those that have something to teach: no group waits for its slowest rollout.
        rules = GroupRules(extra=2, keep="variance", target=2)
        tasks = [RolloutRequest("gymhost/GuessNumber-v0", task=task, split="train") for task in range(64)]
        async for group in rollouts.groups(tasks, samples=4, grouping=rules, limits={"turns": 2}):
            rewards = [trajectory.reward for trajectory in group.trajectories]
            advantages = group_advantages(group.trajectories)
            print(f"task {group.request.task}: rewards {rewards}, advantages {advantages.round(1).tolist()}")

        # What is no longer wanted: what is in flight ends, and says so; what has not begun never does.
        job = await rollouts.submit(tasks, samples=64, priority=-1)
        await job.pause()
        await job.cancel()
        print(f"the job is {(await job.status()).state}")
        for status in await rollouts.jobs(limit=3):
            print(f"{status.label or status.key}: {status.state}, {status.done} of {status.total} rollouts")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
