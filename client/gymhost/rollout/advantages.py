"""Advantages within groups of rollouts that share a task."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gymhost.rollout.trajectory import Trajectory

__all__ = ["group_advantages"]


def group_advantages(
    trajectories: Sequence[Trajectory], *, scale: bool = True, leave_one_out: bool = False, epsilon: float = 1e-4
) -> npt.NDArray[np.float64]:
    """The advantage of each trajectory within its group.

    Mean and deviation are those of the valid rewards alone. A trajectory without a valid reward has the advantage NaN,
    which is not to be trained on: `pad` and `pack` leave it out.

    Args:
        trajectories: One or more groups; those of an environment without a group are one.
        scale: Whether to divide by the deviation of the group, as GRPO does; Dr. GRPO and RLOO do not.
        leave_one_out: Whether to compare each reward with the mean of the others, as RLOO does, instead of that of all.
        epsilon: Added to the deviation.

    Returns:
        An array of shape (trajectories,); 0.0 where a group has one valid reward, there being nothing to compare with.
    """
    rewards = np.array([np.nan if item.reward is None else item.reward for item in trajectories], np.float64)
    advantages = np.full(rewards.shape, np.nan)
    groups: dict[tuple[str, str | None], list[int]] = {}
    for place, item in enumerate(trajectories):
        if item.valid:
            groups.setdefault((item.env_id, item.group), []).append(place)
    for places in groups.values():
        values = rewards[places]
        count = len(places)
        centred = values - values.mean()
        deviation = float(values.std(ddof=1)) if count > 1 else 0.0
        if leave_one_out and count > 1:
            centred *= count / (count - 1)  # which is the difference to the mean of the others
        if scale and deviation > 0:
            centred /= deviation + epsilon
        advantages[places] = centred
    return advantages
