"""Rows as padded arrays, and advantages of groups."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gymhost.rollout.trajectory import Row, Trajectory

__all__ = ["group_advantages", "pad"]


def pad(items: Iterable[Trajectory | Row], pad_id: int) -> dict[str, npt.NDArray[Any]]:
    """Pads training rows to one length, on the right.

    Args:
        items: Trajectories, of which all rows are taken, or rows.
        pad_id: The token id that fills up.

    Returns:
        Arrays of shape (rows, longest): `input_ids` and `policy_versions` (int64), `attention_mask` and `loss_mask`
        (bool), `logprobs` (float32), where the prompt counts as environment; and `trajectory` of shape (rows,), the
        place of the row's trajectory among the items.
    """
    placed = [
        (place, row)
        for place, item in enumerate(items)
        for row in (item.rows() if isinstance(item, Trajectory) else [item])
    ]
    shape = (len(placed), max((len(row) for _, row in placed), default=0))
    ids = np.full(shape, pad_id, np.int64)
    attention = np.zeros(shape, np.bool_)
    loss = np.zeros(shape, np.bool_)
    logprobs = np.zeros(shape, np.float32)
    versions = np.full(shape, -1, np.int64)
    for i, (_, row) in enumerate(placed):
        prompt, end = len(row.prompt_ids), len(row)
        ids[i, :end] = row.ids
        attention[i, :end] = True
        loss[i, prompt:end] = row.mask
        logprobs[i, prompt:end] = row.logprobs
        versions[i, prompt:end] = row.policy_versions
    return {
        "input_ids": ids,
        "attention_mask": attention,
        "loss_mask": loss,
        "logprobs": logprobs,
        "policy_versions": versions,
        "trajectory": np.array([place for place, _ in placed], np.int64),
    }


def group_advantages(
    trajectories: Sequence[Trajectory], *, scale: bool = True, epsilon: float = 1e-4
) -> npt.NDArray[np.float64]:
    """The advantage of each trajectory within its group.

    Mean and deviation are those of the valid rewards alone. A trajectory without a valid reward has the advantage NaN,
    which must not be trained on: leave it out by its `valid` flag.

    Args:
        trajectories: One or more groups; those without a group are one.
        scale: Whether to divide by the deviation of the group.
        epsilon: Added to the deviation.
    """
    rewards = np.array([np.nan if item.reward is None else item.reward for item in trajectories], np.float64)
    advantages = np.full(rewards.shape, np.nan)
    groups: dict[tuple[str, str | None], list[int]] = {}
    for place, item in enumerate(trajectories):
        if item.valid:
            groups.setdefault((item.env_id, item.group), []).append(place)
    for places in groups.values():
        values = rewards[places]
        centred = values - values.mean()
        deviation = float(values.std(ddof=1)) if len(places) > 1 else 0.0
        if scale and deviation > 0:
            centred = centred / (deviation + epsilon)
        advantages[places] = centred
    return advantages
