"""Workers that die, and steps that go on for too long."""

import asyncio
import os
import signal
import sys
import textwrap
import time
from collections.abc import Callable

import pytest

from gymhost.client import (
    CommandTimeout,
    RemoteServer,
    ServerUnavailable,
    Session,
    SessionLost,
    connect,
)
from support.server import ServerProcess, alive, running, until

pytestmark = pytest.mark.usefixtures("path")

StartServer = Callable[..., ServerProcess]


async def opened(remote: RemoteServer, environment_id: str, number: int) -> list[Session]:
    sessions = [remote.session(environment_id) for _ in range(number)]
    await asyncio.gather(*(session.open() for session in sessions))
    await asyncio.gather(*(session.reset() for session in sessions))
    return sessions


async def working(*sessions: Session) -> None:
    """Sees that sessions step."""
    for session in sessions:
        async with asyncio.timeout(10):
            await session.step(0.0)


async def step_for_ever(session: Session) -> None:
    while True:
        await session.step(0.0)


def worker_of(session: Session) -> int:
    assert session._lane is not None
    return session._lane.number >> 32


async def test_the_sessions_of_a_killed_worker_are_lost_at_once_and_no_others(start_server: StartServer) -> None:
    """S14."""
    server = start_server(workers=2, capacity=6)
    async with connect(server.address) as remote:
        sessions = await opened(remote, "test/Slow-v0", 6)
        placed = [worker_of(session) for session in sessions]
        assert sorted(placed) == [0, 0, 0, 1, 1, 1]
        on_first = [session for session in sessions if worker_of(session) == 0]
        on_second = [session for session in sessions if worker_of(session) == 1]
        stepping = asyncio.create_task(on_first[0].step(60.0))
        await asyncio.sleep(0.1)
        before = server.workers
        started = time.monotonic()
        os.kill(before[0], signal.SIGKILL)
        with pytest.raises(SessionLost, match=r"the session is lost: worker 0 is gone: it was killed by SIGKILL"):
            await stepping
        assert time.monotonic() - started < 2
        for session in on_first[1:]:
            with pytest.raises(SessionLost, match="killed by SIGKILL"):
                await session.step(0.0)
            assert session.lost
        await working(*on_second)
        # Three places are free again, and a new worker takes them: it is the emptiest.
        fresh = await opened(remote, "test/Slow-v0", 3)
        assert len(await remote.sessions()) == 6
        await working(*fresh, *on_second)
        await until(lambda: len(server.workers) == 2)
        assert before[1] in server.workers
        for session in [*fresh, *on_second, *on_first]:
            await session.close()
        assert await remote.sessions() == []


async def test_an_environment_that_ends_its_process_is_named_with_its_status(shared_server: StartServer) -> None:
    server = shared_server(workers=1)
    async with connect(server.address) as remote, remote.session("test/Exit-v0") as session:
        await session.reset()
        with pytest.raises(SessionLost, match="it ended with status 3"):
            await asyncio.wait_for(session.step("exit"), 5)
        async with remote.session("test/Exit-v0") as fresh:
            await fresh.reset()
            assert (await fresh.step("stay"))[0] == 1


async def test_a_thread_that_hangs_is_given_up_alone(shared_server: StartServer) -> None:
    server = shared_server(workers=1, grace=30.0)
    async with connect(server.address) as remote:
        neighbour = (await opened(remote, "test/Slow-v0", 1))[0]
        hanging = (await opened(remote, "test/HangThread-v0", 1))[0]
        (worker,) = server.workers
        started = time.monotonic()
        with pytest.raises(SessionLost, match=r"step of test/HangThread-v0 ran past its limit \(step_timeout=2.0 s\)"):
            await hanging.step("hang")
        assert 1.9 < time.monotonic() - started < 5
        assert hanging.lost
        # The worker goes on for its neighbour's sake, and another takes what is new.
        await working(neighbour)
        fresh = (await opened(remote, "test/Slow-v0", 1))[0]
        assert worker_of(fresh) != worker_of(neighbour)
        await working(neighbour, fresh)
        assert alive(worker)
        await neighbour.close()
        await until(lambda: not alive(worker))
        await working(fresh)
        await fresh.close()
        assert await remote.sessions() == []


