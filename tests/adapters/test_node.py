"""The client in Node, which is made from the .proto files alone."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gymhost.client import make
from gymhost.envs.shelf.scripted import call
from support.server import TESTS, ServerProcess

pytestmark = [pytest.mark.adapter("node"), pytest.mark.timeout(240)]

ROOT = TESTS.parent


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, with what it needs installed."""
    folder = tmp_path_factory.mktemp("node")
    for file in (ROOT / "examples/node").iterdir():
        if file.is_file():
            shutil.copy(file, folder)
    npm = shutil.which("npm") or "npm"
    subprocess.run([npm, "install", "--no-audit", "--no-fund", "--ignore-scripts"], cwd=folder, check=True, timeout=180)
    return folder


def run(example: Path, address: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    variables = {**os.environ, "GYMHOST_PROTO": str(ROOT / "proto"), **variables}
    command = [shutil.which("node") or "node", "play.js", address]
    return subprocess.run(command, cwd=example, env=variables, capture_output=True, text=True, timeout=60)


def test_it_plays_by_unary_calls_and_by_the_stream(example: Path) -> None:
    with ServerProcess(modules=[], tokens={"secret": "node"}) as server:
        said = run(example, server.address, GYMHOST_TOKEN="secret")
        assert (said.returncode, said.stderr) == (0, "")
        unary, *streamed = map(json.loads, said.stdout.splitlines())
        assert (unary["way"], unary["tools"], [one["way"] for one in streamed]) == ("unary", ["guess"], ["stream"] * 2)
        env = make("gymhost/GuessNumber-v0", server=server.address, token="secret")
        for told, task in ((unary, 3), *zip(streamed, (3, 4), strict=True)):
            observation, _ = env.reset(seed=1, options={"task": task})
            assert told["prompt"] == observation[0]["content"]
            reward: Any = None
            info: dict[str, Any] = {}
            for number in told["guesses"]:
                observation, reward, *_, info = env.step(call("guess", number=number))
            assert (told["reply"], told["reward"], told["info"]) == (observation[0]["content"], reward, info)
        env.close()
        refused = run(example, server.address, GYMHOST_TOKEN="wrong")
        assert refused.returncode == 1
        assert "token" in refused.stderr
