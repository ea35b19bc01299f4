"""A stand-in for an OpenAI-compatible chat endpoint whose answers a test lists."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any


class ChatServer:
    """Answers chat completions, one listed answer after the other: a text, None, an HTTP status, or HANG."""

    HANG = object()

    def __init__(self, answers: Sequence[Any]) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.url = ""
        self._answers = iter(answers)
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
            headers: dict[str, str] = {}
            while (line := await reader.readline()).strip():
                name, _, value = line.decode().partition(":")
                headers[name.strip().lower()] = value.strip()
            self.headers.append(headers)
            self.bodies.append(json.loads(await reader.readexactly(int(headers["content-length"]))))
            answer = next(self._answers)
            if answer is self.HANG:
                continue
            status = answer if isinstance(answer, int) else 200
            body = json.dumps({"choices": [{"message": {"role": "assistant", "content": answer}}]}).encode()
            writer.write(f"HTTP/1.1 {status} Said\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
