"""Holds many rollouts in flight at once: `python -m tests.benchmarks.rollout_in_flight ADDRESS N`.

It prints a line of JSON after each phase, and goes on when it gets a line: first when one rollout has been played, then
when all wait for a completion at once, in their first turn and in their fourth, and when all have ended.
"""

import asyncio
import math
import sys
import time
from collections.abc import Sequence

from renderers import Qwen3RendererConfig
from tests.benchmarks.gymhost_idle import phase
from tests.benchmarks.rollout_plan import Model, Plan
from tests.support.simulated_generator import SimulatedGenerator, Slots
from tests.support.tokenizers import encode, qwen3_tokenizer

from gymhost.client import connect
from gymhost.rollout import Chat, Concurrency, Generation, RolloutEngine, RolloutRequest, Sampling

# The turns in which all wait for each other.
HELD = (1, 4)
_TURNS = 5
_TASKS = 256


class Holding(SimulatedGenerator):
    """Samples in no time, but in some turns only when all rollouts have come so far.

    Args:
        model: Says what is sampled.
        count: How many rollouts there are.
    """

    def __init__(self, model: Model, count: int) -> None:
        super().__init__(Slots(tokens_per_second=math.inf), model.answer)
        # One more than the rollouts: whoever lets them go on.
        self.held = {turn: (asyncio.Barrier(count + 1), asyncio.Event()) for turn in HELD}

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, *, request_id: str) -> Generation:
        turn = int(request_id.rpartition("/")[2])
        if turn in self.held:
            all_there, go_on = self.held[turn]
            await all_there.wait()
            await go_on.wait()
        return await super().generate(prompt_ids, sampling, request_id=request_id)


async def main(address: str, count: int) -> None:
    plan = Plan(_TASKS, _TURNS, _TURNS)
    chat = Chat(qwen3_tokenizer(), Qwen3RendererConfig(thinking_retention="all"))
    model = Model(plan, encode)
    requests = [
        RolloutRequest(plan.environment, task=number % _TASKS, kwargs={"plan": plan.write()}) for number in range(count)
    ]
    async with connect(address) as server:
        quick = SimulatedGenerator(Slots(tokens_per_second=math.inf), model.answer)
        async with RolloutEngine(server, chat, quick) as engine:
            await engine.collect(requests[:1])
        await phase(played=True)

        generator = Holding(model, count)
        begun = time.perf_counter()
        async with RolloutEngine(server, chat, generator, concurrency=Concurrency(run=count)) as engine:
            playing = asyncio.create_task(engine.collect(requests))
            for all_there, go_on in generator.held.values():
                await all_there.wait()
                await phase(all_after_seconds=time.perf_counter() - begun)
                go_on.set()
            trajectories = await playing
            fine = [t for t in trajectories if t.outcome.kind == "terminated" and len(t.turns) == _TURNS]
            await phase(finished=len(fine), seconds=time.perf_counter() - begun)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
