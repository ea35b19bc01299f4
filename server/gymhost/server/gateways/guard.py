"""What each request to a gateway must have."""

import ipaddress
import socket
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse

from gymhost.server.gateways.config import GatewayConfig

__all__ = ["Guard"]


class Guard:
    """An ASGI application around another.

    Where no token is asked for, a page from elsewhere could have a name of its own point here, or open a socket from
    the browsers of its readers: so requests must name this host then, and come from no other.

    Args:
        app: The other.
        config: The gateway's settings.
    """

    def __init__(self, app: Any, config: GatewayConfig) -> None:
        self._app = app
        self._open = not config.wants_token
        self._max_payload = config.max_payload
        given = config.address.rpartition(":")[0].strip("[]").lower()
        self._names = {"localhost", given, socket.gethostname().lower(), socket.getfqdn().lower()}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answers a request, or refuses it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope["type"], Headers(scope=scope))
        if refusal is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": refusal})
        else:
            await PlainTextResponse(refusal, 403)(scope, receive, send)

    def _refusal(self, kind: str, headers: Headers) -> str | None:
        if self._open:
            if not self._is_own(headers.get("host", "")):
                return "this gateway is spoken to by its address, or as localhost"
            origin = headers.get("origin")
            if origin is not None and not self._is_own(urlsplit(origin).netloc):
                return "another site asked for this"
        length = headers.get("content-length", "0")
        if kind == "http" and not (length.isdecimal() and int(length) <= self._max_payload):
            return "this is too large"
        return None

    def _is_own(self, host: str) -> bool:
        """Whether a Host header names this host: by its name, or by an address, which no name can be pointed at."""
        try:
            name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
            if name in self._names:
                return True
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True
