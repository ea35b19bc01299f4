"""The GRPO trainer of the examples: a model that knows nothing learns a game of words."""

import asyncio
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.command import environment, serving
from support.models import save_tiny_qwen3

pytestmark = pytest.mark.heavy

EXAMPLE = Path(__file__).parents[2] / "examples" / "grpo.py"


@pytest.fixture(scope="module")
def grpo() -> Any:
    spec = importlib.util.spec_from_file_location("grpo", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    save_tiny_qwen3(folder)
    return folder


def trained(grpo: Any, model: Path, output: Path, *arguments: str) -> list[dict[str, Any]]:
    """Trains on an embedded server, and returns what was logged of the steps."""
    game = ["--module", "support.text_environments", "--env", "test/Letters-v0", "--renderer", "qwen3"]
    sizes = ["--groups", "4", "--size", "8", "--turn-tokens", "12", "--context", "128", "--learning-rate", "5e-3"]
    given = [str(model), "--output", str(output), *game, *sizes, *arguments]
    asyncio.run(grpo.main(grpo.arguments(given)))
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


def mean(steps: list[dict[str, Any]], name: str = "reward") -> float:
    return sum(step[name] for step in steps) / len(steps)


@pytest.mark.timeout(90)
def test_it_learns(grpo: Any, model: Path, tmp_path: Path) -> None:
    steps = trained(grpo, model, tmp_path, "--steps", "24")
    assert [step["step"] for step in steps] == list(range(1, 25))
    assert mean(steps[-4:]) > mean(steps[:4]) + 0.3
    assert steps[-1]["test"] is not None  # tasks that were not trained on
    # What is trained is what sampled: also across the rollouts that share a line, and the turns of a rollout.
    assert all(abs(step[name] - 1) < 1e-3 for step in steps for name in ("ratio", "ratio_low", "ratio_high"))
    assert all(step["failed"] == 0 for step in steps)


@pytest.mark.timeout(90)
def test_rollouts_go_on_while_it_trains_and_it_can_be_resumed(grpo: Any, model: Path, tmp_path: Path) -> None:
    asynchronous = ["--staleness", "2", "--epochs", "2", "--extra", "2", "--save-every", "2", "--test-tasks", "2"]
    trained(grpo, model, tmp_path, "--steps", "3", *asynchronous)
    assert sorted(path.name for path in tmp_path.glob("step-*")) == ["step-2", "step-3"]

    with pytest.raises(SystemExit, match="--resume"):
        trained(grpo, model, tmp_path, "--steps", "5", *asynchronous)
    steps = trained(grpo, model, tmp_path, "--steps", "5", "--resume", *asynchronous)
    assert [step["step"] for step in steps] == [1, 2, 3, 4, 5]
    # Rollouts that are behind the weights have ratios of their own; the first ones are not behind.
    assert abs(steps[0]["ratio"] - 1) < 1e-3
    assert any(abs(step["ratio_high"] - 1) > 1e-3 for step in steps[1:])
    state = grpo.load_file(tmp_path / "step-5" / "optimizer.safetensors")
    assert all(float(tensor) == 2 * 5 for name, tensor in state.items() if name.endswith(".step"))


@pytest.mark.timeout(120)
def test_it_trains_the_small_model_on_a_server_elsewhere(grpo: Any, tmp_path: Path) -> None:
    """The commands of its docstring, a little of each."""
    made = subprocess.run(
        [sys.executable, "-m", "examples.small_model", str(tmp_path / "model"), "--games", "40", "--steps", "4"],
        check=False,
        capture_output=True,
        text=True,
        timeout=100,
        cwd=EXAMPLE.parents[1],
        env=environment(),
    )
    assert made.returncode == 0, made.stderr
    with serving() as server:
        game = ["--kwargs", '{"low": 1, "high": 7, "guesses": 3}', "--renderer", "qwen3", "--server", server.address]
        small = ["--steps", "1", "--groups", "2", "--size", "4", "--test-tasks", "2"]
        asyncio.run(grpo.main(grpo.arguments([str(tmp_path / "model"), "--output", str(tmp_path), *game, *small])))
    [step] = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert abs(step["ratio"] - 1) < 1e-3
    assert step["failed"] == 0


def test_a_split_that_is_not_there_is_told_at_once(grpo: Any, model: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no split 'exam', but train, test"):
        trained(grpo, model, tmp_path, "--steps", "1", "--test-split", "exam")
