"""Fixtures for tests that need a server; a conftest imports those that its folder uses."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gymhost.client import connect, make
from support.proxy import Proxy
from support.server import ServerProcess


@pytest.fixture(scope="session")
def server() -> Iterator[ServerProcess]:
    """A server with default settings that many tests share: leave it as it was."""
    with ServerProcess() as process:
        yield process


@pytest.fixture(scope="module")
def shared_server() -> Iterator[Callable[..., ServerProcess]]:
    """Servers that those tests of a module share which name the same settings: each leaves them free of sessions."""
    started: dict[str, ServerProcess] = {}

    def start(**settings: Any) -> ServerProcess:
        key = json.dumps(settings, sort_keys=True)
        if key not in started:
            started[key] = ServerProcess(**settings)
        return started[key]

    yield start
    for process in started.values():
        process.__exit__()


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


@pytest.fixture(params=[True, False], ids=["direct", "grpc"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs a test twice: with steps that go straight to the workers, and with steps that go through gRPC."""
    _set_path(monkeypatch, direct=request.param)


@pytest.fixture
def grpc_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has all steps of a test go through gRPC."""
    _set_path(monkeypatch, direct=False)


def _set_path(monkeypatch: pytest.MonkeyPatch, *, direct: bool) -> None:
    for how in (connect, make):
        assert how.__kwdefaults__ is not None
        monkeypatch.setitem(how.__kwdefaults__, "direct", direct)
