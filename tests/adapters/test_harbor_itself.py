"""Task folders, hosted and run by Harbor itself: the same solutions get the same rewards."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gymhost.envs.shelf.scripted import call
from support.adapters import Host, Make
from support.harbor_tasks import apart

pytestmark = [pytest.mark.adapter("harbor"), pytest.mark.timeout(300)]

DATA = Path(__file__).parent / "data/harbor"
HARBOR = Path(sys.executable).with_name("harbor")
ENVIRONMENT = {**os.environ, "HARBOR_TELEMETRY": "off", "PYTHONPATH": str(Path(__file__).parents[1])}


def by_harbor(task: Path, agent: str, folder: Path) -> dict[str, float]:
    """Runs a task with Harbor, and returns the rewards."""
    command = ["run", "-p", str(task), "-a", agent, "--env", "support.harbor_room:Room", "-o", str(folder), "-q", "-y"]
    done = subprocess.run([HARBOR, *command], env=ENVIRONMENT, capture_output=True, text=True, timeout=120, check=False)
    results = [json.loads(path.read_text()) for path in folder.rglob("result.json")]
    [trial] = [result for result in results if "verifier_result" in result]
    assert trial["exception_info"] is None, (trial["exception_info"], done.stdout, done.stderr)
    return trial["verifier_result"]["rewards"]


def hosted(env: Any, *commands: str) -> tuple[float, dict[str, float]]:
    env.reset()
    for command in commands:
        env.step(call("bash", command=command))
    _, reward, _, _, info = env.step(call("submit"))
    return float(reward), info["verifier"]


def test_solutions_and_idlers_get_what_harbor_gives_them(host: Host, remote: Make, tmp_path: Path) -> None:
    new = tmp_path / "new"
    command = ["init", "acme/made", "--task", "-o", str(tmp_path), "--verifier-mode", "shared", "--no-pytest"]
    subprocess.run([HARBOR, *command], env=ENVIRONMENT, capture_output=True, check=True, timeout=60)
    (tmp_path / "made").rename(new)
    (new / "instruction.md").write_text("Write 6 times 7 to answer.txt.")
    (new / "solution/solve.sh").write_text("#!/bin/bash\necho 42 >answer.txt\n")
    verdict = "[[ $(cat answer.txt) == 42 ]] && echo 1 || echo 0"
    with (new / "tests/test.sh").open("a") as script:
        script.write(f"({verdict}) >/logs/verifier/reward.txt\n")
    tasks = {"new": new, "tally": DATA / "tally", "golf": DATA / "golf"}
    tasks["apart"] = apart(DATA / "tally", tmp_path / "apart")
    server = host(*(f"harbor:{task}?image=none" for task in tasks.values()))
    oracle: dict[str, Any] = {}
    for name, task in tasks.items():
        env = remote(server, f"harbor/{name}")
        reward, rewards = hosted(env, (task / "solution/solve.sh").read_text())
        assert rewards == by_harbor(task, "oracle", tmp_path / f"{name}-oracle")
        oracle[name] = reward
        assert hosted(env)[1] == by_harbor(task, "nop", tmp_path / f"{name}-nop")
    assert oracle["new"] == 1.0
    assert oracle["tally"] == 1.0
