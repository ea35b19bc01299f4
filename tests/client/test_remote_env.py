"""RemoteEnv: a Gymnasium environment on a server, from any thread."""

import concurrent.futures
import copy
import gc
import pickle
import threading
from collections.abc import Callable

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec

from gymhost.client import (
    Cancelled,
    EnvironmentFault,
    InvalidArgument,
    SessionClosed,
    UnknownEnvironment,
    connect,
    make,
)
from support.server import ServerProcess, children, until, until_sessions

pytestmark = pytest.mark.usefixtures("path")


async def _until_sessions(server: ServerProcess, wanted: int) -> None:
    async with connect(server.address) as remote:
        await until_sessions(remote, wanted)


def test_it_is_a_gymnasium_environment(server: ServerProcess) -> None:
    with make("test/Types-v0", server=server.address) as env:
        assert isinstance(env, gymnasium.Env)
        assert env.spec is not None
        assert env.spec.id == "test/Types-v0"
        assert env.observation_space == gymnasium.spaces.Box(-1.0, 1.0, (3,), np.float32)
        observation, info = env.reset(seed=5)
        assert observation.dtype == np.float32
        assert type(info["count"]) is np.int64
        again, _ = env.reset(seed=5)
        assert np.array_equal(observation, again)
        for number in range(1, 21):
            observation, reward, terminated, truncated, info = env.step(1)
            assert observation in env.observation_space
            assert (type(reward), reward) == (float, 0.5)
            assert (type(terminated), terminated) == (bool, number == 20)
            assert (type(truncated), truncated) == (bool, False)


def test_any_registered_environment_of_gymnasium_is_hosted(server: ServerProcess) -> None:
    local = gymnasium.make("CartPole-v1", render_mode="rgb_array")
    with make("CartPole-v1", server=server.address, render_mode="rgb_array") as remote:
        assert (remote.render_mode, remote.action_space) == ("rgb_array", local.action_space)
        expected, got = local.reset(seed=11), remote.reset(seed=11)
        assert np.array_equal(expected[0], got[0])
        for number in range(60):
            expected, got = local.step(number % 2), remote.step(number % 2)
            assert np.array_equal(expected[0], got[0])
            assert expected[1:] == got[1:]
            if expected[2]:
                break
        else:
            pytest.fail("the pole never fell")
        with pytest.raises(gymnasium.error.ResetNeeded):
            make("CartPole-v1", server=server.address).step(0)
    local.close()


def test_faults_and_unknown_ids_raise(server: ServerProcess) -> None:
    with make("test/Raises-v0", server=server.address) as env:
        env.reset()
        with pytest.raises(EnvironmentFault, match="Remote traceback"):
            env.step("raise")
        assert env.step("go on")[0] == 1
    with pytest.raises(UnknownEnvironment):
        make("test/Nothing-v0", server=server.address)


async def test_close_ends_the_session_once_and_use_after_it_says_so(server: ServerProcess) -> None:
    env = make("test/Counter-v0", server=server.address)
    env.reset()
    env.close()
    env.close()
    with pytest.raises(SessionClosed):
        env.step(0)
    await _until_sessions(server, 0)


async def test_one_that_is_garbage_collected_is_closed(server: ServerProcess) -> None:
    env = make("test/Counter-v0", server=server.address)
    env.reset()
    await _until_sessions(server, 1)
    del env
    gc.collect()
    await _until_sessions(server, 0)


def test_many_threads_drive_environments_of_their_own(server: ServerProcess) -> None:
    def play(length: int) -> list[int]:
        with make("test/Counter-v0", server=server.address) as env:
            env.reset()
            return [env.step(1)[0] for _ in range(length)]

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        played = list(pool.map(play, range(50, 66)))
    assert played == [list(range(1, length + 1)) for length in range(50, 66)]


def test_threads_that_share_one_take_turns(server: ServerProcess) -> None:
    with make("test/Slow-v0", server=server.address) as env:
        env.reset()
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            counted = list(pool.map(lambda _: env.step(0.01)[0], range(24)))
    assert sorted(counted) == list(range(1, 25))


def test_closing_in_one_thread_ends_the_step_of_another(server: ServerProcess) -> None:
    env = make("test/Async-v0", server=server.address)
    env.reset()
    ended: concurrent.futures.Future[None] = concurrent.futures.Future()

    def step() -> None:
        try:
            env.step(600.0)
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            ended.set_exception(error)

    thread = threading.Thread(target=step)
    thread.start()
    while env._lane.lane.pending is None:
        pass
    env.close()
    thread.join(10)
    with pytest.raises((SessionClosed, Cancelled)):
        ended.result(0)


