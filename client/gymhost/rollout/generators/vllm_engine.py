"""A vLLM engine in this process, whose step loop is driven here: rollouts at different turns share its batches."""

import asyncio
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from gymhost.rollout.extras import require
from gymhost.rollout.generators.base import (
    Generation,
    GeneratorError,
    GeneratorGone,
    InFlight,
    PromptTooLong,
    Sampling,
)
from gymhost.rollout.generators.updates import Updates, WeightsRefused
from gymhost.rollout.generators.weights import named_tensors, refuse_tied, weights_folder

__all__ = ["VllmEngineGenerator"]

_JOIN_SECONDS = 30.0
_STEP_SECONDS = 120.0
_LOAD_SECONDS = 600.0


@dataclass(slots=True)
class _Call:
    """What the engine's thread is asked to do between two steps."""

    function: Callable[[], None]
    future: "asyncio.Future[None] | None" = None

    def __call__(self) -> None:
        error: Exception | None = None
        try:
            self.function()
        except Exception as raised:  # noqa: BLE001 - it is raised where the call is awaited
            error = (
                raised if isinstance(raised, GeneratorError) else GeneratorError(f"the vLLM engine failed: {raised}")
            )
            error.__cause__ = None if error is raised else raised
        self.done(error)

    def done(self, error: Exception | None) -> None:
        if self.future is not None and not (loop := self.future.get_loop()).is_closed():
            loop.call_soon_threadsafe(_settle, [(self.future, error)])


@dataclass(slots=True)
class _Pending:
    """A request that the engine knows, or will be told of."""

    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[Generation]"
    prompt_ids: list[int]
    params: Any
    versions: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """From which token on which policy version sampled."""
    internal_id: str = ""


