"""Ending all that runs in a sandbox, and folders beside the usual ones."""

import asyncio
from pathlib import Path

import pytest

from gymhost.envs.sandbox import SandboxSpec
from gymhost.envs.sandbox.spec import MIB, Limits
from gymhost.wire.errors import InvalidArgument
from support.sandboxes import BACKENDS, fresh_sandbox

# Writes on and on, and bears all signals that it can.
STUBBORN = "trap '' INT TERM HUP; while :; do echo x >>beats; sleep 0.01; done"


@pytest.mark.parametrize("backend", BACKENDS)
async def test_halt_ends_all_that_runs_and_leaves_the_files(backend: str) -> None:
    async with fresh_sandbox(backend) as sandbox:
        shell, python = await sandbox.shell(), await sandbox.python()
        await shell.run(f"({STUBBORN}) >/dev/null 2>&1 &")
        await sandbox.run(f"setsid bash -c {STUBBORN!r} >/dev/null 2>&1 &")
        await asyncio.gather(*(sandbox.run("sleep 0.1") for _ in range(3)))
        while not (await sandbox.run(["test", "-s", "beats"])).ok:
            pass
        await sandbox.halt()
        before = await sandbox.read("beats")
        await asyncio.sleep(0.2)
        assert await sandbox.read("beats") == before
        results = await asyncio.gather(*(sandbox.run(f"echo {number}") for number in range(10)))
        assert [result.stdout for result in results] == [f"{number}\n" for number in range(10)]
        assert (await shell.run("true")).restarted
        assert (await shell.run("echo again")).stdout == "again\n"
        assert (await python.run("1")).restarted
        assert (await python.run("1 + 1")).value == "2"


async def test_scratch_folders_are_written_within_the_limit_and_stay_out_of_snapshots(tmp_path: Path) -> None:
    spec = SandboxSpec(scratch=("/logs/own", "/data"), limits=Limits(disk=4 * MIB))
    async with fresh_sandbox("bubblewrap", spec) as sandbox:
        assert (await sandbox.run("echo here >/logs/own/file && echo there >file")).ok
        full = await sandbox.run(["dd", "if=/dev/zero", "of=/data/large", "bs=1M", "count=8"])
        assert "No space left" in full.stderr
        await sandbox.remove("/data/large")
        [other] = await sandbox.fork()
        async with other:
            assert await other.read_text("file") == "there\n"
            assert await other.list("/logs/own") == []


def test_a_scratch_folder_is_none_that_is_there_anyway() -> None:
    for path in ("/tmp", "/workspace", "relative"):
        with pytest.raises(InvalidArgument):
            SandboxSpec(scratch=(path,))
