"""Plays episodes of an environment and compares them, for its checks."""

import copy
import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import gymnasium
import numpy as np

from gymhost.envs.toolenv import ToolEnv
from gymhost.envs.tools import ToolSpec
from gymhost.wire import values

Env = gymnasium.Env[Any, Any]

_MAX_STEPS = 100
_MAX_BYTES = 32 * 2**20


@dataclass(slots=True)
class Episode:
    """What an environment said in an episode.

    Attributes:
        opening: Observation and info of the reset.
        actions: The actions that were taken.
        steps: Observation, reward, terminated, truncated and info of each step.
    """

    opening: tuple[Any, dict[str, Any]]
    actions: list[Any] = field(default_factory=list[Any])
    steps: list[tuple[Any, Any, Any, Any, dict[str, Any]]] = field(
        default_factory=list[tuple[Any, Any, Any, Any, dict[str, Any]]]
    )

    @property
    def reward(self) -> float:
        """The sum of its rewards."""
        return sum(float(step[1]) for step in self.steps)

    @property
    def ended(self) -> bool:
        """Whether the environment ended it."""
        return bool(self.steps) and bool(self.steps[-1][2] or self.steps[-1][3])


class Player:
    """Chooses actions for an environment: an expert's where there is one, else random ones, the same for a seed."""

    def __init__(self, env: Env, seed: int) -> None:
        """Makes a player for one environment."""
        self._random = np.random.default_rng(seed)
        # Environments of a kind may share their spaces, so another one's random generator is left alone.
        self._space = copy.deepcopy(env.action_space)
        self._space.seed(seed)
        inner = env.unwrapped
        self._tools = inner.tools if isinstance(inner, ToolEnv) else []
        self._expert = load_expert(inner) if isinstance(inner, ToolEnv) else None

    def act(self, episode: Episode) -> Any:
        """Returns the next action of an episode."""
        if self._expert is not None:
            return self._expert(conversation(episode))
        if self._tools and self._random.random() < 0.8:
            return random_call(self._tools, self._random)
        return self._space.sample()


