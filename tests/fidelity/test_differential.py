"""Remote environments beside local ones: with equal seeds they give the same, step by step, over several episodes."""

from collections.abc import Callable
from typing import Any

import gymnasium
import pytest

from gymhost.client import RemoteEnv
from support.compare import assert_same, assert_same_space
from support.play import assert_played_same, play
from support.spaces_environments import SPACES
from support.vectors import ids_of

Make = Callable[..., RemoteEnv]

SMALL = [*ids_of("classic_control"), *ids_of("toy_text")]
SIMULATORS = ["LunarLander-v3", "BipedalWalker-v3", "HalfCheetah-v5", "Ant-v5", "Hopper-v5"]
PICTURES = ["ALE/Pong-v5", "ALE/Breakout-v5", "CarRacing-v3"]

pytestmark = pytest.mark.filterwarnings("ignore:.*The environment .* is out of date")


def compare(remote: Make, id: str, *, episodes: int, steps: int, render_every: int = 0, **kwargs: Any) -> None:
    """Plays an environment on the server and here, and finds whatever tells them apart."""
    with remote(id, **kwargs) as there, gymnasium.make(id, disable_env_checker=True, **kwargs) as here:
        assert_same_space(there.observation_space, here.observation_space)
        assert_same_space(there.action_space, here.action_space)
        # All modes but the one that would show nothing here.
        modes = [mode for mode in here.metadata["render_modes"] if mode != "human"]
        assert_same(there.metadata, {**here.metadata, "render_modes": modes}, "metadata")
        assert there.render_mode == here.render_mode
        assert there.spec is not None
        assert here.spec is not None
        for name in ("id", "max_episode_steps", "reward_threshold", "nondeterministic"):
            assert getattr(there.spec, name) == getattr(here.spec, name), name
        how: dict[str, Any] = {"episodes": episodes, "steps": steps, "seed": 7, "render_every": render_every}
        assert_played_same(play(there, here.action_space, **how), play(here, here.action_space, **how))
        assert there.np_random_seed == here.unwrapped.np_random_seed
        assert there.np_random.bit_generator.state == here.unwrapped.np_random.bit_generator.state


@pytest.mark.parametrize("id", SMALL)
def test_small_environments(remote: Make, id: str):
    compare(remote, id, episodes=3, steps=300)


@pytest.mark.parametrize("id", SIMULATORS)
def test_simulators(remote: Make, id: str):
    compare(remote, id, episodes=2, steps=40)


@pytest.mark.parametrize("id", PICTURES)
def test_environments_of_pictures(remote: Make, id: str):
    compare(remote, id, episodes=2, steps=15)


@pytest.mark.parametrize("name", SPACES)
def test_every_space(remote: Make, name: str):
    compare(remote, f"test/Spaces{name}-v0", episodes=3, steps=12)


@pytest.mark.parametrize("id", [*SMALL, "LunarLander-v3", "Hopper-v5", "ALE/Pong-v5"])
def test_pictures_are_rendered(remote: Make, id: str):
    compare(remote, id, episodes=2, steps=12, render_every=3, render_mode="rgb_array")


@pytest.mark.parametrize("id", SMALL)
def test_lists_of_pictures_are_rendered(remote: Make, id: str):
    compare(remote, id, episodes=2, steps=6, render_every=4, render_mode="rgb_array_list")


@pytest.mark.parametrize("id", [id for id in ids_of("toy_text") if id != "Blackjack-v1"])
def test_text_is_rendered(remote: Make, id: str):
    compare(remote, id, episodes=2, steps=12, render_every=3, render_mode="ansi")


def test_settings_reach_the_environment(remote: Make):
    compare(remote, "FrozenLake-v1", episodes=3, steps=50, map_name="8x8", is_slippery=False)
    compare(remote, "CartPole-v1", episodes=3, steps=50, max_episode_steps=6)
    compare(remote, "CartPole-v1", episodes=1, steps=50, max_episode_steps=-1)
