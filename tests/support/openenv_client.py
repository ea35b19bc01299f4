"""A small client of OpenEnv's protocol, which sends what OpenEnv's own client sends."""

import contextlib
import json
from typing import Any, Self

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect


class OpenEnvSocket:
    """A session of a server.

    Args:
        url: Where the environment is.
        headers: HTTP headers to open it with.
    """

    def __init__(self, url: str, *, query: str = "", headers: dict[str, str] | None = None) -> None:
        address = url.replace("http", "ws", 1) + "/ws" + query
        self.socket = connect(address, additional_headers=headers, proxy=None, open_timeout=20).__enter__()

    def raw(self, text: str) -> dict[str, Any]:
        """Sends a frame, and returns what is answered."""
        self.socket.send(text)
        return self.next()

    def next(self) -> dict[str, Any]:
        """Returns the next frame."""
        return json.loads(self.socket.recv(20))

    def ask(self, kind: str, data: Any = None) -> dict[str, Any]:
        """Asks for something, and returns the data that is answered."""
        answer = self.raw(json.dumps({"type": kind} if data is None else {"type": kind, "data": data}))
        assert answer["type"] == {"state": "state", "mcp": "mcp"}.get(kind, "observation"), answer
        return answer["data"]

    def refused(self, kind: str, data: Any = None) -> dict[str, Any]:
        """Asks for what is refused, and returns why."""
        answer = self.raw(json.dumps({"type": kind} if data is None else {"type": kind, "data": data}))
        assert answer["type"] == "error", answer
        return answer["data"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        with contextlib.suppress(ConnectionClosed):  # by the server, after a refusal
            self.socket.send('{"type": "close"}')
        self.socket.close()