def test_it_pickles_as_how_it_was_made(server: ServerProcess) -> None:
    with make("test/Counter-v0", server=server.address) as env:
        env.reset()
        env.step(1)
        with pickle.loads(pickle.dumps(env)) as twin, copy.deepcopy(env) as third:
            for other in (twin, third):
                other.reset()
                assert other.step(1)[0] == 1
                assert other.action_space == env.action_space
        assert env.step(1)[0] == 2


def test_its_spec_makes_it_again(server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GYMHOST_TOKEN", "not-for-specs")
    with make("gymhost/GuessNumber-v0", server=server.address, task=3, split="test", high=15) as env:
        assert env.spec is not None
        assert "not-for-specs" not in env.spec.to_json()
        for twin in (gymnasium.make(env.spec), EnvSpec.from_json(env.spec.to_json()).make()):
            assert str(twin.unwrapped) == str(env)
            assert twin.reset(seed=1) == env.reset(seed=1)
            twin.close()
        with pytest.raises(EnvironmentFault, match="high"):
            gymnasium.make(env.spec, high="many")


def test_a_token_that_was_given_is_part_of_the_spec(start_server: Callable[..., ServerProcess]) -> None:
    server = start_server(tokens={"secret": "alice"})
    with make("gymhost/Echo-v0", server=server.address, token="secret") as env:
        assert env.spec is not None
        with gymnasium.make(env.spec) as twin:
            assert twin.reset(seed=0) == env.reset(seed=0)


def test_a_task_that_is_no_index_is_refused(server: ServerProcess) -> None:
    with pytest.raises(InvalidArgument, match="task must be an index from 0, not -1"):
        make("gymhost/GuessNumber-v0", server=server.address, task=-1)
    with (
        connect(server.address) as remote,
        pytest.raises(InvalidArgument, match="task must be an index from 0, not 'first'"),
    ):
        remote.session("gymhost/GuessNumber-v0", task="first")  # pyright: ignore[reportArgumentType]


def test_modules_do_not_go_with_an_address(server: ServerProcess) -> None:
    with pytest.raises(InvalidArgument, match="modules are for an embedded server"):
        make("test/Counter-v0", server=server.address, modules=["support.environments"])
    with pytest.raises(InvalidArgument, match="modules are for an embedded server"):
        connect(server.address, modules=["support.environments"])


@pytest.mark.parametrize(
    "address",
    ["localhost", "", ":50051", "localhost:", "localhost:0", "localhost:65536", "::1:50051", "unix:", "a b:1"],
)
def test_what_is_no_address_is_refused_at_once(address: str) -> None:
    with pytest.raises(InvalidArgument, match=r"write HOST:PORT .*, \[IPv6\]:PORT or unix:PATH"):
        connect(address)


@pytest.mark.parametrize("address", ["localhost:50051", "[::1]:50051", "unix:/some where/socket", "unix:socket"])
def test_each_form_of_an_address_is_taken(address: str) -> None:
    assert connect(address).arguments["address"] == address


@pytest.mark.parametrize("token", ["sécret", "secret\n", "se\x00cret"])
def test_what_is_no_token_is_refused_without_being_shown(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidArgument, match="printable ASCII") as refused:
        connect("localhost:50051", token=token)
    assert "cret" not in str(refused.value)
    if "\x00" not in token:
        monkeypatch.setenv("GYMHOST_TOKEN", token)
        with pytest.raises(InvalidArgument, match="GYMHOST_TOKEN"):
            connect("localhost:50051")


async def test_an_embedded_server_lives_as_long_as_its_environments() -> None:
    before = set(children_of_self())
    with make("test/Counter-v0", modules=["support.environments"]) as env:
        (started,) = set(children_of_self()) - before
        with make("test/Counter-v0", modules=["support.environments"]) as other:
            other.reset()
            assert set(children_of_self()) - before == {started}
        env.reset()
        assert env.step(0)[0] == 1
        workers = children(started)
        assert workers
    assert set(children_of_self()) == before
    await until(lambda: not any(children(pid) for pid in workers))


def children_of_self() -> list[int]:
    import os

    return children(os.getpid())
