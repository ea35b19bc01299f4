"""Remote environments by `gymnasium.make`: under the client's own id, and from the specs of others."""

import importlib
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from gymhost import client
from gymhost.client import EnvironmentFault, InvalidArgument, RemoteEnv, UnknownEnvironment, connect
from support.compare import assert_same
from support.play import assert_played_same, play
from support.server import ServerProcess, until_sessions

Make = Callable[..., RemoteEnv]

ID = "gymhost.client:gymhost/Remote-v0"
HOW: dict[str, Any] = {"episodes": 2, "steps": 40, "seed": 1}


def layers(env: gymnasium.Env[Any, Any]) -> list[type[Any]]:
    """The classes of an environment and what it wraps, the outermost first."""
    found: list[type[Any]] = [type(env)]
    while isinstance(env, gymnasium.Wrapper):
        env = env.env
        found.append(type(env))
    return found


def test_it_is_a_remote_environment_with_gymnasiums_wrappers(server: ServerProcess):
    local = gymnasium.make("CartPole-v1")
    with gymnasium.make(ID, environment_id="CartPole-v1", server=server.address) as env:
        assert layers(env) == [OrderEnforcing, PassiveEnvChecker, RemoteEnv]
        assert_played_same(play(env, local.action_space, **HOW), play(local, local.action_space, **HOW))
        assert env.spec is not None
        assert (env.spec.id, env.spec.max_episode_steps, env.spec.reward_threshold) == ("gymhost/Remote-v0", 500, 475.0)
        with gymnasium.make(env.spec) as twin:
            assert np.array_equal(twin.reset(seed=2)[0], env.reset(seed=2)[0])
    how: dict[str, Any] = {"max_episode_steps": 3, "disable_env_checker": True}
    with gymnasium.make(ID, environment_id="CartPole-v1", server=server.address, **how) as env:
        assert layers(env) == [TimeLimit, OrderEnforcing, RemoteEnv]
        env.reset(seed=0)
        assert [env.step(0)[3] for _ in range(3)] == [False, False, True]


def test_settings_reach_the_environment_and_the_client(server: ServerProcess):
    how: dict[str, Any] = {"map_name": "8x8", "render_mode": "ansi", "direct": False}
    wrapped = [("TimeLimit", {"max_episode_steps": 2})]
    with gymnasium.make(ID, environment_id="FrozenLake-v1", server=server.address, wrappers=wrapped, **how) as env:
        env.reset(seed=0)
        assert env.observation_space == gymnasium.spaces.Discrete(64)
        assert isinstance(env.render(), str)
        assert [env.step(0)[3] for _ in range(2)] == [False, True]
    with pytest.raises(UnknownEnvironment, match="did you mean CartPole"):
        gymnasium.make(ID, environment_id="CartPol-v1", server=server.address)
    with pytest.raises(InvalidArgument, match="HumanRendering"):
        gymnasium.make(ID, environment_id="CartPole-v1", server=server.address, render_mode="human")


def test_an_embedded_server_is_started_where_none_is_named():
    with gymnasium.make(ID, environment_id="CartPole-v1") as env:
        env.reset(seed=0)
        env.step(0)


def test_the_client_registers_it_once():
    before = gymnasium.spec("gymhost/Remote-v0")
    importlib.reload(client)
    assert gymnasium.spec("gymhost/Remote-v0") is before


async def test_no_server_hosts_it(start_server: Callable[..., ServerProcess]):
    server = start_server(modules=["support.environments", "gymhost.client"])
    async with connect(server.address) as remote:
        assert "gymhost/Remote-v0" not in {each.id for each in await remote.environments()}
        with pytest.raises(UnknownEnvironment):
            await remote.session("gymhost/Remote-v0", environment_id="CartPole-v1").open()
        await until_sessions(remote, 0)


@pytest.mark.parametrize("kwargs", [{}, {"max_episode_steps": 6}, {"max_episode_steps": -1}], ids=str)
def test_its_spec_makes_the_same_again(remote: Make, kwargs: dict[str, Any]):
    local = gymnasium.make("CartPole-v1", **kwargs)
    with remote("CartPole-v1", **kwargs) as env:
        assert env.spec is not None
        assert local.spec is not None
        assert env.spec.max_episode_steps == local.spec.max_episode_steps
        played = play(local, local.action_space, **HOW)
        for spec in (env.spec, EnvSpec.from_json(env.spec.to_json())):
            with gymnasium.make(spec) as twin:
                assert twin.spec is not None
                assert twin.spec.max_episode_steps == local.spec.max_episode_steps
                assert_played_same(play(twin, local.action_space, **HOW), played)


def test_the_limit_of_steps_can_be_changed_both_ways(remote: Make):
    with remote("MountainCar-v0") as env:
        assert env.spec is not None
        for limit in (5, 230):
            with gymnasium.make(env.spec, max_episode_steps=limit) as twin:
                twin.reset(seed=0)
                ended = [twin.step(1)[3] for _ in range(limit)]
                assert ended == [False] * (limit - 1) + [True]


def test_the_limit_of_wrappers_stays_among_them(remote: Make):
    wrapped = [("TimeLimit", {"max_episode_steps": 8}), ("MaxAndSkipObservation", {"skip": 4})]
    with remote("MountainCar-v0", wrappers=wrapped) as env:
        assert env.spec is not None
        with gymnasium.make(env.spec) as twin:
            for one in (env, twin):
                one.reset(seed=0)
                assert [one.step(1)[3] for _ in range(2)] == [False, True]


def test_faults_arrive_with_the_remote_traceback_through_its_wrappers(server: ServerProcess):
    with gymnasium.make(ID, environment_id="test/Raises-v0", server=server.address, disable_env_checker=True) as env:
        env.reset()
        with pytest.raises(EnvironmentFault, match="this step was told to raise") as raised:
            env.step("raise")
        assert 'raise ValueError("this step was told to raise")' in raised.value.traceback
        assert env.step("go on")[0] == 1


def test_vectors_of_gymnasiums_own_hold_remote_environments(remote: Make):
    with remote("CartPole-v1") as env:
        assert env.spec is not None
        there = gymnasium.make_vec(env.spec, 2, vectorization_mode="sync")
        here = gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="sync")
        assert np.array_equal(there.reset(seed=3)[0], here.reset(seed=3)[0])
        for _ in range(30):
            assert_same(there.step(np.array([0, 1])), here.step(np.array([0, 1])))
        there.close()
        here.close()
