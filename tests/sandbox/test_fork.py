"""Forks of sessions that have sandboxes: each has one of its own, which ends with it and with nothing else."""

import asyncio
import copy
import time
import uuid
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import pytest

from gymhost.client import CommandTimeout, RemoteServer, SandboxUnavailable, Session, SessionClosed, connect
from support.sandboxes import BACKENDS, fresh_sandbox
from support.server import ServerProcess, until, until_sessions

MODULES = ["support.forgetful_environments", "support.sandbox_environments", "support.fork_environments"]
MODES = ["test/Forgetful-v0", "test/ForgetfulAsync-v0", "test/ForgetfulInline-v0", "test/ForgetfulAlone-v0"]
RELUCTANT = "support.fork_environments:Reluctant"


def start(**settings: Any) -> ServerProcess:
    return ServerProcess(modules=MODULES, workers=1, **settings)


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with start(sandbox="bubblewrap") as server:
        yield server


@pytest.fixture
async def remote(server: ServerProcess) -> AsyncGenerator[RemoteServer]:
    async with connect(server.address) as remote:
        yield remote


@pytest.fixture
async def reluctant() -> AsyncGenerator[RemoteServer]:
    """A server that makes one sandbox."""
    with start(sandbox=RELUCTANT, sandbox_options={"room": "1"}) as server:
        async with connect(server.address) as remote:
            yield remote


async def call(session: Session, tool: str, **arguments: Any) -> str:
    [message], *_ = await session.call_tool(tool, arguments)
    return message["content"]


def running(mark: str) -> int:
    """How many processes there are that a sandbox runs with a mark."""
    found = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            found += f"sleep\0001000.{mark}".encode() in (process / "cmdline").read_bytes()
        except OSError:
            continue
    return found


@pytest.mark.parametrize("mode", MODES)
async def test_each_has_a_sandbox_that_ends_with_it(remote: RemoteServer, mode: str) -> None:
    async with remote.session(mode) as session:
        await session.reset()
        await call(session, "run", command="echo begun > file; mkdir d; echo 1 > d/gone; rm d/gone")
        sessions = [session, *await session.fork(2)]
        sessions += await sessions[1].fork(1)
        marks = [str(uuid.uuid4().int) for _ in sessions]
        for number, (each, mark) in enumerate(zip(sessions, marks, strict=True)):
            run = f"cat file; ls d; echo {number} > file; (sleep 1000.{mark} </dev/null >/dev/null 2>&1 &)"
            assert await call(each, "run", command=run) == "begun\n"
        for number, each in enumerate(sessions):
            assert await call(each, "run", command="cat file") == f"{number}\n"
        assert [running(mark) for mark in marks] == [1] * 4
        for number in (1, 0, 3, 2):
            await sessions[number].close()
            await until(lambda number=number: not running(marks[number]))
            marks[number] = "-"
            assert sum(map(running, marks)) == 4 - marks.count("-")
        await until_sessions(remote, 0)


@pytest.mark.parametrize("mode", ["test/Workbench-v0", "test/WorkbenchThread-v0"])
async def test_shells_and_pythons_begin_anew(remote: RemoteServer, mode: str) -> None:
    async with remote.session(mode) as session:
        await session.reset()
        await call(session, "shell", command="A=1; echo x > file")
        await call(session, "python", code="a = 1")
        fork, other = await session.fork(2)
        assert '"stdout":"A=,x\\n"' in await call(fork, "shell", command='echo "A=$A,$(cat file)"')
        assert "NameError" in await call(fork, "python", code="a")
        await call(fork, "python", code="a = 2")
        assert '"value":"1"' in await call(session, "python", code="a")
        assert '"value":"2"' in await call(fork, "python", code="a")
        assert '"stdout":"1\\n"' in await call(session, "shell", command="echo $A")
        assert "NameError" in await call(other, "python", code="a")
        await asyncio.gather(fork.close(), other.close())


@pytest.mark.parametrize("mode", MODES[:2])
async def test_a_limit_ends_the_fork_and_not_the_parent(reluctant: RemoteServer, mode: str) -> None:
    async with reluctant.session(mode) as session:
        await session.reset()
        await call(session, "run", command="echo 1 > file")
        began = time.monotonic()
        with pytest.raises(CommandTimeout) as raised:
            await session.fork(3, timeout=1.5)
        assert raised.value.limit == "command"
        assert time.monotonic() - began < 5
        assert await call(session, "run", command="cat file") == "1\n"
        await until_sessions(reluctant, 1)


async def test_a_fork_that_is_cancelled_leaves_the_parent(reluctant: RemoteServer) -> None:
    async with reluctant.session("test/ForgetfulAsync-v0") as session:
        await session.reset()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await session.fork(3)
        async with asyncio.timeout(5):
            assert await call(session, "run", command="echo 1") == "1\n"
        await until_sessions(reluctant, 1)


@pytest.mark.parametrize("mode", [mode for mode in MODES if "Inline" not in mode])
async def test_a_parent_that_is_closed_ends_its_fork(reluctant: RemoteServer, mode: str) -> None:
    session = await reluctant.session(mode).open()
    await session.reset()
    forking = asyncio.create_task(session.fork(2))
    await asyncio.sleep(0.5)
    async with asyncio.timeout(8):
        await session.close()
        with pytest.raises((SandboxUnavailable, SessionClosed)):
            await forking
    await until_sessions(reluctant, 0)


async def test_a_fork_takes_about_as_long_as_a_reset(remote: RemoteServer) -> None:
    async with remote.session("test/ForgetfulAsync-v0") as session:
        resets, forks = 0.0, 0.0
        for _ in range(3):
            began = time.monotonic()
            await session.reset()
            resets += time.monotonic() - began
            await call(session, "run", command="head -c 1000000 /dev/zero > file")
            began = time.monotonic()
            (fork,) = await session.fork(1)
            forks += time.monotonic() - began
            await fork.close()
        assert forks < 4 * resets


@pytest.mark.parametrize("backend", BACKENDS)
async def test_a_sandbox_is_not_copied(backend: str) -> None:
    async with fresh_sandbox(backend) as sandbox:
        with pytest.raises(TypeError, match=r"await sandbox\.fork\(\)"):
            copy.deepcopy(sandbox)
