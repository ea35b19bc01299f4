"""Connections that break: no step is lost, none is run twice, and whoever waits is told in time."""

import asyncio
import os
import signal
import time
from collections.abc import Callable

import pytest

from gymhost.client import (
    ConnectionLost,
    RemoteServer,
    ServerUnavailable,
    Session,
    SessionLost,
    connect,
)
from gymhost.v1 import environments_pb2 as pb
from support.proxy import Proxy
from support.raw import stub_to, until_busy
from support.server import ServerProcess, alive, connections_to, until

pytestmark = pytest.mark.usefixtures("grpc_path")


async def until_run(address: str, session: Session, commands: int) -> None:
    """Waits, over a connection of its own, until the environment has run so many commands."""
    assert session._lane is not None
    async with stub_to(address) as stub, asyncio.timeout(10):
        while True:
            info = (await stub.GetSession(pb.GetSessionRequest(session_id=session._lane.session_id))).session
            if info.steps == commands and not info.busy:
                return
            await asyncio.sleep(0.01)


async def test_a_step_whose_reply_was_lost_is_not_run_twice(server: ServerProcess, proxy: Proxy) -> None:
    """S22."""
    async with connect(proxy.address, direct=False) as remote, remote.session("test/Counter-v0") as session:
        await session.reset()
        counted: list[int] = []
        for number in range(1, 11):
            if number in (3, 7):
                proxy.hold(to_server=False)
                stepping = asyncio.create_task(session.step(1))
                await until_run(server.address, session, number + 1)
                assert not stepping.done()
                proxy.cut()
                proxy.release(to_server=False)
                counted.append((await asyncio.wait_for(stepping, 10))[0])
            else:
                counted.append((await session.step(1))[0])
    assert counted == list(range(1, 11))
    assert proxy.accepted == 3


async def test_a_step_that_never_arrived_is_sent_again(proxy: Proxy) -> None:
    async with connect(proxy.address, direct=False) as remote, remote.session("test/Counter-v0") as session:
        await session.reset()
        proxy.hold(to_server=True)
        stepping = asyncio.create_task(session.step(1))
        await asyncio.sleep(0.1)
        proxy.cut()
        proxy.release(to_server=True)
        assert (await asyncio.wait_for(stepping, 10))[0] == 1
        assert (await session.step(1))[0] == 2


async def test_a_connection_cut_in_mid_step_leaves_the_step_running(proxy: Proxy) -> None:
    async with connect(proxy.address, direct=False) as remote, remote.session("test/Slow-v0") as session:
        await session.reset()
        for number in range(1, 4):
            stepping = asyncio.create_task(session.step(0.6))
            await asyncio.sleep(0.2)
            proxy.cut()
            assert (await asyncio.wait_for(stepping, 10))[0] == number


async def test_a_command_that_was_answered_is_not_sent_again(server: ServerProcess) -> None:
    """As when it was given up on two sockets, one after the other: the second copy leaves after the answer."""
    async with connect(server.address, direct=False) as remote, remote.session("test/Slow-v0") as session:
        await session.reset()
        lane, connection = session._lane, remote.connection
        assert lane is not None
        stepping = asyncio.create_task(session.step(0.1))
        answered = await until(lambda: lane.pending)
        assert (await stepping)[0] == 1
        stepping = asyncio.create_task(session.step(0.5))
        async with stub_to(server.address) as stub:
            await until_busy(stub, lane.session_id)
        connection.submit_all((answered,))
        assert (await asyncio.wait_for(stepping, 10))[0] == 2
        assert lane.pending is None


async def test_many_sessions_survive_many_cuts(proxy: Proxy) -> None:
    async with connect(proxy.address, direct=False) as remote:

        async def play() -> list[int]:
            async with remote.session("test/Counter-v0") as session:
                await session.reset()
                return [(await session.step(1))[0] for _ in range(400)]

        playing = asyncio.gather(*(play() for _ in range(16)))
        cuts = 0
        while not playing.done():
            await asyncio.sleep(0.05)
            cuts += not playing.done()
            proxy.cut()
        assert await playing == [list(range(1, 401))] * 16
        assert cuts >= 2


async def test_large_observations_survive_cuts(proxy: Proxy) -> None:
    async with connect(proxy.address, direct=False) as remote, remote.session("test/Image-v0") as session:
        expected, _ = await session.reset(seed=1)
        for _ in range(4):
            resetting = asyncio.create_task(session.reset(seed=1))
            await asyncio.sleep(0.03)
            proxy.cut()
            observation, _ = await asyncio.wait_for(resetting, 20)
            assert (observation == expected).all()


async def test_large_steps_are_repeated_in_as_many_messages_as_they_need(
    start_server: Callable[..., ServerProcess],
) -> None:
    # Each step is taken; all of them together are far above what the server takes in one message.
    server = start_server(workers=1, max_payload=1024 * 1024)
    slow = "1.0".ljust(200_000)
    with Proxy(server.address) as proxy:
        async with (
            connect(proxy.address, direct=False, reconnect_timeout=5.0) as remote,
            stub_to(server.address) as stub,
        ):
            sessions: list[Session] = [remote.session("test/Slow-v0") for _ in range(12)]
            await asyncio.gather(*(session.open() for session in sessions))
            await asyncio.gather(*(session.reset() for session in sessions))
            stepping = asyncio.gather(*(session.step(slow) for session in sessions))
            for session in sessions:
                assert session._lane is not None
                await until_busy(stub, session._lane.session_id)
            proxy.cut()
            assert [step[0] for step in await asyncio.wait_for(stepping, 20)] == [1] * 12
            await asyncio.gather(*(session.close() for session in sessions))


