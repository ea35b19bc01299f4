"""What a generator is: prompt token ids in, sampled token ids with their log-probs out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

__all__ = [
    "ChatGenerator",
    "Generation",
    "Generator",
    "GeneratorError",
    "GeneratorGone",
    "InFlight",
    "PrefixCache",
    "PromptTooLong",
    "Response",
    "Sampling",
    "Updatable",
]

InFlight = Literal["wait", "cut", "keep"]
"""What becomes of the requests in flight when the weights change: "wait" lets them end first; "cut" ends them with what
they have sampled, for the caller to go on from under the new weights; "keep" lets them go on across the change, so that
what they return is marked as mixed."""


class GeneratorError(Exception):
    """A generator failed or died; the rollout may be tried again."""


class GeneratorGone(GeneratorError):
    """The generator does not answer any more; another one may."""


class PromptTooLong(GeneratorError):
    """The generator takes no prompt of this length."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample.

    Args:
        max_tokens: At most so many tokens a generation; the engine lowers it to what the budgets of a rollout leave.
        stop_token_ids: The ids that end a turn; the engine adds those of the renderer. The one that fired is part of
            the result.
        seed: Seeds the sampling of one generation where the generator can. The engine makes of it one for each turn of
            each rollout, so that those of a group differ, and come out the same another time.

    Raises:
        ValueError: A setting makes no sense.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    max_tokens: int = 512
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None

    def __post_init__(self) -> None:
        if not (
            self.temperature >= 0
            and 0 < self.top_p <= 1
            and self.top_k >= 0
            and 0 <= self.min_p <= 1
            and self.max_tokens >= 1
        ):
            raise ValueError(
                "temperature and top_k must be 0 or more, top_p above 0 and at most 1, min_p between 0 and 1, and"
                f" max_tokens 1 or more: {self}"
            )


@dataclass(slots=True)
class Generation:
    """What was sampled.

    `logprobs` are those of the distribution that was sampled from, one for each token. `finish_reason` is "stop";
    "length" if `max_tokens` ended it; or "cut" if a change of weights or an abort ended it early: then it holds what
    was sampled so far, perhaps nothing, and whoever asked goes on from there with another request.

    The engine takes nothing else: ids that are whole numbers from 0 on and no more than were asked for, as many finite
    log-probs, none above 0, and as many versions, from 0 on. What differs is a fault of the generator.
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
    generator: str = ""
    """The name of the generator that sampled it."""

    @property
    def versions(self) -> Sequence[int]:
        """The version of each token."""
        return [self.policy_version] * len(self.token_ids) if self.token_versions is None else self.token_versions


@dataclass(frozen=True, slots=True)
class PrefixCache:
    """What an inference server tells of its prefix cache, since it was started and for all of its clients.

    Args:
        prompt_tokens: Tokens of prompts that it has looked for there.
        cached_tokens: Those of them that it found, and did not have to compute again.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0


@runtime_checkable
class Generator(Protocol):
    """Turns prompt token ids into sampled token ids. It may be used from one event loop at a time.

    One that can tell whether it is well also has `async def healthy(self) -> bool`, which a pool asks.
    """

    @property
    def name(self) -> str:
        """What tells it from others in a pool and in what it sampled."""
        ...

    @property
    def policy_version(self) -> int:
        """The version of the weights that the next generation begins with."""
        ...

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, *, request_id: str) -> Generation:
        """Samples one completion. Cancelling the await aborts the work.

        How long it may take is the caller's to say: it waits while the weights are changed.

        Args:
            prompt_ids: The whole context.
            sampling: How to sample.
            request_id: Unique among the generations in flight. What stands before the last "/" names the rollout, so
                that a generator can keep a rollout where its prefix is cached.

        Raises:
            PromptTooLong: The context is too long for the model.
            GeneratorGone: The generator does not answer any more.
            GeneratorError: The generator failed; another try may succeed.
        """
        ...

    async def aclose(self) -> None:
        """Frees what the generator holds. Generations in flight fail."""
        ...


@runtime_checkable
class Updatable(Generator, Protocol):
    """A generator whose weights can be changed while rollouts are in flight."""

    async def update(
        self, weights: Any, version: int, *, in_flight: InFlight = "wait", patience: float = 300.0
    ) -> None:
        """Changes the weights: pauses, loads, forgets what older weights have cached, and goes on.

        Requests that come meanwhile wait. If it fails the generator is as before, or refuses to sample until an update
        succeeds; it never samples with weights of an unknown version.

        Args:
            weights: A model of `torch`, a mapping of names to tensors (a state dict), or the path of a folder with
                safetensors files.
            version: Their version.
            in_flight: What becomes of the requests in flight.
            patience: With "wait", after how many seconds those that are still in flight are cut.

        Raises:
            GeneratorError: The weights could not be changed.
        """
        ...

    async def pause(self, in_flight: InFlight = "wait", *, patience: float = 300.0) -> None:
        """Lets no request begin, and returns once those in flight have ended, or with "keep" stand still.

        Raises:
            GeneratorError: The generator could not be paused; it goes on.
        """
        ...

    async def load_weights(self, weights: Any, version: int) -> None:
        """Changes the weights of a generator that is paused, and forgets what older ones have cached.

        Raises:
            GeneratorError: The weights could not be changed.
        """
        ...

    async def resume(self) -> None:
        """Lets requests begin again, and those that stand still go on.

        Raises:
            GeneratorError: The generator did not resume.
        """
        ...


@dataclass(slots=True)
class Response:
    """What a chat endpoint answered: an assistant message, without the ids that it was sampled as."""

    message: Mapping[str, Any]
    """With `content` (text), and where there are any `reasoning_content` and `tool_calls`, as `Chat.parse` gives
    them."""
    finish_reason: str = "stop"
    """Either "stop", or "length" if a limit of tokens ended it."""
    prompt_tokens: int = 0
    completion_tokens: int = 0


@runtime_checkable
class ChatGenerator(Protocol):
    """Answers conversations without saying in what tokens: good for evaluation, and nothing to train on."""

    @property
    def name(self) -> str:
        """What tells it from others."""
        ...

    @property
    def policy_version(self) -> int:
        """The version of the model, as far as anybody counts."""
        ...

    async def respond(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        sampling: Sampling,
        *,
        request_id: str,
    ) -> Response:
        """Answers a conversation. Cancelling the await drops the request.

        Args:
            messages: The conversation.
            tools: What may be called: name, description, parameters.
            sampling: How to sample; token ids in it mean nothing here.
            request_id: Unique among the requests in flight; what stands before the last "/" names the rollout.

        Raises:
            PromptTooLong: The conversation is too long for the model.
            GeneratorGone: Nobody answers.
            GeneratorError: The endpoint failed; another try may succeed.
        """
        ...

    async def aclose(self) -> None:
        """Closes the connections."""
        ...
