"""EnvPool's environments behind Gymnasium's vector API, here and hosted: the same as EnvPool's own, step by step."""

from collections.abc import Iterator
from typing import Any

import envpool
import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, VectorEnv

from gymhost import client
from gymhost.envs.envpool import EnvPoolVectorEnv
from support.compare import assert_same

MODULE = "gymhost.envs.envpool"

# EnvPool is large, and so is left out where torch is.
pytestmark = pytest.mark.heavy

# Gymnasium says so of the spaces that EnvPool makes.
quiet = pytest.mark.filterwarnings("ignore:.*precision lowered by casting:UserWarning")


def own(task_id: str, num_envs: int, seed: int | list[int], **kwargs: Any) -> Any:
    """EnvPool itself."""
    make: Any = envpool.make
    return make(task_id, env_type="gymnasium", num_envs=num_envs, seed=seed, **kwargs)


@pytest.fixture(scope="module", params=["here", "direct", "grpc"])
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """Where the environments run; all that are hosted share a server."""
    if request.param == "here":
        yield request.param
        return
    with client.connect(modules=[MODULE], direct=request.param == "direct"):
        yield request.param


@pytest.fixture
def make(way: str) -> Iterator[Any]:
    """Makes vector environments in this process, and on an embedded server."""
    made: list[VectorEnv[Any, Any, Any]] = []

    def make_vec(id: str, num_envs: int, **kwargs: Any) -> VectorEnv[Any, Any, Any]:
        if way == "here":
            made.append(gymnasium.make_vec(id, num_envs, **kwargs))
        else:
            made.append(client.make_vec(id, num_envs, modules=[MODULE], direct=way == "direct", **kwargs))
        return made[-1]

    yield make_vec
    for envs in made:
        envs.close()


@quiet
@pytest.mark.parametrize(
    ("task_id", "steps", "kwargs"),
    [
        ("CartPole-v1", 120, {}),
        ("CartPole-v1", 30, {"max_episode_steps": 7}),
        ("Pendulum-v1", 30, {"max_episode_steps": 10}),
        ("FrozenLake-v1", 60, {}),
        ("Pong-v5", 20, {"stack_num": 2}),
    ],
)
def test_plays_as_envpool_itself(make: Any, task_id: str, steps: int, kwargs: dict[str, Any]):
    envs = make(f"envpool/{task_id}", 4, **kwargs)
    pool = own(task_id, 4, 7, **kwargs)
    assert_same(envs.single_observation_space, pool.observation_space)
    assert_same(envs.single_action_space, pool.action_space)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    assert_same(envs.reset(seed=7), pool.reset())
    envs.action_space.seed(0)
    ended = 0
    for _ in range(steps):
        actions = envs.action_space.sample()
        got, expected = envs.step(actions), pool.step(actions)
        assert_same(got, expected)
        assert envs.observation_space.contains(got[0])
        ended += int((got[2] | got[3]).sum())
    assert task_id == "Pong-v5" or ended > 4


@quiet
def test_a_copy_has_the_seed_that_is_its_own(make: Any):
    envs = make("envpool/CartPole-v1", 3)
    assert_same(envs.reset(seed=[5, 1, 5]), own("CartPole-v1", 3, [5, 1, 5]).reset())
    again, _ = envs.reset(seed=5)
    assert_same(again, own("CartPole-v1", 3, 5).reset()[0])
    following, _ = envs.reset()
    assert (following != again).any(axis=1).all()


@quiet
def test_without_a_seed_no_two_start_alike(make: Any):
    first, second = make("envpool/CartPole-v1", 2), make("envpool/CartPole-v1", 2)
    assert (first.reset()[0] != second.reset()[0]).any(axis=1).all()
    assert_same(make("envpool/CartPole-v1", 2, seed=3).reset(), own("CartPole-v1", 2, 3).reset())


@quiet
def test_some_copies_are_reset_while_others_go_on(make: Any):
    envs = make("envpool/CartPole-v1", 4)
    envs.reset(seed=0)
    before: Any = None
    for _ in range(3):
        before = envs.step(np.array([0, 1, 0, 1]))
    mask = np.array([True, False, False, True])
    observations, infos = envs.reset(options={"reset_mask": mask})
    assert_same(observations[~mask], before[0][~mask])
    assert (observations[mask] != before[0][mask]).any(axis=1).all()
    assert infos["elapsed_step"].tolist() == [0, 3, 3, 0]
    assert_same(infos["env_id"], np.arange(4, dtype=np.int32))
    *_, infos = envs.step(np.array([0, 1, 0, 1]))
    assert infos["elapsed_step"].tolist() == [1, 4, 4, 1]


@quiet
def test_renders_each_copy(make: Any):
    envs = make("envpool/CartPole-v1", 2, render_mode="rgb_array")
    assert envs.render_mode == "rgb_array"
    envs.reset(seed=1)
    frames = envs.render()
    assert isinstance(frames, tuple)
    pool = own("CartPole-v1", 2, 1, render_mode="rgb_array")
    pool.reset()
    assert_same(np.stack(frames), pool.render(env_ids=np.arange(2)))


@quiet
def test_what_is_no_vector_environment_is_refused():
    with pytest.raises(ValueError, match="batch_size"):
        EnvPoolVectorEnv("CartPole-v1", 4, batch_size=2)
    with pytest.raises(ValueError, match="several players"):
        EnvPoolVectorEnv("IntersectionMultiAgent-v1", 4)
    with pytest.raises(ValueError, match="render_mode"):
        EnvPoolVectorEnv("CartPole-v1", 4, render_mode="human")
    envs = EnvPoolVectorEnv("CartPole-v1", 2)
    with pytest.raises(gymnasium.error.ResetNeeded):
        envs.step(np.zeros(2, int))
    some = {"reset_mask": np.array([True, False])}
    with pytest.raises(ValueError, match="first reset is one of all"):
        envs.reset(options=some)
    envs.reset()
    with pytest.raises(ValueError, match="seeds only for all copies"):
        envs.reset(seed=1, options=some)
    envs.close()
    envs.close()


def test_all_that_envpool_has_is_registered_under_its_own_name():
    for task_id in envpool.list_all_envs():
        assert f"envpool/{task_id.replace('/', '.')}" in gymnasium.registry
    assert "envpool/phys2d.CartPole-v1" in gymnasium.registry


def test_one_copy_alone_is_no_environment_and_that_is_said():
    with pytest.raises(client.Error, match="only as a vector environment"):
        client.make("envpool/CartPole-v1", modules=[MODULE])
