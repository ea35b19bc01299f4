"""The example, run as its reader runs it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.command import environment
from support.server import ServerProcess

EXAMPLE = Path(__file__).parents[2] / "examples/rllib_ppo.py"

pytestmark = pytest.mark.timeout(240)


def test_rllib_ppo_tells_how_it_gets_on(server: ServerProcess):
    options = ["--server", server.address, "--iterations", "2", "--num-envs", "4"]
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), *options],
        check=False,
        capture_output=True,
        text=True,
        timeout=200,
        env=environment(),
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("iteration")]
    assert [re.split(r":? +", line)[1] for line in lines] == ["1", "2"]
    assert re.search(r" 8,\d{3} steps .* of the last 100 episodes +\d+\.\d$", lines[1])