def play(env: Env, act: Callable[[Episode], Any], *, seed: int | None = None, **options: Any) -> Episode:
    """Plays an episode to its end, or for as many steps as a trial may have."""
    episode = Episode(copy.deepcopy(env.reset(seed=seed, options=options or None)))
    allowed = _MAX_STEPS
    while not episode.ended and len(episode.steps) < allowed:
        action = act(episode)
        episode.actions.append(copy.deepcopy(action))
        # What is returned is copied, because an environment may use its buffers again.
        episode.steps.append(copy.deepcopy(env.step(action)))
        if len(episode.steps) == 1:
            allowed = max(2, min(_MAX_STEPS, _MAX_BYTES // _size([action, episode.steps[0][0]])))
    return episode


def _size(value: Any) -> int:
    """Returns about how many bytes a value has; what can't travel is told by its own check."""
    try:
        return len(values.dumps(value))
    except ValueError:
        return 1


def replay(env: Env, episode: Episode, *, seed: int | None = None) -> Episode:
    """Takes the actions of an episode again, as far as the environment lets it."""
    again = Episode(copy.deepcopy(env.reset(seed=seed)))
    for action in episode.actions:
        if again.ended:
            break
        again.actions.append(action)
        again.steps.append(copy.deepcopy(env.step(action)))
    return again


def conversation(episode: Episode) -> list[dict[str, Any]]:
    """Returns all messages of an episode of a conversation."""
    messages = list(episode.opening[0])
    for action, step in zip(episode.actions, episode.steps, strict=True):
        messages.append({"role": "assistant", "content": action} if isinstance(action, str) else action)
        messages += step[0]
    return messages


def load_expert(env: ToolEnv) -> Callable[[list[dict[str, Any]]], Any] | None:
    """Returns the scripted policy that an environment names, or None."""
    return None if env.expert is None else load_policy(env.expert)


def load_policy(place: str) -> Callable[[list[dict[str, Any]]], Any]:
    """Returns a scripted policy by its place, `module:function`."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def random_call(tools: list[ToolSpec], random: np.random.Generator) -> dict[str, Any]:
    """Returns a message that calls one of the tools with random arguments that fit its schema."""
    tool = tools[int(random.integers(len(tools)))]
    arguments = random_value(tool.parameters, tool.parameters, random)
    function = {"name": tool.name, "arguments": arguments}
    call = {"id": "call_0", "type": "function", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def random_value(schema: dict[str, Any], root: dict[str, Any], random: np.random.Generator) -> Any:
    """Returns a random value that a JSON Schema describes; it may break finer rules than type and bounds."""
    if "$ref" in schema:
        return random_value(root["$defs"][schema["$ref"].rpartition("/")[2]], root, random)
    for choice in ("enum", "examples"):
        if choice in schema:
            return schema[choice][int(random.integers(len(schema[choice])))]
    if "const" in schema:
        return schema["const"]
    for union in ("anyOf", "oneOf"):
        if union in schema:
            return random_value(schema[union][int(random.integers(len(schema[union])))], root, random)
    if "allOf" in schema:
        return random_value(schema["allOf"][0], root, random)
    match schema.get("type"):
        case "integer" | "number" as kind:
            low = float(schema.get("minimum", schema.get("exclusiveMinimum", -10)))
            high = max(low, float(schema.get("maximum", schema.get("exclusiveMaximum", low + 20))))
            if kind == "number":
                return float(random.uniform(low, high))
            return int(random.integers(int(low), int(high) + 1))
        case "boolean":
            return bool(random.integers(2))
        case "string":
            return "x" * max(int(random.integers(4)), schema.get("minLength", 0))
        case "array":
            items = schema.get("items", {"type": "string"})
            return [random_value(items, root, random) for _ in range(max(1, schema.get("minItems", 1)))]
        case "object":
            properties = cast(dict[str, Any], schema.get("properties", {}))
            return {name: random_value(of, root, random) for name, of in properties.items()}
        case _:
            return None


def differences(first: Any, second: Any, path: str) -> Iterator[str]:
    """Finds where two values differ: by type, dtype, shape or content. What is not a number equals itself."""
    if type(first) is not type(second):
        yield f"{path}: {type(first).__name__} and {type(second).__name__}"
    elif isinstance(first, dict):
        a, b = cast(dict[Any, Any], first), cast(dict[Any, Any], second)
        if list(a) != list(b):
            yield f"{path}: the keys {list(a)} and {list(b)}"
        else:
            for key in a:
                yield from differences(a[key], b[key], f"{path}[{key!r}]")
    elif isinstance(first, (list, tuple)):
        a, b = cast(list[Any], first), cast(list[Any], second)
        if len(a) != len(b):
            yield f"{path}: {len(a)} and {len(b)} elements"
        else:
            for index, (x, y) in enumerate(zip(a, b, strict=True)):
                yield from differences(x, y, f"{path}[{index}]")
    elif isinstance(first, np.ndarray):
        a, b = cast(np.ndarray[Any, np.dtype[Any]], first), cast(np.ndarray[Any, np.dtype[Any]], second)
        if a.dtype != b.dtype or a.shape != b.shape:
            yield f"{path}: {a.dtype}{list(a.shape)} and {b.dtype}{list(b.shape)}"
        elif a.dtype == object:
            yield from differences(a.tolist(), b.tolist(), path)
        elif not np.array_equal(a, b, equal_nan=a.dtype.kind in "fc"):
            yield f"{path}: arrays with different elements"
    elif first != second and not (first != first and second != second):
        yield f"{path}: {first!r:.80} and {second!r:.80}"


def episode_differences(first: Episode, second: Episode) -> Iterator[str]:
    """Finds where two episodes differ."""
    yield from differences(first.opening[0], second.opening[0], "the reset's observation")
    yield from differences(first.opening[1], second.opening[1], "the reset's info")
    if len(first.steps) != len(second.steps):
        yield f"the number of steps: {len(first.steps)} and {len(second.steps)}"
    names = ("observation", "reward", "terminated", "truncated", "info")
    for number, (a, b) in enumerate(zip(first.steps, second.steps, strict=False), start=1):
        for name, x, y in zip(names, a, b, strict=True):
            yield from differences(x, y, f"step {number}'s {name}")
