"""Forks of sessions: they go on as their parent would, exactly once, and nothing of them is left."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc.aio
import numpy as np
import pytest

from gymhost.client import (
    CapacityExhausted,
    EnvironmentFault,
    InvalidArgument,
    RemoteServer,
    ResetNeeded,
    ServerUnavailable,
    Session,
    SessionClosed,
    SessionExpired,
    SessionLost,
    Unimplemented,
    connect,
    make,
)
from gymhost.v1 import environments_pb2 as pb
from gymhost.wire import values
from support.proxy import Proxy
from support.raw import RawStream, command, create, error_of, step, stub_to, until_busy
from support.server import ServerProcess, alive, until, until_sessions

StartServer = Callable[..., ServerProcess]

MODULES = ["support.environments", "support.fork_environments"]
MODES = ["test/Walk-v0", "test/WalkInline-v0", "test/WalkAsync-v0"]
FORK, RESET, STEP = pb.COMMAND_KIND_FORK, pb.COMMAND_KIND_RESET, pb.COMMAND_KIND_STEP

each_mode = pytest.mark.parametrize("environment", MODES)
each_path = pytest.mark.usefixtures("path")


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess(modules=MODULES) as process:
        yield process


@pytest.fixture
async def remote(server: ServerProcess) -> AsyncGenerator[RemoteServer]:
    """A connection; every session of the server is gone at the end."""
    async with connect(server.address) as remote:
        yield remote
        await until_sessions(remote, 0)


async def played(session: Session, *actions: int) -> list[list[Any]]:
    steps = [await session.step(action) for action in actions]
    return [[np.asarray(part[0]).tolist(), *part[1:]] for part in steps]


async def closed(*sessions: Session) -> None:
    await asyncio.gather(*(session.close() for session in sessions))


async def total(remote: RemoteServer) -> int:
    return len(await remote.sessions())


def count(folder: Path, what: str) -> int:
    file = folder / what
    return file.stat().st_size if file.exists() else 0


@each_path
@each_mode
async def test_forks_go_on_as_their_parent_would_and_apart(remote: RemoteServer, environment: str) -> None:
    async with remote.session(environment) as session:
        await session.reset(seed=1)
        await played(session, 1, 2)
        forks = await session.fork(3)
        assert await total(remote) == 4
        assert len({fork._lane and fork._lane.session_id for fork in (session, *forks)}) == 4
        assert forks[0].observation_space == session.observation_space
        assert forks[0].queued == 0.0
        # One goes its own way first: neither its steps nor what it draws show in the others.
        await played(forks[0], 4, 4, 4)
        expected = await played(session, 1, 0, 3)
        for fork in forks[1:]:
            assert await played(fork, 1, 0, 3) == expected
        assert (await played(forks[0], 0))[0] != expected[-1]
        await forks[1].reset(seed=7)
        await session.reset(seed=7)
        assert await played(forks[1], 2) == await played(session, 2)
        await closed(*forks)
        assert await total(remote) == 1


@each_path
async def test_forks_of_forks_outlive_those_that_they_are_of(remote: RemoteServer) -> None:
    session = await remote.session("test/Walk-v0").open()
    await session.reset(seed=1)
    line = [session]
    for _ in range(5):
        line += await line[-1].fork()
        await played(line[-1], 1)
    await closed(*line[:-1])
    fresh = await remote.session("test/Walk-v0").open()
    await fresh.reset(seed=1)
    await played(fresh, 1, 1, 1, 1, 1)
    assert await played(line[-1], 2, 3) == await played(fresh, 2, 3)
    await closed(line[-1], fresh)


@each_mode
async def test_a_fork_before_the_first_reset_and_after_a_failure(remote: RemoteServer, environment: str) -> None:
    async with remote.session(environment) as session:
        with pytest.raises((EnvironmentFault, ResetNeeded)):
            await session.step(1)
        (fork,) = await session.fork()
        first, second = await session.reset(seed=3), await fork.reset(seed=3)
        assert (first[0] == second[0]).all()
        await fork.close()


@each_path
async def test_64_forks_at_once_and_under_load(remote: RemoteServer) -> None:
    async def play(session: Session) -> None:
        while True:
            await session.step(1)

    others = [await remote.session(environment).open() for environment in MODES * 3]
    await asyncio.gather(*(other.reset(seed=1) for other in others))
    playing = [asyncio.create_task(play(other)) for other in others]
    async with remote.session("test/Walk-v0") as session:
        await session.reset(seed=1)
        forks = await session.fork(64)
        replies = await asyncio.gather(*(played(fork, 1, 2) for fork in (session, *forks)))
        assert replies == replies[:1] * 65
        assert not any(task.done() for task in playing)
        await closed(*forks)
    for task in playing:
        task.cancel()
    await asyncio.wait(playing)
    await closed(*others)


async def test_numbers_that_make_no_sense(remote: RemoteServer) -> None:
    async with remote.session("test/Walk-v0") as session:
        await session.reset(seed=1)
        for number in (0, -1, 1.5, None, 2**40):
            with pytest.raises(InvalidArgument, match="number of forks"):
                await session.fork(number)  # pyright: ignore[reportArgumentType]
        with pytest.raises(InvalidArgument, match=r"ForkCommand\.copies"):
            await session.fork(5000)
        await session.step(1)


def test_forks_of_plain_environments(server: ServerProcess, path: None) -> None:
    env = make("CartPole-v1", server=server.address)
    env.reset(seed=1)
    env.action_space.seed(5)
    env.step(1)
    drawn = env.np_random.normal()  # there too, with the fork at the latest
    forks = env.fork(3)
    expected = [env.action_space.sample() for _ in range(20)]
    for fork in forks:
        assert [fork.action_space.sample() for _ in range(20)] == expected
        assert fork.np_random.normal() != drawn
        assert fork.spec is not None
        assert fork.spec.id == "CartPole-v1"
    played = env.step(1), *(fork.step(1) for fork in forks)
    assert len({str(one) for one in played}) == 1
    env.close()
    # Each holds the connection, and drives its own session.
    assert str(forks[0].step(0)) == str(forks[1].step(0))
    for fork in forks:
        fork.close()
        fork.close()


def test_forks_of_an_embedded_server_keep_it() -> None:
    env = make("test/Walk-v0", modules=("support.fork_environments",))
    env.reset(seed=1)
    (fork,) = env.fork()
    env.close()
    fork.step(1)
    fork.close()


async def test_forks_that_nobody_holds_are_closed(remote: RemoteServer) -> None:
    async with remote.session("test/Walk-v0") as session:
        await session.reset(seed=1)
        forks = await session.fork(4)
        assert await total(remote) == 5
        del forks
        await until_sessions(remote, 1)


# -- exactly once ------------------------------------------------------------------------------------------------------


@each_mode
async def test_a_fork_whose_reply_was_lost_is_not_made_twice(server: ServerProcess, environment: str) -> None:
    with Proxy(server.address) as proxy:
        async with (
            connect(server.address) as watching,
            connect(proxy.address, direct=False) as remote,
            remote.session(environment) as session,
        ):
            await session.reset(seed=1)
            proxy.hold(to_server=False)
            forking = asyncio.create_task(session.fork(3))
            await until_sessions(watching, 4)
            await asyncio.sleep(0.2)
            assert not forking.done()
            proxy.cut()
            proxy.release(to_server=False)
            forks = await asyncio.wait_for(forking, 10)
            assert len(forks) == 3
            assert await total(watching) == 4
            replies = [await played(each, 1) for each in (session, *forks)]
            assert replies == replies[:1] * 4
            assert proxy.accepted == 2
            # They are attached to the stream as others are.
            proxy.cut()
            await played(forks[0], 2)
            await closed(*forks)
            assert await total(watching) == 1


async def test_a_fork_that_never_arrived_is_sent_again(server: ServerProcess) -> None:
    with Proxy(server.address) as proxy:
        async with connect(proxy.address, direct=False) as remote, remote.session("test/Walk-v0") as session:
            await session.reset(seed=1)
            proxy.hold(to_server=True)
            forking = asyncio.create_task(session.fork(2))
            await asyncio.sleep(0.1)
            proxy.cut()
            proxy.release(to_server=True)
            forks = await asyncio.wait_for(forking, 10)
            assert await total(remote) == 3
            await closed(*forks)


async def test_many_forks_survive_many_cuts(server: ServerProcess) -> None:
    with Proxy(server.address) as proxy:
        async with connect(server.address) as watching, connect(proxy.address, direct=False) as remote:

            async def grow(session: Session, depth: int) -> int:
                await played(session, depth)
                forks = await session.fork(2) if depth else []
                grown = await asyncio.gather(*(grow(fork, depth - 1) for fork in forks))
                await session.close()
                return 1 + sum(grown)

            async def root() -> int:
                session = await remote.session("test/Walk-v0").open()
                await session.reset(seed=1)
                return await grow(session, 5)

            growing = asyncio.gather(*(root() for _ in range(4)))
            cuts = 0
            while not growing.done():
                await asyncio.sleep(0.03)
                proxy.cut()
                cuts += 1
            assert await growing == [2**6 - 1] * 4
            assert cuts > 2
            await until_sessions(watching, 0)


async def test_a_fork_that_waits_for_places_is_found_again(start_server: StartServer) -> None:
    server = start_server(workers=1, capacity=3, modules=MODULES)
    with Proxy(server.address) as proxy:
        async with connect(server.address) as other, connect(proxy.address, direct=False) as remote:
            taken = [await other.session("test/Walk-v0").open() for _ in range(2)]
            async with remote.session("test/WalkInline-v0") as session:
                await session.reset(seed=1)
                forking = asyncio.create_task(session.fork(2))
                for _ in range(3):
                    await asyncio.sleep(0.1)
                    proxy.cut()
                assert not forking.done()
                await closed(*taken)
                forks = await asyncio.wait_for(forking, 10)
                assert await total(remote) == 3
                assert len({str(await played(each, 1)) for each in (session, *forks)}) == 1
                await closed(*forks)


# -- capacity ----------------------------------------------------------------------------------------------------------


async def test_places_are_taken_for_all_before_any_is_made(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server(workers=1, capacity=4, modules=MODULES)
    async with connect(server.address) as remote:
        other = await remote.session("test/Walk-v0").open()
        async with remote.session("test/Walk-v0", folder=str(tmp_path)) as session:
            await session.reset(seed=1)
            with pytest.raises(CapacityExhausted, match=r"above the server's capacity of 4 \(--capacity\)"):
                await session.fork(5)
            with pytest.raises(CapacityExhausted, match=r"full: 2 of 4 sessions.*--capacity"):
                await session.fork(3, timeout=0.3)
            assert count(tmp_path, "copied") == 0
            # What was refused has its number: the session goes on.
            await played(session, 1)
            forks = await session.fork(2)
            with pytest.raises(CapacityExhausted):
                await remote.session("test/Walk-v0", create_timeout=0.2).open()
            forking = asyncio.create_task(forks[0].fork(2))
            await asyncio.sleep(0.2)
            assert not forking.done()
            await closed(other, forks[1])
            more = await asyncio.wait_for(forking, 10)
            assert more[0].queued > 0.1
            assert await total(remote) == 4
            await closed(forks[0], *more)
        # All places are free again.
        again = [await remote.session("test/Walk-v0", create_timeout=1.0).open() for _ in range(4)]
        await closed(*again)


async def test_a_fork_whose_caller_is_cancelled_as_it_waits(shared_server: StartServer) -> None:
    server = shared_server(workers=1, capacity=2, modules=MODULES)
    async with connect(server.address) as remote, remote.session("test/Walk-v0") as session:
        other = await remote.session("test/Walk-v0").open()
        await session.reset(seed=1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await session.fork(1)
        async with asyncio.timeout(2):
            await session.step(1)
        await other.close()
        assert await total(remote) == 1
        (fork,) = await session.fork(timeout=2.0)
        await fork.close()


async def test_a_cancel_that_comes_in_the_frame_of_its_fork(shared_server: StartServer) -> None:
    server = shared_server(workers=1, capacity=1, modules=MODULES)
    async with stub_to(server.address) as stub, RawStream(stub) as stream:
        lane = (await stream.create("test/Walk-v0")).lanes[0]
        one = pb.ForkCommand(copies=1).SerializeToString()
        await stream.send(
            command(FORK, one, lane=lane, number=1), command(pb.COMMAND_KIND_CANCEL, lane=lane, number=77)
        )
        reply = await stream.reply()
        assert (reply.lane, reply.sequence, reply.code) == (lane, 1, pb.REPLY_CODE_CANCELLED)
        assert not (await stream.ask(RESET, lane=lane, number=2)).code


async def test_a_server_that_is_going_away_forks_no_more(start_server: StartServer) -> None:
    server = start_server(workers=1, drain=30.0, modules=MODULES)
    async with connect(server.address) as remote:
        session = await remote.session("test/Walk-v0").open()
        await session.reset(seed=1)
        server.signal(signal.SIGTERM)
        await until(lambda: remote.draining)
        with pytest.raises(ServerUnavailable, match="going away"):
            await session.fork()
        await played(session, 1)
        await session.close()
        await asyncio.to_thread(server.wait)


async def test_a_fork_whose_parent_is_closed_as_it_waits(shared_server: StartServer) -> None:
    server = shared_server(workers=1, capacity=2, modules=MODULES)
    async with connect(server.address) as remote:
        session = await remote.session("test/Walk-v0").open()
        other = await remote.session("test/Walk-v0").open()
        await session.reset(seed=1)
        forking = asyncio.create_task(session.fork(1))
        await asyncio.sleep(0.2)
        await session.close()
        with pytest.raises(SessionClosed):
            await asyncio.wait_for(forking, 2)
        await other.close()
        both = [await remote.session("test/Walk-v0", create_timeout=2.0).open() for _ in range(2)]
        await closed(*both)


async def test_whose_fork_waits_is_not_idle(shared_server: StartServer) -> None:
    server = shared_server(workers=1, capacity=2, modules=MODULES)
    async with connect(server.address) as remote, remote.session("test/Walk-v0", idle_timeout=0.5) as session:
        other = await remote.session("test/Walk-v0").open()
        await session.reset(seed=1)
        forking = asyncio.create_task(session.fork(1))
        await asyncio.sleep(2.5)
        assert not forking.done()
        await other.close()
        (fork,) = await asyncio.wait_for(forking, 5)
        # The idle limit is that of the parent.
        await until_sessions(remote, 0)
        with pytest.raises(SessionExpired, match="idle_timeout"):
            await fork.step(1)


# -- ends --------------------------------------------------------------------------------------------------------------


@each_path
async def test_sessions_that_have_ended_are_not_forked(start_server: StartServer) -> None:
    server = start_server(workers=1, modules=MODULES)
    async with connect(server.address) as remote:
        ended = await remote.session("test/Walk-v0").open()
        await ended.close()
        with pytest.raises(SessionClosed):
            await ended.fork()
        lost = await remote.session("test/Walk-v0").open()
        forks = await lost.fork(2)
        os.kill(server.workers[0], signal.SIGKILL)
        # All run in the worker of the first.
        for session in (lost, *forks):
            with pytest.raises(SessionLost, match="SIGKILL"):
                await session.fork()
        assert all(fork.lost for fork in forks)
        await until_sessions(remote, 0)


@each_path
async def test_a_worker_that_dies_as_it_forks(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server(workers=1, modules=MODULES)
    async with connect(server.address) as remote:
        session = await remote.session("test/Walk-v0", folder=str(tmp_path), slow=0.2).open()
        await session.reset(seed=1)
        forking = asyncio.create_task(session.fork(20))
        await until(lambda: count(tmp_path, "copied"))
        os.kill(server.workers[0], signal.SIGKILL)
        with pytest.raises(SessionLost, match="SIGKILL"):
            await forking
        await until_sessions(remote, 0)


@each_path
async def test_a_session_apart_and_its_forks_share_a_worker_till_the_last(start_server: StartServer) -> None:
    server = start_server(workers=1, modules=MODULES)
    async with connect(server.address) as remote:
        session = await remote.session("test/WalkApart-v0").open()
        await session.reset(seed=1)
        (apart,) = set(server.workers) - set(server.workers[:1])
        forks = await session.fork(2)
        assert len({fork["worker"] for fork in await remote.sessions()}) == 1
        await closed(session, forks[0])
        await played(forks[1], 1)
        assert alive(apart)
        await forks[1].close()
        await until(lambda: not alive(apart))


async def test_a_caller_that_is_gone_gets_none(remote: RemoteServer, tmp_path: Path) -> None:
    async with remote.session("test/Walk-v0", folder=str(tmp_path), slow=0.1) as session:
        await session.reset(seed=1)
        forking = asyncio.create_task(session.fork(5))
        await until(lambda: count(tmp_path, "copied"))
        forking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await forking
        await played(session, 1)
        await until_sessions(remote, 1)
        await until(lambda: count(tmp_path, "closed") == 5)


async def test_a_parent_that_is_closed_as_it_is_forked(remote: RemoteServer, tmp_path: Path) -> None:
    session = await remote.session("test/Walk-v0", folder=str(tmp_path), slow=0.1).open()
    await session.reset(seed=1)
    forking = asyncio.create_task(session.fork(5))
    await until(lambda: count(tmp_path, "copied"))
    await session.close()
    with pytest.raises((SessionClosed, SessionLost)):
        await forking
    await until_sessions(remote, 0)
    await until(lambda: count(tmp_path, "closed") == 6)


async def test_the_lease_of_forks_that_nobody_learned_of_runs_out(start_server: StartServer) -> None:
    server = start_server(workers=1, lease=1.0, heartbeat=0.3, modules=MODULES)
    async with stub_to(server.address) as stub, connect(server.address) as watching:
        async with RawStream(stub) as stream:
            made = await stream.create("test/Walk-v0")
            payload = pb.ForkCommand(copies=4).SerializeToString()
            await stream.send(command(FORK, payload, lane=made.lanes[0], number=1))
            await until_sessions(watching, 5)
        await until_sessions(watching, 0)


async def test_a_replayable_fork_survives_its_worker(start_server: StartServer) -> None:
    server = start_server(workers=1, modules=MODULES)
    async with connect(server.address) as remote, remote.session("test/WalkReplayable-v0") as session:
        assert session.replayable
        await session.reset(seed=1)
        await played(session, 1, 2)
        here, there = await session.fork(2)
        await played(here, 3)
        await played(there, 4)
        os.kill(server.workers[0], signal.SIGKILL)
        async with remote.session("test/Walk-v0") as fresh:
            for fork, way in ((here, 3), (there, 4)):
                await fresh.reset(seed=1)
                await played(fresh, 1, 2, way)
                assert await played(fork, 0, 1) == await played(fresh, 0, 1)
                assert fork.recoveries == 1
                await fork.close()


async def test_a_fork_goes_on_where_its_replayable_parent_is_made_again(
    start_server: StartServer, tmp_path: Path
) -> None:
    server = start_server(workers=1, modules=MODULES)
    async with connect(server.address) as remote:
        how: dict[str, Any] = {"folder": str(tmp_path), "slow": 0.1}
        async with remote.session("test/WalkReplayable-v0", **how) as session:
            await session.reset(seed=1)
            await played(session, 1)
            forking = asyncio.create_task(session.fork(5))
            await until(lambda: count(tmp_path, "copied"))
            os.kill(server.workers[0], signal.SIGKILL)
            forks = await forking
            assert session.recoveries == 1
            replies = [await played(each, 2) for each in (session, *forks)]
            assert replies == replies[:1] * 6
            assert await total(remote) == 6
            await closed(*forks)


# -- what can't be forked ----------------------------------------------------------------------------------------------


@each_path
async def test_what_can_not_be_copied_is_named_and_the_parent_goes_on(remote: RemoteServer) -> None:
    async with remote.session("test/Sqlite-v0") as session:
        await session.reset()
        await session.step(1)
        for _ in range(2):
            with pytest.raises(Unimplemented, match=r"Sqlite\.connection is a sqlite3\.Connection.*__deepcopy__"):
                await session.fork(3)
        assert (await session.step(1))[0] == 2
        await until_sessions(remote, 1)


@each_mode
async def test_a_copy_that_fails_undoes_the_others(remote: RemoteServer, environment: str, tmp_path: Path) -> None:
    async with remote.session(environment, folder=str(tmp_path), fails=3) as session:
        await session.reset(seed=1)
        with pytest.raises(EnvironmentFault, match="this copy was told to fail") as raised:
            await session.fork(4)
        assert raised.value.exception == "LookupError"
        assert "__deepcopy__" in raised.value.traceback
        await until(lambda: count(tmp_path, "closed") == 2)
        await until_sessions(remote, 1)
        forks = await session.fork(2)
        replies = [await played(each, 1) for each in (session, *forks)]
        assert replies == replies[:1] * 3
        await closed(*forks)


async def test_vector_sessions_are_refused(server: ServerProcess) -> None:
    async with stub_to(server.address) as stub, RawStream(stub) as stream:
        made = await stream.create("test/Walk-v0", num_envs=2)
        payload = pb.ForkCommand(copies=2).SerializeToString()
        refused = await stream.ask(FORK, payload, lane=made.lanes[0], number=1)
        assert refused.code == pb.REPLY_CODE_UNIMPLEMENTED
        assert "a vector session can't be forked" in error_of(refused)[1]


# -- the contract by hand ----------------------------------------------------------------------------------------------


async def test_forks_by_unary_calls(server: ServerProcess) -> None:
    async with stub_to(server.address) as stub, connect(server.address) as watching:
        made = await stub.CreateSession(create("test/WalkAsync-v0"))
        await stub.Reset(pb.ResetRequest(session_id=made.session_id, sequence=1, command=pb.ResetCommand(seed=1)))
        request = pb.ForkRequest(session_id=made.session_id, sequence=2, command=pb.ForkCommand(copies=2))
        forked = (await stub.Fork(request)).result.sessions
        again = (await stub.Fork(request)).result.sessions
        assert [one.session_id for one in again] == [one.session_id for one in forked]
        assert await total(watching) == 3
        replies: list[Any] = []
        for session_id, sequence in ((made.session_id, 3), *((one.session_id, 1) for one in forked)):
            stepped = await stub.Step(pb.StepRequest(session_id=session_id, sequence=sequence, command=step(1)))
            replies.append(values.decode(stepped.result.observation).tolist())
        assert replies == replies[:1] * 3
        async with RawStream(stub) as stream:
            assert not (await stream.attach(forked[0].session_id)).code
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await stub.Fork(pb.ForkRequest(session_id="nobody's", sequence=1, command=pb.ForkCommand(copies=1)))
        assert raised.value.code() == grpc.StatusCode.NOT_FOUND
        for session_id in (made.session_id, *(one.session_id for one in forked)):
            await stub.CloseSession(pb.CloseSessionRequest(session_id=session_id))
        assert await total(watching) == 0


async def test_a_unary_fork_that_is_cancelled_as_it_waits(shared_server: StartServer) -> None:
    server = shared_server(workers=1, capacity=1, modules=MODULES)
    async with stub_to(server.address) as stub:
        session_id = (await stub.CreateSession(create("test/Walk-v0"))).session_id
        request = pb.ForkRequest(session_id=session_id, sequence=1, command=pb.ForkCommand(copies=1))
        call = stub.Fork(request)
        await asyncio.sleep(0.3)
        call.cancel()
        # It has its number all the same, and its end is what a repetition is told.
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await stub.Fork(request, timeout=10)
        assert raised.value.code() == grpc.StatusCode.CANCELLED
        await stub.Reset(pb.ResetRequest(session_id=session_id, sequence=2), timeout=10)
        await stub.CloseSession(pb.CloseSessionRequest(session_id=session_id))
        await stub.CreateSession(create("test/Walk-v0"), timeout=10)


async def test_numbers_are_the_workers_to_count(server: ServerProcess) -> None:
    async with stub_to(server.address) as stub, RawStream(stub) as stream, connect(server.address) as watching:
        made = await stream.create("test/Walk-v0")
        lane, one = made.lanes[0], pb.ForkCommand(copies=1).SerializeToString()
        # Those that are out of sequence leave nothing behind, whatever their numbers.
        for number in (2, 1000, 2, 2**40, 0):
            assert (await _answer(stream, lane, number, one)).code == pb.REPLY_CODE_OUT_OF_SEQUENCE
        await until_sessions(watching, 1)
        # What has been given back is not made later, when the number comes up.
        assert not (await _answer(stream, lane, 1, b"", RESET)).code
        assert (await _answer(stream, lane, 3, one)).code == pb.REPLY_CODE_OUT_OF_SEQUENCE
        first = await _answer(stream, lane, 2, one)
        assert not first.code
        await until_sessions(watching, 2)
        assert (await _answer(stream, lane, 4, one)).code == pb.REPLY_CODE_OUT_OF_SEQUENCE
        assert not (await _answer(stream, lane, 3, b"", RESET)).code
        await until_sessions(watching, 2)
        assert (await _answer(stream, lane, 4, one)).code == pb.REPLY_CODE_UNAVAILABLE
        third = await _answer(stream, lane, 5, one)
        again = await _answer(stream, lane, 5, one)
        assert third == again
        assert not third.code
        await until_sessions(watching, 3)
        malformed = await _answer(stream, lane, 6, b"\xff")
        assert malformed.code == pb.REPLY_CODE_INVALID_ARGUMENT
        none = await _answer(stream, lane, 7, b"")
        assert none.code == pb.REPLY_CODE_INVALID_ARGUMENT
        # A FORK as the repetition of another command gets what that was answered, and makes nothing.
        reset = await _answer(stream, lane, 8, b"", RESET)
        as_fork = await _answer(stream, lane, 8, one)
        assert as_fork.payload == reset.payload
        await until_sessions(watching, 3)
        for forked in (first, third):
            for session in pb.ForkResult.FromString(forked.payload).sessions:
                await stub.CloseSession(pb.CloseSessionRequest(session_id=session.session_id))


async def _answer(stream: RawStream, lane: int, number: int, payload: bytes, kind: int = FORK) -> pb.Reply:
    """Gives a command, and skips notices that sessions were not forked."""
    await stream.send(command(kind, payload, lane=lane, number=number))
    while (reply := await stream.reply()).sequence != number or reply.lane != lane:
        assert not reply.sequence
    return reply


async def test_lanes_that_are_closed_before_they_are_there_stay_closed(server: ServerProcess, tmp_path: Path) -> None:
    async with stub_to(server.address) as stub, RawStream(stub) as stream, connect(server.address) as watching:
        kwargs = values.encode({"folder": str(tmp_path), "slow": 0.1})
        made = await stream.create("test/Walk-v0", kwargs=kwargs)
        lane = made.lanes[0]
        await stream.ask(pb.COMMAND_KIND_RESET, lane=lane, number=1)
        await stream.send(command(FORK, pb.ForkCommand(copies=3).SerializeToString(), lane=lane, number=2))
        await until_busy(stub, made.session_id)
        # Lanes are no secret: one that guesses them can close its own, and nothing is left of that.
        assert not (await stream.ask(pb.COMMAND_KIND_CLOSE, lane=lane + 1, number=77)).code
        forked = await stream.reply()
        assert (forked.lane, forked.sequence, forked.code) == (lane, 2, 0)
        await until_sessions(watching, 3)
        await until(lambda: count(tmp_path, "closed") == 1)
        gone = await stream.ask(STEP, step(1).SerializeToString(), lane=lane + 1, number=1)
        assert gone.code == pb.REPLY_CODE_SESSION_CLOSED
        for other in (lane + 2, lane + 3):
            assert not (await stream.ask(STEP, step(1).SerializeToString(), lane=other, number=1)).code
            await stream.ask(pb.COMMAND_KIND_CLOSE, lane=other)


async def test_a_fork_takes_no_longer_than_creates_do(remote: RemoteServer) -> None:
    async with remote.session("CartPole-v1") as session:
        await session.reset(seed=1)
        await closed(*await session.fork(8))
        began = time.monotonic()
        forks = await session.fork(8)
        forked = time.monotonic() - began
        made = [await remote.session("CartPole-v1").open() for _ in range(8)]
        assert forked < time.monotonic() - began - forked
        await closed(*forks, *made)
