"""Any environment of dm_env, hosted and driven by its own API."""

from typing import Any

import numpy as np
import pytest
from dm_env import specs
from gymnasium import spaces
from gymnasium.error import ResetNeeded

from gymhost.envs.adapters.dm import space_of
from gymhost.wire.chat_spaces import FreeText
from gymhost.wire.errors import EnvironmentFault
from support import adapter_corridor
from support.adapters import Host, Make
from support.server import ServerProcess

CORRIDOR = f"dm:{adapter_corridor.__name__}:Corridor"
ID = "dm/support.adapter_corridor-Corridor"


@pytest.fixture(scope="module")
def server(host: Host) -> ServerProcess:
    return host(f"{CORRIDOR}?length=4&most=6")


def action(move: int, push: float) -> dict[str, Any]:
    return {"move": np.int64(move), "push": np.array([push, 2 * push], np.float32)}


def test_an_episode_is_the_environment_s_own(server: ServerProcess, remote: Make) -> None:
    env = remote(server, ID)
    assert env.observation_space == spaces.Dict(
        {
            "place": spaces.Discrete(100),
            "steps": spaces.Box(0, 100, (), np.int32),
            "ahead": spaces.Tuple([spaces.Box(-np.inf, np.inf, (2,), np.float64), spaces.Discrete(2)]),
            "sign": FreeText(),
        }
    )
    assert env.action_space["push"] == spaces.Box(np.float32([-1, -1]), np.float32([1, 2]))  # pyright: ignore
    ends: set[tuple[bool, bool]] = set()
    for seed in range(6):
        own = adapter_corridor.Corridor(length=4, most=6, seed=seed)
        for again in range(2):
            told = own.reset()
            observation, info = env.reset(seed=None if again else seed)
            assert info == {}
            move = 1 + (seed + again) % 2
            terminated = truncated = False
            while True:
                assert env.observation_space.contains(observation)
                seen = told.observation
                np.testing.assert_array_equal(observation["ahead"][0], seen["ahead"][0])
                assert observation["ahead"][1] == seen["ahead"][1]
                assert all(observation[name] == seen[name] for name in ("place", "steps", "sign"))
                if told.last():
                    break
                told = own.step(action(move, 0.25))
                observation, reward, terminated, truncated, info = env.step(action(move, 0.25))
                assert (reward, info) == (told.reward, {"discount": told.discount})
                assert (terminated, truncated) == (told.last() and not told.discount, told.last() and told.discount > 0)
            ends.add((terminated, truncated))
    assert ends == {(True, False), (False, True)}
    with pytest.raises(ResetNeeded):
        env.step(action(1, 0))


def test_what_it_raises_is_a_fault_and_no_reward(server: ServerProcess, remote: Make) -> None:
    env = remote(server, ID)
    for _ in range(env.reset(seed=1)[0]["place"]):
        env.step(action(0, 0))
    with pytest.raises(EnvironmentFault, match="ArithmeticError: fell out"):
        env.step(action(0, 0))
    with pytest.raises(ResetNeeded):
        env.step(action(1, 0))
    assert env.reset(seed=1)[0]["steps"] == 0


def test_specs_that_there_is_no_space_for_are_refused() -> None:
    for spec in (specs.Array((2,), complex), specs.StringArray((2,)), object()):
        with pytest.raises(TypeError, match="there is no space for"):
            space_of(spec)
    assert space_of((specs.Array((), bool), specs.Array((3,), bool))) == spaces.Tuple(
        [spaces.Discrete(2), spaces.MultiBinary((3,))]
    )
