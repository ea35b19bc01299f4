"""Groups of rollouts that share task and seed, more of them begun than are needed."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from gymhost.rollout.flight import Flight, blank
from gymhost.rollout.flow import Unit
from gymhost.rollout.requests import RolloutRequest, named
from gymhost.rollout.trajectory import Trajectory

__all__ = ["Group", "GroupUnit", "Grouping", "has_variance"]

Reason = Literal["all", "count", "time", "enough"]


@dataclass(frozen=True, slots=True)
class Group:
    """Rollouts of one request.

    Args:
        request: The request, with the group's name and seed.
        trajectories: The group, as many as were asked for, in the order of their places: those with a reward before all
            others, and of these those that ended first. What is missing is made up by rollouts without a reward.
        spare: The others: cancelled, failed, or one too many.
        reason: What completed it: "all" rollouts had ended, or enough by "count", by "time" or because the caller's
            predicate said "enough".
    """

    request: RolloutRequest
    trajectories: Sequence[Trajectory]
    spare: Sequence[Trajectory]
    reason: Reason


def has_variance(group: Group) -> bool:
    """Whether the rewards of a group differ, so that there is something to learn: a `Grouping.keep`."""
    return len({trajectory.reward for trajectory in group.trajectories if trajectory.valid}) > 1


@dataclass(frozen=True, slots=True)
class Grouping:
    """How groups are made.

    Args:
        size: Rollouts of a group.
        extra: Rollouts that are begun beyond these. As soon as `size` have ended with a reward, the rest is cancelled:
            no group waits for its slowest. What is kept then leans towards quick rollouts.
        patience: Seconds after half of `size` have ended, upon which the rest is cancelled.
        enough: Called with those that have ended, in this order, whenever one has; if it returns True, the rest is
            cancelled.
        keep: Whether a group is handed out, such as `has_variance`. For one that is not, the next request is played.

    Raises:
        ValueError: A number makes no sense.
    """

    size: int
    extra: int = 0
    patience: float | None = None
    enough: Callable[[Sequence[Trajectory]], bool] | None = None
    keep: Callable[[Group], bool] | None = None

    def __post_init__(self) -> None:
        if self.size < 1 or self.extra < 0 or (self.patience is not None and self.patience < 0):
            raise ValueError("a group has a size of 1 or more; extra and patience are 0 or more")


class GroupUnit(Unit[Group]):
    """A group that is being played.

    Args:
        number: Its place.
        request: What all of it play.
        grouping: When it is complete.
    """

    def __init__(self, number: int, request: RolloutRequest, grouping: Grouping) -> None:
        super().__init__(number, named(request, number))
        self._grouping = grouping
        self._begun: list[Flight] = []
        self._ended: list[Trajectory] = []
        self._valid = 0
        self._reason: Reason | None = None
        self._timer: asyncio.TimerHandle | None = None

    def requests(self) -> Iterator[RolloutRequest]:
        """Yields the rollouts of the group, until there are enough."""
        for index in range(self._grouping.size + self._grouping.extra):
            if self._reason is not None:
                return
            yield replace(self.request, index=index)

    def begun(self, flight: Flight) -> None:
        """Takes a rollout that has begun."""
        self._begun.append(flight)

    def settled(self, flight: Flight) -> Group | None:
        """Takes a rollout that is settled; the last one completes the group."""
        self._ended.append(flight.trajectory)
        self._valid += flight.trajectory.valid
        if self._reason is None and (reason := self._enough()) is not None:
            # Each that is cancelled comes back here, before this goes on; the last of them brings the group.
            pass
        return None
