"""What rollouts come to: pass@k, intervals, and what is left out."""

import itertools
import math
import random
from statistics import fmean

import pytest

from gymhost.rollout.summary import Estimate, Tally, pass_at_k, summarize
from gymhost.rollout.trajectory import Outcome, Timings, Trajectory, Turn

# Student's t for 95 %, from tables.
STUDENT = {1: 12.7062, 2: 4.30265, 3: 3.18245, 4: 2.77645, 6: 2.44691, 9: 2.26216, 29: 2.04523, 199: 1.97196}


def rollout(task: int | None = 0, reward: float | None = 0.0, **other: object) -> Trajectory:
    given: dict[str, object] = {"outcome": Outcome(kind="terminated")} | other
    return Trajectory.model_validate({"env_id": "Game-v0", "task": task, "reward": reward, **given})


def failed(cause: str, task: int = 0, message: str = "no") -> Trajectory:
    return rollout(task, None, outcome=Outcome(kind="failed", fault="generator", cause=cause, message=message))


@pytest.mark.parametrize(("samples", "passed", "k"), [(1, 0, 1), (1, 1, 1), (5, 2, 1), (5, 2, 3), (6, 1, 4), (8, 7, 2)])
def test_pass_at_k_is_the_share_of_draws_in_which_one_passes(samples: int, passed: int, k: int) -> None:
    results = [True] * passed + [False] * (samples - passed)
    draws = list(itertools.combinations(results, k))
    assert pass_at_k(samples, passed, k) == pytest.approx(sum(map(any, draws)) / len(draws))


@pytest.mark.parametrize(("samples", "passed", "k"), [(4, 1, 5), (4, 1, 0), (4, 5, 1), (4, -1, 1)])
def test_pass_at_k_is_not_told_from_too_few(samples: int, passed: int, k: int) -> None:
    with pytest.raises(ValueError, match=rf"pass@{k} can't be told from {passed} passed of {samples}"):
        pass_at_k(samples, passed, k)


def test_pass_at_k_of_many_samples_is_exact() -> None:
    assert pass_at_k(10_000, 1, 100) == pytest.approx(0.01)


def test_samples_of_a_task_count_as_one() -> None:
    """A task with more samples weighs no more, and its samples make the interval no narrower."""
    rewards = {0: [1.0] * 8, 1: [0.0, 0.5], 2: [0.25]}
    summary = summarize(rollout(task, reward) for task, values in rewards.items() for reward in values)
    assert summary.reward is not None
    assert (summary.rollouts, summary.tasks, summary.reward.tasks) == (11, 3, 3)
    assert summary.reward.mean == pytest.approx(0.5)
    twice = summarize(rollout(task, reward) for task, values in rewards.items() for reward in values * 2)
    assert twice.reward == summary.reward


@pytest.mark.parametrize("freedom", STUDENT)
def test_the_interval_of_rewards_is_students(freedom: int) -> None:
    rewards = [float(number % 7) for number in range(freedom + 1)]
    mean = fmean(rewards)
    error = math.sqrt(sum((reward - mean) ** 2 for reward in rewards) / freedom / len(rewards))
    estimate = summarize(rollout(task, reward) for task, reward in enumerate(rewards)).reward
    assert estimate is not None
    assert estimate.low is not None
    assert estimate.high is not None
    assert estimate.high - estimate.mean == pytest.approx(estimate.mean - estimate.low)
    assert estimate.high - estimate.mean == pytest.approx(STUDENT[freedom] * error, rel=2e-3)


@pytest.mark.parametrize("rewards", [[0.5], [0.5, 0.5, 0.5]])
def test_what_says_nothing_of_the_spread_has_no_interval(rewards: list[float]) -> None:
    assert summarize(rollout(task, reward) for task, reward in enumerate(rewards)).reward == Estimate(
        mean=0.5, tasks=len(rewards)
    )


def test_an_unknown_reward_is_left_out_and_counted() -> None:
    trajectories = [rollout(0, 1.0), rollout(0, None), failed("GeneratorError"), rollout(1, 1.0), rollout(2, None)]
    summary = summarize(trajectories)
    assert (summary.rollouts, summary.valid, summary.left_out, summary.tasks) == (5, 2, 3, 3)
    assert summary.reward == Estimate(mean=1.0, tasks=2)
    assert (summary.pass_at[1].mean, summary.pass_at[1].tasks) == (1.0, 2)
    assert 2 not in summary.pass_at  # no task has two that are known


def test_pass_at_k_goes_by_powers_of_two_to_the_most_samples() -> None:
    trajectories = [rollout(0, float(number < 1)) for number in range(6)] + [rollout(1, 1.0) for _ in range(3)]
    pass_at = summarize(trajectories).pass_at
    assert list(pass_at) == [1, 2, 4, 6]
    assert [estimate.tasks for estimate in pass_at.values()] == [2, 2, 1, 1]
    assert pass_at[1].mean == pytest.approx((1 / 6 + 1) / 2)
    assert pass_at[2].mean == pytest.approx((1 / 3 + 1) / 2)
    assert pass_at[4].mean == pytest.approx(4 / 6)
    assert (pass_at[4].low, pass_at[4].high) == (None, None)


def test_the_threshold_says_what_passes() -> None:
    trajectories = [rollout(task, reward) for task, reward in enumerate([0.2, 0.5, 0.9])]
    assert summarize(trajectories).pass_at[1].mean == 0.0
    assert summarize(trajectories, threshold=0.5).pass_at[1].mean == pytest.approx(2 / 3)


