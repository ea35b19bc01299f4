"""Stable-Baselines3's checker says of a remote environment what it says of the local one (S26, S27)."""

import warnings
from collections.abc import Callable
from typing import Any

import gymnasium
import pytest
from stable_baselines3.common.env_checker import check_env

from gymhost.client import RemoteEnv, make
from support.server import ServerProcess
from support.spaces_environments import SPACES
from support.vectors import ids_of

Make = Callable[..., RemoteEnv]

pytestmark = pytest.mark.heavy


class Plain(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Returns rewards and flags of Python's types, as remote environments do."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, float(reward), bool(terminated), bool(truncated), info


def verdict(env: gymnasium.Env[Any, Any]) -> tuple[str, list[str]]:
    """What the checker raised of an environment, and what it warned of."""
    raised = ""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            env.action_space.seed(0)
            check_env(env)
        except Exception as error:  # noqa: BLE001 - whatever it says
            raised = f"{type(error).__name__}: {error}"
        finally:
            env.close()
    return raised, [str(each.message) for each in warned]


@pytest.mark.filterwarnings("ignore:.*The environment .* is out of date")
@pytest.mark.parametrize("id", [*ids_of("classic_control"), *ids_of("toy_text"), "LunarLander-v3", "ALE/Pong-v5"])
def test_of_the_environments_of_others(remote: Make, id: str):
    assert verdict(remote(id)) == verdict(gymnasium.make(id).unwrapped)


@pytest.mark.parametrize("name", SPACES)
def test_of_every_space(remote: Make, name: str):
    id = f"test/Spaces{name}-v0"
    assert verdict(remote(id)) == verdict(Plain(gymnasium.make(id).unwrapped))


@pytest.mark.parametrize("name", ["Unseeded", "FirstSeedOnly", "Outside", "Deprecated"])
def test_of_environments_with_faults(knobs: ServerProcess, name: str):
    id = f"test/{name}-v0"
    assert verdict(make(id, server=knobs.address)) == verdict(gymnasium.make(id).unwrapped)


@pytest.mark.parametrize("direct", [True, False], ids=["direct", "grpc"])
def test_of_types_there_is_nothing_to_say(knobs: ServerProcess, direct: bool):
    assert verdict(make("test/Types-v0", server=knobs.address, direct=direct)) == ("", [])
