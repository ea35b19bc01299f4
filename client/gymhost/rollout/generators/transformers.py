"""Sampling with a transformers model, in batches, on a thread of its own."""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

from gymhost.rollout.extras import require
from gymhost.rollout.generators.base import Generation, GeneratorError, PromptTooLong, Sampling

__all__ = ["TransformersGenerator"]

_JOIN_SECONDS = 30.0


@dataclass(slots=True)
class _Pending:
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[Generation]"
    prompt_ids: list[int]
    sampling: Sampling
    token_ids: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    finish_reason: str = ""
    cancelled: bool = False

    @property
    def done(self) -> bool:
        return bool(self.finish_reason) or self.cancelled


class TransformersGenerator:
    """Samples with a causal language model of `transformers`; log-probs are computed in float32.

    Requests that arrive while a batch is being sampled make up the next one. Simple and exact; for throughput take
    vLLM.

    Args:
        model: The model, on whatever device.
        max_batch: How many requests a batch has at most.
        policy_version: The version of its weights; set it whenever they change.
        seed: Seeds the sampling.
    """

    def __init__(self, model: Any, *, max_batch: int = 128, policy_version: int = 0, seed: int | None = None) -> None:
        self._torch = require("torch", "trl")
        self._model = model
        self._max_batch = max_batch
        self.policy_version = policy_version
        self._random = self._torch.Generator(device=model.device)
        if seed is not None:
            self._random.manual_seed(seed)
        self._longest: int | None = getattr(model.config, "max_position_embeddings", None)
        self._waiting: deque[_Pending] = deque()
        self._awake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, *, request_id: str) -> Generation:
        """Samples one completion; a request that is cancelled leaves its batch at the next token."""
        if self._longest is not None and len(prompt_ids) >= self._longest:
            raise PromptTooLong(f"{len(prompt_ids)} prompt tokens fill a model of {self._longest} positions")
        loop = asyncio.get_running_loop()
        pending = _Pending(loop, loop.create_future(), list(prompt_ids), sampling)
        with self._awake:
            if self._closed:
                raise GeneratorError("the generator is closed")
            self._waiting.append(pending)
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="gymhost-transformers", daemon=True)
                self._thread.start()
            self._awake.notify()
        try:
            return await pending.future
        except asyncio.CancelledError:
            pending.cancelled = True
            raise

    async def aclose(self) -> None:
        """Ends the thread after the token that it is sampling; requests in flight fail."""
        with self._awake:
            self._closed = True
            self._awake.notify()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, _JOIN_SECONDS)

    def _serve(self) -> None:
        while True:
            with self._awake:
                while not (self._closed or self._waiting):
                    self._awake.wait()
                batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), self._max_batch))]
                closed = self._closed
            batch = [pending for pending in batch if not pending.cancelled]
            error: Exception | None = GeneratorError("the generator was closed") if closed else None
            version = self.policy_version
            if batch and error is None:
                try:
                    self._sample(batch)
                except Exception as raised:  # noqa: BLE001 - whatever it is, the requests must hear of it
                    error = GeneratorError(f"the model failed: {type(raised).__name__}: {raised}")
                    error.__cause__ = raised
            mixed = version != self.policy_version
            _deliver(batch, error, version, mixed)
            if closed and not self._waiting:
                return

    def _sample(self, batch: list[_Pending]) -> None:
        torch = self._torch
        device = self._model.device
        longest = max(len(pending.prompt_ids) for pending in batch)
        ids = torch.zeros((len(batch), longest), dtype=torch.long)
        attention = torch.zeros((len(batch), longest), dtype=torch.long)
        for i, pending in enumerate(batch):  # padded on the left, so that all rows end in the same column
            ids[i, longest - len(pending.prompt_ids) :] = torch.tensor(pending.prompt_ids)
            attention[i, longest - len(pending.prompt_ids) :] = 1
        ids, attention = ids.to(device), attention.to(device)
        positions = (attention.cumsum(-1) - 1).clamp(min=0)
        settings = _Settings.of(torch, batch, device)
        cache: Any = None
        with torch.no_grad(), _evaluating(self._model):
            while True:
                output = self._model(
                    input_ids=ids,
                    attention_mask=attention,
                    position_ids=positions,
                    past_key_values=cache,
                    use_cache=True,
                    logits_to_keep=1,
                )
                cache = output.past_key_values
                logprobs = settings.apply(output.logits[:, -1].float())
                chosen = torch.multinomial(logprobs.exp(), 1, generator=self._random)
                self._note(batch, chosen[:, 0].tolist(), logprobs.gather(1, chosen)[:, 0].tolist())
                if self._closed or all(pending.done for pending in batch):
                    return
                ids = chosen
                attention = torch.cat([attention, attention.new_ones((len(batch), 1))], dim=1)
                positions = positions[:, -1:] + 1

    def _note(self, batch: list[_Pending], tokens: list[int], logprobs: list[float]) -> None:
        for pending, token, logprob in zip(batch, tokens, logprobs, strict=True):
            if pending.done:
                continue
            pending.token_ids.append(token)
            pending.logprobs.append(logprob)
            total = len(pending.prompt_ids) + len(pending.token_ids)
            if token in pending.sampling.stop_token_ids:
                pending.finish_reason = "stop"
            elif len(pending.token_ids) >= pending.sampling.max_tokens or total == self._longest:
                pending.finish_reason = "length"


