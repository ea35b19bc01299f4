"""Wrappers that the server puts around environments: the same as here; and which ones it allows."""

import functools
import json
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import wrappers as gw
from gymnasium.envs.registration import EnvSpec

from gymhost.client import EnvironmentFault, InvalidArgument, PermissionDenied, RemoteEnv, connect, make
from support.compare import assert_same_space
from support.play import assert_played_same, play
from support.server import ServerProcess, until_sessions
from support.trait_environments import Failing, Noise

Make = Callable[..., RemoteEnv]

STACK = (gw.FrameStackObservation, {"stack_size": 4})
NOISE = "support.trait_environments:Noise"


def name_of(wrapper: Any) -> str:
    return (wrapper[0] if isinstance(wrapper, tuple) else wrapper).__name__


def without_times(seen: list[Any]) -> list[Any]:
    """How long an episode took is all that may differ."""
    for each in seen:
        if "episode" in each.info:
            assert each.info["episode"].pop("t") >= 0.0
    return seen


@pytest.mark.parametrize(
    ("id", "kwargs", "wrapped"),
    [
        ("CartPole-v1", {}, [STACK]),
        ("CartPole-v1", {}, [gw.RecordEpisodeStatistics, gw.TimeAwareObservation]),
        ("CartPole-v1", {}, [(gw.TimeLimit, {"max_episode_steps": 4}), gw.NormalizeObservation, gw.NormalizeReward]),
        ("CartPole-v1", {}, [(gw.DtypeObservation, {"dtype": np.float64}), (gw.DelayObservation, {"delay": 2})]),
        ("CartPole-v1", {}, [(gw.StickyAction, {"repeat_action_probability": 0.5})]),
        ("CartPole-v1", {"max_episode_steps": 7}, [gw.Autoreset]),
        ("Pendulum-v1", {}, [(gw.RescaleAction, {"min_action": np.float32(-1), "max_action": np.float32(1)})]),
        ("Pendulum-v1", {}, [gw.ClipAction, (gw.ClipReward, {"min_reward": -1.0, "max_reward": 1.0})]),
        ("CarRacing-v3", {}, [gw.GrayscaleObservation, (gw.ResizeObservation, {"shape": (32, 32)})]),
        ("ALE/Pong-v5", {"frameskip": 1}, [(gw.AtariPreprocessing, {"noop_max": 5}), STACK]),
        ("CartPole-v1", {"render_mode": "rgb_array"}, [gw.AddRenderObservation]),
    ],
    ids=lambda value: "+".join(name_of(each) for each in value) if isinstance(value, list) else None,
)  # fmt: skip
def test_they_do_what_they_do_here(remote: Make, id: str, kwargs: dict[str, Any], wrapped: list[Any]):
    local = gymnasium.make(id, disable_env_checker=True, **kwargs)
    for wrapper in wrapped:
        local = wrapper[0](local, **wrapper[1]) if isinstance(wrapper, tuple) else wrapper(local)
    with remote(id, wrappers=wrapped, **kwargs) as env:
        assert_same_space(env.observation_space, local.observation_space)
        assert_same_space(env.action_space, local.action_space)
        how: dict[str, Any] = {"episodes": 2, "steps": 12, "seed": 3}
        there = play(env, local.action_space, **how)
        assert_played_same(without_times(there), without_times(play(local, local.action_space, **how)))
        assert env.spec is not None
        assert local.spec is not None
        assert env.spec.max_episode_steps == local.spec.max_episode_steps
    local.close()


@pytest.mark.parametrize(
    "wrapper",
    [
        "TimeLimit",
        "gymnasium.wrappers:TimeLimit",
        "gymnasium.wrappers.common:TimeLimit",
        gw.TimeLimit,
        gw.TimeLimit.wrapper_spec(max_episode_steps=3),
        functools.partial(gw.TimeLimit, max_episode_steps=3),
    ],
    ids=["name", "path", "where it is", "class", "spec", "partial"],
)
def test_there_are_several_ways_to_name_one(remote: Make, wrapper: Any):
    if isinstance(wrapper, str | type):
        wrapper = (wrapper, {"max_episode_steps": 3})
    with remote("CartPole-v1", wrappers=[wrapper]) as env:
        env.reset(seed=0)
        assert [env.step(0)[3] for _ in range(3)] == [False, False, True]


