"""The server that the tests of this folder talk to, on each of its two ways."""

import contextlib
from collections.abc import Iterator

import pytest

from gymhost import client
from support.fixtures import start_server
from support.simulators import elsewhere
from support.vectors import MODULES, Remote

__all__ = ["elsewhere", "start_server"]


@pytest.fixture(scope="session", params=[True, False], ids=["direct", "grpc"])
def remote(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Remote]:
    """Makes vector environments on a server that all tests share: once straight to the workers, once through gRPC."""
    # MuJoCo writes a log to the current folder.
    with contextlib.chdir(tmp_path_factory.mktemp("server")):
        server = client.connect(modules=MODULES, direct=request.param).open()
    yield Remote(request.param)
    server.close()
