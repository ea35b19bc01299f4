"""The dashboard's process: HTTP, or HTTPS with the servers' certificate."""

import asyncio
import contextlib
import logging
import os
import socket
import ssl
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import uvicorn

from gymhost.server import process
from gymhost.server.addresses import ensure_free
from gymhost.server.dashboard.app import application
from gymhost.server.dashboard.config import DashboardConfig
from gymhost.server.dashboard.readers import Readers
from gymhost.wire.errors import ServerUnavailable

__all__ = ["Dashboard", "run"]

log = logging.getLogger("gymhost.server")

# Seconds for requests that are being answered when it stops, and for it to stop at all.
GRACE = 1
STOP_LIMIT = 5.0
# Seconds to begin.
START_LIMIT = 10.0
BACKLOG = 128
# Connections at once.
CONNECTIONS = 512
# Seconds between looks at the files of the certificate.
LOOK = 5.0


class Dashboard:
    """A running dashboard.

    Args:
        config: Its settings.
    """

    def __init__(self, config: DashboardConfig) -> None:
        self.address = config.address
        self._config = config
        self._readers = Readers(config)
        self._server: Any = None
        self._serving: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listens.

        Raises:
            ServerUnavailable: The address is taken, or the certificate can't be used.
        """
        config = self._config
        ensure_free(config.address, "--dashboard")
        host, _, port = config.address.rpartition(":")
        bound = _listening(host.strip("[]"), int(port))
        self.address = f"{host}:{bound.getsockname()[1]}"
        tls: dict[str, Any] = {}
        if config.tls_cert:
            tls = {"ssl_certfile": config.tls_cert, "ssl_keyfile": config.tls_key}
        if config.tls_client_ca:
            tls |= {"ssl_ca_certs": config.tls_client_ca, "ssl_cert_reqs": ssl.CERT_REQUIRED}
        settings = uvicorn.Config(
            application(config, self._readers, self.address),
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # anybody could say to be another
            limit_concurrency=CONNECTIONS,
            timeout_graceful_shutdown=GRACE,
            **tls,
        )
        try:
            settings.load()
        except (OSError, ssl.SSLError) as error:
            bound.close()
            raise ServerUnavailable(f"the certificate can't be used: {error} (--tls-cert, --tls-key)") from None
        self._server = _Server(settings)
        self._serving = asyncio.create_task(self._server.serve(sockets=[bound]))
        up = asyncio.create_task(self._server.up.wait())
        await asyncio.wait([self._serving, up], timeout=START_LIMIT, return_when=asyncio.FIRST_COMPLETED)
        up.cancel()
        if not self._server.up.is_set():
            self._serving.cancel()
            bound.close()
            raise ServerUnavailable(f"nothing serves on {self.address} after {START_LIMIT:g} s")
        if settings.ssl is not None:
            self._watching = asyncio.create_task(_renew(settings.ssl, config))

    async def drain(self) -> None:
        """Does nothing: there is nothing that could be lost."""

    async def stop(self) -> None:
        """Stops."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
        # First what is followed: streams would be waited for.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_LIMIT):
                await self._readers.aclose()
        if self._serving is not None:
            self._server.should_exit = True
            _, left = await asyncio.wait([self._serving], timeout=STOP_LIMIT)
            if left:
                self._serving.cancel()

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
    config: DashboardConfig, *, on_ready: Callable[[Dashboard], None] | None = None, parent_fd: int | None = None
) -> None:
    """Runs a dashboard until SIGTERM, Ctrl-C, or the end of the process that started it.

    Args:
        config: The dashboard's settings.
        on_ready: Called once it listens.
        parent_fd: A pipe whose end of file means that the dashboard's parent is gone.

    Raises:
        ServerUnavailable: It could not start.
    """
    # Each reader shows a token of its own.
    for variable in ("GYMHOST_TOKEN", "GYMHOST_TLS_CA", "GYMHOST_TLS_CERT", "GYMHOST_TLS_KEY"):
        os.environ.pop(variable, None)
    # That it stops is said by the server that it is beside.
    level = "warning" if config.log_level == "info" else config.log_level
    # Which have a line for each request.
    for name in ("httpx", "uvicorn", "gymhost.rollout.service"):
        logging.getLogger(name).setLevel(logging.ERROR)
    process.run(lambda: Dashboard(config), level, config.log_format, on_ready=on_ready, parent_fd=parent_fd)


def _listening(host: str, port: int) -> socket.socket:
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
        raise ServerUnavailable(f"can't listen on {host}:{port}: {error.strerror or error} (--dashboard)") from None
    return bound


async def _renew(context: ssl.SSLContext, config: DashboardConfig) -> None:
    """Takes what the files of the certificate have when they change; for ever."""
    seen = _look(config)
    while True:
        await asyncio.sleep(LOOK)
        if (found := await asyncio.to_thread(_look, config)) == seen:
            continue
        seen = found
        try:
            await asyncio.to_thread(context.load_cert_chain, config.tls_cert, config.tls_key)
        except (OSError, ssl.SSLError) as error:
            log.warning("the dashboard's certificate in use is kept: %s", error)


def _look(config: DashboardConfig) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for name in (config.tls_cert, config.tls_key):
        with contextlib.suppress(OSError):
            status = Path(name).stat()
            found.append((status.st_ino, status.st_mtime_ns))
    return found
