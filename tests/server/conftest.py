"""The servers that the tests of this folder talk to."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from support.fixtures import grpc_path, path, proxy, server, shared_server, start_server
from support.server import ServerProcess
from support.silence import KEEPALIVES, step_after_silence

__all__ = ["grpc_path", "path", "proxy", "server", "shared_server", "start_server"]


@pytest.fixture(scope="session", autouse=True)
def silent_clients(request: pytest.FixtureRequest) -> "Iterator[dict[int, Future[int]]]":
    """Starts clients that are silent for a minute before the first test, where there is one that looks at them."""
    if not any("test_silence" in item.nodeid for item in request.session.items):
        yield {}
        return
    with ServerProcess(workers=1) as quiet, ThreadPoolExecutor(len(KEEPALIVES)) as pool:
        yield {each: pool.submit(step_after_silence, quiet.address, each) for each in KEEPALIVES}
