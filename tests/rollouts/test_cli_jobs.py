"""`gymhost jobs`: jobs of a rollout service from the command line."""

import asyncio
import io
import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from gymhost.cli.app import gymhost as command
from gymhost.cli.jobs_watch import line_of, panel_of, watch
from gymhost.rollout import RolloutRequest, Store
from gymhost.rollout.service import JobStatus, RolloutClient
from support.command import COMMAND, environment
from support.served_rollouts import ServedRollouts
from support.server import PATIENCE

pytestmark = pytest.mark.heavy

REQUESTS = [RolloutRequest("gymhost/GuessNumber-v0", task=task) for task in range(3)]


@pytest.fixture
def rollouts(served: ServedRollouts) -> Iterator[RolloutClient]:
    with RolloutClient(served.address, "one") as client:
        yield client


def jobs(served: ServedRollouts, *arguments: str, token: str = "one") -> Result:
    variables = {"GYMHOST_ROLLOUTS": served.address, "GYMHOST_TOKEN": token}
    return CliRunner().invoke(command, ["jobs", *arguments], env=variables)


def said(result: Result) -> str:
    assert result.exit_code == 0, result.output
    return result.output


def test_jobs_are_listed_shown_paused_and_cancelled(served: ServedRollouts, rollouts: RolloutClient):
    served.sampler.hold(True)
    try:
        job = rollouts.call_sync(rollouts.submit(REQUESTS, samples=2, key="run 1/step 2", label="second\x1b[31m step"))
        head, *lines = said(jobs(served, "list")).splitlines()
        assert head.split()[:3] == ["ID", "STATE", "DONE"]
        [line] = [line for line in lines if line.startswith(job.id[:12])]
        assert line.endswith("second\ufffd[31m step")
        assert job.id[:12] not in said(jobs(served, "list", "--state", "expired"))
        [listed] = json.loads(said(jobs(served, "list", "--json", "--limit", "1")))
        assert (listed["id"], listed["samples"], listed["state"] in ("queued", "running")) == (job.id, 2, True)
        assert "bob" in said(jobs(served, "list", "--all", token="boss"))
        shown = said(jobs(served, "show", "run 1/step 2", "--rollouts", "20"))
        for words in (f"Job {job.id}", "key:          run 1/step 2", "environment:  gymhost/GuessNumber-v0", "ROLLOUT"):
            assert words in shown
        assert shown.count(f"{job.id}/") == 6
        assert len(json.loads(said(jobs(served, "show", job.id[:8], "--json", "--rollouts", "4")))["rollouts"]) == 4
        assert said(jobs(served, "pause", job.id, "--in-flight")).startswith("paused, ")
        assert said(jobs(served, "resume", job.id)).strip() in ("queued", "running")
        assert said(jobs(served, "cancel", "run 1/step 2")) == "6 rollouts were ended or are not begun\n"
        rollouts.call_sync(rollouts.submit(REQUESTS))
        assert said(jobs(served, "cancel", "--all")) == "3 rollouts were ended or are not begun\n"
    finally:
        served.sampler.hold(False)
    terminal = Console(file=io.StringIO(), force_terminal=True)
    assert watch(rollouts, job, terminal) == 1
    assert isinstance(terminal.file, io.StringIO)
    assert "6 of 6" in terminal.file.getvalue()
    ended = jobs(served, "watch", job.id)
    assert ended.exit_code == 1
    assert "cancelled: 6/6 done; 6 cancelled; 6 to fetch" in ended.output


def test_rollouts_are_kept_once_and_acknowledged_when_they_are_on_disk(
    served: ServedRollouts, rollouts: RolloutClient, tmp_path: Path
):
    job = rollouts.call_sync(rollouts.submit(REQUESTS, samples=2, key="to keep"))
    folder = tmp_path / "kept"
    assert jobs(served, "watch", "to keep").exit_code == 0
    # As one who was killed after the first two were written, and before that was acknowledged.
    with Store.create(folder, {"job": job.id, "key": "to keep"}) as store:
        results = rollouts.iterate_sync(job.results(acknowledge=False))
        for _ in range(2):
            store.append(next(results))
    output = ("--output", str(folder))
    assert said(jobs(served, "fetch", "to keep", "--no-wait", *output)) == f"4 rollouts fetched, 6 in {folder}\n"
    assert said(jobs(served, "fetch", "to keep", *output)) == f"0 rollouts fetched, 6 in {folder}\n"
    kept = list(Store.open(folder))
    assert sorted((each.task, each.index) for each in kept) == [
        (task, index) for task in range(3) for index in range(2)
    ]
    assert rollouts.call_sync(job.status()).unacknowledged == 0
    other = rollouts.call_sync(rollouts.submit(REQUESTS[:1]))
    refused = jobs(served, "fetch", other.id, *output)
    assert (refused.exit_code, f"holds the rollouts of the job {job.id}: name another" in refused.output) == (1, True)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    refused = jobs(served, "fetch", other.id, "--output", str(tmp_path / "full"))
    assert "is not empty, and holds no store" in refused.output
    assert said(jobs(served, "fetch", other.id, "--output", str(tmp_path / "new"))).startswith("1 rollouts fetched")


