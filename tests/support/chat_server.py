"""A stand-in for an OpenAI-compatible chat endpoint whose answers a test lists or computes."""

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any


class ChatServer:
    """Answers chat completions: one listed answer after the other, or what a function says to a request's body.

    An answer is a text, None, a whole body (a dict), an HTTP status, a status with headers and one of these, or HANG.
    """

    HANG = object()

    def __init__(self, answers: Sequence[Any] | Callable[[dict[str, Any]], Any]) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.url = ""
        listed = iter(() if callable(answers) else answers)
        self._answer = answers if callable(answers) else lambda _body: next(listed)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> "ChatServer":
        self._server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.sleep(0)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        while await reader.readline():
            received: dict[str, str] = {}
            while (line := await reader.readline()).strip():
                name, _, value = line.decode().partition(":")
                received[name.strip().lower()] = value.strip()
            self.headers.append(received)
            self.bodies.append(json.loads(await reader.readexactly(int(received["content-length"]))))
            answer = self._answer(self.bodies[-1])
            if answer is self.HANG:
                continue
            status, extra, content = 200, {}, answer
            if isinstance(answer, int):
                status, content = answer, None
            elif isinstance(answer, tuple):
                status, extra, content = answer
            whole = {"choices": [{"message": {"role": "assistant", "content": content}}]}
            body = json.dumps(content if isinstance(content, dict) else whole).encode()
            headers = "".join(f"{name}: {value}\r\n" for name, value in extra.items())
            head = f"HTTP/1.1 {status} Said\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
            writer.write(head.encode() + body)