@pytest.mark.parametrize(
    ("wrapper", "said"),
    [
        ("TimeLimits", "'TimeLimits' is none of those that this server allows; did you mean TimeLimit"),
        ("TransformReward", "none of those that this server allows"),
        ("RecordVideo", "none of those that this server allows"),
        ("HumanRendering", "none of those that this server allows"),
        ("vector", "none of those that this server allows"),
        (NOISE, f"gymhost serve --wrapper {NOISE}"),
        (Noise, f"gymhost serve --wrapper {NOISE}"),
        ("os:system", "gymhost serve --wrapper os:system"),
        ("builtins:eval", "gymhost serve --wrapper builtins:eval"),
    ],
)
async def test_a_server_allows_those_that_are_safe(knobs: ServerProcess, wrapper: Any, said: str):
    with pytest.raises(PermissionDenied, match=said):
        make("CartPole-v1", server=knobs.address, wrappers=[wrapper])
    async with connect(knobs.address) as remote:
        with pytest.raises(PermissionDenied, match=said):
            await remote.session("CartPole-v1", wrappers=[wrapper]).open()
        await until_sessions(remote, 0)


def test_a_server_can_be_told_more(start_server: Callable[..., ServerProcess]):
    server = start_server(wrappers=[NOISE])
    for wrapper in (NOISE, Noise):
        with make("test/Counter-v0", server=server.address, wrappers=[(wrapper, {"by": 2.5})]) as env:
            env.reset()
            assert env.step(1)[1] == 3.5
    with pytest.raises(PermissionDenied, match=r"did you mean support\.trait_environments:Noise"):
        make("test/Counter-v0", server=server.address, wrappers=["support.trait_environments:Noises"])


def test_a_wrapper_that_is_not_there_keeps_the_server_from_starting(start_server: Callable[..., ServerProcess]):
    with pytest.raises(RuntimeError, match=r"can't import the wrapper 'support\.trait_environments:Nothing'"):
        start_server(wrappers=["support.trait_environments:Nothing"])


def test_an_embedded_server_allows_any_that_it_can_import():
    with make("CartPole-v1", wrappers=[(Noise, {"by": 2.5})]) as env:
        env.reset(seed=0)
        assert env.step(1)[1] == 3.5
    with pytest.raises(InvalidArgument, match="can't import the wrapper 'nowhere:Nothing'"):
        make("CartPole-v1", wrappers=["nowhere:Nothing"])


async def test_one_that_raises_leaves_nothing_behind(start_server: Callable[..., ServerProcess]):
    server = start_server(wrappers=["support.trait_environments:Failing"])
    with pytest.raises(EnvironmentFault, match="this wrapper was told to raise") as raised:
        make("CartPole-v1", server=server.address, wrappers=[Failing])
    assert "trait_environments.py" in raised.value.traceback
    with pytest.raises(EnvironmentFault, match="unexpected keyword argument 'size'"):
        make("CartPole-v1", server=server.address, wrappers=[("TimeLimit", {"size": 3})])
    async with connect(server.address) as remote:
        await until_sessions(remote, 0)


@pytest.mark.parametrize("wrappers", ["TimeLimit", [lambda env: env], [("TimeLimit", 3)], [3]], ids=str)
def test_what_is_no_wrapper_is_refused_at_once(wrappers: Any):
    with pytest.raises(InvalidArgument, match="wrapper"):
        make("CartPole-v1", server="localhost:1", wrappers=wrappers)


def test_they_are_part_of_how_an_environment_is_made(remote: Make):
    wrapped = [("FrameStackObservation", {"stack_size": 2}), ("DtypeObservation", {"dtype": np.float64})]
    with remote("CartPole-v1", wrappers=wrapped) as env:
        assert env.spec is not None
        text = env.spec.to_json()
        assert json.loads(text)["kwargs"]["remote"]["options"]["wrappers"][1] == [
            "DtypeObservation",
            {"dtype": "float64"},
        ]
        with EnvSpec.from_json(text).make() as twin:
            assert twin.observation_space == env.observation_space
            assert np.array_equal(twin.reset(seed=1)[0], env.reset(seed=1)[0])


def test_one_that_hides_coroutines_is_told(knobs: ServerProcess):
    with pytest.raises(InvalidArgument, match="TimeLimit wraps its coroutines"):
        make("test/AsyncKnobs-v0", server=knobs.address, wrappers=[("TimeLimit", {"max_episode_steps": 3})])
