"""The servers that the tests of this folder talk to."""

from collections.abc import Iterator

import pytest

from support.docker_engine import docker_engine
from support.fixtures import server

__all__ = ["docker_engine", "server"]


@pytest.fixture(scope="session", autouse=True)
def task_folders() -> Iterator[None]:
    """Lets servers load folders of tasks from everywhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TERMINAL_TASK_FOLDERS", "/")
        yield
