"""The random generator of a remote environment, as it is seen here; and seeds that govern all episodes (S26)."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import StickyAction

from gymhost.client import RemoteEnv, make
from gymhost.v1 import environments_pb2 as pb
from support.play import assert_played_same, play
from support.server import ServerProcess

Make = Callable[..., RemoteEnv]


def state(env: gymnasium.Env[Any, Any]) -> dict[str, Any]:
    return dict(env.np_random.bit_generator.state)


def test_it_is_that_of_a_local_environment(remote: Make):
    local = gymnasium.make("FrozenLake-v1")
    with remote("FrozenLake-v1") as env:
        env.reset(seed=4)
        local.reset(seed=4)
        for _ in range(3):
            assert state(env) == state(local)
            assert env.np_random_seed == local.np_random_seed == 4
            env.step(1)
            local.step(1)


def test_before_the_first_reset_there_is_none_until_it_is_asked_for(remote: Make):
    with remote("CartPole-v1") as env:
        assert env.unwrapped._np_random is None
        assert env.unwrapped._np_random_seed is None
        seed = env.np_random_seed
        assert seed >= 0
        assert state(env) == np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed))).bit_generator.state


def test_what_is_drawn_here_is_drawn_there(remote: Make):
    local = gymnasium.make("FrozenLake-v1")
    with remote("FrozenLake-v1") as env:
        env.reset(seed=4)
        local.reset(seed=4)
        for _ in range(20):
            assert env.np_random is env.np_random
            assert env.np_random.random() == local.np_random.random()
            assert env.np_random.integers(10) == local.np_random.integers(10)
            assert env.step(2) == local.step(2)
        assert env.np_random_seed == 4


def test_wrappers_here_draw_from_it(remote: Make):
    how: dict[str, Any] = {"episodes": 3, "steps": 40, "seed": 1}
    with StickyAction(remote("CartPole-v1"), 0.5) as env:
        local = StickyAction(gymnasium.make("CartPole-v1"), 0.5)
        assert_played_same(play(env, local.action_space, **how), play(local, local.action_space, **how))


def test_it_is_set_as_on_a_local_environment(remote: Make):
    local = gymnasium.make("FrozenLake-v1").unwrapped
    with remote("FrozenLake-v1") as env:
        env.reset(seed=4)
        local.reset(seed=4)
        for one in (env, local):
            one.np_random = np.random.Generator(np.random.MT19937(8))
        assert env.np_random_seed == local.np_random_seed == -1
        assert env.step(2) == local.step(2)
        assert env.np_random.random() == local.np_random.random()


def test_nothing_more_is_sent_where_nobody_asks_for_it(remote: Make, monkeypatch: pytest.MonkeyPatch):
    with remote("CartPole-v1") as env:
        kinds: list[Any] = []
        command = env._lane.command

        def note(kind: int, payload: bytes) -> bytes:
            kinds.append(kind)
            return command(kind, payload)

        monkeypatch.setattr(env._lane, "command", note)
        env.reset(seed=1)
        env.step(0)
        _ = env.np_random.bit_generator.state
        env.step(0)
        env.reset()
        wanted = ["RESET", "STEP", "GET_ATTR", "STEP", "RESET"]
        assert [pb.CommandKind.Name(kind) for kind in kinds] == [f"COMMAND_KIND_{name}" for name in wanted]


def test_spaces_sample_as_local_ones_do(remote: Make):
    local = gymnasium.make("Pendulum-v1")
    with remote("Pendulum-v1") as env, remote("Pendulum-v1") as other:
        assert not np.array_equal(env.action_space.sample(), other.action_space.sample())
        env.action_space.seed(5)
        local.action_space.seed(5)
        other.action_space.seed(6)
        for _ in range(5):
            other.action_space.sample()
            assert np.array_equal(env.action_space.sample(), local.action_space.sample())


def test_a_seed_governs_all_episodes_in_any_server(start_server: Callable[..., ServerProcess]):
    how: dict[str, Any] = {"episodes": 3, "steps": 30, "seed": 123}
    actions = gymnasium.make("FrozenLake-v1").action_space
    played: list[Any] = []
    for _ in range(2):
        with make("FrozenLake-v1", server=start_server().address) as env:
            played.append(play(env, actions, **how))
    assert_played_same(*played)
