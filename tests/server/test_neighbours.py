"""Sessions beside each other: none pays for what another does."""

import asyncio
import time
from typing import Any

import grpc.aio
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from gymhost.client import EnvironmentFault, Session, SessionClosed, TooLarge, connect
from support.raw import channel_to
from support.server import ServerProcess, alive, children, until

pytestmark = pytest.mark.usefixtures("path")


async def test_a_blocking_step_delays_nobody(server: ServerProcess) -> None:
    """S15."""
    async with connect(server.address) as remote, channel_to(server.address) as channel:
        slow = remote.session("test/Slow-v0")
        quick = [remote.session("test/Sqlite-v0") for _ in range(31)]
        await asyncio.gather(*(session.open() for session in [slow, *quick]))
        await asyncio.gather(*(session.reset() for session in [slow, *quick]))
        health: Any = health_pb2_grpc.HealthStub(channel)
        await health.Check(health_pb2.HealthCheckRequest())
        blocking = asyncio.create_task(slow.step(5.0))
        await asyncio.sleep(0.05)
        threads: list[set[int]] = [set() for _ in quick]
        for number in range(1, 4):
            started = time.monotonic()
            *steps, _ = await asyncio.gather(
                *(session.step(1) for session in quick), health.Check(health_pb2.HealthCheckRequest())
            )
            assert time.monotonic() - started < 0.5
            assert [each[0] for each in steps] == [number] * 31
            for seen, each in zip(threads, steps, strict=True):
                seen.add(each[4]["thread"])
        assert not blocking.done()
        # All calls of a session are made on one thread, and no two sessions have the same one in a worker.
        assert all(len(seen) == 1 for seen in threads)
        for session in quick:
            await session.close()
        assert (await blocking)[0] == 1
        await slow.close()


async def _fork_often(server: ServerProcess, environment_id: str) -> list[list[Any]]:
    async with connect(server.address) as remote:

        async def play() -> list[Any]:
            async with remote.session(environment_id) as session:
                await session.reset()
                return [(await session.step(0))[4] for _ in range(50)]

        async def other_calls() -> None:
            while True:
                await remote.sessions()
                await remote.environments()
                await asyncio.sleep(0.01)

        others = asyncio.create_task(other_calls())
        played = await asyncio.wait_for(asyncio.gather(*(play() for _ in range(10))), 50)
        others.cancel()
        return played


async def test_environments_may_fork_by_multiprocessing(server: ServerProcess) -> None:
    """S16."""
    played = await _fork_often(server, "test/Fork-v0")
    pids = [info["child"] for infos in played for info in infos]
    assert len(pids) == 500
    await until(lambda: not any(alive(pid) for pid in pids[-20:]))
    assert all(not children(worker) for worker in server.workers)


async def test_environments_may_fork_and_exec(server: ServerProcess) -> None:
    """S16."""
    played = await _fork_often(server, "test/ForkExec-v0")
    assert [info["status"] for infos in played for info in infos] == [7] * 500


async def test_of_16_sessions_one_that_raises_and_one_that_is_cut_off_leave_14(server: ServerProcess) -> None:
    """S07, as far as sessions go."""
    async with connect(server.address) as remote:

        async def play(number: int) -> list[int]:
            async with remote.session("test/Raises-v0") as session:
                await session.reset()
                counted = []
                for turn in range(1, 9):
                    if (number, turn) == (9, 4):
                        await session.close()
                    counted.append((await session.step("raise" if (number, turn) == (5, 3) else "go on"))[0])
                return counted

        played = await asyncio.gather(*(play(number) for number in range(16)), return_exceptions=True)
        assert isinstance(played[5], EnvironmentFault)
        assert isinstance(played[9], SessionClosed)
        assert [each for number, each in enumerate(played) if number not in (5, 9)] == [list(range(1, 9))] * 14
        assert await remote.sessions() == []


