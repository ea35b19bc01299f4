"""Rubrics: named, weighted functions that tell an episode's reward."""

import inspect
import math
import numbers
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast, overload

import numpy as np

_MARK = "__gymhost_rubric__"

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Rubric:
    """One part of the reward.

    Attributes:
        name: What `info["rewards"]` calls it.
        function: Takes the environment and returns a number; may be a coroutine function.
        weight: What its score is multiplied by in the reward.
        low: The lowest score that is valid.
        high: The highest.
        per_turn: Whether it scores every turn; else it scores the episode, at its end.
        gate: Whether it is no part of the sum, but what the sum is multiplied by.

    Raises:
        ValueError: `weight`, `low` or `high` is no number that it can be, or a gate has a weight.
    """

    name: str
    function: Callable[..., Any]
    weight: float = 1.0
    low: float = 0.0
    high: float = 1.0
    per_turn: bool = False
    gate: bool = False

    def __post_init__(self) -> None:
        for setting in ("weight", "low", "high"):
            value = getattr(self, setting)
            if not isinstance(value, numbers.Real) or math.isnan(value):
                raise ValueError(f"rubric {self.name!r}: {setting} is a number, not {value!r}")
        if not math.isfinite(self.weight):
            raise ValueError(f"rubric {self.name!r}: weight is a finite number, not {self.weight!r}")
        if self.gate and self.weight != 1.0:
            raise ValueError(f"rubric {self.name!r}: a gate has no weight: what it returns multiplies the others' sum")
        if self.low > self.high:
            raise ValueError(f"rubric {self.name!r}: low ({self.low:g}) is above high ({self.high:g})")

    @property
    def is_async(self) -> bool:
        """Whether scoring must be awaited."""
        return inspect.iscoroutinefunction(self.function)


@overload
def rubric(function: F, /) -> F: ...
@overload
def rubric(
    *,
    name: str | None = None,
    weight: float = 1.0,
    low: float = 0.0,
    high: float = 1.0,
    per_turn: bool = False,
    gate: bool = False,
) -> Callable[[F], F]: ...
def rubric(
    function: F | None = None,
    /,
    *,
    name: str | None = None,
    weight: float = 1.0,
    low: float = 0.0,
    high: float = 1.0,
    per_turn: bool = False,
    gate: bool = False,
) -> F | Callable[[F], F]:
    """Makes a method of a `ToolEnv` a rubric.

    The method may be `def` or `async def` and returns a score from `low` to `high`. What is no such number, or raises,
    makes the reward invalid; it never counts as zero. The reward of a step is the weighted sum of the scores that are
    due in it, multiplied by those of the gates that are due in it.

    Args:
        function: The method.
        name: The rubric's name, if not the method's.
        weight: What its score is multiplied by in the reward.
        low: The lowest score that is valid.
        high: The highest.
        per_turn: Score every turn, not only the episode at its end.
        gate: Multiply the sum of the others by the score, in place of adding it: 0 takes the whole reward.

    Raises:
        ValueError: `weight`, `low` or `high` is no number that it can be, or a gate has a weight.
    """

    def mark(function: F) -> F:
        setattr(function, _MARK, Rubric(name or function.__name__, function, weight, low, high, per_turn, gate))
        return function

    return mark if function is None else mark(function)


def marked_rubric(attribute: object) -> Rubric | None:
    """Returns the rubric that an attribute of a class is, or None."""
    # A static method, which no rubric can be, must fail when it scores, not go unseen.
    return getattr(getattr(attribute, "__func__", attribute), _MARK, None)


@dataclass(slots=True)
class Scores:
    """What rubrics said: a score each, or None with the reason why there is none."""

    reward: float = 0.0
    scores: dict[str, float | None] = field(default_factory=dict[str, float | None])
    errors: dict[str, str] = field(default_factory=dict[str, str])

    def into(self, info: dict[str, Any]) -> float:
        """Writes the scores into an `info` and returns the reward, which is 0.0 where it is not valid."""
        if self.scores:
            info["rewards"] = self.scores
        if not self.errors:
            return self.reward
        info["rewards_errors"] = self.errors
        info["reward_invalid"] = True
        return 0.0


async def score(rubrics: list[Rubric], environment: object) -> Scores:
    """Asks each of the rubrics; a failing one keeps none of the others from being asked."""
    result = Scores()
    opened = 1.0
    for item in rubrics:
        try:
            value = item.function(environment)
            if inspect.isawaitable(value):
                value = await value
        except Exception:  # noqa: BLE001 - it makes the reward invalid, with the reason
            result.scores[item.name] = None
            result.errors[item.name] = traceback.format_exc()
            continue
        problem = _problem(item, value)
        if problem is None:
            number = float(value)
            result.scores[item.name] = number
            if item.gate:
                opened *= number
            else:
                result.reward += item.weight * number
        else:
            result.scores[item.name] = None
            result.errors[item.name] = problem
    result.reward *= opened
    return result


def _problem(item: Rubric, value: object) -> str | None:
    """Returns why a value is no score, or None."""
    # numpy.bool_ is no number to Python.
    if not isinstance(value, (numbers.Real, np.bool_)):
        return f"rubric {item.name!r} returned {type(value).__name__}, not a number"
    number = float(cast(float, value))
    if not math.isfinite(number):
        return f"rubric {item.name!r} returned {number}"
    if not item.low <= number <= item.high:
        return f"rubric {item.name!r} returned {number:g}, which is outside of its range {item.low:g} to {item.high:g}"
    return None
