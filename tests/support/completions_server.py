"""A stand-in for `vllm serve` that answers completions of token ids, and can hang, fail or vanish."""

import asyncio
import json
from collections.abc import Callable
from typing import Any


class CompletionsServer:
    """Answers each completion with `answer(body)`; a number instead of a dict is an HTTP status.

    Args:
        answer: Given the request's body, the choice to return; the default samples the last id of the prompt plus one.
        changed: Set whenever a request has come or was dropped.
    """

    def __init__(
        self, answer: Callable[[dict[str, Any]], Any] | None = None, changed: asyncio.Event | None = None
    ) -> None:
        self.answer = answer or (lambda body: choice([body["prompt"][-1] + 1]))
        self.bodies: list[dict[str, Any]] = []
        self.healthy = True
        self.max_model_len = 100
        self.hold = asyncio.Event()
        self.hold.set()
        self.dropped = 0
        self.changed = changed or asyncio.Event()
        self.url = ""
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> "CompletionsServer":
        await self.start(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self, port: int) -> None:
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
                data = json.dumps(content).encode()
                writer.write(
                    f"HTTP/1.1 {status} X\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode() + data
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
        if path == "/health":
            if not self.healthy:
                await asyncio.Event().wait()
            return 200, {}
        if path == "/v1/models":
            return 200, {"data": [{"id": "model", "max_model_len": self.max_model_len}]}
        request = json.loads(body)
        self.bodies.append(request)
        self.changed.set()
        await self.hold.wait()
        answer = self.answer(request)
        return (answer, {"error": "no"}) if isinstance(answer, int) else (200, {"choices": [answer]})


def choice(ids: list[int], finish_reason: str = "stop") -> dict[str, Any]:
    return {"token_ids": ids, "logprobs": {"token_logprobs": [-0.5] * len(ids)}, "finish_reason": finish_reason}
