"""Client processes of their own: several event loops, forks, and ends without goodbye."""

import asyncio
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable

import grpc
import pytest

from gymhost.client import connect
from support.server import PATIENCE, ServerProcess, alive, children, running, until, until_sessions


def run_client(script: str, *arguments: str, limit: float = PATIENCE) -> "subprocess.CompletedProcess[str]":
    """Runs a client with warnings as errors."""
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)


LOOPS = """
    import asyncio, sys, threading
    from gymhost.client import connect

    complaints, played = [], []

    async def play(server):
        async with server.session("test/Counter-v0") as session:
            await session.reset()
            return [(await session.step(1))[0] for _ in range(200)]

    async def main():
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        async with connect(sys.argv[1], direct=sys.argv[2] == "direct") as server:
            return await asyncio.gather(*(play(server) for _ in range(4)))

    def thread():
        played.extend(asyncio.run(main()))

    threads = [threading.Thread(target=thread) for _ in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not complaints, complaints
    assert played == [list(range(1, 201))] * 12, played
    print("2400 steps")
"""


@pytest.mark.parametrize("path", ["direct", "grpc"])
def test_three_threads_have_event_loops_of_their_own(server: ServerProcess, path: str) -> None:
    """S17."""
    done = run_client(LOOPS, server.address, path)
    assert (done.stdout, done.stderr, done.returncode) == ("2400 steps\n", "", 0)


async def test_a_process_that_closes_nothing_ends_quietly_and_leaves_no_session(server: ServerProcess) -> None:
    done = run_client(
        """
        import asyncio, sys
        from gymhost.client import connect, make

        kept = [make("test/Counter-v0", server=sys.argv[1]) for _ in range(3)]
        kept[0].reset()

        async def main():
            server = await connect(sys.argv[1])
            session = await server.session("test/Counter-v0").open()
            await session.reset()
            kept.append(session)

        asyncio.run(main())
        """,
        server.address,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)
    async with connect(server.address) as remote:
        await until_sessions(remote, 0)


# What gRPC itself says around a fork; at 1.71, the oldest that is supported, a thread of its own cries out at the exit.
OLDEST = grpc.__version__.startswith("1.71.")
AT_EXIT = ["absl::InitializeLog()", "Error in sys.excepthook:", "Original exception was:"]
NOISE = ["skipping fork() handlers", *(AT_EXIT if OLDEST else [])]

FORKS = """
    import asyncio, os, sys, time
    from gymhost.client import ConnectionLost, connect, make

    env = make("test/Counter-v0", server=sys.argv[1])
    env.reset()
    assert env.step(1)[0] == 1
    embedded = make("gymhost/Echo-v0")
    embedded.reset()
    server = connect(sys.argv[1]).open()

    async def open_and_step(session):
        await session.open()
        await session.reset()
        return await session.step(1)

    session = server.session("test/Counter-v0")
    asyncio.run(open_and_step(session))

    async def use():
        new = server.session("test/Counter-v0")
        for work in (session.reset, new.open, server.sessions, connect(sys.argv[1]).__aenter__):
            refused(await asyncio.gather(work(), return_exceptions=True))
        await session.close()
        await asyncio.to_thread(server.close)

    def refused(outcomes):
        (error,) = outcomes
        assert isinstance(error, ConnectionLost), error
        assert "connect after the fork, or spawn" in str(error), error

    def child():
        started = time.monotonic()
        asyncio.run(use())
        for each in (env, embedded):
            try:
                each.step(1)
            except ConnectionLost as error:
                refused([error])
            else:
                raise AssertionError("it stepped")
            each.close()
        try:
            make("gymhost/Echo-v0")
        except ConnectionLost as error:
            refused([error])
        assert time.monotonic() - started < 2.0, "it waited"

    pid = os.fork()
    if pid == 0:
        child()
        sys.exit(0)  # with all that is done at the end of an interpreter
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

    assert env.step(1)[0] == 2
    embedded.step("still here")
    make("gymhost/Echo-v0").close()  # the embedded server still has its socket
    asyncio.run(session.close())
    server.close()
    env.close()
    embedded.close()
    print("unharmed")
"""


