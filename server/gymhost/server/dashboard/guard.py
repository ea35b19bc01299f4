"""What each request must have, and what each response says to the browser."""

import ipaddress
import socket
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse

__all__ = ["ACT", "POLICY", "Guard"]

# The header that pages set when they ask for something to be done. No page from elsewhere can set it.
ACT = "x-gymhost-act"
# Nothing is loaded from elsewhere, nothing inline runs, and nobody puts a page into a frame.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# The largest request.
REQUEST_BYTES = 65_536


class Guard:
    """An ASGI application around another.

    Args:
        app: The other.
        address: Where it listens, `HOST:PORT`.
        checks_host: Whether requests must name this host. Without it a page from elsewhere could have its own name
            point here, and read what the browser takes for its own (DNS rebinding); where a token is asked for it has
            none.
        https: Whether readers speak HTTPS.
    """

    def __init__(self, app: Any, address: str, *, checks_host: bool, https: bool) -> None:
        self._app = app
        self._checks_host = checks_host
        self._https = https
        given = address.rpartition(":")[0].strip("[]").lower()
        self._names = {"localhost", given, socket.gethostname().lower(), socket.getfqdn().lower()}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answers a request, or refuses it."""
        if scope["type"] != "http":
            return
        headers = Headers(scope=scope)

        async def send_guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                said = MutableHeaders(scope=message)
                said.setdefault("Content-Security-Policy", POLICY)
                said.setdefault("Cache-Control", "no-store")
                said["X-Content-Type-Options"] = "nosniff"
                said["Referrer-Policy"] = "no-referrer"
                said["Cross-Origin-Opener-Policy"] = "same-origin"
                said["Cross-Origin-Resource-Policy"] = "same-origin"
                if self._https:
                    said["Strict-Transport-Security"] = "max-age=86400"
            await send(message)

        refusal = self._refusal(scope["method"], headers)
        await (refusal or self._app)(scope, receive, send_guarded)

    def _refusal(self, method: str, headers: Headers) -> Any:
        if self._checks_host and not self._is_own(headers.get("host", "")):
            return PlainTextResponse(
                "This dashboard is read by its address, or as localhost. Others who point here are not answered.", 421
            )
        if method in ("GET", "HEAD"):
            return None
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return PlainTextResponse("Another site asked for this.", 403)
        if ACT not in headers and "authorization" not in headers:
            return PlainTextResponse(f"Whoever wants something done says so in the header {ACT}.", 403)
        length = headers.get("content-length", "0")
        if "transfer-encoding" in headers or not length.isdecimal() or int(length) > REQUEST_BYTES:
            return PlainTextResponse("This is too large.", 413)
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
