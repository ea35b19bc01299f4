"""What the tests of this folder share: a server whose workers they kill."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.fixtures import path, start_server
from support.killing import Notes
from support.server import ServerProcess

__all__ = ["path", "start_server"]


# Workers are killed all the time, and no environment is to blame.
SETTINGS: dict[str, Any] = {"modules": ["support.replayable_environments"], "quarantine_deaths": 0}


@pytest.fixture(scope="session")
def server() -> Iterator[ServerProcess]:
    """A server whose workers may be killed; sessions are closed by who opens them."""
    with ServerProcess(**SETTINGS) as process:
        yield process


@pytest.fixture
def start(start_server: Callable[..., ServerProcess]) -> Callable[..., ServerProcess]:
    """Starts a server of a test's own with the replayable environments."""

    def begin(**settings: Any) -> ServerProcess:
        return start_server(**{"workers": 1, **SETTINGS, **settings})

    return begin


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    """What the environment of a test has begun."""
    return Notes(tmp_path / "notes")
