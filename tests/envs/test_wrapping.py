"""Which wrappers a server puts around environments, and how."""

import inspect
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import FrameStackObservation, RecordEpisodeStatistics, TimeLimit

from gymhost.envs.wrapping import SAFE, load, resolve, wrap
from gymhost.wire.errors import InvalidArgument, PermissionDenied

# Of those that are left out: what they take or do.
UNSAFE = {
    "ArrayConversion": "modules",
    "HumanRendering": "a window",
    "JaxToNumpy": "needs JAX",
    "JaxToTorch": "returns tensors of PyTorch",
    "NumpyToTorch": "returns tensors of PyTorch",
    "RecordVideo": "files",
    "TransformAction": "a function",
    "TransformObservation": "a function",
    "TransformReward": "a function",
    "vector": "no wrapper",
}


class Closing(gymnasium.Env[Any, Any]):
    observation_space = action_space = gymnasium.spaces.Discrete(2)
    closed = 0

    def close(self) -> None:
        self.closed += 1


def test_each_wrapper_of_gymnasium_was_looked_at():
    assert {*SAFE, *UNSAFE} >= set(gymnasium.wrappers.__all__)
    assert not {*SAFE} & {*UNSAFE}


@pytest.mark.parametrize("name", [name for name in SAFE if hasattr(gymnasium.wrappers, name)])
def test_none_takes_a_function_or_a_file(name: str):
    for parameter in inspect.signature(getattr(gymnasium.wrappers, name)).parameters.values():
        assert "Callable" not in str(parameter.annotation), parameter
        assert not {"path", "folder", "file"} & {*parameter.name.split("_")}, parameter


def test_the_first_is_the_innermost():
    found = resolve([("TimeLimit", {"max_episode_steps": 3}), ("FrameStackObservation", {"stack_size": 2})])
    assert found == [(TimeLimit, {"max_episode_steps": 3}), (FrameStackObservation, {"stack_size": 2})]
    env = wrap(gymnasium.make("CartPole-v1"), found)
    assert isinstance(env, FrameStackObservation)
    assert isinstance(env.env, TimeLimit)
    env.close()


def test_others_have_to_be_allowed():
    name = "gymnasium.wrappers.common:RecordEpisodeStatistics"
    with pytest.raises(PermissionDenied, match=f"gymhost serve --wrapper {name}"):
        resolve([(name, {})])
    assert resolve([(name, {})], [name]) == resolve([(name, {})], ["*"]) == [(RecordEpisodeStatistics, {})]
    with pytest.raises(PermissionDenied, match=r"did you mean gymnasium\.wrappers\.common:Rec"):
        resolve([(name.lower(), {})], [name])
    with pytest.raises(PermissionDenied):
        resolve([("RecordVideo", {})], ["*"])
    with pytest.raises(InvalidArgument, match="the keyword arguments of the wrapper TimeLimit must be a dict"):
        resolve([("TimeLimit", 3)])  # pyright: ignore[reportArgumentType]


def test_types_are_named():
    assert resolve([("DtypeObservation", {"dtype": "float16"})])[0][1] == {"dtype": np.float16}
    with pytest.raises(InvalidArgument, match="dtype='float17'"):
        resolve([("DtypeObservation", {"dtype": "float17"})])


def test_one_that_raises_closes_the_environment():
    env = Closing()
    with pytest.raises(TypeError, match="size"):
        wrap(env, [(RecordEpisodeStatistics, {}), (TimeLimit, {"size": 3})])
    assert env.closed == 1


@pytest.mark.parametrize("name", ["nowhere:Nothing", "os:nothing", "os:sep", "os"])
def test_what_is_no_wrapper_is_told(name: str):
    with pytest.raises(ImportError, match=f"the wrapper '{name}'"):
        load(name)