class VllmEngineGenerator(Updates):
    """Samples with a vLLM engine in this process, on one thread that runs while there are requests.

    While generations are in flight the engine belongs to that thread: do not call the `LLM` meanwhile, other than
    between `pause` and `resume`.

    Which version sampled which token is exact if the engine core runs in this process (as in TRL's colocated
    mode, or with VLLM_ENABLE_V1_MULTIPROCESSING=0); one in another process may be a few tokens ahead of what is known
    here when weights change under requests that are kept, and takes weights in a folder only.

    Args:
        llm: A `vllm.LLM`, such as TRL's `trainer.vllm_generation.llm`. It is not shut down with the generator.
        policy_version: The version of its weights.
        name: What tells it from others.

    Raises:
        ValueError: The engine is one of several that must all be given the same requests in the same order.
    """

    def __init__(self, llm: Any, *, policy_version: int = 0, name: str = "vllm-engine") -> None:
        super().__init__()
        self.name = name
        self._engine: Any = getattr(llm, "llm_engine", llm)
        self._vllm = require("vllm", "vllm")
        config = self._engine.vllm_config
        parallel = config.parallel_config
        if parallel.distributed_executor_backend == "external_launcher" and parallel.world_size > 1:
            raise ValueError(
                "with tensor parallelism above 1 a colocated vLLM needs every rank to issue the same requests in the "
                "same order, which rollouts that finish one by one can't: set the tensor parallel size to 1, or use a "
                "vLLM server"
            )
        self._longest: int = config.model_config.max_model_len
        self._processed = str(getattr(config.model_config, "logprobs_mode", "")).startswith("processed")
        self._version = policy_version
        self._device = _device()  # of the thread that made the engine, which on a later rank is not the first
        self._pending: dict[str, _Pending] = {}
        self._new: deque[str] = deque()
        self._aborted: deque[str] = deque()
        self._calls: deque[_Call] = deque()
        self._halted = False
        self._awake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._dead: Exception | None = None
        self._unfit: str | None = None

    @classmethod
    def load(cls, model: str, **kwargs: Any) -> Self:
        """Starts an engine.

        Args:
            model: A model's folder or name.
            **kwargs: What `vllm.LLM` takes. On a CPU: `enforce_eager=True, dtype="float32"`.
        """
        kwargs.setdefault("logprobs_mode", "processed_logprobs")
        return cls(require("vllm", "vllm").LLM(model, **kwargs))

    @property
    def policy_version(self) -> int:
        """The version of the weights; set it after a change of weights that was made while nothing was in flight."""
        return self._version

    @policy_version.setter
    def policy_version(self, version: int) -> None:
        self._version = version
        if self._pending:
            self._enqueue(_Call(lambda: self._stamp(version)))

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, *, request_id: str) -> Generation:
        """Samples one completion; cancelling the await aborts the request."""
        if len(prompt_ids) >= self._longest:
            raise PromptTooLong(f"{len(prompt_ids)} prompt tokens fill a model of {self._longest} (max_model_len)")
        async with self._gate:
            loop = asyncio.get_running_loop()
            pending = _Pending(loop, loop.create_future(), list(prompt_ids), self._params(sampling))
            with self._awake:
                self._check()
                if request_id in self._pending:
                    raise ValueError(f"the request {request_id} is in flight already")
                self._pending[request_id] = pending
                self._new.append(request_id)
                self._wake()
            try:
                return await pending.future
            except asyncio.CancelledError:
                with self._awake:
                    self._aborted.append(request_id)
                    self._wake()
                raise

    async def pause(self, in_flight: InFlight = "wait", *, patience: float = 300.0) -> None:
        """Lets no request begin, and takes no step any more once those in flight have ended or are to wait."""
        self._gate.close()
        try:
            if in_flight == "wait":
                await self._gate.emptied(patience)
            await self._call(lambda: self._stop(cut=in_flight != "keep"), _STEP_SECONDS)
        except BaseException:
            await self.resume()
            raise

    async def load_weights(self, weights: Any, version: int) -> None:
        """Has the engine reload its weights, and resets its caches.

        Raises:
            WeightsRefused: It would load them wrongly or can't be given them; it is as before.
            GeneratorError: It failed, or did not end in time.
        """
        await self._call(lambda: self._reload(weights, version), _LOAD_SECONDS)

    async def resume(self) -> None:
        """Lets requests begin again, and those that were kept go on."""
        with self._awake:
            self._halted = self._gate.closed > 1
            self._awake.notify()
        self._gate.open()

    async def catch_up(self, version: int) -> bool:
        """Whether the engine's weights are of a version."""
        return self._unfit is None and self._version == version

    async def healthy(self) -> bool:
        """Whether it samples; False once the engine has died or the generator is closed."""
        return self._dead is None and not self._closed

    async def aclose(self) -> None:
        """Ends the thread; requests in flight fail. The `LLM` stays as it is."""
        with self._awake:
            self._closed = True
            self._awake.notify()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, _JOIN_SECONDS)

    def _params(self, sampling: Sampling) -> Any:
        cut = sampling.top_p < 1 or sampling.top_k > 0 or sampling.min_p > 0
        if (cut or sampling.temperature not in (0.0, 1.0)) and not self._processed:
            raise ValueError(
                "this engine reports log-probs from before temperature and top-p: "
                "give it logprobs_mode='processed_logprobs'"
            )
        return self._vllm.SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            seed=sampling.seed,
            max_tokens=sampling.max_tokens,
            stop_token_ids=list(sampling.stop_token_ids),
            logprobs=0,
            detokenize=False,
            output_kind=self._vllm.sampling_params.RequestOutputKind.FINAL_ONLY,
        )

    def _check(self) -> None:
        if self._dead is not None:
            raise GeneratorGone(f"the vLLM engine died: {self._dead}") from self._dead
        if self._closed or self._unfit:
            raise GeneratorGone(f"{self.name} {self._unfit or 'is closed'}")

    async def _call(self, function: Callable[[], None], seconds: float) -> None:
        """Has the engine's thread do something between two steps, and waits for it."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self._awake:
            if self._dead is not None or self._closed:
                raise GeneratorGone(f"{self.name} is closed or its engine has died")
            self._calls.append(_Call(function, done))
            self._wake()
        try:
            async with asyncio.timeout(seconds):
                await done
        except TimeoutError as error:
            raise GeneratorError(f"the vLLM engine did not do as it was told in {seconds:g} s") from error

    def _enqueue(self, call: "_Call") -> None:
        with self._awake:
            self._calls.append(call)
            self._wake()

    def _wake(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, args=(self._device,), name="gymhost-vllm", daemon=True)
            self._thread.start()
        self._awake.notify()

    def _serve(self, device: int | None) -> None:
        if device is not None:
            require("torch", "vllm").cuda.set_device(device)  # which device is current is a thread's own affair
        try:
            while self._turn():
                pass
            error = GeneratorError("the generator was closed")
        except Exception as raised:  # noqa: BLE001 - whatever it is, the requests must hear of it
            self._dead = raised
            error = GeneratorError(f"the vLLM engine died: {raised}")
        with self._awake:
            pending, self._pending = self._pending, {}
            calls, self._calls = self._calls, deque()
        if known := [name for name, item in pending.items() if item.internal_id]:
            self._engine.abort_request(known)
        self._deliver([(item, error) for item in pending.values()])
        for call in calls:
            call.done(error)

    def _turn(self) -> bool:
        """Does what was asked and takes one step of the engine; waits if there is nothing to do."""
        with self._awake:
            while not (self._closed or self._calls or (self._has_work() and not self._halted)):
                self._awake.wait()
            if self._closed:
                return False
            new, aborted, calls = list(self._new), list(self._aborted), list(self._calls)
            self._new.clear()
            self._aborted.clear()
            self._calls.clear()
        for call in calls:
            call()
        if self._halted:
            self._postpone(new, aborted)
            return True
        results = [result for name in new if (result := self._add(name)) is not None]
        if aborted:
            self._abort(aborted)
        if self._engine.has_unfinished_requests():
            results += [
                self._finish(output)
                for output in self._engine.step()
                if output.finished and output.request_id in self._pending
            ]
        else:
            results += self._forgotten()
        self._deliver(results)
        return True

    def _has_work(self) -> bool:
        return bool(self._new or self._aborted or self._pending)

    def _postpone(self, new: list[str], aborted: list[str]) -> None:
        with self._awake:
            self._new.extendleft(reversed([name for name in new if name in self._pending]))
            self._aborted.extendleft(reversed(aborted))

    def _add(self, name: str) -> tuple[_Pending, Generation | Exception] | None:
        if (pending := self._pending.get(name)) is None:
            return None  # it was cut before it began
        pending.versions.append((0, self._version))
        try:
            prompt = {"prompt_token_ids": pending.prompt_ids}
            pending.internal_id = self._engine.add_request(name, prompt, pending.params)
        except ValueError as error:  # the engine refuses this request, and is well
            del self._pending[name]
            return pending, GeneratorError(f"vLLM refused a request: {error}")
        return None

    def _abort(self, names: list[str]) -> None:
        gone = [name for name in names if self._pending.pop(name, None) is not None]
        if gone:
            self._engine.abort_request(gone)

    def _forgotten(self) -> list[tuple[_Pending, Generation | Exception]]:
        """What waits for an engine that has nothing to do: somebody else aborted it."""
        names = [name for name, pending in list(self._pending.items()) if pending.internal_id]
        return [(self._pending.pop(name), GeneratorError("vLLM dropped a request")) for name in names]

    def _finish(self, output: Any) -> tuple[_Pending, Generation | Exception]:
        pending = self._pending.pop(output.request_id)
        completion = output.outputs[0]
        ids = list(completion.token_ids)
        if completion.finish_reason not in ("stop", "length"):
            return pending, GeneratorError(f"vLLM ended a request: {completion.finish_reason}")
        logprobs = [completion.logprobs[i][token].logprob for i, token in enumerate(ids)]
        return pending, self._generation(pending, ids, logprobs, completion.finish_reason)

    def _generation(self, pending: _Pending, ids: list[int], logprobs: list[float], finish_reason: str) -> Generation:
        version = pending.versions[0][1] if pending.versions else self._version
        generation = Generation(ids, logprobs, finish_reason, version, generator=self.name)
        if len(pending.versions) > 1:
            starts = [start for start, _ in pending.versions] + [len(ids)]
            generation.token_versions = [
                version
                for (start, version), end in zip(pending.versions, starts[1:], strict=True)
                for _ in range(start, end)
            ]
            generation.mixed_versions = len(set(generation.token_versions)) > 1
        return generation

    def _stop(self, *, cut: bool) -> None:
        """Takes no further step; if they are to be cut, requests end with what is known of them."""
        self._halted = True
        if not cut:
            return
        states = self._engine.output_processor.request_states
        results: list[tuple[_Pending, Generation | Exception]] = []
        for pending in list(self._pending.values()):
            ids: list[int] = []
            logprobs: list[float] = []
            if state := states.get(pending.internal_id):
                ids = list(state.detokenizer.output_token_ids)
                found = state.logprobs_processor.logprobs
                logprobs = [found[i][token].logprob for i, token in enumerate(ids)]
            results.append((pending, self._generation(pending, ids, logprobs, "cut")))
        self._abort(list(self._pending))
        self._deliver(results)

    def _reload(self, weights: Any, version: int) -> None:
        config = self._engine.vllm_config
        if "cpu" in str(config.device_config.device) and "float32" in str(config.model_config.dtype):
            refuse_tied(weights)
        arguments: dict[str, Any]
        if (folder := weights_folder(weights)) is not None:
            arguments = {"weights_path": str(folder)}
        elif hasattr(self._engine.engine_core, "engine_core"):
            arguments = {"weights_iterator": iter(named_tensors(weights).items())}
        else:
            raise WeightsRefused(
                "a vLLM engine in another process takes weights in a folder only: set"
                " VLLM_ENABLE_V1_MULTIPROCESSING=0, or write them to disk first"
            )
        self._unfit = f"has weights that nobody knows since version {version} failed to load"
        self._engine.collective_rpc("reload_weights", kwargs=arguments)
        # Blocks that older weights filled must serve no request any more, those in flight included.
        if not self._engine.reset_prefix_cache(reset_running_requests=True):
            raise GeneratorError("vLLM did not reset its prefix cache")
        self._engine.reset_encoder_cache()
        self._stamp(version)
        self._version = version
        self._unfit = None

    def _stamp(self, version: int) -> None:
        """Notes for each request in flight from which token on the new version samples."""
        states = self._engine.output_processor.request_states
        for pending in list(self._pending.values()):
            if state := states.get(pending.internal_id):
                pending.versions.append((state.detokenizer.num_output_tokens(), version))

    def _deliver(self, results: list[tuple[_Pending, Generation | Exception]]) -> None:
        by_loop: defaultdict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Generation], Generation | Exception]]]
        by_loop = defaultdict(list)
        for pending, result in results:
            by_loop[pending.loop].append((pending.future, result))
        for loop, deliveries in by_loop.items():
            if not loop.is_closed():
                loop.call_soon_threadsafe(_settle, deliveries)


def _settle(deliveries: Sequence[tuple["asyncio.Future[Any]", Any]]) -> None:
    for future, result in deliveries:
        if future.done():
            continue
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)


def _device() -> int | None:
    """The CUDA device that is current in this thread, if CUDA is in use."""
    torch = require("torch", "vllm")
    return torch.cuda.current_device() if torch.cuda.is_available() and torch.cuda.is_initialized() else None
