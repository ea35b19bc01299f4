"""What vector environments and environments of threads do when something breaks, and what they take of a server."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest

from gymhost.client import (
    CapacityExhausted,
    RemoteVectorEnv,
    SessionClosed,
    SessionLost,
    connect,
    make,
    make_vec,
)
from support.compare import assert_same
from support.proxy import Proxy
from support.server import ServerProcess, until
from support.simulators import elsewhere
from support.vectors import MODULES, Twins, local_vector

__all__ = ["elsewhere"]


@pytest.fixture(scope="module")
def gymnasium_server() -> Iterator[ServerProcess]:
    """A server that hosts what the local side can make too."""
    with ServerProcess(modules=MODULES) as process:
        yield process


def sessions(server: ServerProcess) -> list[dict[str, Any]]:
    """The sessions that are open on a server."""
    with connect(server.address) as remote:
        return remote.connection.thread.call(remote.sessions())


@pytest.mark.parametrize("direct", [True, False], ids=["direct", "grpc"])
def test_a_step_in_which_the_connection_breaks_is_run_once(proxy: Proxy, direct: bool) -> None:
    with make("test/Slow-v0", server=proxy.address, direct=direct) as env:
        env.reset()
        for number in range(1, 5):
            cutter = threading.Timer(0.2, proxy.cut)
            cutter.start()
            assert env.step(0.6)[0] == number
            cutter.join()


@pytest.mark.parametrize("direct", [True, False], ids=["direct", "grpc"])
def test_a_vector_step_in_which_the_connection_breaks_is_run_once(proxy: Proxy, direct: bool) -> None:
    envs = make_vec("test/Slow-v0", 3, server=proxy.address, direct=direct, shards=3)
    envs.reset()
    for number in range(1, 5):
        cutter = threading.Timer(0.2, proxy.cut)
        cutter.start()
        assert envs.step(("0.6", "0.3", "0.1"))[0].tolist() == [number] * 3
        cutter.join()
    envs.close()


@pytest.mark.parametrize("id", ["CarRacing-v3", "CartPole-v1"])
@pytest.mark.parametrize("direct", [True, False], ids=["direct", "grpc"])
def test_results_stay_whole_where_the_ways_change(gymnasium_server: ServerProcess, direct: bool, id: str) -> None:
    # After a cut the first result comes on the stream, whether the memory is shared with the worker or not.
    with Proxy(gymnasium_server.address) as proxy:
        there = make_vec(id, 3, server=proxy.address, direct=direct, vectorization_mode="sync", shards=2)
        with Twins(there, local_vector(id, 3)) as twins:
            twins.reset(seed=3)
            for _ in range(4):
                twins.play(4)
                proxy.cut()


def test_a_vector_takes_a_place_for_each_copy(start_server: Callable[..., ServerProcess]) -> None:
    server = start_server(capacity=8, workers=2)
    first = make_vec("test/Slow-v0", 6, server=server.address)
    with pytest.raises(CapacityExhausted, match=r"6 of 8 sessions|8 of 8 sessions"):
        make_vec("test/Slow-v0", 3, shards=1, server=server.address, create_timeout=0.3)
    # One of its two shards found places; nothing is left of it.
    with pytest.raises(CapacityExhausted, match="--capacity"):
        make_vec("test/Slow-v0", 4, shards=2, server=server.address, create_timeout=0.3)
    with pytest.raises(CapacityExhausted, match=r"9 copies is above the server's capacity of 8 \(--capacity\)"):
        make_vec("test/Slow-v0", 9, shards=1, server=server.address)
    second = make_vec("test/Slow-v0", 2, server=server.address, create_timeout=20)
    for envs in (first, second):
        envs.reset()
        envs.close()
    whole = make_vec("test/Slow-v0", 8, server=server.address, create_timeout=20)
    assert {session["worker"] for session in sessions(server)} == {0, 1}
    whole.close()
    assert sessions(server) == []


def test_whoever_waits_for_fewer_places_does_not_wait_behind_one_that_gave_up(
    start_server: Callable[..., ServerProcess],
) -> None:
    server = start_server(capacity=4, workers=1)
    held = make_vec("test/Slow-v0", 2, server=server.address)
    made: list[RemoteVectorEnv] = []

    def wait_in_vain() -> None:
        with pytest.raises(CapacityExhausted):
            make_vec("test/Slow-v0", 4, shards=1, server=server.address, create_timeout=1.0)

    waiting = threading.Thread(target=wait_in_vain)
    waiting.start()
    time.sleep(0.3)
    behind = threading.Thread(
        target=lambda: made.append(make_vec("test/Slow-v0", 2, server=server.address, create_timeout=20))
    )
    behind.start()
    waiting.join(20)
    behind.join(10)
    assert len(made) == 1
    made[0].close()
    held.close()


@pytest.mark.parametrize("direct", [True, False], ids=["direct", "grpc"])
def test_a_step_that_hangs_ends_with_its_limit_and_a_new_vector_works(
    start_server: Callable[..., ServerProcess], direct: bool
) -> None:
    server = start_server(workers=2)
    envs = make_vec("test/HangThread-v0", 2, server=server.address, direct=direct, shards=2)
    envs.reset()
    started = time.monotonic()
    with pytest.raises(SessionLost, match=r"step_timeout=2\.0 s"):
        envs.step(("hang", ""))
    assert time.monotonic() - started < 10
    with pytest.raises(SessionLost):
        envs.step(("", ""))
    envs.close()
    again = make_vec("test/HangThread-v0", 2, server=server.address, direct=direct, shards=2)
    again.reset()
    again.step(("", ""))
    again.close()
    assert sessions(server) == []


@pytest.mark.parametrize("direct", [True, False], ids=["direct", "grpc"])
def test_the_death_of_a_worker_is_told_and_leaves_nothing(
    start_server: Callable[..., ServerProcess], direct: bool
) -> None:
    server = start_server(workers=2)
    envs = make_vec("test/Slow-v0", 4, server=server.address, direct=direct)
    envs.reset()
    envs.step_async(("30",) * 4)
    victim, other = server.workers
    os.kill(victim, signal.SIGKILL)
    # The other shard's step runs to its end, since its reply belongs to the session, which goes on.
    killer = threading.Timer(1.0, os.kill, (other, signal.SIGKILL))
    killer.start()
    with pytest.raises(SessionLost):
        envs.step_wait()
    killer.join()
    envs.close()
    assert sessions(server) == []


@pytest.mark.parametrize("direct", [True, False], ids=["direct", "grpc"])
def test_ctrl_c_ends_the_wait_and_the_session_goes_on(server: ServerProcess, direct: bool) -> None:
    with make("test/Slow-v0", server=server.address, direct=direct) as env:
        env.reset()
        for number in (1, 3):
            threading.Timer(0.3, signal.raise_signal, (signal.SIGINT,)).start()
            with pytest.raises(KeyboardInterrupt):
                env.step(1.5)
            # The step itself can't be stopped, as it sleeps on its thread; the next one waits for it.
            assert env.step(0.0)[0] == number + 1


def test_ctrl_c_in_a_vector_step(server: ServerProcess) -> None:
    envs = make_vec("test/Slow-v0", 2, server=server.address, shards=2)
    envs.reset()
    threading.Timer(0.3, signal.raise_signal, (signal.SIGINT,)).start()
    with pytest.raises(KeyboardInterrupt):
        envs.step(("1.5", "1.5"))
    assert envs.step(("0", "0"))[0].tolist() == [2, 2]
    envs.close()


def test_arrays_are_the_callers_own(server: ServerProcess) -> None:
    envs = make_vec("test/Image-v0", 2, server=server.address, shards=1)
    first, _ = envs.reset(seed=1)
    kept = first.copy()
    second, *_ = envs.step(np.zeros((2, 6 * 1024 * 1024), np.uint8))
    assert_same(first, kept)
    assert not second.any()
    first[:] = 7
    second[:] = 7
    third, *_ = envs.step(np.ones((2, 6 * 1024 * 1024), np.uint8))
    assert (third == 1).all()
    envs.close()


def test_a_vector_that_is_forgotten_is_closed(start_server: Callable[..., ServerProcess]) -> None:
    server = start_server(workers=2)
    with connect(server.address) as remote:
        envs = make_vec("test/Slow-v0", 4, server=server.address)
        envs.reset()
        assert len(sessions(server)) == 2
        del envs
        deadline = time.monotonic() + 10
        while remote.connection.thread.call(remote.sessions()) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert sessions(server) == []


def test_it_is_made_again_from_its_spec(gymnasium_server: ServerProcess) -> None:
    made = make_vec(
        "CartPole-v1", 3, server=gymnasium_server.address, vectorization_mode="sync", autoreset_mode="SameStep"
    )
    assert made.spec is not None
    again: Any = gymnasium.make_vec(made.spec)
    assert isinstance(again, RemoteVectorEnv)
    assert again.metadata["autoreset_mode"] is made.metadata["autoreset_mode"]
    assert_same(again.reset(seed=5), made.reset(seed=5))
    again.close()
    made.close()


async def test_the_server_is_asked_for_as_many_shards_as_it_has_workers(
    start_server: Callable[..., ServerProcess],
) -> None:
    server = start_server(workers=3)
    for asked, expected in ((None, 3), (1, 1), (5, 5)):
        envs = make_vec("test/Slow-v0", num_envs=5, server=server.address, shards=asked)
        assert len(sessions(server)) == expected
        envs.close()
    await until(lambda: sessions(server) == [], 10)


@pytest.mark.parametrize("direct", [True, False], ids=["direct", "grpc"])
def test_a_close_in_the_middle_of_a_step_waits_for_its_end_and_no_longer(server: ServerProcess, direct: bool) -> None:
    with connect(server.address, direct=direct) as remote:
        for _ in range(3):
            env = make("test/Slow-v0", server=server.address, direct=direct)
            env.reset()
            stepping = threading.Thread(target=lambda env=env: _ended(env))
            stepping.start()
            time.sleep(0.2)
            started = time.monotonic()
            env.close()
            assert time.monotonic() - started < 5
            stepping.join(10)
            assert not stepping.is_alive()
        assert remote.connection.thread.call(remote.sessions()) == []


def _ended(env: Any) -> None:
    with contextlib.suppress(SessionClosed):  # whichever comes first
        env.step(1.0)
