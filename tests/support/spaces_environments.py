"""Environments for what tells a remote environment from a local one: importing this module registers them.

`test/Spaces<Name>-v0` observes samples of a space, is acted on by members of the same space, and tells in its info
what action it was given and much besides. The others have one trait each.
"""

import copy
import inspect
import os
import select
from pathlib import Path
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium import spaces as gs
from numpy.typing import NDArray

from gymhost.envs import register

Info = dict[str, Any]

_LEAVES: dict[str, gs.Space[Any]] = {
    "Vector": gs.Box(-1.0, 1.0, (3,), np.float32),
    "Picture": gs.Box(0, 255, (4, 5, 3), np.uint8),
    "Number": gs.Box(-np.inf, np.inf, (), np.float64),
    "Half": gs.Box(np.array([-1.0, -np.inf, 0.0], "e"), np.array([1.0, 5.0, np.inf], "e"), dtype=np.float16),
    "Flags": gs.Box(0, 1, (2, 2), cast(Any, np.bool_)),
    "Integers": gs.Box(-7, 7, (2,), np.int16),
    "Discrete": gs.Discrete(5),
    "DiscreteFrom": gs.Discrete(7, start=-3),
    "MultiDiscrete": gs.MultiDiscrete([3, 5], start=[-1, 2]),
    "MultiDiscreteTable": gs.MultiDiscrete(np.array([[2, 3], [4, 5]], np.int32), dtype=np.int32),
    "MultiBinary": gs.MultiBinary(4),
    "MultiBinaryTable": gs.MultiBinary([2, 3]),
    "Text": gs.Text(8, min_length=2, charset="aé😀 "),
}
if "dtype" in inspect.signature(gs.Discrete).parameters:  # Gymnasium 1.2
    _LEAVES["DiscreteInt32"] = gs.Discrete(4, dtype=np.int32)
    _LEAVES["DiscreteUint8"] = gs.Discrete(9, start=2, dtype=np.uint8)


def _deep(*names: str) -> gs.Dict:
    """Holds a space of each class that holds others, with leaves in it."""
    leaves = {name: _LEAVES[name] for name in names}
    first, second = list(leaves.values())[:2]
    return gs.Dict(
        {
            "dict": gs.Dict(leaves),
            "tuple": gs.Tuple([*leaves.values()]),
            "sequence": gs.Sequence(first),
            "stack": gs.Sequence(second, stack=True),
            "one_of": gs.OneOf([*leaves.values()]),
            "graph": gs.Graph(_LEAVES["Vector"], _LEAVES["Discrete"]),
        }
    )


_NODES = _LEAVES["Vector"]

SPACES: dict[str, gs.Space[Any]] = {
    **_LEAVES,
    "Dict": gs.Dict(_LEAVES),
    "Tuple": gs.Tuple([*_LEAVES.values()]),
    "Sequence": gs.Sequence(_LEAVES["Vector"]),
    "SequenceOfTexts": gs.Sequence(_LEAVES["Text"]),
    "StackedSequence": gs.Sequence(gs.Dict({"picture": _LEAVES["Picture"], "flag": gs.Discrete(2)}), stack=True),
    "Graph": gs.Graph(_NODES, gs.Discrete(3)),
    "GraphWithoutEdges": gs.Graph(_NODES, None),
    "OneOf": gs.OneOf([*_LEAVES.values()]),
    "DeepDict": gs.Dict({"here": _deep("Vector", "Discrete", "Text"), "there": gs.Tuple([_deep("Number", "Flags")])}),
    "DeepTuple": gs.Tuple([_deep("Picture", "MultiDiscrete"), gs.OneOf([_deep("Half", "Integers")])]),
    "DeepSequence": gs.Sequence(gs.Tuple([_deep("MultiBinary", "DiscreteFrom"), gs.Sequence(_LEAVES["Text"])])),
    "DeepOneOf": gs.OneOf([gs.Tuple([_deep("Text", "Number")]), _deep("Vector", "Flags")]),
    # Case S25.
    "PositionAndGoal": gs.Dict(
        {
            "pos": gs.Box(-1.0, 1.0, (3,), np.float32),
            "goal": gs.Tuple([gs.Discrete(4), gs.Box(-1.0, 1.0, (2,), np.float32)]),
        }
    ),
}


