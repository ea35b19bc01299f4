"""A rollout in flight: what was asked for, its record so far, and how it is ended."""

import asyncio
from collections.abc import Callable

from gymhost.rollout.requests import RolloutRequest
from gymhost.rollout.status import Counts, Stage
from gymhost.rollout.trajectory import Outcome, Trajectory
from gymhost.rollout.turnstile import Gate

__all__ = ["Flight", "blank"]


def blank(request: RolloutRequest, attempt: int = 1) -> Trajectory:
    """The record of a rollout that has not begun."""
    trajectory = Trajectory(
        env_id=request.env_id,
        task=request.task,
        seed=request.seed,
        split=request.split,
        group=request.group,
        index=request.index,
        labels=dict(request.labels),
        attempts=attempt,
    )
    if request.id is not None:
        trajectory.id = request.id
    return trajectory


class Flight:
    """A rollout in flight.

    It is settled, once, when its trajectory will not change any more: at its end, or as soon as it is cancelled. Its
    session may then still be on the way to being closed, which can take as long as a stuck environment lets it, and
    nobody who waits for the trajectory should wait for that.

    Args:
        request: What was asked for.
        counts: Where its stages are counted.
        settled: Called when it is settled.

    Attributes:
        trajectory: The record, that of the last attempt.
        cancelled: Whether it was asked to end.
        gate: What it passes before each generation; shut, it is held.
        task: What plays it.
    """

    def __init__(self, request: RolloutRequest, counts: Counts, settled: Callable[["Flight"], None]) -> None:
        self.request = request
        self.trajectory = blank(request)
        self.cancelled = False
        self.gate = Gate()
        self.task: asyncio.Task[None]
        self._counts = counts
        self._on_settled = settled
        self._stage: Stage | None = None
        self._settled = False
        self._closing = False
        self._scored = False
        self.move("waiting")

    @property
    def settled(self) -> bool:
        """Whether the trajectory is what it will be."""
        return self._settled

    @property
    def stage(self) -> Stage | None:
        """Where it is; None when it is over."""
        return self._stage

    def move(self, stage: Stage) -> None:
        """Says that it is in another stage now."""
        if not self._settled:
            self._counts.move(self._stage, stage)
            self._stage = stage

    def fail(self, outcome: Outcome) -> None:
        """Says how the present attempt failed; its session is closed."""
        self.trajectory.outcome = outcome
        self.trajectory.reward = None
        self._closing = False
        self.move("waiting")

    def begin_again(self) -> None:
        """Starts the record of another attempt."""
        self.trajectory = blank(self.request, self.trajectory.attempts + 1)

    def close(self, *, scored: bool) -> None:
        """Says that the session is given back from now on, which no cancellation may interrupt.

        Args:
            scored: Whether the rollout has come to its end, so that its outcome stands.
        """
        self._closing = True
        self._scored = scored

    def hold(self) -> bool:
        """Lets it begin no turn; returns whether it could until now."""
        if self._settled or self.gate.shut:
            return False
        self.gate.close()
        return True

    def release(self) -> bool:
        """Lets it go on; returns whether it was held."""
        if self._settled or not self.gate.shut:
            return False
        self.gate.open()
        return True

    def cancel(self) -> bool:
        """Ends it, and settles it; returns whether there was anything to end."""
        if self._settled:
            return False
        self.cancelled = True
        if not self._scored:
            trajectory = self.trajectory
            trajectory.outcome = Outcome(kind="cancelled", turn=len(trajectory.turns))
            trajectory.reward = None
        self.settle("closing")
        if not self._closing:
            self.task.cancel()
        return True

    def settle(self, stage: Stage | None = None) -> None:
        """Says that the trajectory will not change any more.

        Args:
            stage: Where what is left of it is counted.
        """
        if self._settled:
            return
        self._settled = True
        self._counts.move(self._stage, stage)
        self._stage = stage
        self._counts.ended(self.trajectory)
        self._on_settled(self)

    def over(self) -> None:
        """Called when its task has ended, in whatever way."""
        self.cancel()  # if it is not settled, somebody cancelled the task past us
        if self._stage is not None:
            self._counts.move(self._stage, None)
            self._stage = None
