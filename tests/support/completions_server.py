"""A stand-in for `vllm serve` that answers completions of token ids, changes its weights, and can hang or vanish."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from safetensors.torch import load_file


class CompletionsServer:
    """Answers each completion with `answer(body)`; a number instead of a dict is an HTTP status.

    Its weights are a version: the first number of the `lm_head.weight` that it was last told to load.

    Args:
        answer: Given the request's body, the choice to return; the default samples the last id of the prompt plus one.
        changed: Set whenever a request has come or was dropped.
        dev_mode: Whether it was started with VLLM_SERVER_DEV_MODE=1, and so can be paused and loaded.
    """

    def __init__(
        self,
        answer: Callable[[dict[str, Any]], Any] | None = None,
        changed: asyncio.Event | None = None,
        *,
        dev_mode: bool = True,
    ) -> None:
        self.answer = answer or (lambda body: choice([body["prompt"][-1] + 1]))
        self.bodies: list[dict[str, Any]] = []
        self.probes = 0
        self.controls: list[str] = []
        self.healthy = True
        self.max_model_len = 100
        self.processed_logprobs = True
        self.hold = asyncio.Event()
        self.hold.set()
        self.dropped = 0
        self.changed = changed or asyncio.Event()
        self.url = ""
        self.version = 0
        self.refuses_weights = False
        self.cached = 0
        self.metrics = True
        self.loads = asyncio.Event()
        self.loads.set()
        self.config = {
            "device_config": {"device": "cuda"},
            "model_config": {"dtype": "torch.bfloat16"},
            "weight_transfer_config": None,
        }
        self.on_reset: Callable[[], None] = lambda: None
        self.partial: Callable[[dict[str, Any]], dict[str, Any]] = lambda _body: choice([], "abort")
        self._dev_mode = dev_mode
        self._label = "default"
        self._running = 0
        self._ended = asyncio.Event()
        self._resumed = asyncio.Event()
        self._resumed.set()
        self._abort = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> "CompletionsServer":
        await self.start(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self, port: int) -> None:
        """Starts anew, with the weights that a server is started with."""
        self.version, self._label = 0, "default"
        self._resumed.set()
        self._server = await asyncio.start_server(self._connection, "127.0.0.1", port)
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    async def stop(self) -> None:
        """Ends at once, as a killed process would: connections break."""
        if self._server is None:
            return
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.sleep(0)
        self._server = None

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while line := await reader.readline():
                path = line.split()[1].decode()
                length = 0
                while (header := await reader.readline()).strip():
                    name, _, value = header.partition(b":")
                    if name.lower() == b"content-length":
                        length = int(value)
                body = await reader.readexactly(length)
                answered = asyncio.ensure_future(self._answer(path, body))
                gone = asyncio.ensure_future(
                    reader.read(1)
                )  # nothing more is sent before the answer, unless it hangs up
                await asyncio.wait([answered, gone], return_when=asyncio.FIRST_COMPLETED)
                if not answered.done():
                    answered.cancel()
                    self.dropped += 1
                    self.changed.set()
                    return
                status, content = answered.result()
                data = content.encode() if isinstance(content, str) else json.dumps(content).encode()
                writer.write(
                    f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n"
                    "Connection: close\r\n\r\n".encode()
                    + data
                )
                await writer.drain()
                gone.cancel()
                return
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer(self, path: str, body: bytes) -> tuple[int, Any]:
        url = urlsplit(path)
        match url.path:
            case "/health":
                if not self.healthy:
                    await asyncio.Event().wait()
                return 200, {}
            case "/v1/models":
                return 200, {"data": [{"id": "model", "max_model_len": self.max_model_len}]}
            case "/metrics" if self.metrics:
                return 200, self._metrics()
            case "/v1/completions":
                return await self._complete(json.loads(body))
            case _ if self._dev_mode:
                self.controls.append(path)
                return await self._control(url.path, parse_qs(url.query), json.loads(body) if body else None)
            case _:
                return 404, {"detail": "Not Found"}

    def _metrics(self) -> str:
        """What vLLM tells of its prefix cache, of two engines."""
        prompts = sum(len(body["prompt"]) for body in self.bodies)
        lines = ["# TYPE vllm:prefix_cache_queries_total counter"]
        for engine, part in enumerate((prompts // 2, prompts - prompts // 2)):
            lines.append(f'vllm:prefix_cache_queries_total{{engine="{engine}",model_name="a {{b}}"}} {part:.1f}')
        lines.append(f'vllm:prefix_cache_hits_total{{engine="0",model_name="a {{b}}"}} {self.cached:e}')
        lines.append('vllm:prefix_cache_hits_created{engine="0",model_name="a {b}"} 1.7e+09')
        lines.append('vllm:external_prefix_cache_hits_total{engine="0",model_name="a {b}"} 5.0')
        return "\n".join(lines) + "\n"

    async def _complete(self, request: dict[str, Any]) -> tuple[int, Any]:
        if request["top_k"] == 1 and request["max_tokens"] == 1:  # asked for the choice that is certain
            self.probes += 1
            return 200, {"choices": [choice([1], logprob=0.0 if self.processed_logprobs else -3.0)]}
        self.bodies.append(request)
        self.changed.set()
        await self._resumed.wait()
        self._running += 1
        try:
            held = asyncio.ensure_future(self.hold.wait())
            aborted = asyncio.ensure_future(self._abort.wait())
            await asyncio.wait([held, aborted], return_when=asyncio.FIRST_COMPLETED)
            held.cancel()
            aborted.cancel()
            if self._abort.is_set():
                return 200, {"choices": [self.partial(request)]}
            await self._resumed.wait()
            answer = self.answer(request)
        finally:
            self._running -= 1
            self._ended.set()
        return (answer, {"error": "no"}) if isinstance(answer, int) else (200, {"choices": [answer]})

    async def _control(self, path: str, query: dict[str, list[str]], body: Any) -> tuple[int, Any]:
        match path:
            case "/pause":
                self._resumed.clear()
                if query["mode"] == ["abort"]:
                    self._abort.set()
                while self._running and query["mode"] != ["keep"]:
                    self._ended.clear()
                    await self._ended.wait()
                self._abort.clear()
            case "/resume":
                self._resumed.set()
            case "/server_info":
                return 200, {"vllm_config": self.config}
            case "/collective_rpc":
                assert not self._resumed.is_set(), "weights change while requests run"
                assert body["method"] == "reload_weights"
                self.changed.set()
                await self.loads.wait()
                if self.refuses_weights:
                    return 500, {"error": "no such weights"}
                weights = load_file(Path(body["kwargs"]["weights_path"]) / "model.safetensors")
                self.version = int(weights["lm_head.weight"].flatten()[0].item())
            case "/reset_prefix_cache":
                self.on_reset()
                return 200, {"success": True}
            case "/update_weight_version":
                self._label = body["new_version"]
            case "/weight_info":
                return 200, {"weight_version": self._label}
            case _:
                return 404, {"detail": "Not Found"}
        return 200, {}


class PrefixCache:
    """Answers what it is told to say, with the oldest version that filled a block of the context as log-probs.

    Args:
        server: Whose version fills blocks, and whose reset empties them.
        says: Given the request's body, the ids to sample.
    """

    def __init__(self, server: CompletionsServer, says: Callable[[dict[str, Any]], list[int]], block: int = 4) -> None:
        self._server = server
        self._says = says
        self._block = block
        self._filled: dict[tuple[int, ...], int] = {}
        server.on_reset = self._filled.clear

    def __call__(
        self, body: dict[str, Any], finish_reason: str = "stop", ids: list[int] | None = None
    ) -> dict[str, Any]:
        prompt: list[int] = body["prompt"]
        version = self._server.version
        ends = range(self._block, len(prompt) + 1, self._block)
        used = [self._filled.setdefault(tuple(prompt[:end]), version) for end in ends]
        return choice(ids or self._says(body), finish_reason, logprob=-float(min([*used, version])))


def choice(ids: list[int], finish_reason: str = "stop", logprob: float = -0.5) -> dict[str, Any]:
    return {"token_ids": ids, "logprobs": {"token_logprobs": [logprob] * len(ids)}, "finish_reason": finish_reason}


def weights(version: int) -> dict[str, Any]:
    """A state dict that makes a server answer as of a version."""
    import torch

    return {"embed_tokens.weight": torch.zeros(2, 2), "lm_head.weight": torch.full((2, 2), float(version))}
