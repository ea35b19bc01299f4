"""What many rollouts come to: rewards and pass@k with confidence intervals, turns, tokens, times, what went wrong.

A rollout whose reward is not known is left out of every mean, and counted as left out: it is not a 0.

Rollouts of one task are alike, so tasks are what is counted: the mean is that over tasks of each task's mean, and the
intervals are for tasks drawn from the same source as these. All are of 95 %:

- Of rewards: Student's t over the means of tasks: the interval from errors clustered by task that Miller asks for,
  "Adding Error Bars to Evals" (2024, arXiv:2411.00640), good for few tasks too.
- Of pass@k, a share: Wilson's score interval (1927) with as many trials as the spread between tasks is worth, less what
  Student's t adds (Korn and Graubard, "Confidence intervals for proportions with small expected number of positive
  counts", 1998). Where all tasks passed, or none, it still has a width: that of so many trials as there are tasks.
  Student's t would have none there, and with five tasks of which few are ever passed it held the truth in 22 % of
  simulated runs, this one in 99 %.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, median, variance

from pydantic import BaseModel, ConfigDict, Field

from gymhost.rollout.trajectory import Fault, Trajectory

__all__ = ["Estimate", "Failures", "Spread", "Summary", "Tally", "pass_at_k", "summarize"]

_CONFIDENCE = 0.95
_TAIL = (1 + _CONFIDENCE) / 2
_Z = NormalDist().inv_cdf(_TAIL)
STAGES = ("queue", "init", "run", "generation", "environment", "eval")


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Estimate(_Record):
    """A mean over tasks, with its interval of 95 %."""

    mean: float
    low: float | None = None
    """None, as `high`, where the tasks say nothing of it: there is but one, or their rewards are all alike."""
    high: float | None = None
    tasks: int
    """How many tasks it is of."""


class Spread(_Record):
    """How a quantity is spread over rollouts."""

    mean: float
    median: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """The spread of values, of which there must be one at least."""
        return cls(mean=fmean(values), median=median(values), most=max(values))


class Failures(_Record):
    """Rollouts that failed alike."""

    count: int
    fault: Fault | None
    cause: str | None
    message: str
    """What the first of them said, in one line."""


class Summary(_Record):
    """What rollouts came to."""

    rollouts: int
    valid: int
    """Those whose reward is known."""
    left_out: int
    """Those whose reward is not known; they are in no mean of rewards."""
    tasks: int
    """How many tasks there were, a group without a task counting as one."""
    reward: Estimate | None = None
    rubrics: dict[str, Estimate] = Field(default_factory=dict[str, Estimate])
    threshold: float
    """The reward from which on a rollout passes."""
    pass_at: dict[int, Estimate] = Field(default_factory=dict[int, Estimate])
    """pass@k by k: 1, 2, 4 and so on, and the most samples that a task has. Of tasks with at least k valid rollouts."""
    turns: Spread | None = None
    tokens: Spread | None = None
    """Sampled tokens a rollout."""
    sampled_tokens: int = 0
    seconds: dict[str, Spread] = Field(default_factory=dict[str, Spread])
    """Seconds a rollout by stage; `run` has `generation` and `environment` in it."""
    outcomes: dict[str, int] = Field(default_factory=dict[str, int])
    """How many ended how, the most frequent first."""
    limits: dict[str, int] = Field(default_factory=dict[str, int])
    """How many were truncated by which limit."""
    failures: list[Failures] = Field(default_factory=list[Failures])
    """The most frequent first."""


@dataclass(slots=True, frozen=True)
class _Facts:
    """What is kept of a trajectory: its tokens would be a thousand times as much."""

    task: Hashable
    reward: float | None
    rewards: dict[str, float | None]
    turns: int
    tokens: int
    seconds: tuple[float, ...]


class Tally:
    """Takes trajectories as they come, keeps a few numbers of each, and says at any time what they come to."""

    def __init__(self) -> None:
        self._facts: list[_Facts] = []
        self._valid = 0
        self._sum = 0.0
        self._tokens = 0
        self._outcomes: Counter[str] = Counter()
        self._limits: Counter[str] = Counter()
        self._failures: dict[tuple[Fault | None, str | None], Failures] = {}

    def __len__(self) -> int:
        return len(self._facts)

    @property
    def valid(self) -> int:
        """How many have a reward."""
        return self._valid

    @property
    def reward(self) -> float | None:
        """The mean reward of all valid rollouts so far, without regard to tasks."""
        return self._sum / self._valid if self._valid else None

    @property
    def sampled_tokens(self) -> int:
        """The sampled tokens of all."""
        return self._tokens

    @property
    def outcomes(self) -> dict[str, int]:
        """How many ended how, the most frequent first."""
        return dict(self._outcomes.most_common())

    @property
    def failures(self) -> list[Failures]:
        """What failed, the most frequent first."""
        return sorted(self._failures.values(), key=lambda failed: -failed.count)

    def add(self, trajectory: Trajectory) -> None:
        """Counts a trajectory."""
        timings = trajectory.timings
        tokens = trajectory.sampled_tokens
        facts = _Facts(
            task=_task(trajectory),
            reward=trajectory.reward,
            rewards=dict(trajectory.rewards),
            turns=len(trajectory.turns),
            tokens=tokens,
            seconds=tuple(getattr(timings, stage) for stage in STAGES),
        )
        self._facts.append(facts)
        self._tokens += tokens
        if facts.reward is not None:
            self._valid += 1
            self._sum += facts.reward
        outcome = trajectory.outcome
        self._outcomes[outcome.kind] += 1
        if outcome.kind == "truncated":
            self._limits[outcome.limit or "unknown"] += 1
        elif outcome.kind == "failed":
            alike = (outcome.fault, outcome.cause)
            if alike not in self._failures:
                message = " ".join(outcome.message.split())
                self._failures[alike] = Failures(count=0, fault=outcome.fault, cause=outcome.cause, message=message)
            self._failures[alike].count += 1

    def summary(self, *, threshold: float = 1.0) -> Summary:
        """What the rollouts so far come to.

        Args:
            threshold: The reward from which on a rollout passes.
        """
        facts = self._facts
        by_task: defaultdict[Hashable, list[float]] = defaultdict(list)
        by_rubric: defaultdict[str, defaultdict[Hashable, list[float]]] = defaultdict(lambda: defaultdict(list))
        for one in facts:
            if one.reward is not None:
                by_task[one.task].append(one.reward)
            for rubric, value in one.rewards.items():
                if value is not None:
                    by_rubric[rubric][one.task].append(value)
        summary = Summary(
            rollouts=len(facts),
            valid=self._valid,
            left_out=len(facts) - self._valid,
            tasks=len({one.task for one in facts}),
            reward=_mean(by_task.values()),
            rubrics={name: mean for name, values in by_rubric.items() if (mean := _mean(values.values()))},
            threshold=threshold,
            pass_at=_passes(list(by_task.values()), threshold),
            sampled_tokens=self._tokens,
            outcomes=self.outcomes,
            limits=dict(self._limits.most_common()),
            failures=self.failures,
        )
        if facts:
            summary.turns = Spread.of([one.turns for one in facts])
            summary.tokens = Spread.of([one.tokens for one in facts])
            summary.seconds = {
                stage: Spread.of([one.seconds[place] for one in facts]) for place, stage in enumerate(STAGES)
            }
        return summary


def summarize(trajectories: Iterable[Trajectory], *, threshold: float = 1.0) -> Summary:
    """What trajectories come to.

    Args:
        trajectories: Any; they need not be of one environment, though means over several say little.
        threshold: The reward from which on a rollout passes.
    """
    tally = Tally()
    for trajectory in trajectories:
        tally.add(trajectory)
    return tally.summary(threshold=threshold)


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """The chance that one of `k` samples passes, estimated without bias from more: 1 - C(n-c, k) / C(n, k).

    From Chen et al., "Evaluating Large Language Models Trained on Code" (2021, arXiv:2107.03374).

    Args:
        samples: How many there are, n.
        passed: How many of them passed, c.
        k: How many are drawn, at most n.

    Raises:
        ValueError: `k` is not from 1 to `samples`, or `passed` not from 0 to `samples`.
    """
    if not 1 <= k <= samples or not 0 <= passed <= samples:
        raise ValueError(f"pass@{k} can't be told from {passed} passed of {samples} samples")
    return 1.0 - math.comb(samples - passed, k) / math.comb(samples, k)


def _task(trajectory: Trajectory) -> Hashable:
    """What tells the task of a trajectory from others: itself, if nothing says which belong together."""
    if trajectory.task is not None:
        return trajectory.env_id, trajectory.split, trajectory.task
    return trajectory.env_id, trajectory.split, trajectory.group if trajectory.group is not None else trajectory.id


def _mean(by_task: Iterable[Sequence[float]]) -> Estimate | None:
    """The mean over tasks, with Student's interval."""
    means = [fmean(values) for values in by_task]
    if not means:
        return None
    estimate = Estimate(mean=fmean(means), tasks=len(means))
    if len(means) > 1 and (spread := variance(means)) > 0:
        half = _student(len(means) - 1) * math.sqrt(spread / len(means))
        estimate.low, estimate.high = estimate.mean - half, estimate.mean + half
    return estimate


