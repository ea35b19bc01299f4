"""The server that the tests of this folder talk to, on each of its two ways."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gymhost import client
from gymhost.client import RemoteEnv
from support import environments, trait_environments
from support.fixtures import path, server, start_server
from support.server import ServerProcess
from support.simulators import elsewhere
from support.vectors import MODULES

__all__ = ["elsewhere", "path", "server", "start_server"]

Make = Callable[..., RemoteEnv]


@pytest.fixture(scope="session", params=[True, False], ids=["direct", "grpc"])
def remote(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Make]:
    """Makes environments on a server that all tests share: once straight to the workers, once through gRPC."""
    # MuJoCo writes a log to the current folder.
    with contextlib.chdir(tmp_path_factory.mktemp("server")):
        server = client.connect(modules=MODULES, direct=request.param).open()

    def make(id: str, **kwargs: Any) -> RemoteEnv:
        return client.make(id, modules=MODULES, direct=request.param, **kwargs)

    yield make
    server.close()


@pytest.fixture(scope="session")
def knobs() -> Iterator[ServerProcess]:
    """A server for those who try what clients may reach: leave it as it was."""
    with ServerProcess(modules=[environments.__name__, trait_environments.__name__]) as process:
        yield process