class Spaces(gymnasium.Env[Any, Any]):
    """Observes samples of a space.

    Args:
        space: A name in `SPACES`.
        render_mode: As in Gymnasium.
    """

    metadata = {"render_modes": ["rgb_array", "ansi"], "render_fps": 7, "more": {"depth": np.int16(3)}}

    def __init__(self, space: str, render_mode: str | None = None) -> None:
        self.observation_space = copy.deepcopy(SPACES[space])
        self.action_space = copy.deepcopy(SPACES[space])
        self.render_mode = render_mode
        self.level = 0.5
        self.steps = 0
        self._samples = copy.deepcopy(SPACES[space])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        if seed is not None:
            self._samples.seed(seed)
        self.steps = 0
        return self._samples.sample(), self._info(started=True, told=told(options))

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Info]:
        self.steps += 1
        draw = self.np_random.random
        reward = self._one_of(float(draw()), int(10 * draw()), np.float32(draw()), np.int64(3))
        terminated = self._one_of(False, np.bool_(draw() < 0.5), bool(draw() < 0.5))
        truncated = self._one_of(False, False, np.bool_(draw() < 0.5))
        return self._samples.sample(), reward, terminated, truncated, self._info(told=told(action))

    def render(self) -> Any:
        if self.render_mode == "ansi":
            return f"after {self.steps} steps"
        return np.full((4, 6, 3), self.steps, np.uint8)

    def scaled(self, by: float, *, plus: float = 0.0) -> float:
        """Returns the level times a number and more."""
        return self.level * by + plus

    def _one_of(self, *values: Any) -> Any:
        return values[self.np_random.integers(len(values))]

    def _info(self, **info: Any) -> Info:
        """Adds values of many kinds to an info: some always, some at times, some of a kind that changes."""
        draw = self.np_random.random
        info |= {
            "count": self.steps,
            "level": float(draw()),
            "even": self.steps % 2 == 0,
            "small": np.int8(self.steps),
            "half": np.float16(draw()),
            "flag": np.bool_(draw() < 0.5),
            "array": self.np_random.random((2, 3)).astype(np.float32),
            "zero_dimensional": np.array(self.steps, np.int16),
            "phase": complex(draw(), -1.0),
            "number": self._one_of(3, 2.5, True, np.int8(4), np.float32(0.1)),
            "object": self._one_of(None, "text", ("tuple", 1), b"bytes", np.str_("numpy"), [1, [2.0]]),
            "numbers": self._one_of(np.arange(3), np.ones(3, np.bool_), np.full(3, 0.5), np.full(3, 9, np.uint8)),
            "nested": {"depth": 1, "name": self._one_of("a", None), "deeper": {"array": np.arange(2), "empty": {}}},
        }
        for name in ("first", "second", "third"):
            if draw() < 0.3:
                info[name] = self._one_of(1, 2.0)
        if draw() < 0.3:
            info["nested"]["now_and_then"] = {name: draw() for name in ("x", "y") if draw() < 0.5}
        return info


def told(value: Any) -> str:
    """Returns a text with each type and bit of a value."""
    if isinstance(value, np.ndarray):
        return f"array({value.dtype.str}, {value.shape}, {value.tobytes().hex()})"
    if isinstance(value, np.generic):
        return f"{type(value).__name__}({value.dtype.str}, {value.tobytes().hex()})"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key!r}: {told(item)}' for key, item in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}({', '.join(told(item) for item in value)})"
    return f"{type(value).__name__}({value!r})"


class Reuses(gymnasium.Env[Any, Any]):
    """Returns the same array and the same dict each time, filled in place; ends after 3 steps (S23)."""

    observation_space = gs.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gs.Discrete(2)

    def __init__(self) -> None:
        self._observation = np.zeros(2, np.float32)
        self._info: Info = {"array": np.zeros(2, np.int64), "nested": {}}
        self._episode = 0
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        self._episode += 1
        self._steps = 0
        return self._fill()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        self._steps += 1
        observation, info = self._fill()
        return observation, 1.0, self._steps == 3, False, info

    def _fill(self) -> tuple[NDArray[np.float32], Info]:
        self._observation[:] = self._episode, self._steps
        self._info["array"][:] = self._episode, self._steps
        self._info["steps"] = self._steps
        self._info["nested"]["episode"] = self._episode
        return self._observation, self._info


class Random(gymnasium.Env[Any, Any]):
    """Draws all that happens from its own generator, and ends at random (S26)."""

    observation_space = gs.Box(-10.0, 10.0, (2,), np.float64)
    action_space = gs.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        return self.np_random.uniform(-10.0, 10.0, 2), {"draw": int(self.np_random.integers(1000))}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        ends = bool(self.np_random.random() < 0.1)
        return self.np_random.uniform(-10.0, 10.0, 2), float(action), ends, False, {"draw": self.np_random.random()}


class Gated(gymnasium.Env[Any, Any]):
    """Waits in a step of action 1 until somebody writes to a named pipe, at most 30 seconds.

    Args:
        folder: Where the pipes are; that of a copy is named by the seed of its last seeded reset.
    """

    observation_space = gs.Discrete(1000)
    action_space = gs.Discrete(2)

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._gate: Path | None = None
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        if seed is not None:
            self._gate = self._folder / str(seed)
        self._steps = 0
        return 0, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        self._steps += 1
        if action == 1:
            self._wait()
        return self._steps, 1.0, False, False, {}

    def _wait(self) -> None:
        assert self._gate is not None
        pipe = os.open(self._gate, os.O_RDONLY | os.O_NONBLOCK)
        try:
            readable, _, _ = select.select([pipe], [], [], 30.0)
            if not readable:
                raise TimeoutError("nobody opened the gate")
        finally:
            os.close(pipe)


class Fragile(gymnasium.Env[Any, Any]):
    """Raises in a step of action 1, and in a reset with the option `raise`."""

    observation_space = gs.Discrete(1000)
    action_space = gs.Discrete(2)

    def __init__(self) -> None:
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        if options and options.get("raise"):
            raise ValueError("this reset was told to raise")
        self._steps = 0
        return 0, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        if action == 1:
            raise ValueError("this step was told to raise")
        self._steps += 1
        return self._steps, 1.0, False, False, {}


for _name in SPACES:  # Gymnasium's checker takes some of the samples for wrong: integers of other dtypes than int64
    register(
        id=f"test/Spaces{_name}-v0", entry_point=f"{__name__}:Spaces", kwargs={"space": _name}, disable_env_checker=True
    )
for _trait in (Reuses, Random, Gated, Fragile):
    register(id=f"test/{_trait.__name__}-v0", entry_point=f"{__name__}:{_trait.__name__}")
