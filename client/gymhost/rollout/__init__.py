"""Batched, asynchronous, token-exact rollouts over environments.

Example:
    requests = grouped([RolloutRequest("gymhost/GuessNumber-v0", task=task) for task in range(8)], size=16)
    engine = RolloutEngine(server, Chat(tokenizer, Qwen3RendererConfig()), generator, limits=Limits(turns=8))
    async for trajectory in engine.run(requests):
        ...
"""

from gymhost.rollout.advantages import group_advantages
from gymhost.rollout.agents import Agent, Seat, load_agent
from gymhost.rollout.arrays import as_tensors, pack, pad
from gymhost.rollout.chat import Chat
from gymhost.rollout.content import CannotRender
from gymhost.rollout.datasets import sft_dataset, to_dataset
from gymhost.rollout.endpoint import Endpoint, Endpoints
from gymhost.rollout.engine import RolloutEngine
from gymhost.rollout.faults import LimitReached
from gymhost.rollout.feed import Feed, stale_tokens
from gymhost.rollout.generators.base import (
    ChatGenerator,
    Generation,
    Generator,
    GeneratorError,
    GeneratorGone,
    PromptTooLong,
    Response,
    Sampling,
    Updatable,
)
from gymhost.rollout.groups import Group, Grouping, has_variance
from gymhost.rollout.parquet import read_parquet, write_parquet
from gymhost.rollout.requests import Concurrency, Limits, RolloutRequest, grouped
from gymhost.rollout.sessions import Session, Source
from gymhost.rollout.sft import sft_rows, sft_token_rows
from gymhost.rollout.status import Status
from gymhost.rollout.store import RolloutKey, Store, StoreError, rollout_key
from gymhost.rollout.summary import Summary, Tally, pass_at_k, summarize
from gymhost.rollout.text import as_text
from gymhost.rollout.trajectory import Outcome, Row, Timings, Trajectory, Turn

__all__ = [
    "Agent",
    "CannotRender",
    "Chat",
    "ChatGenerator",
    "Concurrency",
    "Endpoint",
    "Endpoints",
    "Feed",
    "Generation",
    "Generator",
    "GeneratorError",
    "GeneratorGone",
    "Group",
    "Grouping",
    "LimitReached",
    "Limits",
    "Outcome",
    "PromptTooLong",
    "Response",
    "RolloutEngine",
    "RolloutKey",
    "RolloutRequest",
    "Row",
    "Sampling",
    "Seat",
    "Session",
    "Source",
    "Status",
    "Store",
    "StoreError",
    "Summary",
    "Tally",
    "Timings",
    "Trajectory",
    "Turn",
    "Updatable",
    "as_tensors",
    "as_text",
    "group_advantages",
    "grouped",
    "has_variance",
    "load_agent",
    "pack",
    "pad",
    "pass_at_k",
    "read_parquet",
    "rollout_key",
    "sft_dataset",
    "sft_rows",
    "sft_token_rows",
    "stale_tokens",
    "summarize",
    "to_dataset",
    "write_parquet",
]