async def test_a_close_that_was_cut_off_still_closes(server: ServerProcess, proxy: Proxy) -> None:
    async with connect(proxy.address, direct=False) as remote:
        session = await remote.session("test/Counter-v0").open()
        proxy.hold(to_server=True)
        closing = asyncio.create_task(session.close())
        await asyncio.sleep(0.1)
        proxy.cut()
        proxy.release(to_server=True)
        await asyncio.wait_for(closing, 10)
        assert await remote.sessions() == []


async def test_waiting_ends_with_the_reconnect_timeout(start_server: Callable[..., ServerProcess]) -> None:
    with Proxy(start_server(workers=1).address) as proxy:
        await _until_the_reconnect_timeout(proxy)


async def _until_the_reconnect_timeout(proxy: Proxy) -> None:
    async with (
        connect(proxy.address, direct=False, reconnect_timeout=1.0) as remote,
        remote.session("test/Counter-v0") as session,
    ):
        await session.reset()
        proxy.refuse(True)
        proxy.cut()
        started = time.monotonic()
        with pytest.raises(ConnectionLost, match=r"could not be restored within 1 s \(reconnect_timeout\)"):
            await session.step(1)
        assert time.monotonic() - started < 5
        with pytest.raises(ConnectionLost):
            await session.step(1)
        assert session.lost
        proxy.refuse(False)
        async with asyncio.timeout(10):
            # Each try ends with the timeout at the latest; one of them finds the server again.
            while (fresh := await _opened(remote)) is None:
                pass
            await fresh.reset()
            assert (await fresh.step(1))[0] == 1
            await fresh.close()


async def _opened(remote: RemoteServer) -> Session | None:
    try:
        return await remote.session("test/Counter-v0").open()
    except ConnectionLost:
        return None


async def test_a_server_that_is_not_there_is_named_with_what_to_do() -> None:
    with Proxy("127.0.0.1:9") as nobody:
        nobody.refuse(True)
        started = time.monotonic()
        with pytest.raises(ServerUnavailable, match=rf"{nobody.address} within 1 s \(connect_timeout\).*gymhost serve"):
            await connect(nobody.address, connect_timeout=1.0)
        with pytest.raises(ServerUnavailable, match="gymhost serve"):
            await asyncio.to_thread(connect(nobody.address, connect_timeout=0.2).open)
        assert time.monotonic() - started < 5


async def test_a_server_that_is_killed_is_noticed_and_takes_its_workers_with_it(
    start_server: Callable[..., ServerProcess],
) -> None:
    server = start_server()
    workers = server.workers
    async with connect(server.address, reconnect_timeout=1.0) as remote, remote.session("test/Slow-v0") as session:
        await session.reset()
        stepping = asyncio.create_task(session.step(60.0))
        await asyncio.sleep(0.1)
        server.signal(signal.SIGKILL)
        with pytest.raises(ConnectionLost, match="could not be restored within 1 s"):
            await asyncio.wait_for(stepping, 10)
        with pytest.raises(ServerUnavailable):
            await asyncio.wait_for(remote.sessions(), 10)
    await until(lambda: not any(alive(pid) for pid in workers), 15)


async def test_after_a_restart_of_the_server_sessions_are_lost_and_new_ones_work(
    start_server: Callable[..., ServerProcess],
) -> None:
    server = start_server(workers=1)
    async with connect(server.address) as remote:
        lost = [await remote.session("test/Slow-v0").open() for _ in range(3)]
        await asyncio.gather(*(session.reset() for session in lost))
        stepping = asyncio.create_task(lost[0].step(60.0))
        await asyncio.sleep(0.1)
        server.signal(signal.SIGKILL)
        server.wait()
        await asyncio.to_thread(server.start)
        with pytest.raises(SessionLost, match="was restarted"):
            await asyncio.wait_for(stepping, 5)
        for session in lost[1:]:
            with pytest.raises(SessionLost, match="was restarted"):
                await session.step(0.0)
            assert session.lost
        async with remote.session("test/Counter-v0") as fresh:
            await fresh.reset()
            assert (await fresh.step(1))[0] == 1


async def test_512_sessions_wait_for_slow_steps_over_one_connection(server: ServerProcess, proxy: Proxy) -> None:
    """S21."""
    async with connect(proxy.address, direct=False) as remote:
        sessions: list[Session] = [remote.session("test/Slow-v0") for _ in range(512)]
        await asyncio.gather(*(session.open() for session in sessions))
        await asyncio.gather(*(session.reset() for session in sessions))
        for number in range(1, 4):
            started = time.monotonic()
            steps = await asyncio.gather(*(session.step(1.0) for session in sessions))
            assert time.monotonic() - started < 2.5
            assert {step[0] for step in steps} == {number}
        assert proxy.accepted == 1
        assert connections_to(proxy.address, os.getpid()) == 1
        await asyncio.gather(*(session.close() for session in sessions))
