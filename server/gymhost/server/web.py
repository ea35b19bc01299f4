"""HTTP beside a server, or HTTPS with its certificate: what the dashboard and the gateways listen with."""

import asyncio
import contextlib
import logging
import os
import socket
import ssl
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, Protocol

import uvicorn

from gymhost.server.addresses import ensure_free
from gymhost.wire.errors import ServerUnavailable

__all__ = ["Listening", "Place", "forget_own_credentials"]

log = logging.getLogger("gymhost.server")

# Seconds for requests that are being answered when it stops, and for it to stop at all.
GRACE = 1
STOP_LIMIT = 5.0
# Seconds to begin.
START_LIMIT = 10.0
BACKLOG = 1024
# Seconds between looks at the files of the certificate.
LOOK = 5.0


class Place(Protocol):
    """Where it listens, and with which certificate."""

    @property
    def address(self) -> str: ...
    @property
    def tls_cert(self) -> str: ...
    @property
    def tls_key(self) -> str: ...
    @property
    def tls_client_ca(self) -> str: ...


class Listening:
    """Serves an application.

    Args:
        place: Where, and with which certificate.
        option: The option that says where.

    Attributes:
        address: Where it listens.
    """

    def __init__(self, place: Place, option: str) -> None:
        self.address = place.address
        self._place = place
        self._option = option
        self._server: Any = None
        self._serving: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None

    async def start(self, application: Callable[[str], Any], **settings: Any) -> None:
        """Listens.

        Args:
            application: Makes what is served, ASGI, given the address.
            settings: Those of `uvicorn.Config` that are its own.

        Raises:
            ServerUnavailable: The address is taken, or the certificate can't be used.
        """
        place = self._place
        ensure_free(place.address, self._option)
        host, _, port = place.address.rpartition(":")
        bound = _bind(host.strip("[]"), int(port), self._option)
        try:
            self.address = f"{host}:{bound.getsockname()[1]}"
            configured = self._configure(application(self.address), settings)
            self._server = _Server(configured)
            self._serving = asyncio.create_task(self._server.serve(sockets=[bound]))
            up = asyncio.create_task(self._server.up.wait())
            await asyncio.wait([self._serving, up], timeout=START_LIMIT, return_when=asyncio.FIRST_COMPLETED)
            up.cancel()
            if not self._server.up.is_set():
                self._serving.cancel()
                raise ServerUnavailable(f"nothing serves on {self.address} after {START_LIMIT:g} s")
        except BaseException:
            bound.close()
            raise
        if configured.ssl is not None:
            self._watching = asyncio.create_task(_renew(configured.ssl, place))

    async def stop(self) -> None:
        """Stops."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
        if self._serving is not None:
            self._server.should_exit = True
            _, left = await asyncio.wait([self._serving], timeout=STOP_LIMIT)
            if left:
                self._serving.cancel()

    def _configure(self, application: Any, settings: dict[str, Any]) -> uvicorn.Config:
        place = self._place
        tls: dict[str, Any] = {}
        if place.tls_cert:
            tls = {"ssl_certfile": place.tls_cert, "ssl_keyfile": place.tls_key}
        if place.tls_client_ca:
            tls |= {"ssl_ca_certs": place.tls_client_ca, "ssl_cert_reqs": ssl.CERT_REQUIRED}
        configured = uvicorn.Config(
            application,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # anybody could say to be another
            timeout_graceful_shutdown=GRACE,
            **tls,
            **settings,
        )
        try:
            configured.load()
        except (OSError, ssl.SSLError) as error:
            raise ServerUnavailable(f"the certificate can't be used: {error} (--tls-cert, --tls-key)") from None
        return configured


def forget_own_credentials() -> None:
    """Forgets what the variables of this process say of a way in: each who calls shows a token of its own."""
    for variable in ("GYMHOST_TOKEN", "GYMHOST_TLS_CA", "GYMHOST_TLS_CERT", "GYMHOST_TLS_KEY"):
        os.environ.pop(variable, None)


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


def _bind(host: str, port: int, option: str) -> socket.socket:
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


async def _renew(context: ssl.SSLContext, place: Place) -> None:
    """Takes what the files of the certificate have when they change; for ever."""
    seen = _look(place)
    while True:
        await asyncio.sleep(LOOK)
        if (found := await asyncio.to_thread(_look, place)) == seen:
            continue
        seen = found
        try:
            await asyncio.to_thread(context.load_cert_chain, place.tls_cert, place.tls_key)
        except (OSError, ssl.SSLError) as error:
            log.warning("the certificate in use is kept: %s", error)


def _look(place: Place) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for name in (place.tls_cert, place.tls_key):
        with contextlib.suppress(OSError):
            status = Path(name).stat()
            found.append((status.st_ino, status.st_mtime_ns))
    return found
