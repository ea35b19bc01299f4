"""`make_vec_env` in Stable-Baselines3's own hands: beside its `DummyVecEnv`, and under its algorithms and wrappers."""

import csv
import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.utils.env_checker import check_env as check_env_of_gymnasium
from gymnasium.vector import AutoresetMode, VectorEnv
from stable_baselines3 import PPO, SAC
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.env_checker import check_env as check_env_of_sb3
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecFrameStack, VecMonitor, VecNormalize

from gymhost.client import EnvironmentFault, connect, make, make_vec
from gymhost.trainers.sb3 import RemoteVecEnv, make_vec_env
from support import environments
from support.server import ServerProcess, until_sessions

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Small networks are slower with more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess() as process:
        yield process


@pytest.fixture
def env_of(server: ServerProcess) -> Iterator[Callable[..., Any]]:
    """Makes environments on the server, and closes them."""
    made: list[VecEnv] = []

    def make_one(env_id: str, n_envs: int = 1, **how: Any) -> VecEnv:
        settings: dict[str, Any] = {"server": server.address} | how
        made.append(make_vec_env(env_id, n_envs, **settings))
        return made[-1]

    yield make_one
    for env in made:
        env.close()


def mean_return(model: Any, env: VecEnv, episodes: int) -> float:
    mean, _ = evaluate_policy(model, env, episodes, deterministic=False)
    assert isinstance(mean, float | np.floating)
    return float(mean)


def local(env_id: str, n_envs: int = 1, **kwargs: Any) -> DummyVecEnv:
    return DummyVecEnv([lambda: gymnasium.make(env_id, **kwargs)] * n_envs)


def assert_alike(actual: Any, expected: Any) -> None:
    """Assert that values are the same, and of one kind; whether a scalar is Python's or NumPy's is all one."""
    if isinstance(expected, dict):
        assert actual.keys() == expected.keys()
        for key, value in expected.items():
            assert_alike(actual[key], value)
    elif isinstance(expected, np.ndarray | np.generic | int | float):
        assert np.asarray(actual).dtype == np.asarray(expected).dtype
        np.testing.assert_array_equal(actual, expected)
    else:
        assert actual == expected


# ----------------------------------------------------------------------------------------------------------------------
# Beside DummyVecEnv


@pytest.mark.parametrize("direct", [True, False], ids=["direct", "grpc"])
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "Taxi-v4", "test/Types-v0", "test/Telling-v0"])
def test_episodes_are_those_of_dummy_vec_env(env_of: Callable[..., Any], env_id: str, direct: bool):
    here = local(env_id, 3)
    there = env_of(env_id, 3, monitor=False, direct=direct)
    assert there.observation_space == here.observation_space
    assert there.action_space == here.action_space
    assert there.num_envs == 3
    for env in (here, there):
        env.seed(11)
    assert_alike(there.reset(), here.reset())
    assert_alike(dict(enumerate(there.reset_infos)), dict(enumerate(here.reset_infos)))
    ended = 0
    here.action_space.seed(5)
    for _ in range(450):
        actions = np.array([here.action_space.sample() for _ in range(3)])
        observation, rewards, dones, infos = here.step(actions)
        there_observation, there_rewards, there_dones, there_infos = there.step(actions)
        assert_alike(there_observation, observation)
        assert_alike(there_rewards, rewards)
        assert_alike(there_dones, dones)
        assert_alike(dict(enumerate(there_infos)), dict(enumerate(infos)))
        assert_alike(dict(enumerate(there.reset_infos)), dict(enumerate(here.reset_infos)))
        assert all(type(info["TimeLimit.truncated"]) is bool for info in there_infos)
        ended += int(dones.sum())
    assert ended >= 6


@pytest.mark.parametrize(
    ("env_id", "truncated"),
    [("test/Terminates-v0", False), ("test/Truncates-v0", True), ("test/TerminatesAndTruncates-v0", False)],
)
def test_a_time_limit_is_no_true_end(env_of: Callable[..., Any], env_id: str, truncated: bool):  # S24
    env = env_of(env_id, 2)
    env.reset()
    played = [env.step(np.zeros(2, np.int64)) for _ in range(3)]
    assert [dones.tolist() for _, _, dones, _ in played] == [[False] * 2, [False] * 2, [True] * 2]
    observation, _, _, infos = played[-1]
    here = gymnasium.make(env_id)
    for index, info in enumerate(infos):
        assert info["TimeLimit.truncated"] is truncated
        assert (info["episode"]["r"], info["episode"]["l"]) == (3.0, 3)
        assert not np.array_equal(info["terminal_observation"], observation[index])
        assert here.observation_space.contains(info["terminal_observation"])
    # With a seed the last observation is known.
    env.seed(7)
    env.reset()
    here.reset(seed=7)
    last = [here.step(0)[0] for _ in range(3)][-1]
    infos = [env.step(np.zeros(2, np.int64))[3] for _ in range(3)][-1]
    np.testing.assert_array_equal(infos[0]["terminal_observation"], last)