@dataclass(slots=True)
class _Settings:
    """How each row of a batch is sampled, as columns."""

    torch: Any
    temperature: Any
    greedy: Any
    top_p: Any
    min_p: Any
    top_k: list[int]

    @classmethod
    def of(cls, torch: Any, batch: list[_Pending], device: Any) -> "_Settings":
        def column(values: list[float]) -> Any:
            return torch.tensor(values, device=device).unsqueeze(1)

        samplings = [pending.sampling for pending in batch]
        return cls(
            torch,
            column([item.temperature or 1.0 for item in samplings]),
            torch.tensor([item.temperature == 0 for item in samplings], device=device).unsqueeze(1),
            column([item.top_p for item in samplings]),
            column([item.min_p for item in samplings]),
            [item.top_k for item in samplings],
        )

    def apply(self, logits: Any) -> Any:
        """The log-probs of what is sampled from; what is left out has minus infinity."""
        torch = self.torch
        logits = logits / self.temperature
        if any(self.top_k):
            for i, k in enumerate(self.top_k):
                if 0 < k < logits.shape[1]:
                    logits[i, logits[i] < logits[i].topk(k).values[-1]] = -torch.inf
        if bool((self.min_p > 0).any()):
            probabilities = logits.softmax(-1)
            unlikely = probabilities < self.min_p * probabilities.max(-1, keepdim=True).values
            logits = logits.masked_fill(unlikely, -torch.inf)
        if bool((self.top_p < 1).any()):
            ordered, order = logits.softmax(-1).sort(-1, descending=True)
            past = (ordered.cumsum(-1) - ordered) >= self.top_p
            logits = logits.masked_fill(past.scatter(1, order, past), -torch.inf)
        if bool(self.greedy.any()):
            best = logits == logits.max(-1, keepdim=True).values
            first = best & (best.cumsum(-1) == 1)
            logits = logits.masked_fill(self.greedy & ~first, -torch.inf)
        return logits.log_softmax(-1)


@contextlib.contextmanager
def _evaluating(model: Any) -> Generator[None]:
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


def _deliver(batch: list[_Pending], error: Exception | None, version: int, mixed: bool) -> None:
    for pending in batch:
        result: Generation | Exception
        if error is not None:
            result = error
        elif pending.finish_reason:
            result = Generation(pending.token_ids, pending.logprobs, pending.finish_reason, version, mixed)
        else:
            result = GeneratorError("the generator was closed")
        if not pending.loop.is_closed():
            pending.loop.call_soon_threadsafe(_settle, pending.future, result)


def _settle(future: "asyncio.Future[Generation]", result: Generation | Exception) -> None:
    if future.done():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
