"""What a generator is: prompt token ids in, sampled token ids with their log-probs out."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

__all__ = ["Generation", "Generator", "GeneratorError", "PromptTooLong", "Sampling"]


class GeneratorError(Exception):
    """A generator failed or died; the rollout may be tried again."""


class PromptTooLong(GeneratorError):
    """The generator takes no prompt of this length."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample.

    Args:
        max_tokens: At most so many tokens a generation; the engine lowers it to what the budgets of a rollout leave.
        stop_token_ids: The ids that end a turn; the engine adds those of the renderer. The one that fired is part of
            the result.
        seed: Seeds the sampling of one generation where the generator can.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    max_tokens: int = 512
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None


@dataclass(slots=True)
class Generation:
    """What was sampled.

    `logprobs` are those of the distribution that was sampled from, one for each token. `finish_reason` is "stop", or
    "length" if `max_tokens` cut it off.
    """

    token_ids: Sequence[int]
    logprobs: Sequence[float]
    finish_reason: str = "stop"
    policy_version: int = 0
    """The version under which it began."""
    mixed_versions: bool = False
    """Whether the weights changed on the way."""
    token_versions: Sequence[int] | None = field(default=None)
    """The version of each token, where a generator knows that they differ; else all are of `policy_version`."""

    @property
    def versions(self) -> Sequence[int]:
        """The version of each token."""
        return [self.policy_version] * len(self.token_ids) if self.token_versions is None else self.token_versions


@runtime_checkable
class Generator(Protocol):
    """Turns prompt token ids into sampled token ids. It may be used from one event loop at a time."""

    @property
    def policy_version(self) -> int:
        """The version of the weights that the next generation begins with."""
        ...

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, *, request_id: str) -> Generation:
        """Samples one completion. Cancelling the await aborts the work.

        Args:
            prompt_ids: The whole context.
            sampling: How to sample.
            request_id: Unique among the generations in flight. What stands before the last "/" names the rollout, so
                that a generator can keep a rollout where its prefix is cached.

        Raises:
            PromptTooLong: The context is too long for the model.
            GeneratorError: The generator failed; another try may succeed.
        """
        ...

    async def aclose(self) -> None:
        """Frees what the generator holds. Generations in flight fail."""
        ...