def test_observations_are_the_callers_to_keep(env_of: Callable[..., Any]):
    env = env_of("test/Telling-v0", 2, seed=0)
    kept = [env.reset(), *(env.step(np.zeros((2, 2), np.int64))[0] for _ in range(3))]
    copies = [{key: value.copy() for key, value in observation.items()} for observation in kept]
    for _ in range(3):
        env.step(np.zeros((2, 2), np.int64))
    for observation, copy in zip(kept, copies, strict=True):
        assert_alike(observation, copy)
        assert all(part.flags.writeable for part in observation.values())


def test_options_go_to_the_copies_that_they_are_for(env_of: Callable[..., Any]):
    env = env_of("test/Telling-v0", 3)
    for told in (["a", "b", "a"], ["", "c", "d"]):
        env.seed(3)
        env.set_options([{"tell": text} if text else {} for text in told])
        observation = env.reset()
        assert [info["told"] for info in env.reset_infos] == told
        here = local("test/Telling-v0", 3)
        here.seed(3)
        assert_alike(observation, here.reset())
    env.set_options({"tell": "all"})
    env.reset()
    assert [info["told"] for info in env.reset_infos] == ["all"] * 3
    env.reset()
    assert [info["told"] for info in env.reset_infos] == [""] * 3


def test_without_a_seed_copies_differ_and_numpy_decides(env_of: Callable[..., Any]):
    first = env_of("CartPole-v1", 2)
    np.random.seed(4)
    first.seed(None)
    observation = first.reset()
    assert not np.array_equal(observation[0], observation[1])
    np.random.seed(4)
    np.testing.assert_array_equal(env_of("CartPole-v1", 2).reset(), observation)


# ----------------------------------------------------------------------------------------------------------------------
# What an environment has besides episodes


def test_attributes_and_methods_of_some_copies(env_of: Callable[..., Any]):
    env = env_of("test/Telling-v0", 3, seed=0)
    env.reset()
    lengths = [info["length"] for info in env.reset_infos]
    assert env.get_attr("length") == lengths
    assert env.get_attr("length", indices=[2, 0]) == [lengths[2], lengths[0]]
    env.set_attr("length", 50, indices=1)
    assert env.get_attr("length") == [lengths[0], 50, lengths[2]]
    env.set_attr("length", 40)
    assert env.env_method("extend", 1) == [41, 41, 41]
    assert env.env_method("extend", 2, twice=True, indices=[2, 0]) == [45, 45]
    assert env.env_method("extend", 3, indices=-2) == [44]
    assert env.get_attr("length") == [45, 44, 45]
    assert env.has_attr("length")
    assert env.has_attr("extend")
    assert not env.has_attr("breadth")
    with pytest.raises(AttributeError, match="breadth"):
        env.get_attr("breadth")


def test_what_an_environment_does_not_declare_is_out_of_reach(env_of: Callable[..., Any]):
    env = env_of("CartPole-v1", 2)
    assert not env.has_attr("gravity")
    # These the client knows anyway.
    assert env.get_attr("render_mode") == [None, None]
    assert env.get_attr("spec")[0].id == "CartPole-v1"


def test_an_embedded_server_lets_its_user_reach_all(env_of: Callable[..., Any]):
    env = env_of("CartPole-v1", 2, server=None)
    env.set_attr("gravity", 1.5, indices=[1])
    assert env.get_attr("gravity") == [9.8, 1.5]


def test_wrappers_on_the_server_are_known(env_of: Callable[..., Any]):
    wrapper = ("FrameStackObservation", {"stack_size": 4})
    env = env_of("CartPole-v1", 2, wrappers=[wrapper])
    assert env.reset().shape == (2, 4, 4)
    assert env.env_is_wrapped(gymnasium.wrappers.FrameStackObservation) == [True, True]
    assert env.env_is_wrapped(gymnasium.wrappers.FrameStackObservation, indices=0) == [True]
    assert env.env_is_wrapped(gymnasium.wrappers.ClipReward) == [False, False]
    assert env.env_is_wrapped(Monitor) == [False, False]


