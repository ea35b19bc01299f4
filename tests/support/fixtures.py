"""Fixtures for tests that need a server; a conftest imports those that its folder uses."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.proxy import Proxy
from support.server import ServerProcess


@pytest.fixture(scope="session")
def server() -> Iterator[ServerProcess]:
    """A server with default settings that many tests share: leave it as it was."""
    with ServerProcess() as process:
        yield process


@pytest.fixture
def start_server() -> Iterator[Callable[..., ServerProcess]]:
    """Starts servers of a test's own, with the settings that it names."""
    started: list[ServerProcess] = []

    def start(**settings: Any) -> ServerProcess:
        started.append(ServerProcess(**settings))
        return started[-1]

    yield start
    for process in started:
        process.__exit__()


@pytest.fixture
def proxy(server: ServerProcess) -> Iterator[Proxy]:
    """A proxy in front of the shared server."""
    with Proxy(server.address) as between:
        yield between
