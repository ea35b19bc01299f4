"""A session's sandboxes end with it, in whatever way it ends, and no others do."""

import asyncio
import os
import signal
import sys
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from gymhost.client import (
    CommandTimeout,
    EnvironmentFault,
    RemoteServer,
    ResetNeeded,
    SessionLost,
    connect,
)
from gymhost.client import Session as ClientSession
from gymhost.envs.sandboxing import Scope
from gymhost.v1 import environments_pb2 as pb
from gymhost.wire.errors import SandboxLost
from support.raw import RawStream, stub_to
from support.server import PATIENCE, ServerProcess, alive, running, until

MODES = ["test/Forgetful-v0", "test/ForgetfulAsync-v0", "test/ForgetfulInline-v0", "test/ForgetfulAlone-v0"]

# What these sandboxes run can be seen from here.
BACKENDS = ["local", "bubblewrap"]

MIB = 2**20

StartServer = Callable[..., ServerProcess]


def start(**settings: Any) -> ServerProcess:
    how: dict[str, Any] = {"modules": ["support.forgetful_environments"], "workers": 1, "sandbox": "local"}
    return ServerProcess(**how | settings)


@pytest.fixture
def start_server() -> Generator[StartServer]:
    """Starts servers with forgetful environments for one test."""
    started: list[ServerProcess] = []

    def begin(**settings: Any) -> ServerProcess:
        started.append(start(**settings))
        return started[-1]

    yield begin
    for server in started:
        server.__exit__()


@pytest.fixture(scope="module")
def server() -> Generator[ServerProcess]:
    """A server that tests share which leave its workers alive."""
    with start() as server:
        yield server


@pytest.fixture
async def remote(server: ServerProcess) -> AsyncGenerator[RemoteServer]:
    async with connect(server.address) as remote:
        yield remote


class Player:
    """A session whose sandbox holds a process that this machine can see."""

    def __init__(self, session: ClientSession) -> None:
        self.session = session
        self.mark = str(uuid.uuid4().int)

    async def begin(self) -> None:
        await self.session.open()
        await self.session.reset()
        await self.call("run", f"setsid sleep 1000.{self.mark} & disown")
        await until(lambda: self.processes)

    async def call(self, tool: str, command: str, **how: Any) -> str:
        [message], *_ = await self.session.call_tool(tool, {"command": command}, **how)
        return message["content"]

    @property
    def processes(self) -> list[int]:
        return [pid for pid in marked(self.mark) if alive(pid)]


def marked(mark: str) -> list[int]:
    found: list[int] = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (process / "cmdline").read_bytes():
                found.append(int(process.name))
        except OSError:
            continue
    return found


async def players(remote: RemoteServer, *modes: str) -> list[Player]:
    made = [Player(remote.session(mode)) for mode in modes]
    await asyncio.gather(*(player.begin() for player in made))
    return made


async def unharmed(*neighbours: Player) -> None:
    for neighbour in neighbours:
        async with asyncio.timeout(20):
            assert await neighbour.call("run", "echo still here") == "still here\n"
        assert neighbour.processes


class Member:
    alive = True

    def kill(self) -> None:
        self.alive = False


def test_a_scope_that_has_ended_takes_nothing_more() -> None:
    scope, member, late = Scope(), Member(), Member()
    scope.add(member)
    scope.close()
    assert not member.alive
    with pytest.raises(SandboxLost, match="the session that the sandbox was made for has ended"):
        scope.add(late)
    assert not late.alive
    assert not scope.kill()