def test_pictures_are_those_of_dummy_vec_env(env_of: Callable[..., Any]):
    here = local("CartPole-v1", 2, render_mode="rgb_array")
    there = env_of("CartPole-v1", 2, render_mode="rgb_array")
    for env in (here, there):
        env.seed(1)
        env.reset()
        env.step(np.array([0, 1]))
    np.testing.assert_array_equal(there.get_images(), here.get_images())
    picture = there.render()
    assert picture is not None
    np.testing.assert_array_equal(picture, here.render())
    here.close()
    blind = env_of("CartPole-v1", 2)
    with pytest.warns(UserWarning, match="need rgb_array"):
        assert blind.get_images() == [None, None]


def test_only_environments_that_reset_in_the_same_step_will_do(server: ServerProcess):
    vector_env = make_vec("CartPole-v1", 2, server=server.address)
    with pytest.raises(ValueError, match="autoreset_mode='SameStep'"):
        RemoteVecEnv(vector_env)
    vector_env.close()
    with pytest.raises(ValueError, match="vectorization_mode='sync'"):
        make_vec_env("CartPole-v1", 2, server=server.address, vectorization_mode="vector_entry_point")


def test_a_vector_environment_of_any_make_will_do():
    class Own(VectorEnv[Any, Any, Any]):
        """Gives no masks, as some of an environment's own making do."""

        metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        num_envs = 2
        single_observation_space = Box(-1.0, 1.0, (3,))
        single_action_space = Discrete(2)

        def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            return np.zeros((2, 3), np.float32), {"env_id": np.arange(2)}

        def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
            infos = {"env_id": np.arange(2), "players": {"lives": np.array([3, 4])}, "version": "1.2"}
            flags = np.zeros(2, np.bool_)
            return np.ones((2, 3), np.float32), np.ones(2), flags, flags, infos

    env = RemoteVecEnv(Own())
    env.reset()
    assert env.reset_infos == [{"env_id": 0}, {"env_id": 1}]
    _, _, _, infos = env.step(np.zeros(2, np.int64))
    assert infos == [
        {"env_id": index, "players": {"lives": 3 + index}, "version": "1.2", "TimeLimit.truncated": False}
        for index in range(2)
    ]


async def test_closing_ends_the_session_and_twice_is_no_error(server: ServerProcess):
    env = make_vec_env("CartPole-v1", 4, server=server.address)
    env.reset()
    async with connect(server.address) as remote:
        assert len(await remote.sessions()) > 0
        env.close()
        env.close()
        await until_sessions(remote, 0)


# ----------------------------------------------------------------------------------------------------------------------
# Under the library's own checks, algorithms and wrappers


def test_scalar_types_pass_checkers_and_training(server: ServerProcess, env_of: Callable[..., Any]):  # S27
    with make("test/Types-v0", server=server.address) as env:
        env.reset(seed=0)
        _, reward, terminated, truncated, info = env.step(0)
        assert [type(value) for value in (reward, terminated, truncated)] == [float, bool, bool]
        assert type(info["count"]) is np.int64
        assert type(info["zero_dimensional"]) is np.ndarray
        check_env_of_sb3(env)
        check_env_of_gymnasium(env, skip_render_check=True)
    PPO("MlpPolicy", env_of("test/Types-v0", 4), n_steps=25, batch_size=50, device="cpu").learn(500)


def test_ppo_learns_cart_pole(env_of: Callable[..., Any]):
    env = env_of("CartPole-v1", 8, seed=1)
    model = PPO(
        "MlpPolicy",
        env,
        n_steps=32,
        batch_size=256,
        n_epochs=20,
        gae_lambda=0.8,
        gamma=0.98,
        learning_rate=1e-3,
        seed=1,
        device="cpu",
    )
    before = mean_return(model, env, 16)
    model.learn(10240)
    assert before < 40
    assert mean_return(model, env, 16) > 100
    # The log has the returns from what the copies' infos say of episodes.
    assert len(model.ep_info_buffer or ()) == 100
    assert np.mean([episode["r"] for episode in model.ep_info_buffer or ()]) > before


