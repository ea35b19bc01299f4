"""The file of the service: who may have it, what a full disk does, and what is in it after a kill at any moment."""

import asyncio
import contextlib
import os
import random
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gymhost.server.rollouts.store import JobStore, StoreError
from gymhost.wire import errors
from support.job_process import REQUESTS
from support.jobs import World, job, numbers, served

pytestmark = pytest.mark.heavy


def modes(folder: Path) -> list[int]:
    return [stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()]


def contents(folder: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in folder.iterdir()}


async def test_what_is_remembered_is_there_the_next_time(tmp_path: Path) -> None:
    path = tmp_path / "jobs.sqlite"
    with contextlib.closing(JobStore(path)) as store:
        assert store.recall("generators") is None
        await asyncio.gather(*(store.remember(f"some {number}", b"%d" % number) for number in range(20)))
        await store.remember("generators", b"one")
        await store.remember("some 3", None)
    with contextlib.closing(JobStore(path)) as store:
        assert (store.recall("generators"), store.recall("some 4"), store.recall("some 3")) == (b"one", b"4", None)
        assert set(modes(tmp_path)) == {0o600}


async def test_a_file_that_others_could_read_is_made_its_users_alone(tmp_path: Path) -> None:
    path = tmp_path / "jobs.sqlite"
    with contextlib.closing(JobStore(path)) as store:
        await store.remember("generators", b"with a key")
        kept = contents(tmp_path)
    # As a service leaves it that was killed: with what SQLite has beside it.
    for file, data in kept.items():
        file.write_bytes(data)
        file.chmod(0o600 if file.suffix == ".lock" else 0o644)
    assert len(kept) == 4
    with contextlib.closing(JobStore(path)) as store:
        assert store.recall("generators") == b"with a key"
        assert modes(tmp_path) == [0o600] * 4
    # A file of others stays as it is.
    other = tmp_path / "other.sqlite"
    with contextlib.closing(sqlite3.connect(other)) as db:
        db.execute("CREATE TABLE mine (x)")
    other.chmod(0o644)
    with pytest.raises(StoreError, match="no store"):
        JobStore(other)
    assert stat.S_IMODE(other.stat().st_mode) == 0o644


def test_a_file_that_is_in_use_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "jobs.sqlite"
    in_use = pytest.raises(StoreError, match=rf"jobs.sqlite is in use \(by process {os.getpid()}\)")
    with contextlib.closing(JobStore(path)), in_use:
        JobStore(path)
    JobStore(path).close()


def test_files_of_others_and_of_later_versions_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "jobs.sqlite"
    JobStore(path).close()
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreError, match="version 99"):
        JobStore(path)
    other = tmp_path / "other.sqlite"
    with contextlib.closing(sqlite3.connect(other)) as db:
        db.execute("CREATE TABLE mine (x)")
    with pytest.raises(StoreError, match="no store of a rollout service"):
        JobStore(other)
    text = tmp_path / "text"
    text.write_text("this is no database at all" * 100)
    with pytest.raises(StoreError, match="text can't be read"):
        JobStore(text)
    with pytest.raises(StoreError, match="can't be opened"):
        JobStore(tmp_path / "nowhere" / "jobs.sqlite")


async def test_on_a_full_disk_nothing_is_told_that_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gymhost.server.rollouts.database._COMMIT_SECONDS", 0.2)
    monkeypatch.setattr("gymhost.server.rollouts.database._TRY_AGAIN_SECONDS", 0.05)
    world = World()
    world.held = {7}
    async with served(tmp_path, world) as service:
        first = await service.submit(job("a", range(3)))
        second = await service.submit(job("c", [7]))
        await service.ended(first)
        await asyncio.wait_for(world.turned[7].wait(), 10)

        pages = (await service.store.read(lambda db: db.execute("PRAGMA page_count").fetchone()))[0]
        await service.store.read(lambda db: db.execute(f"PRAGMA max_page_count = {pages}").fetchone())
        with pytest.raises(errors.ServerFault, match="full"):
            await service.submit(job("b", range(3000)))
        assert sorted(numbers(await service.results(first))) == [0, 1, 2]
        assert [told.key for told in service.jobs.list("me")] == ["c", "a"]
        world.release()
        while service.engine.status().in_flight > 0:  # noqa: ASYNC110 - what is waited for is the engine's
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.05)
        assert (service.look(second).terminated, await service.there(second)) == (0, [])
        await service.store.read(lambda db: db.execute("PRAGMA max_page_count = 1000000").fetchone())
        told, known = await service.jobs.submit("me", job("b", range(3000)))
        assert known
        assert numbers(await service.results(second)) == [0]
        service._sizes[told.id] = 3000
        assert told.queued + told.in_flight + told.terminated == 3000
        await service.cancel(told)


