"""The examples that train on vectors, a little of each."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.command import environment, serving

pytestmark = pytest.mark.heavy

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, *arguments: str) -> str:
    result = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=55,
        env=environment(),
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return result.stdout


def test_stable_baselines3_trains_on_a_server():
    with serving() as server:
        said = run("sb3_ppo.py", "--server", server.address, "--steps", "512")
    assert re.search(r"^Not solved after 512 steps, [0-9.]+ s\nMean return of 100 episodes more: [0-9.]+ ", said, re.M)


def test_ppo_in_one_file_trains_on_a_server_of_its_own():
    said = run("cleanrl_ppo.py", "--steps", "5120")
    first, second, last = said.splitlines()
    learned = [float(line.split()[-1]) for line in (first, second)]
    assert first.startswith("   2560 steps ")
    assert learned[0] < learned[1]
    assert last.startswith("Mean return of 100 episodes with the best actions: ")
    assert float(last.split()[-1]) > learned[0]