def test_off_policy_training_keeps_last_observations(env_of: Callable[..., Any]):
    env = env_of("test/Truncates-v0", 2, seed=0)
    from stable_baselines3 import DQN

    model = DQN("MlpPolicy", env, buffer_size=40, learning_starts=10, device="cpu").learn(40)
    buffer = model.replay_buffer
    assert buffer is not None
    # An episode's last observation goes on to no other episode, and a time limit is not taken for its end.
    np.testing.assert_array_equal(buffer.next_observations[:2], buffer.observations[1:3])
    assert not np.array_equal(buffer.next_observations[2], buffer.observations[3])
    np.testing.assert_array_equal(np.flatnonzero(buffer.dones[:, 0]), [2, 5, 8, 11, 14, 17])
    np.testing.assert_array_equal(buffer.timeouts, buffer.dones)


def test_the_library_s_wrappers_and_callbacks_work(env_of: Callable[..., Any], tmp_path: Path):
    env = VecNormalize(VecFrameStack(env_of("CartPole-v1", 4, seed=0), 2))
    evaluation = VecNormalize(VecFrameStack(env_of("CartPole-v1", 2, seed=1), 2), training=False, norm_reward=False)
    model = PPO("MlpPolicy", env, n_steps=32, batch_size=64, seed=0, device="cpu")
    callback = EvalCallback(
        evaluation,
        eval_freq=64,
        n_eval_episodes=4,
        log_path=str(tmp_path),
        best_model_save_path=str(tmp_path),
        verbose=0,
    )
    model.learn(512, callback=callback)
    with np.load(tmp_path / "evaluations.npz") as evaluations:
        assert evaluations["results"].shape == (2, 4)
    assert_alike(vars(evaluation.obs_rms), vars(env.obs_rms))
    # A model is saved without its environment, and goes on with another.
    loaded = PPO.load(tmp_path / "best_model", env=env, device="cpu")
    loaded.learn(128)
    assert mean_return(loaded, evaluation, 4) > 0


def test_continuous_actions_and_images_train(env_of: Callable[..., Any]):
    SAC("MlpPolicy", env_of("Pendulum-v1", 2), learning_starts=20, batch_size=16, device="cpu").learn(40)
    PPO("MultiInputPolicy", env_of("test/Telling-v0", 2), n_steps=8, batch_size=8, device="cpu").learn(32)


def test_the_monitor_writes_a_file(env_of: Callable[..., Any], tmp_path: Path):
    env = env_of("test/Telling-v0", 2, seed=0, monitor_dir=tmp_path / "runs", info_keywords=("name",))
    env.reset()
    ended = sum(env.step(np.full((2, 2), 1))[2].sum() for _ in range(30))
    env.close()
    with open(tmp_path / "runs" / "monitor.csv") as file:
        assert '"env_id": "test/Telling-v0"' in file.readline()
        rows = list(csv.DictReader(file))
    assert len(rows) == ended > 0
    assert [row["name"] for row in rows] == [f"step {row['l']}" for row in rows]
    assert [float(row["r"]) for row in rows] == [float(row["l"]) for row in rows]
    with_none = env_of("test/Telling-v0", 2, monitor=False)
    assert isinstance(env, VecMonitor)
    assert isinstance(with_none, RemoteVecEnv)


async def test_an_environment_that_breaks_ends_training_with_its_traceback(server: ServerProcess):  # S29
    def train() -> None:
        env = make_vec_env("test/Breaks-v0", 2, server=server.address)
        PPO("MlpPolicy", env, n_steps=32, batch_size=32, device="cpu").learn(256)

    with pytest.raises(EnvironmentFault) as caught:
        train()
    assert "the simulator broke in its 50th step" in str(caught.value)
    assert f'File "{environments.__file__}"' in str(caught.value)
    assert caught.value.__context__ is None
    # Nobody closed anything: what held the environments is gone.
    del caught
    gc.collect()
    async with connect(server.address) as remote:
        await until_sessions(remote, 0)


@pytest.mark.parametrize("env_id", ["test/Nested-v0"])
async def test_spaces_that_the_library_does_not_take_are_refused_by_it(server: ServerProcess, env_id: str):
    with pytest.raises(NotImplementedError, match="Nested observation spaces are not supported"):
        make_vec_env(env_id, 2, server=server.address)
    async with connect(server.address) as remote:
        await until_sessions(remote, 0)
