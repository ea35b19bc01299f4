"""Groups of a job whose results are there all at once: who of a group counts, and whether it is worth having."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["Group", "Member", "choose", "oldest_version", "varies"]


class Member(NamedTuple):
    """A rollout that has ended, whose trajectory is on disk.

    Attributes:
        number: Its number in the job.
        kind: That of its outcome.
        reward: None if there is none.
        oldest: The lowest policy version that sampled a part of it; None if nothing was sampled.
        size: Its result, in bytes.
    """

    number: int
    kind: str
    reward: float | None
    oldest: int | None
    size: int


@dataclass(slots=True)
class Group:
    """A group of which something has begun.

    Attributes:
        number: Its place in the job.
        members: Those that have ended, in this order.
        plays: How often all of it was played before, and was too old.
        timer: Ends the patience with the rest.
    """

    number: int
    members: list[Member] = field(default_factory=list[Member])
    plays: int = 0
    timer: asyncio.TimerHandle | None = None

    @property
    def rewarded(self) -> int:
        """How many have ended with a reward."""
        return sum(member.reward is not None for member in self.members)

    def stop(self) -> None:
        """Stops the timer."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


def choose(members: Iterable[Member], samples: int) -> tuple[list[Member], list[Member]]:
    """Those that make the group, in the order of their numbers, and the others.

    Whoever has a reward goes before all others, and then whoever ended first.
    """
    ended = sorted(members, key=lambda member: member.reward is None)
    return sorted(ended[:samples]), ended[samples:]


def varies(members: Sequence[Member]) -> bool:
    """Whether rewards differ, so that there is something to learn."""
    return len({member.reward for member in members if member.reward is not None}) > 1


def oldest_version(members: Sequence[Member]) -> int | None:
    """The lowest policy version that sampled a part of these; None if nothing was sampled."""
    return min((member.oldest for member in members if member.oldest is not None), default=None)
