"""Rolls out a model that vLLM serves, and packs what is worth training on: `python roll_out.py MODEL_FOLDER URL...`."""

import asyncio
import contextlib
import itertools
import sys

from transformers import AutoTokenizer

from gymhost.client import connect
from gymhost.rollout import Chat, Grouping, Limits, RolloutEngine, RolloutRequest, group_advantages, has_variance, pack
from gymhost.rollout.generators import GeneratorPool, VllmServerGenerator


async def main(model: str, *urls: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model)
    # Each is `vllm serve MODEL --logprobs-mode processed_logprobs`; the rollouts of one that dies go on at the others.
    pool = GeneratorPool([VllmServerGenerator(url) for url in urls])
    tasks = (RolloutRequest("gymhost/GuessNumber-v0", task, split="train") for task in itertools.count())
    # Ten rollouts of each task; once eight have a reward the others are cancelled. Groups that are all won or all lost
    # have nothing to teach: another takes their place.
    grouping = Grouping(size=8, extra=2, keep=has_variance)
    async with (
        contextlib.aclosing(pool),
        connect() as server,
        RolloutEngine(server, Chat(tokenizer), pool, limits=Limits(turns=8, completion_tokens=2048)) as engine,
        contextlib.aclosing(engine.groups(tasks, grouping, target=4)) as groups,
    ):
        async for group in groups:
            advantages = group_advantages(group.trajectories)
            batch = pack(group.trajectories, length=4096, pad_id=0, advantages=advantages)
            rewards = [trajectory.reward for trajectory in group.trajectories]
            print(f"task {group.request.task}: rewards {rewards}, {batch['loss_mask'].sum()} tokens to train on")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
