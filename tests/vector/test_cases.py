"""Faults that people met with vector environments elsewhere: none of them may happen here."""

import functools
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode

from gymhost import client
from support import spaces_environments
from support.compare import assert_same
from support.server import ServerProcess
from support.vectors import Remote, Twins, local_vector


def reused(episode: int, steps: int, copies: int = 2) -> tuple[Any, dict[str, Any]]:
    """The observations and infos of `test/Reuses-v0` at a step of an episode."""
    everywhere = np.ones(copies, np.bool_)
    info: dict[str, Any] = {
        "array": np.array([[episode, steps]] * copies),
        "_array": everywhere,
        "nested": {"episode": np.full(copies, episode), "_episode": everywhere},
        "_nested": everywhere,
        "steps": np.full(copies, steps),
        "_steps": everywhere,
    }
    return np.array([[episode, steps]] * copies, np.float32), info


def assert_reused(returned: tuple[Any, dict[str, Any]], episode: int, steps: int) -> None:
    observations, infos = returned
    expected, expected_infos = reused(episode, steps)
    assert_same(observations, expected)
    assert_same({name: infos[name] for name in expected_infos}, expected_infos)


def test_reused_objects_with_same_step_reset(remote: Remote):
    """S23, where the local vector itself is wrong."""
    env = remote.make_vec("test/Reuses-v0", 2, autoreset_mode=AutoresetMode.SAME_STEP)
    kept = [env.reset(seed=0)]
    for _ in range(7):
        observations, _, terminations, _, infos = env.step(np.array([0, 1]))
        kept.append((observations, infos))
        assert terminations.all() == ("final_obs" in infos) == (len(kept) in (4, 7))
    env.close()

    for number, returned in enumerate(kept):
        assert_reused(returned, 1 + number // 3, number % 3)
        if number and number % 3 == 0:
            final, final_info = reused(number // 3, 3)
            infos = returned[1]
            assert_same(list(infos["final_obs"]), list(final))
            assert_same(infos["_final_obs"], np.ones(2, np.bool_))
            assert_same({name: infos["final_info"][name] for name in final_info}, final_info)
            assert_same(infos["_final_info"], np.ones(2, np.bool_))


def test_reused_objects_with_next_step_reset(remote: Remote):
    """S23."""
    env = remote.make_vec("test/Reuses-v0", 2, autoreset_mode=AutoresetMode.NEXT_STEP)
    kept = [env.reset(seed=0)]
    for number in range(1, 9):
        observations, rewards, terminations, truncations, infos = env.step(np.array([0, 1]))
        assert_same(terminations, np.full(2, number % 4 == 3))
        assert_same(truncations, np.zeros(2, np.bool_))
        assert_same(rewards, np.full(2, 0.0 if number % 4 == 0 else 1.0))
        kept.append((observations, infos))
    env.close()

    for number, returned in enumerate(kept):
        assert_reused(returned, 1 + number // 4, number % 4)
        assert "final_obs" not in returned[1]


def test_composite_observations_are_batched_alike(remote: Remote):
    """S25: remote, in this process, and in processes of Gymnasium's."""
    id = "test/SpacesPositionAndGoal-v0"
    make = functools.partial(gymnasium.make, f"{spaces_environments.__name__}:{id}")
    processes = AsyncVectorEnv([make] * 5, context="spawn")
    with Twins(remote.make_vec(id, 5), local_vector(id, 5)) as first, Twins(first.remote, processes) as second:
        second.reset(1)
        first.reset(1)
        first.local.action_space.seed(1)
        for _ in range(20):
            actions = first.local.action_space.sample()
            observations, *_ = results = first.step(actions)
            assert_same(processes.step(actions), results)
            assert first.remote.observation_space.contains(observations)


def test_a_seed_governs_later_episodes(start_server: Callable[..., ServerProcess]):
    """S26: one environment and a vector of them, in two server processes each."""
    plays: list[list[Any]] = []
    for server in [start_server(modules=[spaces_environments.__name__]) for _ in range(2)]:
        env = client.make("test/Random-v0", server=server.address)
        play: list[Any] = [env.reset(seed=123)]
        for _ in range(3):
            ended = False
            while not ended:
                play.append(env.step(1))
                ended = play[-1][2]
            play.append(env.reset())
        env.close()

        vector = client.make_vec("test/Random-v0", 5, shards=2, vectorization_mode="sync", server=server.address)
        play.append(vector.reset(seed=123))
        play.extend(vector.step(np.ones(5, np.int64)) for _ in range(60))
        assert sum(step[2].sum() for step in play[-60:]) > 10
        play.append(vector.reset())
        vector.close()
        plays.append(play)
    assert_same(plays[0], plays[1])
