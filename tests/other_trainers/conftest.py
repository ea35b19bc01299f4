# pyright: reportMissingImports=false
"""What verl and SkyRL need to be imported on a machine without a GPU, and a model that samples in their place."""

import importlib
import importlib.util
import os
import sys
import typing
import warnings
from collections.abc import AsyncGenerator
from typing import Any

import pytest
import typing_extensions

# They pin what others need newer: these tests have a virtual environment of their own.
collect_ignore_glob = [] if importlib.util.find_spec("verl") else ["test_*.py"]

# On shared cores threads that wait for each other cost more than they bring.
os.environ.setdefault("OMP_NUM_THREADS", "1")

if sys.version_info < (3, 12):
    # SkyRL asks for Python 3.12 on account of pydantic, which takes no other typed dicts before that.
    typing.TypedDict = typing_extensions.TypedDict  # pyright: ignore

if not collect_ignore_glob:
    with warnings.catch_warnings(action="ignore"):  # Ray's modules warn of each other
        importlib.import_module("verl.experimental.agent_loop.agent_loop")
        importlib.import_module("skyrl.train.generators.base")

from support.fixtures import server, start_server  # noqa: E402

__all__ = ["server", "start_server"]


@pytest.fixture
async def sampler() -> AsyncGenerator[Any]:
    """The tiny model, which plays GuessNumber."""
    from gymhost.rollout.generators import TransformersGenerator
    from support.models import player

    generator = TransformersGenerator(player(), seed=0, policy_version=3)
    yield generator
    await generator.aclose()