async def test_what_can_never_be_written_is_a_failure_of_the_service(tmp_path: Path) -> None:
    store = JobStore(tmp_path / "jobs.sqlite")
    store.change("this is no statement")
    with pytest.raises(errors.ServerFault, match="syntax error"):
        await store.commit()
    assert "syntax error" in await store.failed()
    with pytest.raises(errors.ServerFault, match="written no more"):
        store.change("SELECT 1")
    store.close()


@pytest.mark.timeout(180)
def test_nothing_is_lost_and_nothing_comes_twice_when_it_is_killed_at_any_moment(tmp_path: Path) -> None:
    path, notes = tmp_path / "jobs.sqlite", tmp_path / "notes"
    notes.touch()
    dice = random.Random(11)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "PYTHONHASHSEED": "0"}
    with subprocess.Popen(
        [sys.executable, "-m", "support.job_process", str(path), str(notes)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        kills = 0
        while True:
            before = len(notes.read_text().splitlines())
            process.stdin.write("\n")
            process.stdin.flush()
            child = int(process.stdout.readline())
            # Not before it has begun to do something; then at any moment.
            deadline = time.monotonic() + 30
            while len(notes.read_text().splitlines()) == before and time.monotonic() < deadline:
                time.sleep(0.002)
            if kills < 6:
                time.sleep(dice.random() * 0.12)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
                kills += 1
            status = int(process.stdout.readline())
            if status != signal.SIGKILL:
                break
        process.stdin.close()
    assert status == 0
    assert kills >= 4

    lines = [line.split() for line in notes.read_text().splitlines() if line.strip()]
    assert lines[-1] == ["ended"]
    jobs = {(line[1], line[2]) for line in lines if line[0] == "submitted"}
    assert {key for key, _ in jobs} == {request.key for request in REQUESTS}
    assert len(jobs) == len(REQUESTS)  # each submission gave the same job
    # Each result is always the same one, under the same cursor, and does not come again once it was acknowledged.
    sent: dict[str, tuple[str, ...]] = {}
    cursors: dict[str, str] = {}
    acknowledged: set[str] = set()
    for what, *rest in lines:
        if what == "sent":
            cursor, rollout, digest = rest
            assert sent.setdefault(rollout, (cursor, digest)) == (cursor, digest)
            assert cursors.setdefault(cursor, rollout) == rollout
            assert cursor not in acknowledged
        elif what == "acknowledged":
            acknowledged.update(rest)
    # Whatever was told of a job stays true.
    for key, *_ in jobs:
        counts = [[int(number) for number in line[2:]] for line in lines if line[:2] == ["counted", key]]
        assert all(total == counts[0][1] for _, total, _ in counts)
        assert [ended for ended, _, _ in counts] == sorted(ended for ended, _, _ in counts)
        assert [kept for _, _, kept in counts] == sorted(kept for _, _, kept in counts)
    plain = next(job for key, job in jobs if key == "plain")
    groups = next(job for key, job in jobs if key == "groups")
    assert {rollout for rollout in sent if rollout.startswith(plain)} == {f"{plain}/{number}" for number in range(120)}
    of_groups = [int(rollout.partition("/")[2]) // 4 for rollout in sent if rollout.startswith(groups)]
    assert all(of_groups.count(group) == 3 for group in of_groups)
    kept = max(int(line[4]) for line in lines if line[:2] == ["counted", "groups"])
    assert 0 < len(set(of_groups)) >= kept > 10
