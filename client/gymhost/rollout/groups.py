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
        self._delivered = False

    def requests(self) -> Iterator[RolloutRequest]:
        """Yields the rollouts of the group, until there are enough."""
        for index in range(self._grouping.size + self._grouping.extra):
            if self._reason is not None:
                return
            yield replace(self.request, index=index)

    def begun(self, flight: Flight) -> None:
        """Takes a rollout that has begun."""
        self._begun.append(flight)

    def settled(self, flight: Flight) -> None:
        """Takes a rollout that is settled."""
        trajectory, grouping = flight.trajectory, self._grouping
        self._ended.append(trajectory)
        self._valid += trajectory.valid
        if self._reason is not None:  # it was cancelled below, or by somebody else meanwhile
            self._deliver_if_complete()
        elif len(self._ended) == grouping.size + grouping.extra:
            self._stop("all")
        elif self._valid == grouping.size:
            self._stop("count")
        elif grouping.enough is not None and grouping.enough(self._ended):
            self._stop("enough")
        elif grouping.patience is not None and self._timer is None and len(self._ended) * 2 >= grouping.size:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(grouping.patience, self._stop, "time")

    def _stop(self, reason: Reason) -> None:
        """Cancels what is still in flight: there is enough."""
        self._reason = reason
        if self._timer is not None:
            self._timer.cancel()
        for flight in self._begun:
            flight.cancel()
        self._deliver_if_complete()

    def _deliver_if_complete(self) -> None:
        if self._delivered or len(self._ended) < len(self._begun):
            return
        self._delivered = True
        size = self._grouping.size
        # The order of their ends, those without a reward last.
        ended = sorted(self._ended, key=lambda trajectory: not trajectory.valid)
        missing = range(len(ended), size)  # those for which there has been no place yet
        ended += [blank(replace(self.request, index=index)) for index in missing]
        group, spare = (sorted(some, key=lambda each: each.index) for some in (ended[:size], ended[size:]))
        assert self._reason is not None
        self.deliver(Group(self.request, group, spare, self._reason))
