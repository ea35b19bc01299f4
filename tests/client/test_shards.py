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
from gymnasium.error import AlreadyPendingCallError
from gymnasium.vector import AutoresetMode

from gymhost.client import (
    CapacityExhausted,
    ConnectionLost,
    EnvironmentFault,
    InvalidArgument,
    RemoteVectorEnv,
    SessionClosed,
    SessionLost,
    connect,
    make,
    make_vec,
)
from support import environments
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


@pytest.mark.parametrize("direct", [True, False], ids=["direct", "grpc"])
@pytest.mark.parametrize("mode", ["inline", "async"])
def test_environments_of_the_workers_loop_go_on_after_a_cut(server: ServerProcess, mode: str, direct: bool) -> None:
    id, nothing = {"inline": ("test/Counter-v0", 0), "async": ("test/Async-v0", 0.0)}[mode]
    with Proxy(server.address) as proxy, make(id, server=proxy.address, direct=direct) as env:
        env.reset()
        for number in range(1, 6):
            assert env.step(nothing)[0] == number
            proxy.cut()


@pytest.mark.parametrize("direct", [True, False], ids=["direct", "grpc"])
def test_what_a_failed_step_left_behind_is_told_anew(server: ServerProcess, direct: bool) -> None:
    # The batch of the shard that did not fail is lost with the error; what changes after it must not build on it.
    envs = make_vec("test/Picture-v0", 4, server=server.address, direct=direct, shards=2)
    envs.reset()
    for _ in range(3):
        with pytest.raises(EnvironmentFault, match="told to"):
            envs.step(np.array([0, 0, 1, 0]))
        observations, _ = envs.reset(options={"reset_mask": np.array([False, False, True, True])})
        assert (observations[2:] == 0).all()
        before = observations
        observations, *_ = envs.step(np.zeros(4, np.int64))
        assert (observations == before + 1).all()
    envs.close()


def test_a_copy_is_sent_nothing_before_it_was_received(server: ServerProcess) -> None:
    envs = make_vec("test/Picture-v0", 2, server=server.address, batch_size=1)
    envs.async_reset()
    *_, infos = envs.recv()
    with pytest.raises(AlreadyPendingCallError):
        envs.send(np.zeros(1, np.int64), 1 - infos["env_id"])
    envs.send(np.zeros(1, np.int64), infos["env_id"])
    assert sorted([int(envs.recv()[0].max()), int(envs.recv()[0].max())]) == [0, 1]
    envs.close()


def test_an_embedded_server_that_was_killed_is_not_waited_for() -> None:
    with (
        connect(modules=[environments.__name__]) as remote,
        make("test/Counter-v0", modules=[environments.__name__]) as env,
    ):
        env.reset()
        assert remote._held is not None
        assert remote._held.embedded is not None
        remote._held.embedded._process.kill()
        started = time.monotonic()
        with pytest.raises((ConnectionLost, SessionLost)):  # noqa: PT012 - its worker may answer once more
            while True:
                env.step(0)
        assert time.monotonic() - started < 15


def test_an_autoreset_mode_makes_copies_and_is_never_ignored(gymnasium_server: ServerProcess) -> None:
    address = gymnasium_server.address
    envs = make_vec("CartPole-v1", 2, server=address, autoreset_mode="SameStep")
    assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    envs.close()
    with pytest.raises(InvalidArgument, match=r"NextStep.*not 'SameStep'"):
        make_vec("CartPole-v1", 2, server=address, autoreset_mode="SameStep", vectorization_mode="vector_entry_point")
    with pytest.raises(InvalidArgument, match="vector_kwargs"):
        make_vec("CartPole-v1", 2, server=address, vector_kwargs={})
    assert sessions(gymnasium_server) == []


def test_threads_take_turns(gymnasium_server: ServerProcess) -> None:
    envs = make_vec("CartPole-v1", 4, server=gymnasium_server.address, vectorization_mode="sync")
    envs.reset(seed=0)
    failed: list[Exception] = []

    def use(act: Callable[[], Any]) -> None:
        try:
            for _ in range(100):
                act()
        except Exception as error:  # noqa: BLE001 - whatever it is
            failed.append(error)

    acts = [lambda: envs.step([0, 1, 0, 1]), lambda: envs.step([1, 1, 0, 0]), lambda: envs.get_attr("np_random_seed")]
    threads = [threading.Thread(target=use, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert failed == []
    envs.close()
