"""Batched, asynchronous, token-exact rollouts over environments.

Example:
    requests = grouped([RolloutRequest("gymhost/GuessNumber-v0", task=task) for task in range(8)], size=16)
    engine = RolloutEngine(server, Chat(tokenizer, Qwen3RendererConfig()), generator, limits=Limits(turns=8))
    async for trajectory in engine.run(requests):
        ...
"""

from gymhost.rollout.advantages import group_advantages
from gymhost.rollout.arrays import as_tensors, pack, pad
from gymhost.rollout.chat import Chat
from gymhost.rollout.datasets import sft_dataset, to_dataset
from gymhost.rollout.engine import RolloutEngine
from gymhost.rollout.generators.base import Generation, Generator, GeneratorError, PromptTooLong, Sampling
from gymhost.rollout.parquet import read_parquet, write_parquet
from gymhost.rollout.requests import Concurrency, Limits, RolloutRequest, grouped
from gymhost.rollout.sessions import Session, Source
from gymhost.rollout.sft import sft_rows, sft_token_rows
from gymhost.rollout.store import RolloutKey, Store, StoreError, rollout_key
from gymhost.rollout.text import as_text
from gymhost.rollout.trajectory import Outcome, Row, Timings, Trajectory, Turn

__all__ = [
    "Chat",
    "Concurrency",
    "Generation",
    "Generator",
    "GeneratorError",
    "Limits",
    "Outcome",
    "PromptTooLong",
    "RolloutEngine",
    "RolloutKey",
    "RolloutRequest",
    "Row",
    "Sampling",
    "Session",
    "Source",
    "Store",
    "StoreError",
    "Timings",
    "Trajectory",
    "Turn",
    "as_tensors",
    "as_text",
    "group_advantages",
    "grouped",
    "pack",
    "pad",
    "read_parquet",
    "rollout_key",
    "sft_dataset",
    "sft_rows",
    "sft_token_rows",
    "to_dataset",
    "write_parquet",
]
