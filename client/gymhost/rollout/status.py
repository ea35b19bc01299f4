"""What an engine is doing: integers that are kept as rollouts move, and a snapshot of them."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from gymhost.rollout.trajectory import Trajectory
from gymhost.rollout.turnstile import Turnstile

__all__ = ["Counts", "Stage", "Status"]

Stage = Literal["waiting", "init", "ready", "run", "eval", "closing"]


@dataclass(frozen=True, slots=True)
class Status:
    """An engine at one moment, and what has come of it since it was made.

    Each rollout that has begun and not ended is in one of `waiting`, `init`, `ready`, `run` and `eval`.

    Args:
        waiting: Waiting for a place in INIT, or to be tried again.
        init: In INIT: a session is being opened and reset.
        ready: Reset, and waiting for a place in RUN.
        run: In RUN: taking turns.
        generating: Those in RUN whose model is sampling; the others wait for their environment, or are paused.
        eval: Being evaluated, or waiting for that; and those that give their session back.
        closing: Rollouts that were cancelled, have been handed out, and whose sessions are still being closed.
        done: Rollouts that have ended.
        retries: How often one was started again after a fault.
        tokens: Tokens sampled in all, those of attempts that failed included.
        outcomes: How many ended so, by the kind of their outcome.
        faults: How many failed, by whose fault it was.
        valid: How many have a reward.
        reward: The mean of those rewards; None before the first.
        paused: Whether the engine is paused.
    """

    waiting: int
    init: int
    ready: int
    run: int
    generating: int
    eval: int
    closing: int
    done: int
    retries: int
    tokens: int
    outcomes: Mapping[str, int]
    faults: Mapping[str, int]
    valid: int
    reward: float | None
    paused: bool

    @property
    def in_flight(self) -> int:
        """How many rollouts have begun and not ended."""
        return self.waiting + self.init + self.ready + self.run + self.eval


class Counts:
    """The integers behind a `Status`."""

    def __init__(self) -> None:
        self.stages: dict[Stage, int] = dict.fromkeys(("waiting", "init", "ready", "run", "eval", "closing"), 0)
        self.retries = 0
        self._outcomes: Counter[str] = Counter()
        self._faults: Counter[str] = Counter()
        self._valid = 0
        self._rewards = 0.0

    def move(self, before: Stage | None, after: Stage | None) -> None:
        """Notes that a rollout went from one stage to another; None is outside."""
        if before is not None:
            self.stages[before] -= 1
        if after is not None:
            self.stages[after] += 1

    def ended(self, trajectory: Trajectory) -> None:
        """Notes what came of a rollout."""
        outcome = trajectory.outcome
        self._outcomes[outcome.kind] += 1
        if outcome.fault is not None:
            self._faults[outcome.fault] += 1
        if trajectory.reward is not None:
            self._valid += 1
            self._rewards += trajectory.reward

    def status(self, turnstile: Turnstile) -> Status:
        """The snapshot."""
        return Status(
            **self.stages,
            generating=turnstile.generating,
            done=self._outcomes.total(),
            retries=self.retries,
            tokens=turnstile.tokens,
            outcomes=dict(self._outcomes),
            faults=dict(self._faults),
            valid=self._valid,
            reward=self._rewards / self._valid if self._valid else None,
            paused=turnstile.shut,
        )
