"""The harness itself: a very short run gives figures that can be true. How fast anything is, is no test's business."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
GYMHOST, STREAM = "gymhost, asyncio", "bare grpc.aio stream a session"
THREADS, GRPC = "gymhost RemoteEnv, threads", "gymhost over gRPC, asyncio"
W1, SIZES = [GYMHOST, STREAM, THREADS, GRPC], (1, 8)
SYNC, VECTOR, LONE = "SyncVectorEnv", "gymhost make_vec over gRPC", "gymhost RemoteEnv over gRPC"
# Each with its copies. A name chooses those, too, that it is a part of.
W2 = [(SYNC, 64), (VECTOR, 64), (f"{SYNC}, Pong", 16), (f"{VECTOR}, Pong", 16), (LONE, 1)]
CREATE = "bubblewrap, create, first answer"
SHELLS = ["bare bash, echo", "bubblewrap, echo in a shell", "client over gRPC, echo in a shell"]
SANDBOXES = [(CREATE, 1), (CREATE, 8), *((name, 1) for name in SHELLS)]
ENGINE, LOCAL, LOCK_STEP = "gymhost engine", "gymhost engine, environments in its process", "lock-step batches"
TRL, TRL_ASYNC = "TRL's tool loop", "TRL's tool loop, async tools"
TRAINERS = ["TRL's environment_factory", "gymhost remote_environment in its place", "gymhost Environments"]
POOL, STAGES = "gymhost GeneratorPool: least load, affinity", "gymhost engine: stages with places of their own"
# By part, of so many rollouts: more than slots in the first, so that these can be full.
ROLLOUTS = {"slots": 70, "turn": 4, "overhead": 8}
WARM_UP, SECONDS, IDLE = 0.5, 0.2, 40


@dataclass
class Run:
    """What a run wrote."""

    records: list[dict[str, Any]]
    report: str


def run(folder: Path, what: str, *arguments: str, only: Sequence[str] = (), limit: float = 50.0) -> Run:
    output = folder / "run.jsonl"
    command = [sys.executable, "-m", "tests.benchmarks", what, "--rounds=1", f"--seconds={SECONDS}"]
    command += [*arguments, *(f"--only={name}" for name in only), f"--output={output}"]
    result = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, timeout=limit)
    assert result.returncode == 0, result.stderr
    records = [json.loads(line) for line in output.read_text().splitlines()]
    return Run(records, output.with_suffix(".md").read_text())


@pytest.fixture(scope="module")
def w1(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(tmp_path_factory.mktemp("w1"), "w1", f"--sizes={','.join(map(str, SIZES))}", only=W1)


@pytest.fixture(scope="module")
def w2(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(tmp_path_factory.mktemp("w2"), "w2", only=[SYNC, VECTOR, LONE])


def cell_of(run: Run, contender: str, size: int) -> dict[str, Any]:
    """A cell, of whose figures all have been looked at that can't be true of any."""
    [cell] = [r for r in run.records if (r.get("contender"), r.get("size")) == (contender, size)]
    assert "error" not in cell
    assert cell["steps"] == pytest.approx(cell["steps_per_second"] * SECONDS)
    assert 0 < cell["p50_us"] <= cell["p99_us"]
    assert cell["client_us"] > 0
    assert 0 <= cell["others"] <= 1.1
    assert f"| {contender} | {size} |" in run.report
    return cell


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("contender", W1)
def test_cell_of_w1_has_figures_that_can_be_true(w1: Run, contender: str, size: int):
    cell = cell_of(w1, contender, size)
    # Half of the steps took the median or longer, and each session takes one at a time; the first began in the warm-up.
    longest = (WARM_UP + SECONDS) * 1e6
    assert cell["p99_us"] <= longest
    assert cell["steps"] / 2 * cell["p50_us"] <= size * longest
    # Only gymhost has worker processes; and the front has no hand in the steps of a client on its host.
    if contender in (STREAM, GRPC):
        assert cell["front_us"] > 0
    assert (cell["workers_us"] > 0) == (contender != STREAM)


