"""What rollouts have come to since the service was started: counted as they end, by environment."""

import bisect
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from gymhost.rollout.trajectory import Trajectory
from gymhost.v1 import operations_pb2, rollouts_pb2

__all__ = ["STAGES", "Ended", "Histogram", "Tally"]

STAGES = ("queue", "init", "run", "eval", "generation", "environment")
"""As in a trajectory's timings."""

# Environments are named by callers, and limits by environments: beyond so many they are counted together.
MOST_ENVIRONMENTS = 100
MOST_OUTCOMES = 50
OTHERS = "(others)"

# Upper bounds of buckets. No negative ones: Prometheus' client leaves out the sum where there are any.
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
REWARDS = (0, 0.1, 0.25, 0.5, 0.75, 0.9, 1, 2, 5, 10, 100)
TURNS = (1, 2, 3, 5, 8, 12, 20, 30, 50, 80, 130, 200)


class Histogram:
    """Counts values by how large they are.

    Args:
        bounds: The largest value of each bucket; one more is for what is above.

    Attributes:
        counts: The values in each bucket.
        sum: The sum of all values.
    """

    __slots__ = ("_bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Counts a value."""
        self.counts[bisect.bisect_left(self._bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        """How many values there were."""
        return sum(self.counts)

    def buckets(self) -> list[tuple[str, int]]:
        """As Prometheus has them: each bound with how many values were at most that."""
        names = [*(f"{bound:g}" for bound in self._bounds), "+Inf"]
        return list(zip(names, itertools.accumulate(self.counts), strict=True))

    def quantile(self, share: float) -> float:
        """The value below which this share of them is, as exact as the buckets are; 0 where there was none."""
        wanted = share * self.count
        below, lower = 0, 0.0
        for upper, count in zip(self._bounds, self.counts, strict=False):
            if count and below + count >= wanted:
                return lower + (upper - lower) * (wanted - below) / count
            below, lower = below + count, upper
        return lower if below < self.count else 0.0

    def durations(self) -> operations_pb2.Durations:
        """What is told of values in seconds."""
        return operations_pb2.Durations(count=self.count, sum=self.sum, p50=self.quantile(0.5), p99=self.quantile(0.99))


@dataclass(slots=True)
class Ended:
    """The rollouts of an environment that have ended.

    Attributes:
        outcomes: How many ended so: outcome, limit and fault.
        rewards: Their rewards, of those that have one.
        squares: The sum of the squares of these.
        stages: Seconds in each stage, of those that got there.
        turns: Turns that they took.
        tokens: Tokens that were sampled in them.
    """

    outcomes: Counter[tuple[str, str, str]] = field(default_factory=Counter[tuple[str, str, str]])
    rewards: Histogram = field(default_factory=lambda: Histogram(REWARDS))
    squares: float = 0.0
    stages: dict[str, Histogram] = field(default_factory=lambda: {stage: Histogram(SECONDS) for stage in STAGES})
    turns: Histogram = field(default_factory=lambda: Histogram(TURNS))
    tokens: int = 0

    def count(self, trajectory: Trajectory) -> None:
        """Counts a rollout."""
        outcome = trajectory.outcome
        how = outcome.kind, outcome.limit or "", outcome.fault or ""
        if how not in self.outcomes and len(self.outcomes) >= MOST_OUTCOMES:
            how = outcome.kind, OTHERS if outcome.limit else "", outcome.fault or ""
        self.outcomes[how] += 1
        if trajectory.valid:
            assert trajectory.reward is not None
            self.rewards.observe(trajectory.reward)
            self.squares += trajectory.reward * trajectory.reward  # which is infinite where `**` would raise
        for stage, histogram in self.stages.items():
            if seconds := getattr(trajectory.timings, stage):
                histogram.observe(seconds)
        self.turns.observe(len(trajectory.turns))
        self.tokens += trajectory.sampled_tokens

    def told(self, environment: str) -> rollouts_pb2.EnvironmentRollouts:
        """What is told of them."""
        return rollouts_pb2.EnvironmentRollouts(
            environment_id=environment,
            outcomes=[
                rollouts_pb2.OutcomeCount(outcome=kind, limit=limit, fault=fault, count=count)
                for (kind, limit, fault), count in self.outcomes.most_common()
            ],
            rewarded=self.rewards.count,
            rewards=self.rewards.sum,
            rewards_squared=self.squares,
            stages={stage: seconds.durations() for stage, seconds in self.stages.items() if seconds.count},
            turns=int(self.turns.sum),
            sampled_tokens=self.tokens,
        )

    @property
    def mean_seconds(self) -> float:
        """How long one of them took, from stage to stage, in the mean."""
        taken = sum(self.stages[stage].sum for stage in ("queue", "init", "run", "eval"))
        return taken / max(1, self.outcomes.total())


class Tally:
    """Counts rollouts as they end.

    Attributes:
        environments: What has ended, by environment.
        ended: How many have ended in all, each time that they did where they are played again.
        failed: How many of these failed.
        dropped: How many of these were not wanted afterwards.
    """

    def __init__(self) -> None:
        self.environments: dict[str, Ended] = {}
        self.ended = 0
        self.failed = 0
        self.dropped = 0

    def count(self, trajectory: Trajectory) -> None:
        """Counts a rollout that has ended for good."""
        self.ended += 1
        self.failed += trajectory.outcome.kind == "failed"
        name = trajectory.env_id
        if name not in self.environments and len(self.environments) >= MOST_ENVIRONMENTS:
            name = OTHERS
        if (ended := self.environments.get(name)) is None:
            ended = self.environments[name] = Ended()
        ended.count(trajectory)

    @property
    def rewards(self) -> tuple[int, float]:
        """How many rewards there were, and their sum."""
        each = [ended.rewards for ended in self.environments.values()]
        return sum(rewards.count for rewards in each), sum(rewards.sum for rewards in each)

    def told(self) -> list[rollouts_pb2.EnvironmentRollouts]:
        """What is told of them: those first whose rollouts take longest."""
        slowest = sorted(self.environments.items(), key=lambda item: -item[1].mean_seconds)
        return [ended.told(environment) for environment, ended in slowest]