def test_a_forked_child_is_told_at_once_and_harms_nobody(server: ServerProcess) -> None:
    done = run_client(FORKS, server.address)
    # gRPC itself says on some versions that it does nothing about the fork.
    assert not done.returncode, done.stderr
    said = [line for line in done.stderr.splitlines() if line and not any(noise in line for noise in NOISE)]
    assert (done.stdout, said, done.returncode) == ("unharmed\n", [], 0)


async def test_a_client_that_is_killed_leaves_nothing_after_its_lease(
    start_server: Callable[..., ServerProcess],
) -> None:
    server = start_server(lease=2.0, heartbeat=0.5, workers=1)
    with running([sys.executable, "-c", textwrap.dedent(HOLDER), server.address], stdin=subprocess.PIPE) as client:
        assert client.stdout is not None
        assert await asyncio.to_thread(client.stdout.readline) == "4 sessions\n"
        async with connect(server.address) as remote:
            assert len(await remote.sessions()) == 4
            client.kill()
            await until_sessions(remote, 0)
    assert server.log.count("expired: nothing was heard of the session's client for 2 s (--lease)") == 4


HOLDER = """
    import asyncio, sys
    from gymhost.client import connect

    async def main():
        async with connect(sys.argv[1]) as server:
            sessions = [await server.session("test/Slow-v0").open() for _ in range(4)]
            await asyncio.gather(*(session.reset() for session in sessions))
            print(len(sessions), "sessions", flush=True)
            await asyncio.to_thread(sys.stdin.readline)
            for session in sessions:
                try:
                    await session.step(0.0)
                except Exception as error:
                    print(type(error).__name__, flush=True)

    asyncio.run(main())
"""


async def test_a_stopped_client_frees_its_places_and_is_told_when_it_wakes(
    start_server: Callable[..., ServerProcess],
) -> None:
    """S10."""
    server = start_server(lease=2.0, heartbeat=0.5, workers=1, capacity=5)
    async with connect(server.address) as remote, remote.session("test/Slow-v0") as working:
        await working.reset()
        # Longer than the lease, by a client that lives: it is not reaped for being idle.
        step = asyncio.create_task(working.step(4.0))
        with running([sys.executable, "-c", textwrap.dedent(HOLDER), server.address], stdin=subprocess.PIPE) as client:
            assert client.stdout is not None
            assert client.stdin is not None
            assert await asyncio.to_thread(client.stdout.readline) == "4 sessions\n"
            client.send_signal(signal.SIGSTOP)
            # They wait for places, and get them once the lease has run out.
            fresh = [remote.session("test/Counter-v0", create_timeout=20.0) for _ in range(4)]
            await asyncio.gather(*(session.open() for session in fresh))
            assert min(session.queued for session in fresh) > 0.5
            client.send_signal(signal.SIGCONT)
            out, _ = await asyncio.to_thread(client.communicate, "\n")
            assert out == "SessionExpired\n" * 4
        assert (await step)[0] == 1
        for session in fresh:
            await session.close()
    assert server.log.count("(--lease)") == 4


async def test_an_embedded_server_dies_with_a_client_that_is_killed() -> None:
    script = """
        import sys
        from gymhost.client import make

        env = make("gymhost/Echo-v0")
        env.reset()
        print("made", flush=True)
        sys.stdin.readline()
    """
    with running([sys.executable, "-c", textwrap.dedent(script)], stdin=subprocess.PIPE) as client:
        assert client.stdout is not None
        assert await asyncio.to_thread(client.stdout.readline) == "made\n"
        (front,) = children(client.pid)
        workers = children(front)
        assert workers
        client.kill()
        await until(lambda: not any(alive(pid) for pid in [front, *workers]))
