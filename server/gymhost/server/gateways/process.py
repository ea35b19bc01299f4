"""A gateway's process: HTTP and WebSockets, or the same with the server's certificate."""

import asyncio
import contextlib
import importlib.util
import logging
import os
import socket
import ssl
from collections.abc import Callable, Generator
from typing import Any

import uvicorn

from gymhost.server import process
from gymhost.server.addresses import ensure_free
from gymhost.server.gateways.callers import Callers
from gymhost.server.gateways.config import GatewayConfig
from gymhost.server.gateways.guard import Guard
from gymhost.wire.errors import ServerUnavailable

__all__ = ["Gateway", "application", "run"]

# Seconds for requests that are being answered when it stops, and for it to stop at all.
GRACE = 1
STOP_LIMIT = 10.0
# Seconds to begin.
START_LIMIT = 10.0
BACKLOG = 1024
# Seconds between signs of life on a socket, and how long a caller may leave one unanswered: while it computes on the
# loop that its socket is on, it answers none.
PING, PONG = 30.0, 600.0


def application(config: GatewayConfig, callers: Callers) -> Any:
    """Makes the application of a gateway: ASGI, with a lifespan.

    Args:
        config: The gateway's settings.
        callers: Its callers.

    Raises:
        ImportError: What the protocol needs is not installed; the message names the extra.
    """
    # What one protocol needs the other does not.
    if config.protocol == "openenv":
        from gymhost.server.gateways import openenv

        if importlib.util.find_spec("websockets") is None:
            raise ImportError("the gateway for OpenEnv needs websockets: pip install 'gymhost[server]'")
        return Guard(openenv.application(config, callers), config)
    from gymhost.server.gateways import mcp

    return Guard(mcp.application(config, callers), config)


class Gateway:
    """A running gateway.

    Args:
        config: Its settings.
    """

    def __init__(self, config: GatewayConfig) -> None:
        self.address = config.address
        self._config = config
        self._callers = Callers(config)
        self._server: Any = None
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listens.

        Raises:
            ServerUnavailable: The address is taken, or the certificate can't be used.
            ImportError: What the protocol needs is not installed.
        """
        config = self._config
        ensure_free(config.address, config.option)
        host, _, port = config.address.rpartition(":")
        tls: dict[str, Any] = {}
        if config.tls_cert:
            tls = {"ssl_certfile": config.tls_cert, "ssl_keyfile": config.tls_key}
        if config.tls_client_ca:
            tls |= {"ssl_ca_certs": config.tls_client_ca, "ssl_cert_reqs": ssl.CERT_REQUIRED}
        settings = uvicorn.Config(
            application(config, self._callers),
            lifespan="on",
            ws="websockets-sansio" if config.protocol == "openenv" else "none",
            ws_max_size=config.max_payload,
            ws_ping_interval=PING,
            ws_ping_timeout=PONG,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # anybody could say to be another
            timeout_graceful_shutdown=GRACE,
            **tls,
        )
        try:
            settings.load()
        except (OSError, ssl.SSLError) as error:
            raise ServerUnavailable(f"the certificate can't be used: {error} (--tls-cert, --tls-key)") from None
        bound = _listening(host.strip("[]"), int(port), config.option)
        self.address = f"{host}:{bound.getsockname()[1]}"
        self._server = _Server(settings)
        self._serving = asyncio.create_task(self._server.serve(sockets=[bound]))
        up = asyncio.create_task(self._server.up.wait())
        await asyncio.wait([self._serving, up], timeout=START_LIMIT, return_when=asyncio.FIRST_COMPLETED)
        up.cancel()
        if not self._server.up.is_set():
            self._serving.cancel()
            bound.close()
            raise ServerUnavailable(f"nothing serves on {self.address} after {START_LIMIT:g} s")

    async def drain(self) -> None:
        """Does nothing: sessions end with their sockets, or with the server."""

    async def stop(self) -> None:
        """Stops."""
        if self._serving is not None:
            self._server.should_exit = True
            _, left = await asyncio.wait([self._serving], timeout=STOP_LIMIT)
            if left:
                self._serving.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_LIMIT):
                await self._callers.aclose()

    def abort(self) -> None:
        """Does nothing: there is nothing but this process."""


class _Server(uvicorn.Server):
    """Tells when it is up, and leaves signals to the process."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self.up.set()


def run(
    config: GatewayConfig, *, on_ready: Callable[[Gateway], None] | None = None, parent_fd: int | None = None
) -> None:
    """Runs a gateway until SIGTERM, Ctrl-C, or the end of the process that started it.

    Args:
        config: The gateway's settings.
        on_ready: Called once it listens.
        parent_fd: A pipe whose end of file means that the gateway's parent is gone.

    Raises:
        ServerUnavailable: It could not start.
        ImportError: What the protocol needs is not installed; the message names the extra.
    """
    # Each caller shows a token of its own.
    for variable in ("GYMHOST_TOKEN", "GYMHOST_TLS_CA", "GYMHOST_TLS_CERT", "GYMHOST_TLS_KEY"):
        os.environ.pop(variable, None)
    # Which have a line for each request.
    for name in ("mcp", "uvicorn"):
        logging.getLogger(name).setLevel(logging.ERROR)
    process.run(lambda: Gateway(config), config.log_level, config.log_format, on_ready=on_ready, parent_fd=parent_fd)


def _listening(host: str, port: int, option: str) -> socket.socket:
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(place)
            bound.listen(BACKLOG)
            bound.setblocking(False)
        except OSError:
            bound.close()
            raise
    except OSError as error:
        raise ServerUnavailable(f"can't listen on {host}:{port}: {error.strerror or error} ({option})") from None
    return bound
