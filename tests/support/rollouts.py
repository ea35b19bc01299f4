"""An engine over environments in this process, and what its rollouts are asked and made of."""

from typing import Any

from renderers import Qwen3RendererConfig

from gymhost.rollout import Chat, RolloutEngine, RolloutRequest, Trajectory
from gymhost.rollout.generators import ScriptedGenerator
from support.local_source import LocalSource
from support.talk import Answer, Talk, end, go_on, tool
from support.tokenizers import call, encode, qwen3_tokenizer

CHAT = Chat(qwen3_tokenizer(), Qwen3RendererConfig())
SAY = encode("abab<|im_end|>")
ECHO = encode(call("echo", '{"text": "abab"}'))


def engine(source: LocalSource, script: Any, **settings: Any) -> RolloutEngine:
    generator = script if hasattr(script, "generate") else ScriptedGenerator(script)
    return RolloutEngine(source, settings.pop("chat", CHAT), generator, **settings)


def requests(count: int, **kwargs: Any) -> list[RolloutRequest]:
    return [RolloutRequest("Talk-v0", task=task, kwargs=kwargs) for task in range(count)]


def turns_of(env: Talk, count: int, *, last: Answer | None = None) -> Answer:
    """Goes on until the model has spoken `count` times."""
    return go_on(tool(f"turn {len(env.said)}")) if len(env.said) < count else last or end(tool("done"))


def whole(trajectory: Trajectory) -> None:
    for row in trajectory.token_rows:
        assert len(row.completion_ids) == len(row.mask) == len(row.logprobs) == len(row.policy_versions)
