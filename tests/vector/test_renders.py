"""What remote vectors render, beside what Gymnasium's `SyncVectorEnv` does."""

from typing import Any

import gymnasium
import pytest
from gymnasium.envs.registration import load_env_creator

from support.vectors import Remote, Twins, ids_of, local_vector

COPIES = 2

pytestmark = pytest.mark.filterwarnings("ignore:.*The environment .* is out of date")


def modes_of(id: str) -> list[str]:
    """The modes that need no screen, with Gymnasium's own ways to collect frames in one case."""
    entry_point = gymnasium.spec(id).entry_point
    assert isinstance(entry_point, str)
    creator: Any = load_env_creator(entry_point)
    modes = [mode for mode in creator.metadata["render_modes"] if mode != "human"]
    return [*modes, "rgb_array_list"] if id == "CartPole-v1" else modes


OWN = [(id, mode) for id in (*ids_of("classic_control"), *ids_of("toy_text")) for mode in modes_of(id)]
OTHERS = ["LunarLander-v3", "CarRacing-v3", "Hopper-v5", "ALE/Pong-v5"]


@pytest.mark.parametrize(("id", "mode"), [*OWN, *((id, "rgb_array") for id in OTHERS), ("test/SpacesText-v0", "ansi")])
def test_frames(remote: Remote, id: str, mode: str):
    local = local_vector(id, COPIES, render_mode=mode)
    with Twins(remote.make_vec(id, COPIES, render_mode=mode), local) as twins:
        twins.compare_descriptions()
        twins.play(2, render=True)
