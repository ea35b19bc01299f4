"""The server that the tests of this folder talk to, on each of its two ways."""

import contextlib
import importlib
import os
import warnings
from collections.abc import Iterator

import ale_py
import gymnasium
import pytest

from gymhost import client
from support.fixtures import start_server
from support.vectors import MODULES, Remote

__all__ = ["start_server"]

gymnasium.register_envs(ale_py)

with warnings.catch_warnings():
    # SWIG's own, which would end the process where it is an error.
    warnings.filterwarnings("ignore", "builtin type .* has no __module__ attribute", DeprecationWarning)
    importlib.import_module("Box2D")  # so that no test is the first to import it

# MuJoCo looks for a screen unless told that there is none.
os.environ["MUJOCO_GL"] = "egl"


@pytest.fixture(scope="session", params=[True, False], ids=["direct", "grpc"])
def remote(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Remote]:
    """Makes vector environments on a server that all tests share: once straight to the workers, once through gRPC."""
    # MuJoCo writes a log to the current folder.
    with contextlib.chdir(tmp_path_factory.mktemp("server")):
        server = client.connect(modules=MODULES, direct=request.param).open()
    yield Remote(request.param)
    server.close()


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Runs each test in a folder of its own, for what environments write."""
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
