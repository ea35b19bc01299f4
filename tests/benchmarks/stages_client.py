"""Plays rollouts whose INIT and EVAL take long, sampled by a simulated server: `... COURSE VARIANT...`.

The time is that of a clock that jumps, so what it prints of each variant, as JSON, depends on nothing else than the
arguments. Variants are `stages`, the engine's stages with places of their own, and `one-N`, a pool of N places, each of
which is held from the beginning of a rollout's INIT to the end of its EVAL; without N it has as many as all stages
together.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import asdict

from tests.benchmarks.heavy_play import Model, Work, engine, play, requests
from tests.benchmarks.inference import Inference, Speed
from tests.benchmarks.simulations import Course
from tests.support.local_source import LocalSource
from tests.support.virtual_time import now, simulated

from gymhost.rollout import Concurrency, RolloutRequest


async def follow(course: Course, variant: str) -> dict[str, float]:
    """Plays a course, and says how the server fared after it had become warm."""
    size = course.places.total
    concurrency = Concurrency(**asdict(course.places))
    if variant != "stages":
        size = int(variant.partition("-")[2] or size)
        concurrency = Concurrency(init=size, run=size, eval=size, ahead=0)
    places = asyncio.Semaphore(size)
    server = Inference("server", Speed(sequences=course.sequences), Model(course.plan).answer)
    source = LocalSource(lambda: Work(course.plan))

    async def placed() -> AsyncIterator[RolloutRequest]:
        for request in requests(course.plan):
            await places.acquire()
            yield request

    async def take() -> None:
        async for _ in play(rollouts, placed()):
            places.release()

    async def look(until: float) -> dict[str, float]:
        """Looks once a second, and says what there was on average, and all that there has been so far."""
        begun, spent = now(), {"run": 0, "sessions": 0}
        while now() < until:
            done, _ = await asyncio.wait([taking], timeout=1.0)
            for failed in done:
                await failed
            spent["run"] += rollouts.status().run
            spent["sessions"] += source.open
        return {key: total / (now() - begun) for key, total in spent.items()} | {
            "rollouts": rollouts.status().done,
            "sampled": server.sampled_tokens,
            "prompt": server.prompt_tokens,
            "cached": server.cached_tokens,
            "sequences": server.sequence_seconds,
        }

    async with engine(course.plan, source, server, concurrency) as rollouts:
        taking = asyncio.create_task(take())
        first, last = await look(course.warm), await look(course.end)
        taking.cancel()
        await asyncio.wait([taking])
    await server.aclose()
    seconds = course.end - course.warm

    def more(key: str) -> float:
        return last[key] - first[key]

    return {
        "tokens_per_second": more("sampled") / seconds,
        "rollouts_per_second": more("rollouts") / seconds,
        "busy": more("sequences") / seconds / course.sequences,
        "hits": more("cached") / more("prompt"),
        "run": last["run"],
        "sessions": last["sessions"],
    }


if __name__ == "__main__":
    for variant in sys.argv[2:]:
        print(json.dumps(simulated(follow(Course.read(sys.argv[1]), variant))), flush=True)
