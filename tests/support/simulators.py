"""Prepares what Gymnasium's environments of simulators and games need; a conftest of tests with them imports it."""

import importlib
import os
import warnings

import ale_py
import gymnasium
import pytest

gymnasium.register_envs(ale_py)

with warnings.catch_warnings():
    # SWIG's own, which would end the process where it is an error.
    warnings.filterwarnings("ignore", "builtin type .* has no __module__ attribute", DeprecationWarning)
    importlib.import_module("Box2D")  # so that no test is the first to import it

# MuJoCo looks for a screen unless told that there is none.
os.environ["MUJOCO_GL"] = "egl"


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Runs each test in a folder of its own, for what environments write."""
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
