"""What the tests of adapters share: servers of what they host, and environments on these."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gymhost.client import RemoteEnv, make
from support.server import ServerProcess

Host = Callable[..., ServerProcess]
Make = Callable[..., RemoteEnv]


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    """Starts servers with one worker, on which all sessions are side by side; they end with the module's tests."""
    started: list[ServerProcess] = []

    def start(*names: str) -> ServerProcess:
        started.append(ServerProcess(modules=names, workers=1))
        return started[-1]

    yield start
    for process in started:
        process.__exit__()


@pytest.fixture
def remote() -> Iterator[Make]:
    """Makes environments on a server, and closes them."""
    made: list[RemoteEnv] = []

    def start(server: ServerProcess, id: str, **kwargs: Any) -> RemoteEnv:
        made.append(make(id, server=server.address, **kwargs))
        return made[-1]

    yield start
    for env in made:
        env.close()