async def test_large_arrays_pass_bit_exact_both_ways(server: ServerProcess) -> None:
    """S20."""
    async with connect(server.address) as remote, remote.session("test/Image-v0") as session:
        observation, _ = await session.reset(seed=7)
        expected = np.random.Generator(np.random.PCG64(np.random.SeedSequence(7))).integers(
            0, 256, (1200, 1600, 3), np.uint8
        )
        assert observation.dtype == np.uint8
        assert np.array_equal(observation, expected)
        action = np.random.default_rng(1).integers(0, 256, 6 * 1024 * 1024, np.uint8)
        observation, _, _, _, info = await session.step(action)
        import hashlib

        assert info["digest"] == hashlib.sha256(action.tobytes()).hexdigest()
        assert np.array_equal(observation, np.resize(action, (1200, 1600, 3)))


async def test_many_large_replies_at_once_all_arrive(server: ServerProcess) -> None:
    async with connect(server.address) as remote:
        sessions: list[Session] = [remote.session("test/Image-v0") for _ in range(32)]
        await asyncio.gather(*(session.open() for session in sessions))
        seen = await asyncio.wait_for(asyncio.gather(*(session.reset(seed=3) for session in sessions)), 30)
        assert all(np.array_equal(observation, seen[0][0]) for observation, _ in seen)
        await asyncio.gather(*(session.close() for session in sessions))


async def test_small_steps_pass_large_ones(server: ServerProcess) -> None:
    async with (
        connect(server.address) as remote,
        remote.session("test/Counter-v0") as small,
        remote.session("test/Image-v0") as large,
    ):
        await small.reset()
        await large.reset()
        moving = asyncio.create_task(large.reset())
        passed = 0
        while not moving.done():
            await small.step(1)
            passed += 1
        await moving
        # Were they behind it, not even the second would be through before it.
        assert passed >= 2


async def test_above_the_ceiling_size_limit_and_setting_are_named_and_the_session_lives(shared_server: Any) -> None:
    """S20."""
    server = shared_server(workers=1, max_payload=2 * 1024 * 1024)
    async with connect(server.address) as remote:
        image = await remote.session("test/Image-v0").open()
        with pytest.raises(
            TooLarge, match=r"reply of 5760\d+ bytes is above the limit of 2097152 bytes.*--max-payload"
        ):
            await image.reset()
        with pytest.raises(TooLarge, match=r"command of 6291\d+ bytes is above .*2097152 bytes.*--max-payload"):
            await image.step(np.zeros(6 * 1024 * 1024, np.uint8))
        assert not image.lost
        observation, *_ = await asyncio.gather(image.step(np.zeros(16, np.uint8)), return_exceptions=True)
        assert isinstance(observation, TooLarge)
        async with remote.session("test/Raises-v0") as session:
            await session.reset()
            assert (await session.step("x" * 2_000_000))[0] == 1
        await image.close()


async def test_a_larger_ceiling_holds_for_both_sides(shared_server: Any) -> None:
    server = shared_server(workers=1, max_payload=96 * 1024 * 1024)
    async with connect(server.address) as remote, remote.session("gymhost/Echo-v0") as session:
        await session.reset()
        text = "x" * (80 * 1024 * 1024)
        assert (await session.step(text))[0] == text


def test_a_ceiling_below_what_a_frame_holds_is_refused() -> None:
    from gymhost.server.config import ServerConfig
    from gymhost.wire.errors import InvalidArgument

    with pytest.raises(InvalidArgument, match="max_payload"):
        ServerConfig(max_payload=1000)


async def test_a_raw_frame_above_the_ceiling_breaks_that_stream_alone(start_server: Any) -> None:
    from gymhost.v1 import environments_pb2 as pb
    from support.raw import RawStream, stub_to

    server = start_server(workers=1, max_payload=1024 * 1024)
    async with stub_to(server.address) as stub, RawStream(stub) as good:
        made = await good.create("test/Counter-v0")
        async with RawStream(stub) as bad:
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await bad.ask(pb.COMMAND_KIND_STEP, bytes(2 * 1024 * 1024), lane=made.lanes[0], number=1)
            assert raised.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert not (await good.ask(pb.COMMAND_KIND_RESET, lane=made.lanes[0], number=1)).code
