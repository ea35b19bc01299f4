"""Which rollouts `gymhost rollout` is to play: tasks, samples, seeds."""

from collections.abc import Mapping, Sequence
from typing import Any

from gymhost.cli.app import Failure
from gymhost.client import EnvironmentDescription
from gymhost.rollout import RolloutRequest

__all__ = ["DEFAULT_TASKS", "Tasks", "choose"]

DEFAULT_TASKS = 8


class Tasks:
    """The tasks to be played.

    Attributes:
        split: The split that they are in; None where the environment has no tasks.
        indices: Their indices; where the environment has no tasks, the numbers of its episodes.
    """

    def __init__(self, split: str | None, indices: Sequence[int]) -> None:
        self.split = split
        self.indices = indices

    def __len__(self) -> int:
        return len(self.indices)

    def __str__(self) -> str:
        """The indices, in ranges such as `0-9,12`."""
        ranges: list[list[int]] = []
        for index in self.indices:
            if ranges and index == ranges[-1][1] + 1:
                ranges[-1][1] = index
            else:
                ranges.append([index, index])
        return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in ranges)

    def requests(self, env_id: str, *, kwargs: Mapping[str, Any], samples: int, seed: int) -> list[RolloutRequest]:
        """The rollouts: for each task so many, as a group that shares the seed."""
        return [
            RolloutRequest(
                env_id,
                task=index if self.split is not None else None,
                # By the task and not by its place, so that a task is the same one whichever are played with it.
                seed=seed + index,
                split=self.split,
                kwargs=kwargs,
                group=str(index),
                index=sample,
            )
            for index in self.indices
            for sample in range(samples)
        ]


def choose(
    environment: EnvironmentDescription, *, split: str | None, number: int | None, chosen: Sequence[range]
) -> Tasks:
    """Chooses tasks that the environment has.

    Args:
        environment: Its description.
        split: The split; without one, the first.
        number: How many, from the first on.
        chosen: Or else which.

    Raises:
        Failure: It has no such split, or no such task.
    """
    if not environment.splits:
        for name, given in (("--split", split), ("--task", chosen)):
            if given:
                raise Failure(
                    f"{environment.id} has no tasks: leave {name} out; --tasks is how many episodes are played"
                )
        return Tasks(None, range(number or DEFAULT_TASKS))
    if split is None:
        split = next(iter(environment.splits))
    elif split not in environment.splits:
        raise Failure(f"{environment.id} has no split {split!r}: it has {', '.join(environment.splits)}")
    there = environment.splits[split]
    if number is None and not chosen:
        number = DEFAULT_TASKS if there is None else min(DEFAULT_TASKS, there)
    if number is not None:
        chosen = [range(number)]
    last = max((some[-1] for some in chosen if some), default=0)
    if there is not None and last >= there:
        size = f"{there:,} tasks, 0 to {there - 1}" if there else "no tasks"
        raise Failure(f"the split {split!r} of {environment.id} has {size}: there is no task {last}")
    return Tasks(split, list(dict.fromkeys(index for some in chosen for index in some)))
