# pyright: reportMissingImports=false
"""Ray, and the server that its env runners use."""

import os
import tempfile
from collections.abc import Iterator

import pytest

from support.fixtures import server, start_server

# Where Ray keeps results and its token; looked up when it is imported.
_home = tempfile.TemporaryDirectory(prefix="gymhost-test-")
os.environ |= {"HOME": _home.name, "RAY_USAGE_STATS_ENABLED": "0"}

import ray  # noqa: E402

__all__ = ["server", "start_server"]


@pytest.fixture(scope="session", autouse=True)
def cluster() -> Iterator[None]:
    """Ray with room for one env runner beside the driver."""
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=80 * 2**20, log_to_driver=False)
    yield
    ray.shutdown()
