"""The servers of the tests of rollouts as a service."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from support.fixtures import server

if TYPE_CHECKING:
    from support.served_rollouts import ServedRollouts

__all__ = ["served", "server"]


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[ServedRollouts]":
    """A rollout service that tests share, with tokens of an admin, of two users and of one who may only look."""
    from support.served_rollouts import served_rollouts  # which needs what the heavy tests need

    tokens = {"boss": "ann admin", "one": "bob", "two": "cid", "look": "dan read-only"}
    with served_rollouts(tmp_path_factory.mktemp("served"), tokens=tokens) as made:
        yield made
