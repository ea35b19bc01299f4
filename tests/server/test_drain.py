"""The end of a server that is asked to end: its sessions go on for a while, and nobody is sent there any more."""

import asyncio
import os
import signal
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from gymhost.client import CapacityExhausted, CommandTimeout, ServerUnavailable, Session, SessionLost, connect
from gymhost.rollout.servers import Servers
from support.raw import channel_to
from support.server import PATIENCE, ServerProcess, running, until

StartServer = Callable[..., ServerProcess]

GOING_AWAY = "the server is going away and takes no new sessions"


async def step_for_ever(session: Session) -> None:
    while True:
        await session.step(1)


async def test_sessions_go_on_to_their_end_and_all_others_are_sent_away(start_server: StartServer) -> None:
    server = start_server(workers=1, capacity=1, drain=600)
    async with connect(server.address) as remote, channel_to(server.address) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        session = await remote.session("test/Counter-v0").open()
        await session.reset()
        assert not remote.draining
        with pytest.raises(CapacityExhausted):
            await remote.session("test/Counter-v0", create_timeout=0.01).open()
        waiting = asyncio.create_task(remote.session("test/Counter-v0", create_timeout=600).open())
        await asyncio.sleep(0.1)
        server.signal(signal.SIGTERM)
        # Those who wait for a place are told at once, and so is whoever asks.
        with pytest.raises(ServerUnavailable, match=GOING_AWAY):
            await asyncio.wait_for(waiting, PATIENCE)
        await until(lambda: remote.draining)
        with pytest.raises(ServerUnavailable, match=GOING_AWAY):
            await remote.session("test/Counter-v0").open()
        answer = await health.Check(health_pb2.HealthCheckRequest())
        assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING
        async with connect(server.address, reconnect_timeout=30.0) as newcomer:
            await until(lambda: newcomer.draining)
        for number in range(1, 4):
            assert (await session.step(1))[0] == number
        assert "draining: 1 session left, for at most 600 s (--drain)" in server.log
        await session.close()
        assert await asyncio.to_thread(server.wait) == 0
    assert "Traceback" not in server.log


async def test_after_its_time_the_server_stops_and_sessions_are_lost(start_server: StartServer) -> None:
    server = start_server(workers=1, drain=0.5)
    async with connect(server.address, reconnect_timeout=1.0) as remote:
        session = await remote.session("test/Counter-v0").open()
        await session.reset()
        server.signal(signal.SIGTERM)
        with pytest.raises(SessionLost, match="the server was stopped"):
            await asyncio.wait_for(step_for_ever(session), PATIENCE)
        assert await asyncio.to_thread(server.wait) == 0
    assert "1 session left after 0.5 s (--drain)" in server.log


async def test_a_create_that_fails_is_not_waited_for(start_server: StartServer) -> None:
    server = start_server(workers=1, drain=600)
    [worker] = server.workers
    async with connect(server.address, reconnect_timeout=1.0) as remote:
        os.kill(worker, signal.SIGSTOP)
        making = asyncio.create_task(remote.session("test/SlowToMake-v0").open())
        await asyncio.sleep(0.1)
        server.signal(signal.SIGTERM)
        await until(lambda: remote.draining)
        os.kill(worker, signal.SIGCONT)
        with pytest.raises(CommandTimeout):
            await asyncio.wait_for(making, PATIENCE)
        assert await asyncio.to_thread(server.wait) == 0


@pytest.mark.parametrize(("second", "code"), [(signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGINT, 0)])
async def test_a_second_signal_does_not_wait(start_server: StartServer, second: int, code: int) -> None:
    server = start_server(workers=1, drain=600)
    async with connect(server.address, reconnect_timeout=1.0) as remote:
        session = await remote.session("test/Counter-v0").open()
        await session.reset()
        server.signal(signal.SIGTERM)
        await until(lambda: "draining" in server.log)
        server.signal(second)
        assert await asyncio.to_thread(server.wait) == code


async def test_the_end_of_its_parent_does_not_wait(start_server: StartServer) -> None:
    server = start_server(workers=1, drain=600)
    async with connect(server.address, reconnect_timeout=1.0) as remote:
        session = await remote.session("test/Counter-v0").open()
        await session.reset()
        await asyncio.to_thread(server.stop)
        assert server.wait() == 0
    assert "draining" not in server.log


VANISHES = """
    import asyncio, sys
    from gymhost.client import connect

    async def main():
        async with connect(sys.argv[1]) as server, server.session("test/Counter-v0") as session:
            await session.reset()
            print("there", flush=True)
            await asyncio.sleep(600)

    asyncio.run(main())
"""


async def test_a_client_that_is_gone_is_waited_for_no_longer_than_its_lease(start_server: StartServer) -> None:
    server = start_server(workers=1, drain=600, lease=1.0, heartbeat=0.5)
    with running([sys.executable, "-c", textwrap.dedent(VANISHES), server.address]) as client:
        assert client.stdout is not None
        assert await asyncio.to_thread(client.stdout.readline) == "there\n"
        server.signal(signal.SIGTERM)
        await until(lambda: "draining" in server.log)
        client.kill()
        assert await asyncio.to_thread(server.wait) == 0
    assert "nothing was heard of the session's client for 1 s (--lease)" in server.log


async def test_of_several_servers_one_that_is_going_away_gets_no_session(
    start_server: StartServer, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = start_server(workers=1, drain=600), start_server(workers=1)
    servers = Servers([first.address, second.address])
    try:
        async with servers.session("test/Counter-v0") as before:
            await before.reset(seed=0)
            [address] = [address for address, number in servers.sessions.items() if number]
            assert address == first.address
            first.signal(signal.SIGTERM)
            remote = servers._servers[0].remote
            await until(lambda: remote.draining)
            async with servers.session("test/Counter-v0"), servers.session("test/Counter-v0"):
                assert servers.sessions == {first.address: 1, second.address: 2}
            assert "is left for" not in caplog.text  # it was not even asked
            assert (await before.step(1))[0] == 1
        assert await asyncio.to_thread(first.wait) == 0
    finally:
        await asyncio.to_thread(servers.close)
