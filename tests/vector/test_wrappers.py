"""Gymnasium's own wrappers for vectors, around a remote one and around a local one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import imageio_ffmpeg
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import vector as wrappers

from support.compare import assert_same
from support.vectors import Remote, Twins, local_vector

COPIES = 5

Wrap = Callable[[Any], Any]


def wrapped(wrap: Wrap, remote: Remote, id: str, mode: AutoresetMode = AutoresetMode.NEXT_STEP, **kwargs: Any) -> Twins:
    here = local_vector(id, COPIES, mode, **kwargs)
    return Twins(wrap(remote.make_vec(id, COPIES, autoreset_mode=mode, **kwargs)), wrap(here))


@pytest.mark.parametrize(
    "wrap",
    [
        wrappers.NormalizeObservation,
        wrappers.NormalizeReward,
        wrappers.FlattenObservation,
        wrappers.DictInfoToList,
        lambda env: wrappers.TransformReward(env, lambda reward: reward * 2),
        lambda env: wrappers.RescaleAction(env, np.full(1, -1.0, np.float32), np.full(1, 1.0, np.float32)),
        lambda env: wrappers.VectorizeTransformObservation(
            env, gymnasium.wrappers.RescaleObservation, min_obs=np.float32(0.0), max_obs=np.float32(1.0)
        ),
    ],
    ids=["observation", "reward", "flatten", "list", "transform", "action", "vectorize"],
)
def test_wrappers_of_vectors(remote: Remote, wrap: Wrap):
    with wrapped(wrap, remote, "Pendulum-v1", max_episode_steps=9) as twins:
        assert twins.play(25) >= 2 * COPIES


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_statistics(remote: Remote, mode: AutoresetMode):
    with wrapped(wrappers.RecordEpisodeStatistics, remote, "CartPole-v1", mode) as twins:
        twins.local.action_space.seed(0)
        twins.reset(0)
        episodes = 0
        for _ in range(80):
            actions = twins.local.action_space.sample()
            *here, here_infos = twins.local.step(actions)
            *there, there_infos = twins.remote.step(actions)
            for infos in (here_infos, there_infos):
                if "episode" in infos:
                    assert (infos["episode"].pop("t") >= 0.0).all()  # how long it took is all that may differ
                    episodes += 1
            assert_same([*there, there_infos], [*here, here_infos])
        assert episodes >= COPIES
        for name in ("return_queue", "length_queue"):
            assert_same(list(getattr(twins.remote, name)), list(getattr(twins.local, name)))


def test_statistics_where_nothing_is_reset(remote: Remote):
    """With a local vector, which takes the mask out of the options before the wrapper sees it, they are wrong."""
    env = wrappers.RecordEpisodeStatistics(remote.make_vec("CartPole-v1", COPIES, autoreset_mode="Disabled"))
    env.action_space.seed(0)
    env.reset(seed=0)
    steps = np.zeros(COPIES, np.int64)
    episodes = 0
    for _ in range(80):
        _, _, terminations, truncations, infos = env.step(env.action_space.sample())
        done = terminations | truncations
        steps += 1
        if done.any():
            assert_same(infos["episode"]["l"], np.where(done, steps, 0))
            assert_same(infos["episode"]["r"], np.where(done, steps, 0.0))
            assert_same(infos["_episode"], done)
            episodes += done.sum()
            env.reset(options={"reset_mask": done})
            steps[done] = 0
    assert episodes > 2 * COPIES
    env.close()


if hasattr(wrappers, "RecordVideo"):  # Gymnasium 1.2

    def test_films(remote: Remote, tmp_path: Path):
        films: list[dict[str, Any]] = []
        for name, make in (("remote", remote.make_vec), ("local", local_vector)):
            env = make("CartPole-v1", COPIES, render_mode="rgb_array")
            folder = tmp_path / name
            env = wrappers.RecordVideo(env, str(folder), episode_trigger=lambda episode: episode % 2 == 0)
            env.action_space.seed(0)
            env.reset(seed=0)
            for _ in range(60):
                env.step(env.action_space.sample())
            env.close()
            env.close()
            films.append({path.name: imageio_ffmpeg.count_frames_and_secs(path) for path in folder.iterdir()})
        assert len(films[0]) >= 2
        assert films[0] == films[1]
