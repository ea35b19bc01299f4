"""A gateway's process: HTTP and WebSockets, or the same with the server's certificate."""

import asyncio
import contextlib
import importlib.util
import logging
from collections.abc import Callable
from typing import Any

from gymhost.server import process
from gymhost.server.gateways.callers import Callers
from gymhost.server.gateways.config import GatewayConfig
from gymhost.server.gateways.guard import Guard
from gymhost.server.web import Listening, forget_own_credentials

__all__ = ["Gateway", "application", "run"]

# Seconds for the connections of callers to close.
STOP_LIMIT = 10.0
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
        self._config = config
        self._callers = Callers(config)
        self._listening = Listening(config, config.option)

    @property
    def address(self) -> str:
        """Where it listens."""
        return self._listening.address

    async def start(self) -> None:
        """Listens.

        Raises:
            ServerUnavailable: The address is taken, or the certificate can't be used.
            ImportError: What the protocol needs is not installed.
        """
        await self._listening.start(
            lambda _: application(self._config, self._callers),
            lifespan="on",
            ws="websockets-sansio" if self._config.protocol == "openenv" else "none",
            ws_max_size=self._config.max_payload,
            ws_ping_interval=PING,
            ws_ping_timeout=PONG,
        )

    async def drain(self) -> None:
        """Does nothing: sessions end with their sockets, or with the server."""

    async def stop(self) -> None:
        """Stops."""
        await self._listening.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_LIMIT):
                await self._callers.aclose()

    def abort(self) -> None:
        """Does nothing: there is nothing but this process."""


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
    forget_own_credentials()
    # That it stops is said by the server that it is beside.
    level = "warning" if config.log_level == "info" else config.log_level
    # Which have a line for each request.
    for name in ("mcp", "uvicorn"):
        logging.getLogger(name).setLevel(logging.ERROR)
    process.run(lambda: Gateway(config), level, config.log_format, on_ready=on_ready, parent_fd=parent_fd)
