"""Batched, asynchronous, token-exact rollouts over environments.

Example:
    requests = grouped([RolloutRequest("gymhost/GuessNumber-v0", task=task) for task in range(8)], size=16)
    engine = RolloutEngine(server, Chat(tokenizer, Qwen3RendererConfig()), generator, limits=Limits(turns=8))
    async for trajectory in engine.run(requests):
        ...
"""

from gymhost.rollout.arrays import group_advantages, pad
from gymhost.rollout.chat import Chat
from gymhost.rollout.engine import RolloutEngine
from gymhost.rollout.generators.base import Generation, Generator, GeneratorError, PromptTooLong, Sampling
from gymhost.rollout.requests import Concurrency, Limits, RolloutRequest, grouped
from gymhost.rollout.sessions import Session, Source
from gymhost.rollout.store import read_jsonl, write_jsonl
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
    "RolloutRequest",
    "Row",
    "Sampling",
    "Session",
    "Source",
    "Timings",
    "Trajectory",
    "Turn",
    "as_text",
    "group_advantages",
    "grouped",
    "pad",
    "read_jsonl",
    "write_jsonl",
]