def test_generators_and_weights(served: ServedRollouts):
    def by(*arguments: str) -> str:
        return said(jobs(served, *arguments, token="boss"))

    url = served.sampler.url
    assert by("generators", "list").splitlines()[1].split()[:2] == [url, url]
    assert by("announce", "3").startswith(f"version 3: {url}")
    added = by("generators", "add", "http://127.0.0.1:9", "--name", "gone")
    assert added.startswith("gone: ")
    listed = {each["name"]: each for each in json.loads(by("generators", "list", "--json"))}
    assert (listed[url]["policy_version"], listed[url]["current"], listed["gone"]["healthy"]) == (3, True, False)
    assert "not used" in by("generators", "list")
    by("generators", "drain", "gone", "--patience", "1")
    by("generators", "remove", "gone")
    assert "gone" not in by("generators", "list")
    denied = jobs(served, "generators", "remove", url)
    assert (denied.exit_code, "admin" in denied.output) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("show", "nonsense"), 1, "there is no job with the id or the key 'nonsense': `gymhost jobs list` shows them"),
        (("cancel",), 2, "say which: one or more JOBs, or --all"),
        (("cancel", "x", "--all"), 2, "say which"),
        (("generators", "add", "http://x:1", "--api-key-env", "NOT_SET"), 2, "NOT_SET is not set"),
        (("fetch", "x"), 2, "--output"),
    ],
)
def test_errors_say_what_to_do(served: ServedRollouts, arguments: tuple[str, ...], code: int, words: str):
    result = jobs(served, *arguments)
    assert result.exit_code == code
    assert words in result.output


def test_which_service_must_be_said():
    result = CliRunner().invoke(command, ["jobs", "list"], env={"GYMHOST_ROLLOUTS": ""})
    assert (result.exit_code, "GYMHOST_ROLLOUTS=HOST:PORT" in result.output) == (2, True)


async def test_ctrl_c_ends_the_watching_alone(served: ServedRollouts):
    served.sampler.hold(True)
    try:
        async with RolloutClient(served.address, "one") as rollouts:
            job = await rollouts.submit(REQUESTS, key="watched")
            watching = await asyncio.create_subprocess_exec(
                *(*COMMAND, "jobs", "watch", "watched", "--server", served.address, "--token", "one"),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment(),
            )
            assert watching.stderr is not None
            async with asyncio.timeout(PATIENCE):
                first = await watching.stderr.readline()
                watching.send_signal(signal.SIGINT)
                _, stderr = await watching.communicate()
            assert b" s  0/3 done; " in first
            assert (watching.returncode, b"the job goes on" in stderr) == (130, True)
            assert not (await job.status()).over
            await job.cancel()
    finally:
        served.sampler.hold(False)


STATUS: dict[str, Any] = {
    **dict.fromkeys(JobStatus.__slots__, 0),
    "id": "a",
    "key": "k",
    "identity": "bob",
    "label": "first",
    "state": "running",
    "env_id": "x",
    "open": False,
    "queued": 5,
    "in_flight": 3,
    "terminated": 2,
    "truncated": 1,
    "failed": 1,
    "dropped": 4,
    "retries": 2,
    "mean_reward": 0.25,
    "rewarded": 3,
    "unacknowledged": 4,
    "last_fault": "Oh\x1b[2J no",
    "waits_for": "a server",
    "target": None,
    "begun": None,
    "ended": None,
    "time_left": None,
}


def test_what_is_shown_while_a_job_is_watched():
    status = JobStatus(**STATUS)
    assert line_of(status, 0.5) == (
        "8/16 done; 3 in flight; 0.50/s; reward 0.250; 1 failed; 2 tried again; 4 to fetch; waits for a server"
    )
    for width in (60, 80, 120):
        console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
        console.print(panel_of(status, 0.5))
        assert isinstance(console.file, io.StringIO)
        shown = console.file.getvalue()
        assert all(len(line) <= width for line in shown.splitlines())
        for words in (
            "8 of 16, 0.50/s",
            "first, running",
            "3, 5 to begin",
            "0.250, of 3",
            "1 failed, 2 tried again",
            "a server",
        ):
            assert words in shown
        assert "\x1b[2J" not in shown