def _passes(by_task: Sequence[Sequence[float]], threshold: float) -> dict[int, Estimate]:
    """pass@k for powers of two up to the most samples that a task has, and for these."""
    counted = [(len(rewards), sum(reward >= threshold for reward in rewards)) for rewards in by_task]
    most = max((samples for samples, _ in counted), default=0)
    ks = [1 << power for power in range(most.bit_length())]
    if most and ks[-1] != most:
        ks.append(most)
    return {k: _share([one for one in counted if one[0] >= k], k) for k in ks}


def _share(counted: Sequence[tuple[int, int]], k: int) -> Estimate:
    """pass@k over tasks of so many samples, so many of them passed; with Wilson's interval."""
    shares = [pass_at_k(samples, passed, k) for samples, passed in counted]
    tasks = len(shares)
    share = fmean(shares)
    if tasks < 2:
        return Estimate(mean=share, tasks=tasks)
    trials = float(tasks)
    if (spread := variance(shares)) > 0:
        worth = share * (1 - share) * tasks / spread
        independent = sum(samples for samples, _ in counted) / k  # more than these there can't be in it
        trials = min(worth, independent) * (_Z / _student(tasks - 1)) ** 2
    scale = 1 + _Z**2 / trials
    centre = (share + _Z**2 / (2 * trials)) / scale
    half = _Z / scale * math.sqrt(share * (1 - share) / trials + (_Z / (2 * trials)) ** 2)
    return Estimate(mean=share, low=max(centre - half, 0.0), high=min(centre + half, 1.0), tasks=tasks)


def _student(freedom: int) -> float:
    """The quantile of Student's t for an interval of 95 %, good to 0.2 %.

    Exact for 1 and 2 degrees of freedom, and else the expansion in Abramowitz and Stegun, 26.7.5.
    """
    if freedom == 1:
        return math.tan(math.pi * (_TAIL - 0.5))
    if freedom == 2:
        return 2 * (_TAIL - 0.5) * math.sqrt(1 / (2 * _TAIL * (1 - _TAIL)))
    z, v = _Z, freedom
    return (
        z
        + (z**3 + z) / (4 * v)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * v**4)
    )
