"""Plays a plan's rollouts in this process as the service would: `... PLAN - ENVIRONMENTS GENERATOR`, both addresses."""

import asyncio
import sys

import renderers
from tests.benchmarks.rollout_plan import Plan
from tests.benchmarks.service_client import measure
from tests.support.tokenizers import qwen3_tokenizer

from gymhost.client import connect
from gymhost.rollout import Chat, Concurrency, RolloutEngine
from gymhost.rollout.generators import GeneratorPool, VllmServerGenerator


async def main(plan: Plan, environments: str, generator: str) -> None:
    chat = Chat(qwen3_tokenizer(), renderers.config_from_name("qwen3"))
    pool = GeneratorPool([VllmServerGenerator(f"http://{generator}")])
    async with connect(environments) as source, RolloutEngine(source, chat, pool, concurrency=Concurrency()) as engine:
        await measure(plan, engine)
    await pool.aclose()


if __name__ == "__main__":
    asyncio.run(main(Plan.read(sys.argv[1]), *sys.argv[3:]))
