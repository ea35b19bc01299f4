"""DAPO in plain torch over a rollout service: `python -m examples.dapo MODEL --service HOST:PORT`.

DAPO (decoupled clip and dynamic sampling policy optimization) trains on groups alone whose rewards differ: others have
no advantage, and leave a batch the smaller the more the model has learned. So the job of this trainer is an open one
with a target. For a group without variance the service begins another one. When the target is reached it hands out no
more; what is in flight is carried over, with its tokens, and goes towards the next target. The other parts of DAPO are
a clip that is wider above than below, a loss that is a mean over tokens, and a penalty for rollouts that were nearly
too long.

The policy is trained as in `examples/grpo.py`, with the same options. Its weights are written to `--output`, which the
service and its vLLM servers must see under the same path.
"""

import argparse
import asyncio
import itertools
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import torch

from examples import grpo
from gymhost.rollout import RolloutRequest, Trajectory
from gymhost.rollout.generators import DiskWeights
from gymhost.rollout.service import GroupRules, Job, RolloutClient

AHEAD = 4
"""So many batches of tasks wait to be begun."""


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = grpo.parser("DAPO over a rollout service.")
    parser.add_argument("--service", metavar="HOST:PORT", required=True)
    parser.add_argument("--buffer", type=int, default=0, help="tokens below --context that cost more and more reward")
    parser.set_defaults(staleness=4)  # what is carried over is behind by some updates
    args = parser.parse_args(given)
    if args.server or args.vllm or args.renderer or args.module:
        parser.error("--server, --vllm, --renderer and --module are for the service to know")
    return args


class Weights:
    """The policy's weights on their way to the service's generators."""

    def __init__(self, rollouts: RolloutClient, folder: Path, before: int) -> None:
        self._rollouts = rollouts
        self._disk = DiskWeights(folder)
        self._before = before  # versions of a service never go down, and this training begins at 0

    async def hand_over(self, policy: grpo.Policy) -> None:
        version = self._before + policy.step + 1
        folder = await self._disk.prepare(policy.model, version)
        # Rollouts in flight go on from the tokens that they have; each token tells which version sampled it.
        await self._rollouts.announce(version, folder, in_flight="cut")
        for older in folder.parent.glob("version-*"):
            if older != folder:
                shutil.rmtree(older)


def penalized(args: argparse.Namespace, trajectory: Trajectory) -> Trajectory:
    """DAPO's overlong penalty: up to 1 for what comes into the last `--buffer` tokens."""
    over = len(trajectory.completion_ids) + len(trajectory.prompt_ids) - (args.context - args.buffer)
    if args.buffer and over > 0 and trajectory.reward is not None:
        return trajectory.model_copy(update={"reward": trajectory.reward - min(1.0, over / args.buffer)})
    return trajectory


async def supply(args: argparse.Namespace, job: Job, tasks: Iterator[RolloutRequest]) -> None:
    """Sees to it that there are tasks to begin, however many groups are dropped."""
    while True:
        if (await job.status()).queued < args.groups * args.size:
            await job.extend(itertools.islice(tasks, AHEAD * args.groups))
        await asyncio.sleep(0.5)


async def train(args: argparse.Namespace, rollouts: RolloutClient) -> None:
    torch.manual_seed(args.seed)
    args.output.mkdir(parents=True, exist_ok=True)
    policy = grpo.Policy(args)
    splits = dict((await rollouts.describe(args.env, **args.kwargs)).splits)
    tasks = (grpo.request(args, splits, args.train_split, n) for n in itertools.count(policy.step * args.groups))
    numbers = range(1_000_000, 1_000_000 + args.test_tasks)
    held_out = [grpo.request(args, splits, args.test_split, number) for number in numbers]
    weights = Weights(rollouts, args.output / "weights", (await rollouts.status()).policy_version - policy.step)
    await weights.hand_over(policy)
    limits = {"turns": args.turns, "turn_tokens": args.turn_tokens, "context_tokens": args.context}
    job = await rollouts.submit(
        itertools.islice(tasks, AHEAD * args.groups),
        samples=args.size,
        grouping=GroupRules(args.extra, keep="variance", target=args.groups, max_staleness=args.staleness),
        sampling={"temperature": args.temperature},
        limits=limits,
        open=True,
        label=f"DAPO, {args.output}",
    )
    try:
        async with asyncio.TaskGroup() as beside, aclosing(job.groups(acknowledge=False)) as groups:
            supplying = beside.create_task(supply(args, job, tasks))
            while policy.step < args.steps:
                begun = time.monotonic()
                batch = [each for _ in range(args.groups) for each in (await anext(groups)).trajectories]
                played = time.monotonic()
                learned = [penalized(args, trajectory) for trajectory in batch]
                figures: dict[str, Any] = await asyncio.to_thread(policy.learn, learned)
                await weights.hand_over(policy)
                await job.acknowledge(batch)  # a step that was learned is no more to be handed out
                status = await job.extend(more_groups=args.groups)
                figures = {"step": policy.step, "reward": grpo.mean_reward(batch)} | figures
                figures |= {"dropped": status.groups_dropped, "carried": status.in_flight}
                figures |= {"playing": played - begun, "learning": time.monotonic() - played}
                if policy.step % args.test_every == 0 or policy.step == args.steps:
                    greedy = await rollouts.collect(held_out, sampling={"temperature": 0.0}, limits=limits, priority=1)
                    figures["test"] = grpo.mean_reward(greedy)
                if policy.step % args.save_every == 0 or policy.step == args.steps:
                    policy.save()
                grpo.report(args, figures)
            supplying.cancel()
    finally:
        await job.cancel()


async def main(args: argparse.Namespace) -> None:
    async with RolloutClient(args.service) as rollouts:
        await train(args, rollouts)


if __name__ == "__main__":
    asyncio.run(main(arguments()))
