"""Workers that are renewed before they do harm, and what is known of their memory."""

import asyncio
import os
import resource
import signal
from collections.abc import Callable

import pytest

from gymhost.client import RemoteServer, Session, SessionLost, connect
from gymhost.envs import register
from support.server import PATIENCE, ServerProcess, alive, until

StartServer = Callable[..., ServerProcess]

MODULES = ["support.environments", "support.lifecycle_environments"]
MIB = 2**20


async def opened(remote: RemoteServer, environment_id: str) -> Session:
    session = await remote.session(environment_id).open()
    await session.reset()
    return session


def worker_of(session: Session) -> int:
    assert session._lane is not None
    return session._lane.number >> 32


async def grow(session: Session, mib: int) -> None:
    """Takes memory, and goes on until that ends the session."""
    await session.step(mib)
    while True:
        await session.step(0)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"worker_max_age": 1.0}, r"it was older than 1 s (--worker-max-age)"),
        ({"worker_max_sessions": 1}, r"it had had 1 session (--worker-max-sessions)"),
    ],
    ids=["age", "sessions"],
)
async def test_a_worker_is_renewed_and_its_sessions_go_on(
    start_server: StartServer, settings: dict[str, float], why: str
) -> None:
    server = start_server(workers=1, **settings)
    async with connect(server.address) as remote:
        session = await opened(remote, "test/Counter-v0")
        number = worker_of(session)
        await until(lambda: f"is renewed: {why}" in server.log)
        # A new one is there before the old one takes no more.
        await until(lambda: len(server.workers) >= 2)
        async with asyncio.timeout(PATIENCE):
            while worker_of(await opened(remote, "test/Counter-v0")) == number:
                pass
        assert (await session.step(1))[0] == 1
        assert not session.lost
        await session.close()
        await until(lambda: f"INFO worker {number} ended: {why}" in server.log)
    assert "WARNING" not in server.log


async def test_a_worker_is_renewed_when_it_is_large_and_killed_when_it_is_far_too_large(
    start_server: StartServer,
) -> None:
    server = start_server(workers=1, modules=MODULES, worker_max_memory=400 * MIB)
    async with connect(server.address) as remote:
        session = await opened(remote, "test/Hoard-v0")
        [worker] = server.workers
        await session.step(400)
        await until(lambda: "was above --worker-max-memory (400 MiB)" in server.log)
        async with asyncio.timeout(PATIENCE):
            while worker_of(other := await opened(remote, "test/Hoard-v0")) == worker_of(session):
                await other.close()
        assert (await session.step(1))[0] == 2
        with pytest.raises(SessionLost, match=r"its memory was above 1.5 times --worker-max-memory \(400 MiB\): \d+ "):
            await asyncio.wait_for(grow(session, 400), PATIENCE)
        await until(lambda: not alive(worker))
        assert (await other.step(1))[0] == 1


async def test_an_isolated_session_has_a_limit_of_its_own(start_server: StartServer) -> None:
    server = start_server(workers=1, modules=MODULES)
    async with connect(server.address) as remote:
        large, small = await opened(remote, "test/HoardApart-v0"), await opened(remote, "test/HoardApart-v0")
        assert {told["memory_limit"] for told in await remote.sessions(memory=True)} == {400 * MIB}
        assert (await remote.describe("test/HoardApart-v0")).memory_limit == 400 * MIB
        with pytest.raises(SessionLost, match="its memory was above the environment's memory_limit of 400 MiB"):
            await asyncio.wait_for(grow(large, 600), PATIENCE)
        assert (await small.step(1))[0] == 1


async def test_a_worker_that_can_not_be_started_is_tried_again(start_server: StartServer) -> None:
    server = start_server(workers=1)
    [worker] = server.workers
    limits = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
    async with connect(server.address) as remote:
        descriptors = descriptors_of(server)
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (descriptors - 3, limits[1]))
        os.kill(worker, signal.SIGKILL)
        await until(lambda: "a worker could not start: [Errno 24] Too many open files; another try in" in server.log)
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, limits)
        assert (await (await opened(remote, "test/Counter-v0")).step(1))[0] == 1
        assert descriptors_of(server) <= descriptors + 3


def descriptors_of(server: ServerProcess) -> int:
    return len(os.listdir(f"/proc/{server.pid}/fd"))


@pytest.mark.parametrize(("limit", "isolation"), [(0, "process"), (2**30, "shared")])
def test_a_memory_limit_is_for_those_with_a_process_of_their_own(limit: int, isolation: str) -> None:
    with pytest.raises(ValueError, match="memory_limit is a number of bytes above 0 and goes with isolation='process'"):
        register("test/NeverRegistered-v0", "a:B", memory_limit=limit, isolation=isolation)  # pyright: ignore[reportArgumentType]