async def test_what_its_sandboxes_use_is_told_for_each_session(server: ServerProcess) -> None:
    async with connect(server.address) as remote, stub_to(server.address) as stub, RawStream(stub) as stream:
        assert "memory" not in (await remote.sessions() or [{}])[0]
        large, small, alone = await players(remote, MODES[0], MODES[1], MODES[3])
        bare = await stream.create("CartPole-v1")
        # What bash has in a variable is its own.
        working = asyncio.create_task(large.call("run", "x=$(head -c 40000000 /dev/zero | tr '\\0' x); sleep 1000"))
        async with asyncio.timeout(PATIENCE):
            while True:
                told = {each["environment_id"]: each for each in await remote.sessions(memory=True)}
                if told[MODES[0]]["memory"] > 40 * MIB:
                    break
        assert told["CartPole-v1"]["memory"] is None
        assert MIB < told[MODES[1]]["memory"] < 40 * MIB
        # It has its worker for itself, which the others share.
        assert told[MODES[3]]["memory"] > told[MODES[3]]["worker_memory"] > 20 * MIB
        assert len({told[name]["worker_memory"] for name in (MODES[0], MODES[1], "CartPole-v1")}) == 1
        one = await stub.GetSession(pb.GetSessionRequest(session_id=bare.session_id))
        assert one.session.worker_memory_bytes > 20 * MIB
        assert not one.session.HasField("memory_bytes")
        working.cancel()
        for player in (large, small, alone):
            await player.session.close()


@pytest.mark.parametrize("mode", MODES)
async def test_a_session_that_is_closed(remote: RemoteServer, mode: str) -> None:
    player, neighbour, other = await players(remote, mode, mode, MODES[0])
    await player.session.close()
    await until(lambda: not player.processes)
    await unharmed(neighbour, other)


@pytest.mark.parametrize("mode", [mode for mode in MODES if "Inline" not in mode])
async def test_a_session_that_is_closed_while_a_tool_works(remote: RemoteServer, mode: str) -> None:
    player, neighbour = await players(remote, mode, "test/Forgetful-v0")
    working = asyncio.create_task(player.call("run", f"sleep 2000.{player.mark}"))
    await until(lambda: len(player.processes) >= 2)
    began = time.monotonic()
    working.cancel()
    async with asyncio.timeout(10):
        await player.session.close()
    assert time.monotonic() - began < 8
    await until(lambda: not player.processes)
    await unharmed(neighbour)


CLIENT = """
import asyncio, sys
from gymhost.client import connect

async def main():
    async with connect(sys.argv[1]) as server, server.session(sys.argv[2]) as session:
        await session.reset()
        await session.call_tool("run", {"command": f"setsid sleep 1000.{sys.argv[3]} & disown"})
        print("began", flush=True)
        if sys.argv[4] == "working":
            await session.call_tool("run", {"command": f"sleep 2000.{sys.argv[3]}"})
        await asyncio.sleep(600)

asyncio.run(main())
"""


async def test_clients_that_are_gone(start_server: StartServer) -> None:
    server = start_server(lease=2.0, heartbeat=0.5)

    async def come_and_go(mode: str, doing: str) -> None:
        mark = str(uuid.uuid4().int)
        with running([sys.executable, "-c", CLIENT, server.address, mode, mark, doing]) as client:
            assert client.stdout is not None
            assert await asyncio.to_thread(client.stdout.readline) == "began\n"
            await until(lambda: len(marked(mark)) > (2 if doing == "working" else 1))
            client.send_signal(signal.SIGKILL)
            await asyncio.to_thread(client.wait)
        await until(lambda: not marked(mark))

    async with connect(server.address) as remote:
        neighbours = await players(remote, *MODES[:2])
        await asyncio.gather(*(come_and_go(mode, doing) for mode in MODES[:2] for doing in ("nothing", "working")))
        await unharmed(*neighbours)


@pytest.mark.parametrize("backend", BACKENDS)
async def test_a_step_that_a_tool_holds_up_ends_with_its_sandbox(start_server: StartServer, backend: str) -> None:
    """The thread can't be stopped, but what it waits for can: the session lives on, and its worker too."""
    server = start_server(sandbox=backend)
    async with connect(server.address) as remote:
        player, neighbour = await players(remote, "test/Hasty-v0", "test/Forgetful-v0")
        before = server.workers
        began = time.monotonic()
        with pytest.raises(CommandTimeout, match=r"step_timeout=1\.0 s\): its sandboxes were destroyed"):
            await player.call("run", f"sleep 2000.{player.mark}")
        assert time.monotonic() - began < 4
        await until(lambda: not player.processes)
        with pytest.raises(ResetNeeded):
            await player.call("run", "true")
        await player.session.reset()
        assert await player.call("run", "echo anew") == "anew\n"
        await unharmed(neighbour)
        assert server.workers == before


