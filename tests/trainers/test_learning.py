"""Short runs that must learn: small models, TRL's trainer and vLLM, environments behind gRPC.

They are the runs of `python -m examples.learning`, whose full curves are in the README, run as that runs them.
"""

import json
import subprocess
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

pytestmark = pytest.mark.heavy

ROOT = Path(__file__).parents[2]


def run(folder: Path, name: str, *options: str) -> dict[str, Any]:
    """Has a run done in its short form, and returns its figures."""
    command = [sys.executable, "-m", "examples.learning", "--runs", name, "--seeds", "0", "--short", *options]
    command += ["--output", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT) as process:
        try:
            said, _ = process.communicate(timeout=540)
        finally:
            process.terminate()  # it ends what it started
    assert process.returncode == 0, said[-5000:]
    assert "| run | seed |" in said
    assert (folder / "learning_curves.png").read_bytes().startswith(b"\x89PNG")
    (result,) = json.loads((folder / "learning_curves.json").read_text())["results"]
    return result


def check_ratios(result: dict[str, Any]) -> None:
    """Asserts that vLLM sampled from the very model that was trained, in each step."""
    assert result["ratios"]
    for step in result["ratios"]:
        assert step == [pytest.approx(1.0, abs=0.01)] * 3


def rise(result: dict[str, Any], label: str) -> float:
    """By how much more often games were won in the last steps of the training than in the first ones."""
    won = result["environments"][label]["won"]
    third = len(won) // 3
    return fmean(won[-third:]) - fmean(won[:third])


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "options", "least"),
    [
        ("guess_number", [], {"GuessNumber": 0.05}),
        ("text_game", ["--mode", "server"], {"House": 0.08}),
        ("sandbox", [], {"Chores": 0.08}),
        ("mix", [], {"House": 0.08, "Chores": 0.08}),
    ],
    ids=["GuessNumber", "a text game by a vLLM server", "in sandboxes", "two environments mixed"],
)
def test_a_small_model_learns(tmp_path: Path, name: str, options: list[str], least: dict[str, float]) -> None:
    result = run(tmp_path, name, *options)
    check_ratios(result)
    for label, wanted in least.items():
        assert rise(result, label) >= wanted, result["environments"][label]["won"]
