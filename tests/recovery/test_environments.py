"""Environments behind Gymnasium's API that go on when their worker or their server dies."""

import signal
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from gymhost.client import RemoteEnv, ReplayDiverged, SessionLost, make
from support.killing import Notes
from support.replayable_environments import Tally
from support.server import ServerProcess

pytestmark = pytest.mark.usefixtures("path")

Start = Callable[..., ServerProcess]


def act(add: int, sleep: float = 0.0) -> dict[str, float]:
    return {"add": add, "sleep": sleep}


def kill_at(notes: Notes, count: int) -> threading.Thread:
    """Kills the worker once so many things were begun."""

    def wait_and_kill() -> None:
        notes.wait(count)
        notes.kill()

    thread = threading.Thread(target=wait_and_kill)
    thread.start()
    return thread


def test_it_goes_on_whenever_its_worker_is_killed(server: ServerProcess, notes: Notes) -> None:
    here = Tally()
    with make("test/Tally-v0", server=server.address, notes=str(notes)) as env:
        assert env.replayable
        assert np.array_equal(env.reset(seed=3)[0], here.reset(seed=3)[0])
        for number in range(1, 3):
            killing = kill_at(notes, len(notes.lines) + 1)
            assert np.array_equal(env.step(act(number, 0.3))[0], here.step(act(number))[0])
            killing.join()
            assert np.array_equal(env.step(act(number))[0], here.step(act(number))[0])
            notes.kill()
            assert np.array_equal(env.step(act(number))[0], here.step(act(number))[0])
        assert env.recoveries == 4
        assert np.array_equal(env.reset()[0], here.reset()[0])


def test_its_generator_and_attributes_go_on_too(server: ServerProcess, notes: Notes) -> None:
    here = Tally()
    with make("test/Tally-v0", server=server.address, notes=str(notes)) as env:
        env.set_wrapper_attr("gain", 3)
        here.gain = 3
        env.reset(seed=3)
        here.reset(seed=3)
        assert env.np_random.integers(1000) == here.np_random.integers(1000)
        notes.kill()
        assert np.array_equal(env.step(act(2))[0], here.step(act(2))[0])
        assert env.np_random.integers(1000) == here.np_random.integers(1000)
        notes.kill()
        assert np.array_equal(env.step(act(2))[0], here.step(act(2))[0])
        assert env.recoveries == 2


def test_threads_that_take_turns_all_go_on(server: ServerProcess, notes: Notes) -> None:
    with make("test/Tally-v0", server=server.address, notes=str(notes)) as env:
        env.reset(seed=3)
        counts: list[int] = []
        threads = [threading.Thread(target=lambda: counts.append(int(env.step(act(1, 0.05))[0][0]))) for _ in range(10)]
        killing = kill_at(notes, 4)
        for thread in threads:
            thread.start()
        for thread in (*threads, killing):
            thread.join()
        assert sorted(counts) == list(range(1, 11))
        assert env.recoveries == 1


def test_it_outlives_its_server(start: Start, notes: Notes) -> None:
    server, here = start(), Tally()

    def restart() -> None:
        notes.wait(3)
        server.signal(signal.SIGKILL)
        server.wait()
        server.start()

    with make("test/Tally-v0", server=server.address, notes=str(notes)) as env:
        assert np.array_equal(env.reset(seed=3)[0], here.reset(seed=3)[0])
        assert np.array_equal(env.step(act(2))[0], here.step(act(2))[0])
        restarting = threading.Thread(target=restart)
        restarting.start()
        assert np.array_equal(env.step(act(2, 0.5))[0], here.step(act(2))[0])
        restarting.join()
        assert np.array_equal(env.step(act(2))[0], here.step(act(2))[0])


def test_what_differs_is_reported(server: ServerProcess, notes: Notes) -> None:
    with make("test/Fickle-v0", server=server.address, notes=str(notes)) as env:
        env.reset(seed=1)
        for _ in range(3):
            env.step(act(1))
        notes.kill()
        with pytest.raises(ReplayDiverged, match=r"command 4 of 4 \(STEP\)"):
            env.step(act(1))
        with pytest.raises(ReplayDiverged):
            env.step(act(1))


def test_what_is_not_replayable_is_lost(server: ServerProcess, notes: Notes) -> None:
    env: RemoteEnv
    for id, timeout in (("test/TallyLost-v0", 120.0), ("test/Tally-v0", 0.0)):
        with make(id, server=server.address, notes=str(notes), recovery_timeout=timeout) as env:
            assert not env.replayable
            env.reset(seed=1)
            killing = kill_at(notes, len(notes.lines) + 1)
            started = time.monotonic()
            with pytest.raises(SessionLost, match="killed by SIGKILL"):
                env.step(act(1, 5.0))
            assert time.monotonic() - started < 4
            killing.join()
