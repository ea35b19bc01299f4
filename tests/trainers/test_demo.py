"""The demo, run as `make demo` runs it, with next to nothing of everything."""

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.heavy

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(240)
def test_quick_demo_tells_its_story_and_leaves_what_it_says(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "examples.demo", "--quick", "--seed", "3", "--output", str(tmp_path)]
    result = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, timeout=200)
    assert result.returncode == 0, (result.stdout + result.stderr)[-5000:]
    for player in ("scripted play", "after SFT", "after GRPO", "best possible"):
        assert re.search(rf"{player} +│ \d\.\d\d\d", result.stdout), result.stdout
    assert "3 steps" in " ".join(result.stdout.split())
    assert (tmp_path / "learning-curve.png").read_bytes().startswith(b"\x89PNG")
    games = (tmp_path / "games.txt").read_text()
    assert games.count("== after GRPO") == 3
    assert "guess(number=" in games
    # The server has gone with the demo.
    (port,) = re.findall(r"listens on 127\.0\.0\.1:(\d+)", result.stdout)
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", int(port))) != 0
