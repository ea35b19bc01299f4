"""Sampling with a transformers model, in batches, on a thread of its own."""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

from gymhost.rollout.extras import require
from gymhost.rollout.generators.base import Generation, GeneratorError, GeneratorGone, InFlight, PromptTooLong, Sampling
from gymhost.rollout.generators.updates import Updates, WeightsRefused, to_the_end
from gymhost.rollout.generators.weights import named_tensors, read_folder, weights_folder

__all__ = ["TransformersGenerator"]

_CERTAIN = 1e-5  # a temperature so low is none: logits divided by it are infinite
_JOIN_SECONDS = 30.0
_HALT_SECONDS = 120.0  # for one step of a large model on a CPU


@dataclass(slots=True)
class _Pending:
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[Generation]"
    prompt_ids: list[int]
    sampling: Sampling
    token_ids: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    versions: list[int] = field(default_factory=list[int])
    finish_reason: str = ""
    cancelled: bool = False

    @property
    def done(self) -> bool:
        return bool(self.finish_reason) or self.cancelled

    @property
    def context(self) -> list[int]:
        return self.prompt_ids + self.token_ids


class TransformersGenerator(Updates):
    """Samples with a causal language model of `transformers`; log-probs are computed in float32.

    Requests that arrive while a batch is being sampled make up the next one. Simple and exact; for throughput take
    vLLM. An update copies the weights into the model; what is in flight and kept goes on from its tokens, whose keys
    and values are computed anew, and the version of each token is exact.

    Args:
        model: The model, on whatever device.
        max_batch: How many requests a batch has at most.
        policy_version: The version of its weights; set it when somebody else has changed them.
        seed: Seeds the sampling; without one it is another each time.
        name: What tells it from others.
    """

    def __init__(
        self,
        model: Any,
        *,
        max_batch: int = 128,
        policy_version: int = 0,
        seed: int | None = None,
        name: str = "transformers",
    ) -> None:
        super().__init__()
        self.name = name
        self._torch = require("torch", "trl")
        self._model = model
        self._max_batch = max_batch
        self.policy_version = policy_version
        self._random = self._torch.Generator(device=model.device)
        if seed is None:
            self._random.seed()  # without it they would all be the same
        else:
            self._random.manual_seed(seed)
        self._longest: int | None = getattr(model.config, "max_position_embeddings", None)
        self._vocabulary: int = model.get_input_embeddings().num_embeddings
        self._waiting: deque[_Pending] = deque()
        self._awake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._halt = False
        self._stands = threading.Event()
        """Set once the thread has seen that it is to halt."""
        self._unfit: str | None = None
        self._closed = False

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, *, request_id: str) -> Generation:
        """Samples one completion; a request that is cancelled leaves its batch at the next token."""
        # The others of its batch must not suffer from what the model can't take.
        if not prompt_ids or min(prompt_ids) < 0 or max(prompt_ids) >= self._vocabulary:
            raise GeneratorError(
                f"a prompt must have ids from 0 to {self._vocabulary - 1}: is the tokenizer that of the model?"
                if prompt_ids
                else "a prompt must have an id"
            )
        if self._longest is not None and len(prompt_ids) >= self._longest:
            raise PromptTooLong(f"{len(prompt_ids)} prompt tokens fill a model of {self._longest} positions")
        async with self._gate:
            loop = asyncio.get_running_loop()
            pending = _Pending(loop, loop.create_future(), list(prompt_ids), sampling)
            with self._awake:
                if self._closed or self._unfit:
                    raise GeneratorGone(f"{self.name} {self._unfit or 'is closed'}")
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

    async def pause(self, in_flight: InFlight = "wait", *, patience: float = 300.0) -> None:
        """Lets no request begin, and halts before the next token once those in flight are to end or to wait."""
        self._gate.close()
        try:
            if in_flight == "wait":
                await self._gate.emptied(patience)
            with self._awake:
                self._halt = True
                self._awake.notify()
            if self._thread is not None and not await asyncio.to_thread(self._stands.wait, _HALT_SECONDS):
                raise GeneratorError(f"the model did not end its step in {_HALT_SECONDS:g} s")
            if in_flight != "keep":
                with self._awake:
                    cut = list(self._waiting)
                    self._waiting.clear()
                for pending in cut:
                    pending.finish_reason = "cut"
                self._deliver(cut, None)
                await self._gate.emptied(_HALT_SECONDS)
        except BaseException:
            await self.resume()
            raise

    async def load_weights(self, weights: Any, version: int) -> None:
        """Copies weights into the model.

        Raises:
            WeightsRefused: They are not those of such a model; it is as before.
            GeneratorError: They could not be copied, and the model is neither the one nor the other.
        """
        await to_the_end(self._copy, weights, version)

    async def resume(self) -> None:
        """Lets requests begin again, and those that were kept go on."""
        with self._awake:
            self._halt = self._gate.closed > 1
            if not self._halt:
                self._stands.clear()
            self._awake.notify()
        self._gate.open()

    async def catch_up(self, version: int) -> bool:
        """Whether the model's weights are of a version."""
        return self._unfit is None and self.policy_version == version

    async def healthy(self) -> bool:
        """Whether it samples; False once it is closed."""
        return not self._closed

    async def aclose(self) -> None:
        """Ends the thread after the token that it is sampling; requests in flight fail."""
        with self._awake:
            self._closed = True
            self._stands.set()
            self._awake.notify()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, _JOIN_SECONDS)

    def _copy(self, weights: Any, version: int) -> None:
        folder = weights_folder(weights)
        tensors = named_tensors(weights) if folder is None else read_folder(folder)
        own: dict[str, Any] = self._model.state_dict()
        if unknown := sorted(tensors.keys() - own.keys()):
            raise WeightsRefused(f"the model has no weights named {', '.join(unknown[:3])}")
        given = {own[name].data_ptr() for name in tensors}  # tied weights have two names, and come under one
        parameters = self._model.named_parameters()
        if missing := sorted(name for name, tensor in parameters if tensor.data_ptr() not in given):
            raise WeightsRefused(f"the weights lack {', '.join(missing[:3])}")
        for name, tensor in tensors.items():
            if tensor.shape != own[name].shape:
                raise WeightsRefused(f"{name} is {tuple(tensor.shape)}, the model's {tuple(own[name].shape)}")
        self._unfit = f"has weights that nobody knows since version {version} failed to load"
        try:
            with self._torch.no_grad():
                for name, tensor in tensors.items():
                    own[name].copy_(tensor)
        except Exception as error:
            raise GeneratorError(f"{self.name} {self._unfit}: {error}") from error
        self._unfit = None
        self.policy_version = version

    def _serve(self) -> None:
        while True:
            with self._awake:
                while not self._closed and (self._halt or not self._waiting):
                    if self._halt:
                        self._stands.set()
                    self._awake.wait()
                batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), self._max_batch))]
                closed = self._closed
            batch = [pending for pending in batch if not pending.cancelled]
            error: Exception | None = GeneratorError("the generator was closed") if closed else None
            if batch and error is None:
                try:
                    self._sample(batch)
                except Exception as raised:  # noqa: BLE001 - whatever it is, the requests must hear of it
                    error = GeneratorError(f"the model failed: {type(raised).__name__}: {raised}")
                    error.__cause__ = raised
            if error is None and self._halt:
                with self._awake:
                    self._waiting.extendleft(reversed([pending for pending in batch if not pending.done]))
                batch = [pending for pending in batch if pending.done]
            self._deliver(batch, error)
            if closed and not self._waiting:
                return

    def _deliver(self, batch: list[_Pending], error: Exception | None) -> None:
        for pending in batch:
            result: Generation | Exception
            if error is not None:
                result = error
            elif pending.finish_reason:
                result = self._generation(pending)
            else:
                result = GeneratorError("the generator was closed")
            if not pending.loop.is_closed():
                pending.loop.call_soon_threadsafe(_settle, pending.future, result)

    def _generation(self, pending: _Pending) -> Generation:
        versions = pending.versions
        mixed = len(set(versions)) > 1
        return Generation(
            pending.token_ids,
            pending.logprobs,
            pending.finish_reason,
            versions[0] if versions else self.policy_version,
            mixed,
            versions if mixed else None,
            self.name,
        )

    def _sample(self, batch: list[_Pending]) -> None:
        torch = self._torch
        device = self._model.device
        contexts = [pending.context for pending in batch]
        longest = max(map(len, contexts))
        ids = torch.zeros((len(batch), longest), dtype=torch.long)
        attention = torch.zeros((len(batch), longest), dtype=torch.long)
        for i, context in enumerate(contexts):  # padded on the left, so that all rows end in the same column
            ids[i, longest - len(context) :] = torch.tensor(context)
            attention[i, longest - len(context) :] = 1
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
                if self._closed or self._halt or all(pending.done for pending in batch):
                    return
                ids = chosen
                attention = torch.cat([attention, attention.new_ones((len(batch), 1))], dim=1)
                positions = positions[:, -1:] + 1

    def _note(self, batch: list[_Pending], tokens: list[int], logprobs: list[float]) -> None:
        version = self.policy_version
        for pending, token, logprob in zip(batch, tokens, logprobs, strict=True):
            if pending.done:
                continue
            pending.versions.append(version)
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
            column([1.0 if item.temperature < _CERTAIN else item.temperature for item in samplings]),
            torch.tensor([item.temperature < _CERTAIN for item in samplings], device=device).unsqueeze(1),
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


def _settle(future: "asyncio.Future[Generation]", result: Generation | Exception) -> None:
    if future.done():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
