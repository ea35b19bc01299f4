"""Attributes and methods of remote environments: what can be reached, read, set and called."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import RecordEpisodeStatistics, TimeLimit

from gymhost.client import EncodeError, EnvironmentFault, PermissionDenied, RemoteEnv, SessionClosed, connect, make
from gymhost.v1 import environments_pb2 as pb
from support.compare import assert_same
from support.server import ServerProcess
from support.trait_environments import Knobs

IDS = ["test/Knobs-v0", "test/InlineKnobs-v0", "test/AsyncKnobs-v0"]

pytestmark = pytest.mark.usefixtures("path")

every_mode = pytest.mark.parametrize("id", IDS)


def sent(env: RemoteEnv, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Notes the kinds of the commands that an environment sends."""
    kinds: list[int] = []
    command = env._lane.command

    def note(kind: int, payload: bytes) -> bytes:
        kinds.append(kind)
        return command(kind, payload)

    monkeypatch.setattr(env._lane, "command", note)
    return kinds


@every_mode
def test_they_are_read_set_and_called_as_on_a_local_one(knobs: ServerProcess, id: str):
    local = Knobs()
    with make(id, server=knobs.address) as env:
        env.reset(seed=1)
        for name in ("gravity", "table", "fixed"):
            assert_same(getattr(env, name), getattr(local, name), name)
        env.gravity = 1.5
        assert env.gravity == 1.5
        assert "gravity" not in vars(env)
        weights = np.ones(2, np.int16)
        assert env.set_wrapper_attr("table", {"weights": weights}) is True
        assert_same(env.get_wrapper_attr("table"), {"weights": weights})
        assert env.add(2) == 3
        assert env.add("a", second="b") == "ab"
        assert env.get_wrapper_attr("add")(2, second=5) == 7
        assert env.add.__name__ == "add"
        assert env.told(text="a", whole=1, array=weights, pair=(1, 2)) == ["str", "int", "ndarray", "tuple"]
        env.step(1)


def test_they_are_reached_through_wrappers_here_and_there(knobs: ServerProcess):
    wrapped = ["RecordEpisodeStatistics", ("TimeLimit", {"max_episode_steps": 5})]
    with make("test/Knobs-v0", server=knobs.address, wrappers=wrapped) as env:
        here = RecordEpisodeStatistics(TimeLimit(env, 9))
        assert here.get_wrapper_attr("gravity") == 9.8
        assert here.get_wrapper_attr("add")(1) == 2
        assert here.has_wrapper_attr("gravity")
        assert not here.has_wrapper_attr("missing")
        assert here.set_wrapper_attr("gravity", 2.0)
        assert env.gravity == here.unwrapped.gravity == 2.0  # pyright: ignore[reportAttributeAccessIssue]
        assert not here.env.set_wrapper_attr("missing", 2.0, force=False)
        assert not env.has_wrapper_attr("missing")


def test_what_is_not_there_is_missed_as_usual(knobs: ServerProcess):
    with make("test/Knobs-v0", server=knobs.address) as env:
        assert not hasattr(env, "missing")
        with pytest.raises(AttributeError, match="has no attribute 'missing'"):
            _ = env.missing
        with pytest.raises(AttributeError, match="'missing'"):
            env.get_wrapper_attr("missing")
        with pytest.raises(AttributeError, match="fixed"):
            env.fixed = 4
        env.missing = 4  # as a local environment would take it
        assert env.missing == 4


def test_what_is_not_declared_is_refused_here_with_the_setting_to_change(
    knobs: ServerProcess, monkeypatch: pytest.MonkeyPatch
):
    with make("test/Knobs-v0", server=knobs.address) as env:
        kinds = sent(env, monkeypatch)
        wanted = (
            r"'hidden' of test/Knobs-v0 .*attributes=\('hidden',\).*gymhost serve --attributes 'test/Knobs-v0=hidden'"
        )
        for reach in (
            lambda: env.hidden,
            lambda: env.get_wrapper_attr("hidden"),
            lambda: setattr(env, "hidden", 1),
            lambda: env.set_wrapper_attr("hidden", 1),
            lambda: env.set_wrapper_attr("hidden", 1, force=False),
        ):
            with pytest.raises(AttributeError, match=wanted):
                reach()
        assert not hasattr(env, "hidden")
        assert not env.has_wrapper_attr("hidden")
        assert not hasattr(env, "_private")
        assert not hasattr(env, "__array__")
        with pickle.loads(pickle.dumps(env)) as twin, copy.copy(env) as third:
            assert twin.gravity == third.gravity == 9.8
        assert kinds == []


def test_the_server_refuses_it_too(knobs: ServerProcess, monkeypatch: pytest.MonkeyPatch):
    with make("test/Knobs-v0", server=knobs.address) as env:
        env._made.attributes = frozenset({"*"})
        for name in ("hidden", "unwrapped", "get_wrapper_attr"):
            with pytest.raises(PermissionDenied, match=name):
                getattr(env, name) if name == "hidden" else env._get(name)
            with pytest.raises(PermissionDenied, match=name):
                env._set(name, 1)
            with pytest.raises(PermissionDenied, match=name):
                env._method(name)()
        for name in ("_private", "__class__", "__dict__", ""):
            with pytest.raises(PermissionDenied, match="only public names"):
                env._get(name)
        env.reset()


