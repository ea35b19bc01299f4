"""A stand-in for a model that returns what a script says."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gymhost.rollout.generators.base import Generation, GeneratorError, InFlight, Sampling
from gymhost.rollout.generators.updates import Updates

__all__ = ["Reply", "ScriptedGenerator"]


@dataclass(frozen=True, slots=True)
class Reply:
    """One scripted generation; without log-probs they are -1.0 each."""

    token_ids: Sequence[int]
    logprobs: Sequence[float] | None = None
    finish_reason: str = "stop"


Answer = Reply | Sequence[int]
Script = Callable[[Sequence[int], str], "Answer | Awaitable[Answer]"]

_CUT_SECONDS = 10.0


class ScriptedGenerator(Updates):
    """Answers each generation from a script.

    An answer longer than `max_tokens` is cut off there, as a model's would be, and finishes with "length". A script has
    no weights: an update changes the version, and "cut" ends the answers that are being thought of without a token.

    Args:
        script: A function of the prompt's ids and the request's id (plain or a coroutine function) that returns a
            `Reply` or plain ids; or the answers themselves, handed out in order.
        policy_version: The version that generations are marked with; may be set at any time.
        name: What tells it from others.
    """

    def __init__(self, script: Script | Iterable[Answer], policy_version: int = 0, *, name: str = "scripted") -> None:
        super().__init__()
        self.policy_version = policy_version
        self.name = name
        self._answering: set[asyncio.Timeout] = set()
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
        async with self._gate:
            version = self.policy_version
            answer = self._script(prompt_ids, request_id)
            if inspect.isawaitable(answer):
                answer = await self._unless_cut(answer)
            else:
                await asyncio.sleep(0)  # a real generator always gives the loop a turn
            reply = answer if isinstance(answer, Reply) else Reply(answer)
            logprobs = [-1.0] * len(reply.token_ids) if reply.logprobs is None else reply.logprobs
            too_long = len(reply.token_ids) > sampling.max_tokens
            return Generation(
                token_ids=list(reply.token_ids[: sampling.max_tokens]),
                logprobs=list(logprobs[: sampling.max_tokens]),
                finish_reason="length" if too_long else reply.finish_reason,
                policy_version=version,
                mixed_versions=version != self.policy_version,
                generator=self.name,
            )

    async def pause(self, in_flight: InFlight = "wait", *, patience: float = 300.0) -> None:
        """Lets no request begin, and waits for those in flight to end, cuts them, or lets them be."""
        self._gate.close()
        try:
            if in_flight == "wait" and await self._gate.emptied(patience):
                return
            if in_flight != "keep":
                answering, self._answering = self._answering, set()
                for scope in answering:
                    scope.reschedule(0.0)
                if not await self._gate.emptied(_CUT_SECONDS):
                    raise GeneratorError(f"the script of {self.name} does not end when it is cancelled")
        except BaseException:
            self._gate.open()
            raise

    async def load_weights(self, weights: Any, version: int) -> None:
        """Changes the version."""
        self.policy_version = version

    async def resume(self) -> None:
        """Lets requests begin again."""
        self._gate.open()

    async def catch_up(self, version: int) -> bool:
        """Takes over a version, as a script can at any time."""
        self.policy_version = version
        return True

    async def aclose(self) -> None:
        """Does nothing: a script holds nothing."""

    async def _unless_cut(self, answer: Awaitable[Answer]) -> Answer:
        scope = asyncio.timeout(None)
        try:
            async with scope:
                self._answering.add(scope)
                return await answer
        except TimeoutError:
            if not scope.expired():
                raise
            return Reply((), (), "cut")
        finally:
            self._answering.discard(scope)
