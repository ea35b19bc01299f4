"""The dashboard's process: HTTP, or HTTPS with the servers' certificate."""

import asyncio
import contextlib
import logging
from collections.abc import Callable

from gymhost.server import process
from gymhost.server.dashboard.app import application
from gymhost.server.dashboard.config import DashboardConfig
from gymhost.server.dashboard.readers import Readers
from gymhost.server.web import Listening, forget_own_credentials

__all__ = ["Dashboard", "run"]

# Seconds for what is followed to end.
STOP_LIMIT = 5.0
# Connections at once.
CONNECTIONS = 512


class Dashboard:
    """A running dashboard.

    Args:
        config: Its settings.
    """

    def __init__(self, config: DashboardConfig) -> None:
        self._config = config
        self._readers = Readers(config)
        self._listening = Listening(config, "--dashboard")

    @property
    def address(self) -> str:
        """Where it listens."""
        return self._listening.address

    async def start(self) -> None:
        """Listens.

        Raises:
            ServerUnavailable: The address is taken, or the certificate can't be used.
        """
        await self._listening.start(
            lambda address: application(self._config, self._readers, address),
            lifespan="off",
            ws="none",
            limit_concurrency=CONNECTIONS,
        )

    async def drain(self) -> None:
        """Does nothing: there is nothing that could be lost."""

    async def stop(self) -> None:
        """Stops."""
        # First what is followed: streams would be waited for.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_LIMIT):
                await self._readers.aclose()
        await self._listening.stop()

    def abort(self) -> None:
        """Does nothing: there is nothing but this process."""


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
    forget_own_credentials()
    # That it stops is said by the server that it is beside.
    level = "warning" if config.log_level == "info" else config.log_level
    # Which have a line for each request.
    for name in ("httpx", "uvicorn", "gymhost.rollout.service"):
        logging.getLogger(name).setLevel(logging.ERROR)
    process.run(lambda: Dashboard(config), level, config.log_format, on_ready=on_ready, parent_fd=parent_fd)