@pytest.mark.parametrize(("contender", "size"), W2)
def test_cell_of_w2_has_figures_that_can_be_true(w2: Run, contender: str, size: int):
    cell = cell_of(w2, contender, size)
    # All copies take a step together; those that count were begun and ended in the window.
    assert cell["steps"] % size == 0
    assert cell["steps"] / size / 2 * cell["p50_us"] <= SECONDS * 1e6
    # What runs in the client's process has no server.
    assert (cell["front_us"] > 0) == (cell["workers_us"] > 0) == (SYNC not in contender)


def test_idle_sessions_are_all_open_and_weighed(tmp_path: Path):
    said = run(tmp_path, "idle", f"--sessions={IDLE}")
    [idle] = [record for record in said.records if record["kind"] == "idle"]
    assert idle["held"] == IDLE
    assert idle["alive"] == idle["sample"] == IDLE
    for part in ("front", "workers", "client"):
        assert idle[f"{part}_before_kib"] > 1024
        grown = idle[f"{part}_twice_kib"] - idle[f"{part}_before_kib"]
        assert idle[f"{part}_first_kib_a_session"] + idle[f"{part}_second_kib_a_session"] == pytest.approx(grown / IDLE)
    assert f"## {IDLE} idle sessions" in said.report


@pytest.fixture(scope="module")
def sandboxes(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder, idle = tmp_path_factory.mktemp("sandboxes"), ("--bubblewrap-sandboxes=5", "--docker-sandboxes=0")
    return run(folder, "sandboxes", *idle, only=sorted({name for name, _ in SANDBOXES}))


@pytest.mark.parametrize(("contender", "size"), SANDBOXES)
def test_cell_of_sandboxes_has_figures_that_can_be_true(sandboxes: Run, contender: str, size: int):
    [cell] = [r for r in sandboxes.records if (r.get("contender"), r.get("size")) == (contender, size)]
    assert "error" not in cell
    assert 0 < cell["p50_us"] <= cell["p99_us"]
    # What undoes a call is between calls.
    elapsed = cell["steps"] / cell["steps_per_second"]
    assert elapsed >= SECONDS
    assert cell["steps"] / 2 * cell["p50_us"] <= size * elapsed * 1e6
    assert f"| {contender} | {size} |" in sandboxes.report


def test_idle_sandboxes_are_all_alive_and_weighed(sandboxes: Run):
    [idle] = [record for record in sandboxes.records if record["kind"] == "idle sandboxes"]
    assert idle["answered"] == idle["count"] == 5
    # A shell at least, and what it takes.
    assert idle["processes_each"] >= 1
    assert idle["pss_bytes_each"] > 100_000
    assert "| bubblewrap | 5 | 5 |" in sandboxes.report


@pytest.mark.docker
def test_an_engine_is_started_for_the_sandboxes_of_docker(tmp_path: Path):
    said = run(tmp_path, "sandboxes", "--bubblewrap-sandboxes=0", "--docker-sandboxes=2", only=["docker, echo"])
    [cell] = [record for record in said.records if record["kind"] == "sandboxes"]
    assert cell["steps"] > 0
    [idle] = [record for record in said.records if record["kind"] == "idle sandboxes"]
    assert idle["answered"] == 2


def rollouts(folder: Path, *parts: str, in_flight: int = 0, only: Sequence[str]) -> Run:
    sizes = ",".join(str(size if part in parts else 0) for part, size in ROLLOUTS.items())
    settings = (f"--rollouts={sizes}", "--scale=0.01", f"--in-flight={in_flight}")
    return run(folder, "rollouts", *settings, only=only, limit=150.0)


@pytest.fixture(scope="module")
def slots(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return rollouts(tmp_path_factory.mktemp("slots"), "slots", in_flight=20, only=[ENGINE, LOCK_STEP])


@pytest.fixture(scope="module")
def turns(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return rollouts(tmp_path_factory.mktemp("turns"), "turn", "overhead", only=[ENGINE])


@pytest.fixture(scope="module")
def trl(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return rollouts(tmp_path_factory.mktemp("trl"), "slots", "turn", only=[TRL_ASYNC])


@pytest.fixture(scope="module")
def trl_sync(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return rollouts(tmp_path_factory.mktemp("trl-sync"), "overhead", only=[TRL])


def part_of(run: Run, part: str, contender: str) -> dict[str, Any]:
    """What a contender did in a part, of which has been looked at what can't be true of any."""
    [played] = [r for r in run.records if (r.get("part"), r.get("contender")) == (part, contender)]
    assert "error" not in played
    assert played["size"] == ROLLOUTS[part]
    assert played["turns"] == pytest.approx(played["seconds"] * played["turns_per_second"])
    if part == "slots":
        assert played["client_us"] > 0
        # A turn takes a hundredth of 4 s, and there are 64 slots.
        assert played["seconds"] > played["turns"] * 4 / 64 * 0.01
        # Only who asks for all at once is sure to fill the slots.
        assert contender == ENGINE if played["busy"] is None else 0 < played["busy"] <= 1
    else:
        assert played["turns"] == {"turn": 2, "overhead": 8}[part] * ROLLOUTS[part]
        assert played["seconds"] > {"turn": 0.5, "overhead": 0.0}[part]
    assert f"| {contender} | {ROLLOUTS[part]} |" in run.report
    return played


@pytest.mark.heavy
@pytest.mark.timeout(180)  # Importing torch and TRL alone takes each client many seconds of a busy machine.
class TestRollouts:
    @pytest.mark.parametrize("contender", [ENGINE, LOCK_STEP])
    def test_rollouts_that_keep_slots_busy_have_figures_that_can_be_true(self, slots: Run, contender: str):
        played = part_of(slots, "slots", contender)
        assert played["workers_us"] > 0
        assert (played["chat_us"] is None) == (contender == LOCK_STEP)

    @pytest.mark.parametrize(("part", "contender"), [("turn", ENGINE), ("overhead", LOCAL), ("overhead", ENGINE)])
    def test_rollouts_have_figures_that_can_be_true(self, turns: Run, part: str, contender: str):
        played = part_of(turns, part, contender)
        assert 0 < played["chat_us"] < played["seconds"] / played["turns"] * 1e6
        assert f"| client CPU us: {LOCAL} |" in turns.report

    def test_trl_plays_the_same_rollouts(self, trl: Run, slots: Run):
        turns = {part_of(slots, "slots", name)["turns"] for name in (ENGINE, LOCK_STEP)}
        assert turns == {part_of(trl, "slots", TRL_ASYNC)["turns"]}

    def test_trl_runs_tools_one_by_one(self, trl: Run):
        """Also those that could wait together."""
        assert part_of(trl, "turn", TRL_ASYNC)["seconds"] >= 0.5 * ROLLOUTS["turn"]

    def test_trl_plays_with_sync_tools(self, trl_sync: Run):
        part_of(trl_sync, "overhead", TRL)

    def test_rollouts_in_flight_all_finish_and_are_weighed(self, slots: Run):
        [held] = [record for record in slots.records if record["kind"] == "rollouts in flight"]
        assert held["finished"] == held["count"] == 20
        # What 600 tokens take, four numbers each, at the least.
        assert held["client_fourth_kib_each"] - held["client_first_kib_each"] > 600 * 4 * 8 / 1024
        assert "### 20 rollouts in flight" in slots.report


@pytest.mark.heavy
@pytest.mark.timeout(180)  # as above
def test_steps_of_trainers_have_times_that_can_be_true(tmp_path: Path):
    said = run(tmp_path, "training", "--training=2,0", limit=170.0)
    steps = {record["contender"]: record for record in said.records if record["kind"] == "training"}
    assert list(steps) == TRAINERS
    for name, step in steps.items():
        assert "error" not in step
        assert step["turns"] == 2 * 4
        # TRL calls the tools of both rollouts one after another, three times.
        assert (1 if name == TRAINERS[2] else 2) * 3 * 0.5 < step["rollout_seconds"] < step["seconds"]
        assert f"| {name} | 2 | {step['seconds']:.2f} |" in said.report
    assert steps[TRAINERS[2]]["rollout_seconds"] < 2 * 3 * 0.5


def simulated(folder: Path, what: str, *contenders: str) -> Run:
    """A short simulation, in which each of the contenders played."""
    said = run(folder, what, "--simulated=24", only=contenders, limit=100.0)
    played = [record for record in said.records if record["kind"] == what]
    assert {record["contender"] for record in played} == set(contenders)
    assert not any("error" in record for record in played)
    assert all(f"| {name} |" in said.report for name in contenders)
    return said


@pytest.mark.heavy
@pytest.mark.timeout(110)  # as above
def test_simulated_routing_has_figures_that_can_be_true(tmp_path: Path):
    counted = "assignment counter, 1,000 rollouts later"
    said = simulated(tmp_path, "routing", POOL, "round robin of requests", counted)
    after = {record["contender"]: record["after"] for record in said.records if record["kind"] == "routing"}
    for each in after.values():
        assert each["tokens_per_second"] > each["rollouts_per_second"] > 0
        # 128 rollouts at once, and a newcomer.
        assert 0 < sum(each["sequences"]) < 128
        assert each["sequences"][2] > 0
    # Who sends a rollout's turns here and there finds less of it there.
    assert after["round robin of requests"]["hits"] < min(after[POOL]["hits"], after[counted]["hits"])
    assert f"| tokens/s after: {POOL} / {counted} |" in said.report


@pytest.mark.heavy
@pytest.mark.timeout(110)  # as above
def test_simulated_stages_have_figures_that_can_be_true(tmp_path: Path):
    one = "one pool of 64 places, as RUN has"
    said = simulated(tmp_path, "stages", STAGES, one)
    for record in said.records:
        if record["kind"] == "stages":
            assert 0 < record["busy"] <= 1
            assert 0 < record["hits"] < 1
            assert record["tokens_per_second"] > 0
            assert record["run"] <= record["sessions"] + 1e-9
            # A rollout has a session from its INIT to its EVAL.
            assert record["run"] <= 64
            assert record["contender"] == STAGES or record["sessions"] == pytest.approx(64, abs=1)
    assert f"| tokens/s: {STAGES} / {one} |" in said.report


@pytest.mark.heavy
@pytest.mark.timeout(110)  # as above
def test_rollouts_of_the_service_have_costs_that_can_be_true(tmp_path: Path):
    said = run(tmp_path, "service", "--service=4,0,256", only=["gymhost rollout service"], limit=100.0)
    [played] = [record for record in said.records if record["kind"] == "service"]
    assert "error" not in played
    assert played["turns"] == 4 * 8
    for part in ("client", "service", "environments", "generator"):
        assert played[f"{part}_us"] >= 0
    # Who plays spends more than who only takes what has come of it.
    assert played["service_us"] > played["client_us"]
    assert "| gymhost rollout service | 4 |" in said.report


def test_report_has_what_was_wanted(w1: Run, w2: Run):
    assert f"| latency, p50 us: {GYMHOST} / {STREAM} | 1 |" in w1.report
    assert f"| steps/s: {VECTOR} / {SYNC} | 64 |" in w2.report
    # A contender against itself.
    assert f"| {SYNC} | 64 | {cell_of(w2, SYNC, 64)['steps_per_second']:,.0f} | 1.00 | none |" in w2.report