async def test_a_callers_timeout_does_the_same(remote: RemoteServer) -> None:
    player, neighbour = await players(remote, "test/Forgetful-v0", "test/Forgetful-v0")
    with pytest.raises(CommandTimeout, match="the caller's timeout"):
        await player.call("run", f"sleep 2000.{player.mark}", timeout=0.5)
    await until(lambda: not player.processes)
    await player.session.reset()
    await unharmed(neighbour)


async def test_a_sandbox_that_is_waited_for(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server(
        modules=["support.crowded_sandboxes"],
        sandbox="support.crowded_sandboxes:Crowded",
        sandbox_options={"folder": str(tmp_path), "seconds": "600"},
        sandbox_creations=1,
    )
    before = server.workers
    async with connect(server.address) as remote:
        making, waiting = remote.session("test/RushThread-v0"), remote.session("test/RushThread-v0")
        await asyncio.gather(making.open(), waiting.open())
        resetting = asyncio.create_task(making.reset())
        await until(lambda: list(tmp_path.glob("flying-*")))
        with pytest.raises(CommandTimeout, match="the caller's timeout"):
            await waiting.reset(timeout=0.5)
        resetting.cancel()
        async with asyncio.timeout(10):
            await making.close()
        await until(lambda: not list(tmp_path.glob("flying-*")))
        await waiting.close()
    assert server.workers == before


async def test_a_session_that_is_given_up(start_server: StartServer) -> None:
    server = start_server(grace=600.0)
    async with connect(server.address) as remote:
        player, neighbour = await players(remote, "test/Hasty-v0", "test/Forgetful-v0")
        with pytest.raises(SessionLost, match="could not be stopped"):
            await player.call("cling", f"sleep 2000.{player.mark}")
        await until(lambda: not player.processes)
        await unharmed(neighbour)
        await neighbour.session.close()
        await until(lambda: not neighbour.processes)


async def test_an_environment_that_can_not_be_made(remote: RemoteServer) -> None:
    mark = str(uuid.uuid4().int)
    [neighbour] = await players(remote, "test/Forgetful-v0")
    with pytest.raises(EnvironmentFault, match="it was to fail"):
        await remote.session("test/AtOnce-v0", command=f"setsid sleep 1000.{mark} & disown #fail").open()
    await until(lambda: not marked(mark))
    await unharmed(neighbour)


async def test_an_environment_that_is_described(remote: RemoteServer) -> None:
    mark = str(uuid.uuid4().int)
    [neighbour] = await players(remote, "test/Forgetful-v0")
    await remote.describe("test/AtOnce-v0", command=f"setsid sleep 1000.{mark} & disown")
    await until(lambda: not marked(mark))
    await unharmed(neighbour)


@pytest.mark.parametrize("backend", BACKENDS)
async def test_a_worker_that_is_killed(start_server: StartServer, backend: str) -> None:
    server = start_server(workers=2, sandbox=backend)
    async with connect(server.address) as remote:
        made = await players(remote, *["test/Forgetful-v0"] * 4)
        os.kill(server.workers[0], signal.SIGKILL)
        with pytest.raises(SessionLost, match="SIGKILL"):
            await asyncio.gather(*(player.call("run", "sleep 5") for player in made))
        lost = [player for player in made if player.session.lost]
        assert len(lost) == 2
        await until(lambda: not any(player.processes for player in lost))
        await unharmed(*(player for player in made if player not in lost))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("backend", BACKENDS)
async def test_a_server_that_is_stopped(start_server: StartServer, backend: str, number: int) -> None:
    server = start_server(workers=2, sandbox=backend, drain=0)
    async with connect(server.address, reconnect_timeout=1.0) as remote:
        made = await players(remote, *MODES)
        server.signal(number)
        await asyncio.to_thread(server.wait)
        await until(lambda: not any(player.processes for player in made))
    if number == signal.SIGTERM:
        assert "did not" not in server.log
