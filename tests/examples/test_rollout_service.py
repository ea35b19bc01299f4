"""The examples of a rollout service, which is a process of its own here, with a stand-in for vLLM."""

import asyncio
import importlib
import itertools
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from gymhost.rollout.service import RolloutClient
from support.command import environment
from support.completions_server import choice
from support.models import save_tiny_qwen3
from support.served_rollouts import served_rollouts
from support.tokenizers import call, encode

pytestmark = pytest.mark.heavy

EXAMPLES = Path(__file__).parents[2] / "examples"


async def run(*command: str) -> str:
    """Runs an example to its end, and returns what it said."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *command),
        cwd=EXAMPLES.parent,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1"),
    )
    try:
        async with asyncio.timeout(200):
            said, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, errors.decode()
    return said.decode()


@pytest.mark.timeout(240)
async def test_all_that_a_trainer_asks_of_a_service(tmp_path: Path) -> None:
    numbers = itertools.count()
    with served_rollouts(tmp_path) as served:
        served.sampler.server.answer = lambda _body: choice(
            encode(call("guess", f'{{"number": {1 + 3 * next(numbers) % 7}}}'))
        )
        lines = (await run(str(EXAMPLES / "rollout_service.py"), served.address)).splitlines()
    assert lines[0] == "gymhost/GuessNumber-v0 has 1000000 tasks in train, 500 tasks in test"
    played = [re.fullmatch(r"task (\d), rollout (\d): terminated, -?[\d.]+", line) for line in lines[1:6]]
    assert len({match.groups() for match in played if match is not None}) == 5
    assert lines[6:8] == [
        "12 more, and 12 of them are kept until they are in safety",
        "the job is finished, and keeps 0",
    ]
    groups = [re.fullmatch(r"task \d+: rewards \[(.+)\], advantages \[.+\]", line) for line in lines[8:10]]
    assert all(len(set(match[1].split(", "))) > 1 for match in groups if match is not None)
    assert None not in groups
    assert lines[10] == "the job is cancelled"
    assert [line.rpartition(": ")[2].partition(",")[0] for line in lines[11:]] == ["cancelled", "finished", "finished"]


@pytest.mark.timeout(240)
@pytest.mark.filterwarnings("ignore")
def test_dapo_drops_groups_without_variance_and_carries_the_rest_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES.parent))
    dapo: Any = importlib.import_module("examples.dapo")
    save_tiny_qwen3(tmp_path / "model")
    numbers = itertools.count()

    def guess(_body: dict[str, Any]) -> Any:
        """Has four rollouts in a row guess four of fourteen numbers: most groups have but losers."""
        return choice(encode(call("guess", f'{{"number": {1 + 5 * next(numbers) % 14}}}')))

    with served_rollouts(tmp_path) as served:
        served.sampler.server.answer = guess
        sizes = [
            "--steps",
            "3",
            "--groups",
            "2",
            "--size",
            "4",
            "--turns",
            "1",
            "--turn-tokens",
            "64",
            "--test-tasks",
            "2",
        ]
        where = [str(tmp_path / "model"), "--service", served.address, "--output", str(tmp_path / "out")]
        game = ["--kwargs", '{"high": 14}', "--buffer", "8", "--context", "1024"]
        asyncio.run(dapo.main(dapo.arguments([*where, *sizes, *game])))
        with RolloutClient(served.address) as client:
            [tested, job] = client.call_sync(client.jobs())
            status = client.call_sync(client.status())
    steps = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert [step["step"] for step in steps] == [1, 2, 3]
    # Each had something to learn from all of its groups.
    assert all(step["tokens"] > 2 * 4 for step in steps)
    assert all(2 / 8 <= step["reward"] < 1 for step in steps)
    assert (job.state, job.open, job.target) == ("cancelled", True, 8)
    assert job.groups_kept >= 6
    assert job.groups_dropped > 0
    assert status.policy_version == 4
    assert [path.name for path in (tmp_path / "out" / "weights").iterdir()] == ["version-4"]
    assert (tested.state, tested.terminated + tested.truncated, steps[-1]["test"] is not None) == ("finished", 2, True)