async def test_a_worker_with_a_hanging_thread_ends_after_its_grace(shared_server: StartServer) -> None:
    server = shared_server(workers=1, grace=0.5)
    async with connect(server.address) as remote:
        neighbour = (await opened(remote, "test/Slow-v0", 1))[0]
        hanging = (await opened(remote, "test/HangThread-v0", 1))[0]
        with pytest.raises(SessionLost, match="step_timeout"):
            await hanging.step("hang", timeout=60.0)
        with pytest.raises(SessionLost, match="step_timeout"):
            await asyncio.wait_for(neighbour.step(30.0), 10)


async def test_a_callers_timeout_names_itself(shared_server: StartServer) -> None:
    server = shared_server(workers=1)
    async with connect(server.address) as remote:
        hanging = (await opened(remote, "test/HangThread-v0", 1))[0]
        with pytest.raises(SessionLost, match="the caller's timeout") as raised:
            await asyncio.wait_for(hanging.step("hang", timeout=0.3), 5)
        assert raised.value.limit == "command"


async def test_coroutines_are_given_up_that_take_too_long_to_make(server: ServerProcess) -> None:
    async with connect(server.address) as remote:
        with pytest.raises(CommandTimeout, match=r"reset_timeout=0.2 s") as raised:
            await remote.session("test/SlowToMake-v0").open()
        assert raised.value.limit == "reset"


async def test_an_inline_step_that_hangs_costs_its_worker(start_server: StartServer) -> None:
    server = start_server(workers=2)
    async with connect(server.address) as remote:
        hanging, other = await opened(remote, "test/Hang-v0", 2)
        assert worker_of(hanging) != worker_of(other)
        started = time.monotonic()
        with pytest.raises(SessionLost, match=r"step of test/Hang-v0 ran past its limit \(step_timeout=2.0 s\)"):
            await hanging.step("hang")
        assert time.monotonic() - started < 5
        assert (await other.step("go on"))[0] == 1
        fresh = (await opened(remote, "test/Hang-v0", 1))[0]
        assert (await fresh.step("go on"))[0] == 1
        assert "line" in server.log  # where it hung


async def test_a_coroutine_is_stopped_by_its_callers_timeout_and_the_session_lives(server: ServerProcess) -> None:
    async with connect(server.address) as remote, remote.session("test/Async-v0") as session:
        await session.reset()
        started = time.monotonic()
        with pytest.raises(CommandTimeout, match=r"the caller's timeout") as raised:
            await session.step(600.0, timeout=0.3)
        assert raised.value.limit == "command"
        assert time.monotonic() - started < 3
        assert (await session.step(0.0))[0] == 1
        assert not session.lost


async def test_an_isolated_environment_dies_alone(server: ServerProcess) -> None:
    before = server.workers
    async with connect(server.address) as remote:
        first, second = await opened(remote, "test/Process-v0", 2)
        pids = [(await session.step(0))[0] for session in (first, second)]
        assert len({*pids, *before}) == len(before) + 2
        os.kill(pids[0], signal.SIGKILL)
        with pytest.raises(SessionLost, match="SIGKILL"):
            await asyncio.wait_for(first.step(0), 5)
        assert (await second.step(0))[0] == pids[1]
        await second.close()
        await until(lambda: not alive(pids[1]))
        await first.close()
    assert server.workers == before


async def test_the_end_of_an_isolated_environment_is_no_warning(start_server: StartServer) -> None:
    server = start_server(workers=1)
    async with connect(server.address) as remote, remote.session("test/Process-v0") as session:
        await session.reset()
        number = worker_of(session)
    await until(lambda: f"INFO worker {number} ended: it was asked to\n" in server.log)
    assert "WARNING" not in server.log


async def test_a_worker_that_is_stopped_is_noticed(shared_server: StartServer) -> None:
    server = shared_server(workers=1, worker_liveness=2.0)
    async with connect(server.address) as remote, remote.session("test/Slow-v0") as session:
        await session.reset()
        os.kill(server.workers[0], signal.SIGSTOP)
        with pytest.raises(SessionLost, match=r"silent for 2 s \(--worker-liveness\)"):
            await asyncio.wait_for(session.step(0.0), 10)
        async with remote.session("test/Slow-v0") as fresh:
            await fresh.reset()


