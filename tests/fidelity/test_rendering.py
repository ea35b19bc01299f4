"""Rendering, films and statistics of remote environments (S28)."""

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import imageio_ffmpeg
import numpy as np
import pytest
from gymnasium.wrappers import AddWhiteNoise, HumanRendering, RecordEpisodeStatistics, RecordVideo, RenderCollection

from gymhost.client import InvalidArgument, RemoteEnv, connect, make
from support.compare import assert_same
from support.server import ServerProcess, until_sessions

Make = Callable[..., RemoteEnv]


def frames_of(film: Path) -> int | None:
    """How many frames a film has that can be read."""
    frames, _ = imageio_ffmpeg.count_frames_and_secs(film)
    return frames


@pytest.mark.parametrize("path", [True, False], ids=["direct", "grpc"])
async def test_a_recorder_does_not_end_the_session(server: ServerProcess, tmp_path: Path, path: bool):
    films = tmp_path / "films"
    inner = make("CartPole-v1", server=server.address, direct=path, render_mode="rgb_array", max_episode_steps=12)
    # Frames of a 32nd of a second: of what a float can't hold, moviepy may lose the last one.
    env = RecordVideo(RecordEpisodeStatistics(inner), str(films), lambda number: number in (0, 2), fps=32)
    lengths: list[int] = []
    async with connect(server.address) as remote:
        for number in range(4):
            _, info = env.reset(seed=number)
            while "episode" not in info:
                *_, info = env.step(number % 2)
            lengths.append(info["episode"]["l"])
            await until_sessions(remote, 1)
        env.close()
        await until_sessions(remote, 0)
        env.close()
        assert inner._lane.lane.ended is not None
    names = ["rl-video-episode-0.mp4", "rl-video-episode-2.mp4"]
    assert sorted(film.name for film in films.iterdir()) == names
    # The picture after the reset, and one after each step.
    assert [frames_of(films / name) for name in names] == [lengths[0] + 1, lengths[2] + 1]


def test_films_of_lists_of_pictures(remote: Make, tmp_path: Path):
    with RecordVideo(remote("FrozenLake-v1", render_mode="rgb_array_list"), str(tmp_path / "films")) as env:
        env.reset(seed=0)
        for _ in range(3):
            env.step(0)
    (film,) = (tmp_path / "films").iterdir()
    assert frames_of(film) == 4


def test_statistics_are_those_of_a_local_environment(remote: Make):
    local = RecordEpisodeStatistics(gymnasium.make("CartPole-v1"))
    with RecordEpisodeStatistics(remote("CartPole-v1")) as env:
        (_, there), (_, here) = env.reset(seed=5), local.reset(seed=5)
        while "episode" not in there:
            (*_, there), (*_, here) = env.step(0), local.step(0)
        for info in (there, here):
            assert info["episode"].pop("t") >= 0.0
        assert_same(there, here)
        assert env.return_queue == local.return_queue


def test_collections_are_popped_by_a_rendering(remote: Make):
    local = gymnasium.make("CartPole-v1", render_mode="rgb_array_list")
    with remote("CartPole-v1", render_mode="rgb_array_list") as env:
        with RenderCollection(remote("CartPole-v1", render_mode="rgb_array")) as here:
            for one in (env, local, here):
                one.reset(seed=2)
                one.step(1)
            expected = local.render()
            assert isinstance(expected, list)
            assert len(expected) == 2
            assert_same(env.render(), expected)
            assert_same(here.render(), expected)
        assert env.render() == local.render() == []
    local.close()


def test_pictures_through_wrappers_here(remote: Make):
    local = AddWhiteNoise(gymnasium.make("CartPole-v1", render_mode="rgb_array"), 0.3)
    with AddWhiteNoise(remote("CartPole-v1", render_mode="rgb_array"), 0.3) as env:
        for one in (env, local):
            one.reset(seed=2)
            one.step(1)
        for _ in range(2):
            assert_same(env.render(), local.render())
    local.close()


def test_windows_are_for_this_side(remote: Make, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(InvalidArgument, match=r"render_mode='rgb_array', .*gymnasium\.wrappers\.HumanRendering"):
        remote("CartPole-v1", render_mode="human")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    with remote("CartPole-v1", render_mode="rgb_array") as inner:
        assert inner.metadata["render_modes"] == ["rgb_array"]
        env = HumanRendering(inner)
        env.reset(seed=0)
        env.step(1)
        assert env.window is not None
        env.close()


@pytest.mark.filterwarnings("ignore:.*without specifying any render mode")  # which the server says in its log
def test_without_a_render_mode_it_is_as_on_a_local_environment(remote: Make):
    local = gymnasium.make("CartPole-v1", disable_env_checker=True)
    local.reset(seed=0)
    with remote("CartPole-v1") as env:
        env.reset(seed=0)
        assert env.render_mode is None
        assert env.render() is local.render() is None


def test_rendering_before_the_first_reset_is_refused(remote: Make):
    with remote("CartPole-v1", render_mode="rgb_array") as env:
        with pytest.raises(gymnasium.error.ResetNeeded):
            env.render()
        env.reset()
        assert isinstance(env.render(), np.ndarray)
    gc.collect()


def test_a_frame_that_is_kept_stays_as_it_was(remote: Make):
    with remote("CartPole-v1", render_mode="rgb_array") as env:
        env.reset(seed=0)
        frames: list[Any] = []
        for _ in range(3):
            frames.append(env.render())
            env.step(1)
        assert not np.array_equal(frames[0], frames[2])
        frames[0][:] = 0  # it is the caller's own
