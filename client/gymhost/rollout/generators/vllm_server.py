"""Sampling by a vLLM server over HTTP: token ids in, token ids and log-probs out."""

import asyncio
import contextlib
import itertools
import logging
import re
from collections.abc import Awaitable, Sequence
from typing import Any

from gymhost.rollout.extras import require
from gymhost.rollout.generators.base import (
    Generation,
    GeneratorError,
    GeneratorGone,
    InFlight,
    PrefixCache,
    PromptTooLong,
    Sampling,
)
from gymhost.rollout.generators.updates import Updates, WeightsRefused
from gymhost.rollout.generators.weight_sync import DiskWeights, WeightSync

__all__ = ["VllmServerGenerator"]

logger = logging.getLogger(__name__)

_CONNECT_SECONDS = 10.0
_CONTROL_SECONDS = 60.0
_ABORT_SECONDS = 0.2
_HEALTH_SECONDS = 5.0
_CERTAIN = -1e-6
_LANES = 32
# In what it tells Prometheus, a line for each of its engines.
_PREFIX_CACHE = re.compile(r"^vllm:prefix_cache_(queries|hits)_total(?:\{.*\})? (\S+)", re.MULTILINE)


class VllmServerGenerator(Updates):
    """Samples with one vLLM server (`vllm serve`); several make a `GeneratorPool`.

    The server should be started with `--logprobs-mode processed_logprobs`, and for changes of weights with the
    environment variable VLLM_SERVER_DEV_MODE=1. How long a generation may take is the caller's to say.

    A change of weights is exact in what version sampled which token, but for `in_flight="keep"`: vLLM does not say how
    far a request had come, so that such generations are marked as mixed, under the version that they began with.

    Args:
        url: The server, such as "http://gpu3:8000".
        model: The name under which the model is served; without one the first that the server names.
        api_key: The server's key.
        policy_version: The version of its weights; set it when somebody else has changed them.
        name: What tells it from others; without one the URL.
        sync: How new weights get there; without one only weights in a folder that the server sees can be loaded.
    """

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        api_key: str | None = None,
        policy_version: int = 0,
        name: str | None = None,
        sync: WeightSync | None = None,
    ) -> None:
        super().__init__()
        self._httpx = require("httpx", "rollout")
        self.url = url.rstrip("/").removesuffix("/v1")
        self.name = name or self.url
        self.sync: WeightSync = sync or DiskWeights()
        self._client = self._httpx.AsyncClient(
            base_url=self.url,
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=self._httpx.Timeout(None, connect=_CONNECT_SECONDS),
            transport=_Lanes(self._httpx),
            trust_env=False,
        )
        self._wanted = model
        self._model: str | None = None
        self._longest: int | None = None
        self._learning = asyncio.Lock()
        self._checked_logprobs = False
        self._version = policy_version
        self._changes = 0  # of weights under requests in flight
        self._as_started = True  # no weights but those that the server was started with
        self._unfit: str | None = None

    @property
    def policy_version(self) -> int:
        """The version of the weights; set it when somebody else has changed them."""
        return self._version

    @policy_version.setter
    def policy_version(self, version: int) -> None:
        if version != self._version:
            self._changes += 1
            self._as_started = False
        self._version = version

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, *, request_id: str) -> Generation:
        """Samples one completion; cancelling the await drops the connection, on which the server aborts.

        Raises:
            PromptTooLong: The prompt fills the model's context.
            GeneratorGone: The server does not answer, or its weights are unknown since an update failed.
            GeneratorError: The server answered with an error.
        """
        async with self._gate:
            if self._unfit or self._client.is_closed:
                raise GeneratorGone(f"{self.url} {self._unfit or 'is closed'}")
            if self._model is None:
                await self._learn()
            if not self._checked_logprobs and _is_shaped(sampling):
                await self._check_logprobs(prompt_ids[-1])
            room = sampling.max_tokens
            if self._longest is not None:
                room = min(room, self._longest - len(prompt_ids))
                if room <= 0:
                    length = f"{len(prompt_ids)} prompt tokens"
                    raise PromptTooLong(f"{length} fill a model of {self._longest} (max_model_len)")
            version, changes = self._version, self._changes
            choice = await self._complete(list(prompt_ids), sampling, room, request_id)
            return Generation(
                choice["token_ids"],
                choice["logprobs"]["token_logprobs"],
                "cut" if choice["finish_reason"] == "abort" else choice["finish_reason"],
                version,
                mixed_versions=changes != self._changes,
                generator=self.name,
            )

    async def healthy(self) -> bool:
        """Whether the server answers that it is well."""
        if self._client.is_closed:
            return False
        try:
            return (await self._client.get("/health", timeout=_HEALTH_SECONDS)).status_code == 200
        except self._httpx.HTTPError:
            return False

    async def prefix_cache(self) -> PrefixCache | None:
        """What the server tells of its prefix cache; None if it tells nothing, or does not answer.

        Its responses say it only where the server was started with `--enable-prompt-tokens-details`, its metrics always
        but with `--disable-log-stats`.
        """
        if self._client.is_closed:
            return None
        try:
            response = await self._client.get("/metrics", timeout=_HEALTH_SECONDS)
            told = _PREFIX_CACHE.findall(response.text) if response.status_code == 200 else ()
            sums = {"queries": 0.0, "hits": 0.0}
            for name, value in told:
                sums[name] += float(value)
            return PrefixCache(int(sums["queries"]), int(sums["hits"])) if told else None
        except (self._httpx.HTTPError, ValueError, OverflowError):
            return None

    async def pause(self, in_flight: InFlight = "wait", *, patience: float = 300.0) -> None:
        """Lets no request begin, and has the server end those in flight, or with "keep" hold them."""
        self._gate.close()
        try:
            if in_flight == "keep":
                await self.control("/pause?mode=keep")
            elif in_flight == "wait" and await self._gate.emptied(patience):
                # What is still in flight there is of other clients.
                await self.control("/pause?mode=wait", seconds=patience + _CONTROL_SECONDS)
            else:
                await self._abort()
        except WeightsRefused:
            self._gate.open()
            raise
        except BaseException:
            with contextlib.suppress(GeneratorError):
                await self._go_on(_HEALTH_SECONDS)  # it may be that it hangs
            raise

    async def _abort(self) -> None:
        """Pauses the server until it has ended all requests: one that was on its way is held by the first pause."""
        give_up = asyncio.get_running_loop().time() + _CONTROL_SECONDS
        while True:
            await self.control("/pause?mode=abort")
            if await self._gate.emptied(_ABORT_SECONDS):
                return
            if asyncio.get_running_loop().time() > give_up:
                raise GeneratorError(f"{self.url} did not end its requests in {_CONTROL_SECONDS:g} s")

    async def load_weights(self, weights: Any, version: int) -> None:
        """Loads weights into a server that is paused, and resets its caches."""
        ready = await self._prepare(weights, version)
        await self._change(self.sync.load(self, ready, version), version)

    async def resume(self) -> None:
        """Lets requests begin again, and those that the server holds go on."""
        await self._go_on(_CONTROL_SECONDS)

    async def _go_on(self, seconds: float) -> None:
        try:
            if self._gate.closed == 1:
                await self.control("/resume", seconds=seconds)
        except BaseException:
            self._unfit = self._unfit or "did not go on after a pause"
            raise
        finally:
            self._gate.open()

    async def catch_up(self, version: int) -> bool:
        """Sees to it that a server that was away has the weights of a version.

        It has if nobody ever changed those that it was started with, if it says so itself (a vLLM that knows
        `/weight_info`), or if `sync` can load them again.

        Returns:
            False if it has not, or nobody knows.

        Raises:
            GeneratorError: The server failed.
        """
        self._model = None  # it may have come back with another
        self._checked_logprobs = False
        if self._unfit is None:
            if self._version == version and self._as_started:
                return True
            with contextlib.suppress(WeightsRefused):
                if (await self.ask("/weight_info")).get("weight_version") == str(version):
                    self._version = version
                    return True
        await self.pause("cut")
        try:
            return await self._change(self.sync.again(self, version), version)
        finally:
            await self.resume()

    async def ask(self, path: str) -> Any:
        """Gets what a control endpoint says; see `ServerControl`."""
        return await self._control("GET", path, None, _CONTROL_SECONDS)

    async def control(self, path: str, body: Any = None, *, seconds: float = _CONTROL_SECONDS) -> Any:
        """Posts to a control endpoint and returns what it says; see `ServerControl`."""
        return await self._control("POST", path, body, seconds)

    async def aclose(self) -> None:
        """Closes the connections; requests in flight fail."""
        await self._client.aclose()

    async def _prepare(self, weights: Any, version: int) -> Any:
        return await self.sync.prepare(weights, version)

    async def _change(self, loading: Awaitable[bool | None], version: int) -> bool:
        before, self._unfit = self._unfit, f"has weights that nobody knows since version {version} failed to load"
        try:
            changed = await loading
        except WeightsRefused:
            self._unfit = before
            raise
        if changed is False:
            self._unfit = before
            return False
        # Blocks that older weights filled must serve no request any more, those in flight included.
        answer = await self.control("/reset_prefix_cache?reset_running_requests=true")
        if answer.get("success") is False:
            raise GeneratorError(f"{self.url} did not reset its prefix cache")
        for path, body in (
            ("/reset_encoder_cache", None),
            ("/update_weight_version", {"new_version": str(version)}),
        ):
            with contextlib.suppress(WeightsRefused):  # an older vLLM
                await self.control(path, body)
        self._unfit = None
        self._as_started = False
        self._changes += 1
        self._version = version
        return True

    async def _control(self, method: str, path: str, body: Any, seconds: float) -> Any:
        try:
            response = await self._client.request(method, path, json=body, timeout=seconds)
        except self._httpx.TimeoutException as error:
            raise GeneratorError(f"{self.url} did not answer {path} in {seconds:g} s") from error
        except self._httpx.TransportError as error:
            raise self._gone(error) from error
        if response.status_code in (404, 405):
            raise WeightsRefused(
                f"{self.url} has no {path.partition('?')[0]}: start vLLM with the environment variable"
                " VLLM_SERVER_DEV_MODE=1"
            )
        if response.status_code != 200:
            raise GeneratorError(f"{self.url} answered {path} with {response.status_code}: {response.text[:500]}")
        return response.json() if response.content else {}

    async def _learn(self) -> None:
        """Asks once for the model's name and length."""
        async with self._learning:
            if self._model is not None:
                return
            try:
                response = await self._client.get("/v1/models", timeout=_CONTROL_SECONDS)
            except self._httpx.TransportError as error:
                raise self._gone(error) from error
            if response.status_code != 200:
                raise GeneratorError(f"{self.url} answered {response.status_code}: {response.text[:500]}")
            models = response.json()["data"]
            served = next((entry for entry in models if self._wanted in (None, entry["id"])), None)
            if served is None:
                raise GeneratorError(f"{self.url} serves {[entry['id'] for entry in models]}, not {self._wanted}")
            self._longest = served.get("max_model_len")
            self._model = served["id"]

    async def _check_logprobs(self, token: int) -> None:
        """Finds out once whether log-probs are of what is sampled from: those of a certain choice are 0 then."""
        self._checked_logprobs = True
        choice = await self._complete([token], Sampling(top_k=1), 1, f"{self.name}/logprobs")
        if choice["logprobs"]["token_logprobs"] and choice["logprobs"]["token_logprobs"][0] < _CERTAIN:
            logger.warning(
                "%s reports log-probs from before temperature and top-p, which are not those of what it samples from:"
                " start it with --logprobs-mode processed_logprobs",
                self.url,
            )

    async def _complete(self, prompt_ids: list[int], sampling: Sampling, room: int, request_id: str) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._model,
            "prompt": prompt_ids,
            "max_tokens": room,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            # What is not said here is as the model's maker recommends.
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "stop_token_ids": list(sampling.stop_token_ids),
            "logprobs": 0,
            "return_token_ids": True,
            "skip_special_tokens": False,
        }
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        response = await self._post(body, request_id)
        if response.status_code != 200:
            text = response.text[:500]
            if response.status_code == 400 and "context length" in text:
                raise PromptTooLong(text)
            if response.status_code >= 500 and not await self.healthy():
                raise GeneratorGone(f"{self.url} is not well: it answered {response.status_code}: {text}")
            raise GeneratorError(f"{self.url} answered {response.status_code}: {text}")
        try:
            choice: dict[str, Any] = response.json()["choices"][0]
            finish_reason, ids, logprobs = choice["finish_reason"], choice.get("token_ids"), choice.get("logprobs")
            values: list[Any] | None = None if logprobs is None else logprobs["token_logprobs"]
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            raise GeneratorError(f"{self.url} answered what is no completion: {response.text[:500]}") from error
        if finish_reason not in ("stop", "length", "abort"):
            raise GeneratorError(f"{self.url} ended a request: {finish_reason}")
        if finish_reason == "abort" and not ids:
            return {"token_ids": [], "logprobs": {"token_logprobs": []}, "finish_reason": "abort"}
        if ids is None:
            raise GeneratorError(f"{self.url} returns no token ids: it must be vLLM 0.10.2 or later")
        if values is None or None in values:
            raise GeneratorError(f"{self.url} returns no log-probs of some tokens that it sampled: {logprobs!r:.200}")
        return choice

    async def _post(self, body: dict[str, Any], request_id: str) -> Any:
        for last in (False, True):
            try:
                return await self._client.post("/v1/completions", json=body, headers={"X-Request-Id": request_id})
            except (self._httpx.ConnectError, self._httpx.ConnectTimeout) as error:
                raise self._gone(error) from error
            except self._httpx.TransportError as error:
                # A connection can be closed for its age in the moment in which it is used: that is no sign of illness.
                if last or not await self.healthy():
                    raise self._gone(error) from error
        raise AssertionError("unreachable")

    def _gone(self, error: Exception) -> GeneratorGone:
        return GeneratorGone(f"{self.url} does not answer: {error or type(error).__name__}")


class _Lanes:
    """A transport of `httpx` over several pools of connections, which take turns.

    A pool looks through all of its connections whenever a request begins or ends: with hundreds in one, that takes
    longer than all else.
    """

    def __init__(self, httpx: Any) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        settings = {"verify": httpx.create_ssl_context(trust_env=False), "limits": limits, "trust_env": False}
        self._pools = [httpx.AsyncHTTPTransport(**settings) for _ in range(_LANES)]
        self._turns = itertools.cycle(self._pools)

    async def handle_async_request(self, request: Any) -> Any:
        return await next(self._turns).handle_async_request(request)

    async def aclose(self) -> None:
        for pool in self._pools:
            await pool.aclose()


def _is_shaped(sampling: Sampling) -> bool:
    """Whether what is sampled from is another distribution than the model's own."""
    cut = sampling.top_p < 1 or sampling.top_k > 0 or sampling.min_p > 0
    return sampling.temperature != 0.0 and (cut or sampling.temperature != 1.0)
