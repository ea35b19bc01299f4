"""Sampling by vLLM servers over HTTP: token ids in, token ids and log-probs out."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from gymhost.rollout.extras import require
from gymhost.rollout.generators.base import Generation, GeneratorError, PromptTooLong, Sampling

__all__ = ["VllmServerGenerator"]

logger = logging.getLogger(__name__)

_REMEMBERED_ROLLOUTS = 65536
_PROBE_SECONDS = 2.0
_PROBES_MISSED = 2


class _Server:
    """One server: its connections, its load, and whether it is alive."""

    def __init__(self, url: str, client: Any) -> None:
        self.url = url
        self.client = client
        self.alive = True
        self.load = 0
        """Tokens in flight: prompts, and what may still be sampled."""
        self.calls: set[asyncio.Task[Any]] = set()
        self.model: str | None = None
        self.longest: int | None = None
        self.missed = 0

    async def probe(self) -> bool:
        """Asks for the server's health."""
        try:
            return (await self.client.get("/health", timeout=_PROBE_SECONDS)).status_code == 200
        except require("httpx", "rollout").HTTPError:
            return False

    async def learn(self, model: str | None) -> None:
        """Asks once for the model's name and length."""
        if self.model is not None:
            return
        response = await self.client.get("/v1/models", timeout=30.0)
        response.raise_for_status()
        models = response.json()["data"]
        served = next((entry for entry in models if model in (None, entry["id"])), None)
        if served is None:
            raise GeneratorError(f"{self.url} serves {[entry['id'] for entry in models]}, not {model}")
        self.longest = served.get("max_model_len")
        self.model = served["id"]

    def leave(self) -> None:
        """Takes the server for dead: its requests go elsewhere."""
        if self.alive:
            logger.warning("the vLLM server %s does not answer; its requests go to others", self.url)
        self.alive = False
        for call in self.calls:
            call.cancel()


class VllmServerGenerator:
    """Samples with one vLLM server or several (`vllm serve`, started with `--logprobs-mode processed_logprobs`).

    A rollout begins at the server with the fewest tokens in flight and stays there, where its prefix is cached, as long
    as the server is alive. A server that refuses connections or misses two health checks is left within seconds; its
    requests are sent to others, from their token ids, and it is used again once it is well.

    Args:
        urls: The servers, such as "http://gpu3:8000".
        model: The name under which the model is served; without one the first that a server names.
        api_key: The servers' key.
        policy_version: The version of their weights; set it whenever they change.
    """

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        model: str | None = None,
        api_key: str | None = None,
        policy_version: int = 0,
    ) -> None:
        httpx = require("httpx", "rollout")
        self._httpx = httpx
        self.policy_version = policy_version
        self._model = model
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        timeout = httpx.Timeout(None, connect=10.0)  # how long a generation may take is the engine's to say

        def client(url: str) -> Any:
            return httpx.AsyncClient(
                base_url=url.rstrip("/"), headers=headers, limits=limits, timeout=timeout, trust_env=False
            )

        self._servers = [_Server(url, client(url)) for url in ([urls] if isinstance(urls, str) else urls)]
        if not self._servers:
            raise ValueError("a vLLM server generator needs the URL of a server")
        self._homes: OrderedDict[str, _Server] = OrderedDict()
        self._watch: asyncio.Task[None] | None = None

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, *, request_id: str) -> Generation:
        """Samples one completion; cancelling the await drops the connection, on which the server aborts."""
        if self._watch is None:
            self._watch = asyncio.create_task(self._watch_health())
        rollout = request_id.rpartition("/")[0] or request_id
        for _ in range(len(self._servers) + 1):
            server = self._choose(rollout)
            cost = len(prompt_ids) + sampling.max_tokens
            server.load += cost
            call = asyncio.create_task(self._request(server, list(prompt_ids), sampling, request_id))
            server.calls.add(call)
            try:
                return await call
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if server.alive or (task is not None and task.cancelling()):
                    call.cancel()
                    raise
            except self._httpx.TransportError:
                server.leave()
            finally:
                server.calls.discard(call)
                server.load -= cost
        raise GeneratorError(f"no vLLM server took the request: {', '.join(server.url for server in self._servers)}")

    async def aclose(self) -> None:
        """Closes the connections."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
            self._watch = None
        for server in self._servers:
            await server.client.aclose()

    def _choose(self, rollout: str) -> _Server:
        home = self._homes.get(rollout)
        if home is None or not home.alive:
            alive = [server for server in self._servers if server.alive]
            if not alive:
                raise GeneratorError(f"no vLLM server answers: {', '.join(server.url for server in self._servers)}")
            home = min(alive, key=lambda server: server.load)
        self._homes[rollout] = home
        self._homes.move_to_end(rollout)
        if len(self._homes) > _REMEMBERED_ROLLOUTS:
            self._homes.popitem(last=False)
        return home

    async def _watch_health(self) -> None:
        while True:
            await asyncio.sleep(_PROBE_SECONDS)
            asked = [server for server in self._servers if server.calls or not server.alive]
            for server, well in zip(asked, await asyncio.gather(*(server.probe() for server in asked)), strict=True):
                server.missed = 0 if well else server.missed + 1
                if well and not server.alive:
                    logger.warning("the vLLM server %s answers again", server.url)
                    server.alive = True
                    server.model = None  # it may have come back with another
                elif server.missed >= _PROBES_MISSED:
                    server.leave()

    async def _request(self, server: _Server, prompt_ids: list[int], sampling: Sampling, request_id: str) -> Generation:
        await server.learn(self._model)
        room = sampling.max_tokens
        if server.longest is not None:
            room = min(room, server.longest - len(prompt_ids))
            if room <= 0:
                raise PromptTooLong(f"{len(prompt_ids)} prompt tokens fill a model of {server.longest} (max_model_len)")
        version = self.policy_version
        body: dict[str, Any] = {
            "model": server.model,
            "prompt": prompt_ids,
            "max_tokens": room,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            "stop_token_ids": list(sampling.stop_token_ids),
            "logprobs": 0,
            "return_token_ids": True,
            "skip_special_tokens": False,
        }
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        response = await server.client.post("/v1/completions", json=body, headers={"X-Request-Id": request_id})
        if response.status_code != 200:
            text = response.text[:500]
            if response.status_code == 400 and "context length" in text:
                raise PromptTooLong(text)
            raise GeneratorError(f"{server.url} answered {response.status_code}: {text}")
        choice = response.json()["choices"][0]
        if choice.get("token_ids") is None:
            raise GeneratorError(f"{server.url} returns no token ids: it must be vLLM 0.10.2 or later")
        if choice["finish_reason"] not in ("stop", "length"):
            raise GeneratorError(f"{server.url} ended a request: {choice['finish_reason']}")
        return Generation(
            choice["token_ids"],
            choice["logprobs"]["token_logprobs"],
            choice["finish_reason"],
            version,
            mixed_versions=version != self.policy_version,
        )
