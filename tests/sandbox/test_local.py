"""The backend that contains nothing: it must be asked for, says so, and leaves nothing behind all the same."""

import asyncio
import logging
import os
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from gymhost.envs.sandbox import Limits, Mount, Pool, SandboxSpec, backend
from gymhost.envs.sandbox.local import NOT_CONTAINED
from gymhost.wire.errors import InvalidArgument, SandboxLost, SandboxUnavailable
from support.server import PATIENCE, TESTS, alive, children, running, until


@pytest.fixture
async def pool() -> AsyncGenerator[Pool]:
    with pytest.warns(UserWarning, match="contain nothing"):
        made = backend("local")
    async with Pool(made) as pool:
        yield pool


def marked(mark: str) -> list[int]:
    """The processes with a mark on their command line."""
    found: list[int] = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (process / "cmdline").read_bytes():
                found.append(int(process.name))
        except OSError:
            continue
    return found


def there(path: str) -> bool:
    return Path(path).exists()


async def test_it_warns_when_it_is_made(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), pytest.warns(UserWarning, match="contain nothing"):
        made = backend("local")
    assert NOT_CONTAINED in caplog.text
    assert not made.isolates
    assert await made.problem() is None


async def test_commands_run_in_a_fresh_folder_with_the_variables_of_the_spec_alone(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_THE_SERVER", "secret")
    monkeypatch.setenv("HANDED_ON", "handed on")
    sandbox = await pool.create(SandboxSpec(env={"OWN": "own"}, pass_env=("HANDED_ON",)))
    folder = (await sandbox.run("pwd")).stdout.strip()
    assert folder == sandbox.spec.workdir
    assert os.listdir(folder) == []
    assert folder != (await pool.create()).spec.workdir
    shown = (await sandbox.run(["env"])).stdout.splitlines()
    variables = dict(line.split("=", 1) for line in shown)
    assert variables["OWN"] == "own"
    assert variables["HANDED_ON"] == "handed on"
    assert variables["HOME"] == folder
    assert "OF_THE_SERVER" not in variables
    await sandbox.write("kept.txt", "words")
    assert os.listdir(folder) == ["kept.txt"]


async def test_it_says_what_it_does_not_hold(pool: Pool) -> None:
    sandbox = await pool.create(SandboxSpec(limits=Limits(open_files=64, disk=2**20)))
    assert {name for name, how in sandbox.limits_in_force.items() if not how} == {
        "processes", "cpus", "seccomp", "user", "network",
    }  # fmt: skip
    assert (await sandbox.run("ulimit -n")).stdout == "64\n"
    assert (await sandbox.run("head -c 2M /dev/zero >big")).exit_status != 0
    assert (await sandbox.run("stat -c %s big")).stdout == f"{2**20}\n"


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ({"image": "busybox"}, "image"),
        ({"mounts": (Mount("/srv"),)}, "mounts"),
        ({"user": 1234}, "user"),
        ({"workdir": "/elsewhere"}, "workdir"),
        ({"network": "loopback"}, "network"),
    ],
)
async def test_what_it_does_not_have_is_refused(pool: Pool, asked: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidArgument, match=f"'local' has no {name} to set"):
        await pool.create(SandboxSpec(**asked))


LEAVERS = """
setsid sleep 1000.{mark} &
(trap '' TERM INT HUP; setsid bash -c 'sleep 1000.{mark}; :' 1000.{mark}) &
(setsid bash -c '(sleep 1000.{mark} &) ; kill -STOP $$' 1000.{mark} &)
python3 -c 'import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(1000)' 1000.{mark}
mkdir closed; touch closed/file; chmod 0 closed
"""


async def test_nothing_is_left_when_it_is_destroyed(pool: Pool) -> None:
    mark = str(uuid.uuid4().int)
    sandbox = await pool.create()
    result = await sandbox.run(LEAVERS.format(mark=mark) + "\nsleep 0.1", timeout=30)
    assert result.exit_status == 0, result
    assert len(marked(mark)) >= 5
    usage = await sandbox.usage()
    assert usage.processes is not None
    assert usage.processes >= 5
    assert usage.memory is not None
    assert usage.memory > 2**20
    began = time.monotonic()
    await sandbox.destroy()
    assert time.monotonic() - began < 10
    assert marked(mark) == []
    assert not there(sandbox.spec.workdir)
    assert not sandbox.alive
    with pytest.raises(SandboxLost):
        await sandbox.run("true")


async def test_processes_that_go_on_forking_are_ended(pool: Pool) -> None:
    mark = str(uuid.uuid4().int)
    sandbox = await pool.create()
    # Each begins the next and ends: hardly ever is there one to be found twice.
    script = f"next() {{ (next {mark} &); }}; next"
    await sandbox.run(["bash", "-c", script, mark], timeout=30)
    await until(lambda: marked(mark))
    await sandbox.destroy()
    assert marked(mark) == []


async def test_a_command_that_waits_is_told_when_it_is_destroyed(pool: Pool) -> None:
    sandbox = await pool.create()
    waiting = asyncio.create_task(sandbox.run("sleep 600", timeout=600))
    shell = await sandbox.shell()
    in_shell = asyncio.create_task(shell.run("sleep 600", timeout=600))
    await until(lambda: len([pid for pid in marked("sleep\x00600") if alive(pid)]) >= 2)
    await sandbox.destroy()
    for task in (waiting, in_shell):
        with pytest.raises(SandboxLost):
            await asyncio.wait_for(task, PATIENCE)


async def test_a_program_that_is_not_there_is_an_error_of_its_opener(pool: Pool) -> None:
    sandbox = await pool.create()
    container = sandbox._container
    with pytest.raises(SandboxUnavailable, match=r"not-there could not be started in local-.*: No such file"):
        await container.open(["not-there"], sandbox.spec.variables())
    assert (await sandbox.run(["not-there"])).exit_status == 127
    assert await container.control("echo $((1 + 1))") == b"2\n"
    with pytest.raises(SandboxLost, match=r"did not answer in 0\.2 s"):
        await container.control("sleep 600", timeout=0.2)
    assert (await sandbox.run("echo there")).stdout == "there\n"


async def test_collected_ones_are_ended(pool: Pool) -> None:
    sandbox = await pool.create()
    folder, reaper = sandbox.spec.workdir, sandbox._container.init
    del sandbox
    await until(lambda: not alive(reaper))
    assert not there(folder)


OWNER = """
import asyncio, warnings
from gymhost.envs.sandbox import Pool, backend

async def main():
    warnings.simplefilter("ignore")
    sandbox = await Pool(backend("local")).create()
    await sandbox.run("setsid sleep 1000 & disown")
    print(sandbox.spec.workdir, sandbox._container.init, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


async def test_the_end_of_its_owner_ends_it() -> None:
    with running([sys.executable, "-c", OWNER], cwd=TESTS) as owner:
        assert owner.stdout is not None
        folder, reaper = (await asyncio.to_thread(owner.stdout.readline)).split()
        inside = children(int(reaper))
        assert len(inside) >= 2
        owner.send_signal(signal.SIGKILL)
        await asyncio.to_thread(owner.wait)
        await until(lambda: not any(alive(pid) for pid in [int(reaper), *inside]))
        assert folder.startswith(tempfile.gettempdir())
        await until(lambda: not there(folder))
