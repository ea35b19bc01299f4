"""Rubrics: what makes a reward, and what makes it invalid (S08)."""

import asyncio
import math
from typing import Any

import numpy as np
import pytest

from gymhost.envs import Task, ToolEnv, rubric

_NAN = float("nan")


class Scored(ToolEnv):
    """Ends after two turns; the rubrics return what the test says."""

    score: Any = 1.0

    def prompt(self, task: Task) -> str:
        return "Go."

    def on_text(self, text: str) -> str:
        if self.turns == 2:
            self.finish()
        return "Go on."

    @rubric
    def plain(self) -> Any:
        if isinstance(self.score, Exception):
            raise self.score
        return self.score

    @rubric(weight=0.25, low=-1.0, high=1.0)
    async def slow(self) -> float:
        await asyncio.sleep(0)
        return -1.0

    @rubric(name="length", weight=0.5, per_turn=True)
    def text_length(self) -> float:
        assert self.turn is not None
        return len(self.turn.text) / 10


def play(score: Any) -> tuple[float, dict[str, Any]]:
    env = Scored()
    env.score = score
    env.reset()
    _, reward, _, _, info = env.step("four")
    assert (reward, info) == (0.2, {"rewards": {"length": 0.4}})
    _, reward, terminated, _, info = env.step("one")
    env.close()
    assert terminated
    return reward, info


@pytest.mark.parametrize("score", [1.0, 1, True, np.float32(1), np.bool_(True), np.int64(1)])
def test_the_reward_is_the_weighted_sum_of_the_scores(score: Any) -> None:
    reward, info = play(score)
    assert reward == pytest.approx(1.0 - 0.25 + 0.5 * 0.3)
    assert info == {"rewards": {"plain": 1.0, "slow": -1.0, "length": 0.3}}
    assert all(type(value) is float for value in info["rewards"].values())


@pytest.mark.parametrize(
    ("score", "says"),
    [
        (ValueError("no verdict"), "ValueError: no verdict"),
        (_NAN, "rubric 'plain' returned nan"),
        (math.inf, "rubric 'plain' returned inf"),
        (np.float64("-inf"), "returned -inf"),
        (1.5, "returned 1.5, which is outside of its range 0 to 1"),
        (-0.1, "outside of its range"),
        (None, "returned NoneType, not a number"),
        ("1.0", "returned str, not a number"),
        (1j, "returned complex, not a number"),
    ],
)
def test_what_is_no_score_makes_the_reward_invalid_and_never_zero(score: Any, says: str) -> None:
    reward, info = play(score)
    assert reward == 0.0
    assert info["reward_invalid"] is True
    assert info["rewards"] == {"plain": None, "slow": -1.0, "length": 0.3}
    assert list(info["rewards_errors"]) == ["plain"]
    assert says in info["rewards_errors"]["plain"]


def test_a_raising_rubric_tells_where() -> None:
    _, info = play(ValueError("no verdict"))
    assert "in plain" in info["rewards_errors"]["plain"]
    assert __file__ in info["rewards_errors"]["plain"]


async def test_cancellation_is_no_score() -> None:
    entered = asyncio.Event()

    class Waits(Scored):
        @rubric
        async def waits(self) -> float:
            entered.set()
            await asyncio.Event().wait()
            return 0.0

    env = Waits()
    await env.areset()
    await env.astep("one")
    task = asyncio.ensure_future(env.astep("two"))
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_rubrics_are_listed() -> None:
    listed = [(item.name, item.weight, item.low, item.high, item.per_turn) for item in Scored().rubrics]
    assert listed == [("plain", 1, 0, 1, False), ("slow", 0.25, -1, 1, False), ("length", 0.5, 0, 1, True)]


def test_an_environment_may_be_without_rubrics() -> None:
    class Unscored(ToolEnv):
        def prompt(self, task: Task) -> str:
            return "Go."

        def on_text(self, text: str) -> None:
            self.finish()

    env = Unscored()
    env.reset()
    assert env.step("x") == ([], 0.0, True, False, {})


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ({"weight": "x"}, "rubric 'good': weight is a number, not 'x'"),
        ({"weight": math.inf}, "weight is a finite number"),
        ({"low": _NAN}, "low is a number"),
        ({"low": 2.0}, r"low \(2\) is above high \(1\)"),
    ],
)
def test_a_setting_that_can_not_be_is_refused_when_the_class_is_written(setting: dict[str, Any], says: str) -> None:
    def good(self: ToolEnv) -> float:
        return 1.0

    with pytest.raises(ValueError, match=says):
        rubric(**setting)(good)


class Gated(ToolEnv):
    """Ends at once; the gate lets through what the test says."""

    opened: Any = 1.0

    def prompt(self, task: Task) -> str:
        return "Go."

    def on_text(self, text: str) -> None:
        self.finish()

    @rubric
    def right(self) -> float:
        return 1.0

    @rubric(weight=0.5)
    def short(self) -> float:
        return 0.5

    @rubric(gate=True)
    def honest(self) -> Any:
        return self.opened


@pytest.mark.parametrize(("opened", "reward"), [(1.0, 1.25), (0.5, 0.625), (False, 0.0)])
def test_a_gate_multiplies_the_sum_of_the_others(opened: Any, reward: float) -> None:
    env = Gated()
    env.opened = opened
    env.reset()
    _, got, *_, info = env.step("done")
    assert got == reward
    assert info["rewards"] == {"right": 1.0, "short": 0.5, "honest": float(opened)}
    assert "reward_invalid" not in info


def test_a_gate_that_fails_makes_the_reward_invalid() -> None:
    env = Gated()
    env.opened = "open"
    env.reset()
    *_, info = env.step("done")
    assert info["reward_invalid"]
    assert list(info["rewards_errors"]) == ["honest"]


def test_a_gate_has_no_weight() -> None:
    with pytest.raises(ValueError, match="gate has no weight"):
        rubric(weight=0.5, gate=True)(lambda env: 1.0)
