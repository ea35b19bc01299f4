"""Has rollouts sampled by several simulated servers, of which some come late: `... COURSE VARIANT...`.

The time is that of a clock that jumps, so what it prints of each variant, as JSON, depends on nothing else than the
arguments. Variants are `pool` (gymhost's), `rollouts` and `requests` (round robin), and `counter`, with the number of
rollouts that each of the first servers was given before, as in `counter-1000`.
"""

import asyncio
import json
import sys
from typing import Any

from tests.benchmarks.balancers import Counter, Requests, Rollouts
from tests.benchmarks.heavy_play import Model, Work, engine, play, requests
from tests.benchmarks.inference import Inference, Speed
from tests.benchmarks.simulations import Course
from tests.support.local_source import LocalSource
from tests.support.virtual_time import now, simulated

from gymhost.rollout import Concurrency
from gymhost.rollout.generators import GeneratorPool


def pool(variant: str, servers: list[Inference]) -> Any:
    """What chooses among servers."""
    kind, _, before = variant.partition("-")
    if kind == "pool":
        return GeneratorPool(servers)
    return (
        Counter(servers, int(before))
        if kind == "counter"
        else {"rollouts": Rollouts, "requests": Requests}[kind](servers)
    )


async def follow(course: Course, variant: str) -> dict[str, Any]:
    """Plays a course, and says what happened before and after some servers came."""
    speed, answer = Speed(sequences=course.sequences), Model(course.plan).answer
    servers = [Inference(f"server {number}", speed, answer) for number in range(course.servers + course.late)]
    generator = pool(variant, servers[: course.servers])
    source = LocalSource(lambda: Work(course.plan))
    concurrency = Concurrency(run=course.places.run, ahead=course.places.ahead)
    ended = 0

    async def take() -> None:
        nonlocal ended
        async for _ in play(rollouts, requests(course.plan)):
            ended += 1

    async def look(when: float) -> dict[str, Any]:
        done, _ = await asyncio.wait([taking], timeout=when - now())
        for failed in done:
            await failed
        return {
            "at": now(),
            "rollouts": ended,
            "sampled": [server.sampled_tokens for server in servers],
            "prompt": [server.prompt_tokens for server in servers],
            "cached": [server.cached_tokens for server in servers],
            "sequences": [server.sequence_seconds for server in servers],
        }

    async with engine(course.plan, source, generator, concurrency) as rollouts:
        taking = asyncio.create_task(take())
        warm, join = await look(course.warm), await look(course.join)
        for server in servers[course.servers :]:
            generator.add(server)
        end = await look(course.end)
        taking.cancel()
        await asyncio.wait([taking])
    await generator.aclose()
    return {"before": between(warm, join), "after": between(join, end)}


def between(first: dict[str, Any], last: dict[str, Any]) -> dict[str, Any]:
    """What happened between two looks."""
    seconds = last["at"] - first["at"]

    def more(key: str) -> list[float]:
        return [after - before for before, after in zip(first[key], last[key], strict=True)]

    return {
        "tokens_per_second": sum(more("sampled")) / seconds,
        "rollouts_per_second": (last["rollouts"] - first["rollouts"]) / seconds,
        "hits": sum(more("cached")) / sum(more("prompt")),
        "sequences": [spent / seconds for spent in more("sequences")],
    }


if __name__ == "__main__":
    for variant in sys.argv[2:]:
        print(json.dumps(simulated(follow(Course.read(sys.argv[1]), variant))), flush=True)