async def test_workers_are_not_blamed_for_time_in_which_all_stood_still(shared_server: StartServer) -> None:
    server = shared_server(workers=1, worker_liveness=3.0)
    async with connect(server.address) as remote, remote.session("test/Counter-v0") as session:
        await session.reset()
        [worker] = server.workers
        os.kill(worker, signal.SIGSTOP)
        server.signal(signal.SIGSTOP)
        await asyncio.sleep(3.5)
        server.signal(signal.SIGCONT)
        await asyncio.sleep(0.3)
        os.kill(worker, signal.SIGCONT)
        assert (await session.step(1))[0] == 1
        assert server.workers == [worker]


async def test_what_environments_print_is_in_the_log_with_their_session(server: ServerProcess) -> None:
    async with connect(server.address) as remote, remote.session("test/Noisy-v0") as session:
        await session.reset()
        await session.step("hello there")
        assert session._lane is not None
        number = session._lane.number
        label = f"INFO [test/Noisy-v0 {number >> 32}-{number & 0xFFFFFFFF}]"
        await until(lambda: f"{label} said: hello there\n" in server.log)
        await until(lambda: f"{label} complained: hello there\n" in server.log)


async def test_nothing_is_left_after_sigterm_and_a_running_step_may_end(start_server: StartServer) -> None:
    server = start_server(workers=2, drain=0)
    port = int(server.address.rpartition(":")[2])
    workers = server.workers
    async with connect(server.address, reconnect_timeout=1.0) as remote:
        stepping_one, idle = await opened(remote, "test/Slow-v0", 2)
        step = asyncio.create_task(stepping_one.step(1.0))
        await asyncio.sleep(0.1)
        server.signal(signal.SIGTERM)
        assert (await step)[0] == 1
        with pytest.raises(SessionLost, match="the server was stopped"):
            await asyncio.wait_for(step_for_ever(idle), 10)
        assert await asyncio.to_thread(server.wait) == 0
        with pytest.raises(ServerUnavailable):
            await asyncio.wait_for(remote.session("test/Slow-v0").open(), 10)
    assert not any(alive(pid) for pid in workers)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
    assert "Traceback" not in server.log
    assert "never retrieved" not in server.log


async def test_a_coroutine_that_blocks_is_stopped_at_its_own_limit(start_server: StartServer) -> None:
    server = start_server(workers=2)
    async with connect(server.address) as remote:
        first, second = await opened(remote, "test/BlockingAsync-v0", 2)
        assert worker_of(first) != worker_of(second)
        async with asyncio.timeout(10):
            with pytest.raises(SessionLost, match="step_timeout=1"):
                await first.step("hang")
        await working(second)
        await working(*await opened(remote, "test/BlockingAsync-v0", 2))


STEPS_FOR_EVER = """
    import asyncio, sys
    from gymhost.client import connect

    async def step_for_ever(server):
        async with server.session("test/Slow-v0") as session:
            await session.reset()
            while True:
                await session.step(0.05)
                print("stepped", flush=True)

    async def main():
        async with connect(sys.argv[1], direct=sys.argv[2] == "direct") as server:
            await asyncio.gather(*(step_for_ever(server) for _ in range(8)))

    asyncio.run(main())
"""


@pytest.mark.parametrize("way", ["direct", "grpc"])
async def test_a_client_that_is_killed_in_its_steps_harms_no_other(shared_server: StartServer, way: str) -> None:
    server = shared_server(workers=1, log_level="info")  # whose worker nothing kills
    [pid] = server.workers
    async with connect(server.address) as remote:
        sessions = await opened(remote, "test/Slow-v0", 4)
        others = [asyncio.create_task(step_for_ever(session)) for session in sessions]
        for _ in range(3):
            command = [sys.executable, "-c", textwrap.dedent(STEPS_FOR_EVER), server.address, way]
            with running(command) as client:
                assert client.stdout is not None
                for _ in range(16):
                    await asyncio.to_thread(client.stdout.readline)
                client.kill()
                await asyncio.to_thread(client.wait)
            # Steps of the dead client end, and find nobody to be sent to.
            await asyncio.sleep(0.2)
            assert not [task for task in others if task.done()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await working(*sessions)
    assert server.workers == [pid]
    assert "fault" not in server.log
