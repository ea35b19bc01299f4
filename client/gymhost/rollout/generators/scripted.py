"""A stand-in for a model that returns what a script says."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from gymhost.rollout.generators.base import Generation, GeneratorError, Sampling

__all__ = ["Reply", "ScriptedGenerator"]


@dataclass(frozen=True, slots=True)
class Reply:
    """One scripted generation; without log-probs they are -1.0 each."""

    token_ids: Sequence[int]
    logprobs: Sequence[float] | None = None
    finish_reason: str = "stop"


Answer = Reply | Sequence[int]
Script = Callable[[Sequence[int], str], "Answer | Awaitable[Answer]"]


class ScriptedGenerator:
    """Answers each generation from a script.

    Args:
        script: A function of the prompt's ids and the request's id (plain or a coroutine function) that returns a
            `Reply` or plain ids; or the answers themselves, handed out in order.
        policy_version: The version that generations are marked with; may be set at any time.

    An answer longer than `max_tokens` is cut off there, as a model's would be, and finishes with "length".
    """

    def __init__(self, script: Script | Iterable[Answer], policy_version: int = 0) -> None:
        self.policy_version = policy_version
        if callable(script):
            self._script: Script = script
        else:
            answers = iter(script)

            def from_list(_prompt_ids: Sequence[int], _request_id: str) -> Answer:
                for answer in answers:
                    return answer
                raise GeneratorError("the script has no more answers")

            self._script = from_list

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, *, request_id: str) -> Generation:
        """Returns the script's answer to the prompt."""
        version = self.policy_version
        answer = self._script(prompt_ids, request_id)
        if inspect.isawaitable(answer):
            answer = await answer
        else:
            await asyncio.sleep(0)  # a real generator always gives the loop a turn
        reply = answer if isinstance(answer, Reply) else Reply(answer)
        logprobs = [-1.0] * len(reply.token_ids) if reply.logprobs is None else reply.logprobs
        cut = len(reply.token_ids) > sampling.max_tokens
        return Generation(
            token_ids=list(reply.token_ids[: sampling.max_tokens]),
            logprobs=list(logprobs[: sampling.max_tokens]),
            finish_reason="length" if cut else reply.finish_reason,
            policy_version=version,
            mixed_versions=version != self.policy_version,
        )

    async def aclose(self) -> None:
        """Does nothing: a script holds nothing."""
