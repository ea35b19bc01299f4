"""An engine over environments in this process, and what its rollouts are asked and made of."""

import asyncio
import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from renderers import Qwen3RendererConfig

from gymhost.rollout import Chat, RolloutEngine, RolloutRequest, Trajectory
from gymhost.rollout.generators import ScriptedGenerator
from gymhost.rollout.generators.base import Response, Sampling
from support.local_source import LocalSource
from support.talk import Answer, Talk, end, go_on, tool
from support.tokenizers import call, encode, qwen3_tokenizer

CHAT = Chat(qwen3_tokenizer(), Qwen3RendererConfig())
SAY = encode("abab<|im_end|>")
ECHO = encode(call("echo", '{"text": "abab"}'))


class Endpoint:
    """A chat endpoint that answers what a script says of the conversation; it keeps what it was asked."""

    name = "endpoint"
    policy_version = 0

    def __init__(self, script: Callable[[Sequence[Any]], Response]) -> None:
        self.script = script
        self.asked: list[list[Any]] = []
        self.tools: list[Any] = []
        self.samplings: list[Sampling] = []

    async def respond(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        sampling: Sampling,
        *,
        request_id: str,
    ) -> Response:
        await asyncio.sleep(0)
        self.asked.append(copy.deepcopy(list(messages)))
        self.tools = list(tools)
        self.samplings.append(sampling)
        return self.script(messages)

    async def aclose(self) -> None: ...


def engine(source: LocalSource, script: Any, **settings: Any) -> RolloutEngine:
    speaks = hasattr(script, "generate") or hasattr(script, "respond")
    generator = script if speaks else ScriptedGenerator(script)
    return RolloutEngine(source, settings.pop("chat", CHAT), generator, **settings)


def requests(count: int, **kwargs: Any) -> list[RolloutRequest]:
    return [RolloutRequest("Talk-v0", task=task, kwargs=kwargs) for task in range(count)]


def turns_of(env: Talk, count: int, *, last: Answer | None = None) -> Answer:
    """Goes on until the model has spoken `count` times."""
    return go_on(tool(f"turn {len(env.said)}")) if len(env.said) < count else last or end(tool("done"))


def whole(trajectory: Trajectory) -> None:
    for row in trajectory.token_rows:
        assert len(row.completion_ids) == len(row.mask) == len(row.logprobs) == len(row.policy_versions)
