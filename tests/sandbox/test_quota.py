"""The memory of all sandboxes of an identity together."""

import asyncio
import os
import signal
from collections.abc import Generator
from typing import Any

import pytest

from gymhost.client import CapacityExhausted, CommandTimeout, RemoteServer, Session, connect
from gymhost.server.config import ServerConfig
from gymhost.wire.errors import InvalidArgument
from support.server import PATIENCE, ServerProcess

TOKENS = {"token-of-alice": "alice", "token-of-bob": "bob"}
MODES = ["test/Rush-v0", "test/RushThread-v0", "test/RushInline-v0"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[ServerProcess]:
    """A server on which alice may have 1 GiB, which is two usual sandboxes, and bob 256 MiB."""
    with ServerProcess(
        modules=["support.crowded_sandboxes"],
        workers=2,
        tokens=TOKENS,
        sandbox="support.crowded_sandboxes:Crowded",
        sandbox_options={"folder": str(tmp_path_factory.mktemp("account")), "seconds": "0"},
        sandbox_spares=2,  # which are nobody's
        quota_sandbox_memory="1GiB",
        quotas={"bob": {"sandbox_memory": "256MiB"}},
    ) as process:
        yield process


def alice(server: ServerProcess) -> RemoteServer:
    return connect(server.address, token="token-of-alice")


async def opened(remote: RemoteServer, mode: str = MODES[0], **how: Any) -> Session:
    """A session whose episode has a sandbox."""
    session = await remote.session(mode, **how).open()
    try:
        await session.reset()
    except BaseException:
        await session.close()
        raise
    return session


@pytest.mark.parametrize("mode", MODES)
async def test_a_sandbox_beyond_the_quota_waits_for_its_turn(server: ServerProcess, mode: str) -> None:
    async with alice(server) as remote, connect(server.address, token="token-of-bob") as bob:
        held = [await opened(remote, mode), await opened(remote, mode)]
        with pytest.raises(
            CapacityExhausted,
            match=r"was not made in 0\.\d s: the sandboxes of 'alice' have 1024 MiB of its quota of 1024 MiB of memory"
            r", with 0 waiting before this one of 64 MiB \(--quota-sandbox-memory\)",
        ):
            await opened(remote, mode, memory=64, patience=0.3)
        # First come, first served, the large one too; and nobody else is kept waiting.
        large = asyncio.create_task(opened(remote, MODES[0], memory=1024))
        await until_waiting(remote)
        small = asyncio.create_task(opened(remote, MODES[0], memory=64))
        other = await opened(bob, mode, memory=256)
        await held[0].close()
        done, _ = await asyncio.wait([large, small], timeout=0.2)
        assert not done
        await held[1].close()
        await (await asyncio.wait_for(large, PATIENCE)).close()
        await (await asyncio.wait_for(small, PATIENCE)).close()
        await other.close()


async def until_waiting(remote: RemoteServer) -> None:
    """Waits until a sandbox waits for memory: the next one is told so."""
    for _ in range(100):
        with pytest.raises(CapacityExhausted) as refused:
            await opened(remote, memory=16, patience=0.05)
        if "with 1 waiting before" in refused.value.message:
            return
    raise AssertionError("nothing waits")


async def test_what_can_never_be_is_refused_at_once(server: ServerProcess) -> None:
    async with connect(server.address, token="token-of-bob") as bob:
        with pytest.raises(
            CapacityExhausted, match=r"with 512 MiB of memory is above the quota of 'bob', which is 256 MiB \(--quota-s"
        ):
            await asyncio.wait_for(opened(bob), PATIENCE)


async def test_a_worker_that_dies_gives_back_what_its_sandboxes_had(server: ServerProcess) -> None:
    async with alice(server) as remote:
        held = [await opened(remote), await opened(remote)]
        waiting = asyncio.create_task(opened(remote, memory=1024))
        await until_waiting(remote)
        for worker in server.workers:
            os.kill(worker, signal.SIGKILL)
        # The one that waited was lost with its worker; both quotas are free again, and what waited has no claim.
        with pytest.raises(Exception, match="is gone"):
            await asyncio.wait_for(waiting, PATIENCE)
        again = await asyncio.wait_for(opened(remote, memory=1024), PATIENCE)
        for session in (*held, again):
            await session.close()


async def test_a_fork_has_memory_of_its_own(server: ServerProcess) -> None:
    async with alice(server) as remote:
        session = await opened(remote, MODES[1])
        [twin] = await session.fork()
        with pytest.raises(CommandTimeout):
            await session.fork(timeout=1.0)
        await twin.close()
        [twin] = await session.fork()
        for each in (session, twin):
            await each.close()
        await (await opened(remote, memory=1024)).close()


def test_sizes_may_be_texts() -> None:
    config = ServerConfig.from_dict({"quota_sandbox_memory": "2GiB", "quotas": {"bob": {"sandbox_memory": "1MiB"}}})
    assert (config.quota("sandbox_memory", "alice"), config.quota("sandbox_memory", "bob")) == (2**31, 2**20)
    assert config.bounds_sandbox_memory
    assert not ServerConfig(quotas={"bob": {"sessions": 1}}).bounds_sandbox_memory
    with pytest.raises(InvalidArgument, match="is no size"):
        ServerConfig.from_dict({"quotas": {"bob": {"sandbox_memory": "much"}}})
