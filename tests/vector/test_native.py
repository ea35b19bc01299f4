"""Vector environments of an environment's own making, hosted as they are."""

import gymnasium
import numpy as np
import pytest

from gymhost.client import EnvironmentFault, InvalidArgument
from support.compare import assert_same
from support.vectors import Remote, Twins

ID = "CartPole-v1"


@pytest.mark.parametrize("mode", [None, "vector_entry_point"])
def test_a_native_vector_is_hosted_as_it_is(remote: Remote, mode: str | None):
    there = remote.make_vec(ID, 8, vectorization_mode=mode, shards=None, max_episode_steps=25)
    with Twins(there, gymnasium.make_vec(ID, 8, vectorization_mode=mode, max_episode_steps=25)) as twins:
        twins.compare_descriptions()
        assert twins.play(70) >= 16
        assert_same(twins.remote.get_attr("gravity"), (9.8,))


def test_its_frames(remote: Remote):
    there = remote.make_vec(ID, 3, vectorization_mode=None, shards=None, render_mode="rgb_array")
    with Twins(there, gymnasium.make_vec(ID, 3, render_mode="rgb_array")) as twins:
        twins.compare_descriptions()
        twins.play(3, render=True)


def test_its_seed_is_one(remote: Remote):
    there = remote.make_vec(ID, 3, vectorization_mode=None, shards=None)
    with Twins(there, gymnasium.make_vec(ID, 3)) as twins:
        twins.reset(2**33)
        assert_same(twins.remote.np_random_seed, twins.local.np_random_seed)
        assert_same(twins.remote.np_random.bit_generator.state, twins.local.np_random.bit_generator.state)
        twins.reset(4, {"low": -0.01, "high": 0.01})
        twins.reset()


def test_it_is_one_shard(remote: Remote):
    with pytest.raises(InvalidArgument, match="shards"):
        remote.make_vec(ID, 8, vectorization_mode="vector_entry_point", shards=2)


def test_an_environment_that_has_none(remote: Remote):
    with pytest.raises((InvalidArgument, EnvironmentFault), match="vector entry point"):
        remote.make_vec("test/Random-v0", 3, vectorization_mode="vector_entry_point", shards=None)


def test_without_one_there_are_copies(remote: Remote):
    env = remote.make_vec("test/Random-v0", 3, vectorization_mode=None, shards=None)
    observations, _ = env.reset(seed=0)
    assert observations.shape == (3, 2)
    assert_same(env.step(np.array([1, 0, 1]))[1], np.array([1.0, 0.0, 1.0]))
    env.close()
