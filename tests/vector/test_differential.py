"""Remote vectors beside Gymnasium's `SyncVectorEnv`: step by step, over several episodes, in all autoreset modes."""

from typing import Any

import gymnasium
import pytest
from gymnasium.vector import AutoresetMode

from gymhost.envs import shelf
from support.spaces_environments import SPACES
from support.vectors import MODES, Remote, Twins, ids_of, local_vector

gymnasium.register_envs(shelf)

# Five copies, or three, in two shards: the shards are not of one size.
COPIES = 5

pytestmark = pytest.mark.filterwarnings("ignore:.*The environment .* is out of date")

modes = pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name.lower())


def beside(remote: Remote, id: str, mode: AutoresetMode, copies: int = COPIES, **kwargs: Any) -> Twins:
    more = {key: value for key, value in kwargs.items() if key != "shards"}
    return Twins(remote.make_vec(id, copies, autoreset_mode=mode, **kwargs), local_vector(id, copies, mode, **more))


@modes
@pytest.mark.parametrize("name", SPACES)
def test_every_space(remote: Remote, name: str, mode: AutoresetMode):
    with beside(remote, f"test/Spaces{name}-v0", mode) as twins:
        twins.compare_descriptions()
        assert twins.play(10) >= COPIES


@modes
@pytest.mark.parametrize("id", [*ids_of("classic_control"), *ids_of("toy_text")])
def test_small_environments(remote: Remote, id: str, mode: AutoresetMode):
    # Most of them end by their limit of steps alone.
    with beside(remote, id, mode, max_episode_steps=9) as twins:
        twins.compare_descriptions()
        assert twins.play(30) >= 2 * COPIES


@modes
@pytest.mark.parametrize("id", ["LunarLander-v3", "BipedalWalker-v3", "HalfCheetah-v5", "Ant-v5", "Hopper-v5"])
def test_simulators(remote: Remote, id: str, mode: AutoresetMode):
    with beside(remote, id, mode, max_episode_steps=7) as twins:
        twins.compare_descriptions()
        assert twins.play(20) >= 2 * COPIES


@pytest.mark.parametrize(
    ("id", "mode"),
    [
        *(("ALE/Pong-v5", mode) for mode in MODES),
        ("ALE/Breakout-v5", AutoresetMode.SAME_STEP),
        ("CarRacing-v3", AutoresetMode.NEXT_STEP),
    ],
)
def test_environments_of_pictures(remote: Remote, id: str, mode: AutoresetMode):
    with beside(remote, id, mode, copies=3, max_episode_steps=3) as twins:
        twins.compare_descriptions()
        assert twins.play(7) >= 3


@modes
@pytest.mark.parametrize("shards", [1, 5])
@pytest.mark.parametrize("id", ["test/SpacesPositionAndGoal-v0", "CartPole-v1"])
def test_any_number_of_shards(remote: Remote, id: str, shards: int, mode: AutoresetMode):
    with beside(remote, id, mode, shards=shards) as twins:
        twins.compare_descriptions()
        assert twins.play(60) >= 2


@modes
@pytest.mark.parametrize("name", ["Echo", "GuessNumber"])
def test_conversations(remote: Remote, name: str, mode: AutoresetMode):
    with beside(remote, f"gymhost/{name}-v0", mode) as twins:
        twins.compare_descriptions()
        assert twins.play(15) >= COPIES


def test_episodes_of_their_full_length(remote: Remote):
    with beside(remote, "CartPole-v1", AutoresetMode.NEXT_STEP) as twins:
        assert twins.play(200, seed=7) > 3 * COPIES