@every_mode
def test_what_goes_wrong_is_told_and_the_session_lives(knobs: ServerProcess, id: str):
    with make(id, server=knobs.address) as env:
        env.reset(seed=1)
        with pytest.raises(EnvironmentFault, match=r"engine can't travel: .*object can't travel"):
            _ = env.engine
        assert env.has_wrapper_attr("engine")
        with pytest.raises(EnvironmentFault, match="told to raise") as raised:
            env.fail()
        assert 'raise ValueError("this method was told to raise")' in raised.value.traceback
        with pytest.raises(EnvironmentFault, match="told to raise"):
            _ = env.broken
        with pytest.raises(EnvironmentFault, match="unexpected keyword argument 'third'"):
            env.add(1, third=3)
        with pytest.raises(EncodeError, match="add's arguments"):
            env.add(object())
        with pytest.raises(EncodeError, match="gravity"):
            env.gravity = object()
        if id == "test/AsyncKnobs-v0":
            assert env.wait() == "waited"
        else:
            with pytest.raises(EnvironmentFault, match="wait is a coroutine function"):
                env.wait()
        env.step(1)


def test_generators_travel_with_their_state(knobs: ServerProcess):
    local = Knobs()
    with make("test/Knobs-v0", server=knobs.address) as env:
        there = env.rng
        assert isinstance(there, np.random.Generator)
        assert type(there.bit_generator) is np.random.MT19937
        assert np.array_equal(there.random(3), local.rng.random(3))
        for kind in (np.random.PCG64, np.random.PCG64DXSM, np.random.MT19937, np.random.Philox, np.random.SFC64):
            env.rng = np.random.Generator(kind(3))
            assert np.array_equal(env.rng.integers(1000, size=5), np.random.Generator(kind(3)).integers(1000, size=5))


def test_a_server_can_be_told_more(start_server: Callable[..., ServerProcess]):
    server = start_server(attributes={"CartPole-*": ["gravity", "length"], "Pendulum-v1": ["*"]})
    with make("CartPole-v1", server=server.address) as env:
        env.length = 1.0
        assert (env.gravity, env.length) == (9.8, 1.0)
        assert not hasattr(env, "masscart")
    with make("Pendulum-v1", server=server.address) as env:
        assert (env.max_speed, env.dt) == (8, 0.05)
        assert not hasattr(env, "_np_random_state")
    with make("Acrobot-v1", server=server.address) as env:
        assert not hasattr(env, "dt")


def test_an_embedded_server_allows_all_that_is_public():
    local: Any = gymnasium.make("CartPole-v1").unwrapped
    with make("CartPole-v1") as env:
        env.reset(seed=3)
        local.reset(seed=3)
        assert_same(env.state, local.state)
        assert (env.gravity, env.kinematics_integrator) == (local.gravity, local.kinematics_integrator)
        assert env.has_wrapper_attr("x_threshold")


async def test_sessions_have_them_too(knobs: ServerProcess):
    async with connect(knobs.address) as remote, remote.session("test/AsyncKnobs-v0") as session:
        assert await session.get_attr("gravity") == 9.8
        assert await session.get_attr("add") is None
        await session.set_attr("gravity", 2.0)
        assert await session.call("gravity") == 2.0
        assert await session.call("add", 1, second=2) == 3
        assert await session.call("wait") == "waited"
        with pytest.raises(AttributeError, match="missing"):
            await session.get_attr("missing")
        with pytest.raises(PermissionDenied, match="--attributes"):
            await session.get_attr("hidden")
        with pytest.raises(PermissionDenied, match="--attributes"):
            await session.set_attr("hidden", 1)
        with pytest.raises(PermissionDenied, match="--attributes"):
            await session.call("hidden")
        await session.reset()


async def test_a_malformed_call_is_refused(knobs: ServerProcess):
    async with connect(knobs.address) as remote, remote.session("test/Knobs-v0") as session:
        command = pb.AttributeCommand(name="add")
        command.arguments.text = "no tuple"
        with pytest.raises(Exception, match="the arguments of a call are a tuple and a map"):
            await session._command(pb.COMMAND_KIND_CALL, command.SerializeToString(), None)
        bad = pb.AttributeCommand(name="gravity")
        bad.value.map.names.append("random_generator")
        bad.value.map.values.add().text = "PCG64"
        with pytest.raises(Exception, match="not the state of a random generator"):
            await session._command(pb.COMMAND_KIND_SET_ATTR, bad.SerializeToString(), None)
        assert await session.get_attr("gravity") == 9.8


def test_after_the_end_of_the_session(knobs: ServerProcess):
    env = make("test/Knobs-v0", server=knobs.address)
    env.close()
    with pytest.raises(SessionClosed):
        _ = env.gravity
    assert not hasattr(env, "hidden")
