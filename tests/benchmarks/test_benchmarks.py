"""The harness itself: a very short run gives figures that can be true. How fast anything is, is no test's business."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
GYMHOST, STREAM = "gymhost, asyncio", "bare grpc.aio stream a session"
THREADS, GRPC = "gymhost RemoteEnv, threads", "gymhost over gRPC, asyncio"
ALL = [GYMHOST, STREAM, THREADS, GRPC]
WARM_UP, SECONDS, SIZES, IDLE = 0.5, 0.2, (1, 8), 40


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The figures of a run, with its report beside them."""
    output = tmp_path_factory.mktemp("benchmarks") / "run.jsonl"
    command = [sys.executable, "-m", "tests.benchmarks", "--rounds", "1", f"--seconds={SECONDS}"]
    command += [f"--sizes={','.join(map(str, SIZES))}", f"--sessions={IDLE}", f"--output={output}"]
    command += [f"--only={name}" for name in ALL]
    result = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, timeout=50)
    assert result.returncode == 0, result.stderr
    return output


@pytest.fixture(scope="module")
def records(output: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.read_text().splitlines()]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("contender", ALL)
def test_cell_has_figures_that_can_be_true(records: list[dict[str, Any]], contender: str, size: int):
    [cell] = [r for r in records if r["kind"] == "w1" and (r["contender"], r["sessions"]) == (contender, size)]
    assert "error" not in cell
    assert cell["steps"] == pytest.approx(cell["steps_per_second"] * SECONDS)
    # Half of the steps took the median or longer, and each session takes one at a time; the first began in the warm-up.
    longest = (WARM_UP + SECONDS) * 1e6
    assert 0 < cell["p50_us"] <= cell["p99_us"] <= longest
    assert cell["steps"] / 2 * cell["p50_us"] <= size * longest
    assert cell["client_us"] > 0
    assert 0 <= cell["others"] <= 1.1
    # Only gymhost has worker processes; and the front has no hand in the steps of a client on its host.
    if contender in (STREAM, GRPC):
        assert cell["front_us"] > 0
    assert (cell["workers_us"] > 0) == (contender != STREAM)


def test_idle_sessions_are_all_open_and_weighed(records: list[dict[str, Any]]):
    [idle] = [record for record in records if record["kind"] == "idle"]
    assert idle["held"] == IDLE
    assert idle["alive"] == idle["sample"] == IDLE
    for part in ("front", "workers", "client"):
        assert idle[f"{part}_before_kib"] > 1024
        grown = idle[f"{part}_twice_kib"] - idle[f"{part}_before_kib"]
        assert idle[f"{part}_first_kib_a_session"] + idle[f"{part}_second_kib_a_session"] == pytest.approx(grown / IDLE)


def test_report_has_cells_and_ratios(output: Path):
    report = output.with_suffix(".md").read_text()
    for name in ALL:
        for size in SIZES:
            assert f"| {name} | {size} |" in report
    assert f"| latency, p50: {GYMHOST} / {STREAM} | 1 |" in report
    assert f"## {IDLE} idle sessions" in report