@pytest.mark.parametrize(("passed", "low", "high"), [(0, 0.0, 0.2775), (10, 0.7225, 1.0), (5, 0.2366, 0.7634)])
def test_the_interval_of_pass_at_1_is_wilsons(passed: int, low: float, high: float) -> None:
    """As tables have it for 10 trials; where some passed, Student's t makes it wider."""
    estimate = summarize(rollout(task, float(task < passed)) for task in range(10)).pass_at[1]
    assert estimate.low is not None
    assert estimate.high is not None
    if passed in (0, 10):
        assert (estimate.low, estimate.high) == pytest.approx((low, high), abs=1e-4)
    else:
        assert estimate.low < low < high < estimate.high
        assert estimate.high - estimate.low < 1.15 * (high - low)


@pytest.mark.parametrize("tasks", [5, 30])
@pytest.mark.parametrize("samples", [1, 8])
@pytest.mark.parametrize(("a", "b"), [(1000, 1000), (0.5, 9.5), (1, 1)], ids=["alike", "hard", "any"])
def test_intervals_hold_the_truth(tasks: int, samples: int, a: float, b: float) -> None:
    """Tasks are drawn whose chances to be passed are spread as beta distributions; their mean is known."""
    draw = random.Random(0)
    held = 0
    for _ in range(200):
        chances = [draw.betavariate(a, b) for _ in range(tasks)]
        estimate = summarize(
            rollout(task, float(draw.random() < chance)) for task, chance in enumerate(chances) for _ in range(samples)
        ).pass_at[1]
        assert estimate.low is not None
        assert estimate.high is not None
        held += estimate.low <= a / (a + b) <= estimate.high
    assert held >= 0.92 * 200


def test_rubrics_have_means_of_their_own() -> None:
    summary = summarize(
        [
            rollout(0, 1.0, rewards={"right": 1.0, "short": None}),
            rollout(1, 0.0, rewards={"right": 0.0, "short": 0.5}),
            rollout(2, 0.0, rewards={"right": 0.0}),
        ]
    )
    assert summary.rubrics["right"].mean == pytest.approx(1 / 3)
    assert summary.rubrics["short"] == Estimate(mean=0.5, tasks=1)


def test_turns_tokens_and_times_are_of_all_rollouts() -> None:
    turns = [Turn(row=0, start=0, tokens=tokens) for tokens in (3, 5)]
    timings = Timings(queue=0.5, init=1.0, run=2.0, generation=1.5, environment=0.5, eval=0.25)
    summary = summarize([rollout(0, 1.0, turns=turns, timings=timings), rollout(1, None), rollout(2, None)])
    assert summary.turns is not None
    assert (summary.turns.mean, summary.turns.median, summary.turns.most) == (pytest.approx(2 / 3), 0, 2)
    assert summary.tokens is not None
    assert (summary.tokens.mean, summary.tokens.most, summary.sampled_tokens) == (pytest.approx(8 / 3), 8, 8)
    most = {stage: spread.most for stage, spread in summary.seconds.items()}
    assert most == {"queue": 0.5, "init": 1.0, "run": 2.0, "generation": 1.5, "environment": 0.5, "eval": 0.25}


def test_outcomes_limits_and_failures_are_counted_the_most_frequent_first() -> None:
    truncated = [rollout(outcome=Outcome(kind="truncated", limit=limit)) for limit in ("turns", "tokens", "turns")]
    summary = summarize(
        [
            *truncated,
            failed("GeneratorGone", message="gpu3 is\n  gone"),
            failed("GeneratorError"),
            failed("GeneratorGone", message="gpu4 is gone"),
            *(rollout() for _ in range(4)),
        ]
    )
    assert summary.outcomes == {"terminated": 4, "truncated": 3, "failed": 3}
    assert list(summary.outcomes) == ["terminated", "truncated", "failed"]
    assert summary.limits == {"turns": 2, "tokens": 1}
    assert [(failure.count, failure.cause, failure.message) for failure in summary.failures] == [
        (2, "GeneratorGone", "gpu3 is gone"),
        (1, "GeneratorError", "no"),
    ]


def test_without_a_task_a_group_is_one() -> None:
    rollouts = [rollout(None, reward, group=group) for reward, group in ((1.0, "a"), (0.0, "a"), (1.0, "b"))]
    alone = [rollout(None, 0.0), rollout(None, 0.0)]
    summary = summarize([*rollouts, *alone])
    assert summary.tasks == 4
    assert summary.reward is not None
    assert summary.reward.mean == pytest.approx((0.5 + 1 + 0 + 0) / 4)


def test_of_nothing_nothing_is_said() -> None:
    summary = summarize([])
    assert (summary.rollouts, summary.reward, summary.pass_at, summary.turns) == (0, None, {}, None)


def test_a_tally_says_at_any_time_what_they_come_to() -> None:
    tally = Tally()
    for count, reward in enumerate([1.0, None, 0.5], 1):
        tally.add(rollout(count, reward))
        assert len(tally) == tally.summary().rollouts == count
    assert (tally.valid, tally.reward) == (2, 0.75)


def test_a_summary_goes_through_json() -> None:
    summary = summarize([rollout(task, float(task), rewards={"right": 1.0}) for task in range(3)] + [failed("Gone")])
    assert type(summary).model_validate_json(summary.model_dump_json()) == summary
