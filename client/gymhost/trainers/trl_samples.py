"""Trajectories as TRL's asynchronous trainer takes them."""

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gymhost.rollout.trajectory import Trajectory

__all__ = ["metrics_of", "samples_of"]


def samples_of(trajectories: Sequence[Trajectory], advantages: npt.NDArray[np.float64], group_id: int) -> list[Any]:
    """Makes TRL's `RolloutSample`s of a group: one for each row, those without a valid reward left out.

    Args:
        trajectories: The group.
        advantages: That of each; NaN where there is none.
        group_id: The group's number.
    """
    from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

    rewards = [item.reward for item in trajectories if item.reward is not None and item.valid]
    deviation = float(np.std(rewards)) if rewards else 0.0
    samples: list[Any] = []
    for trajectory, advantage in zip(trajectories, advantages.tolist(), strict=True):
        if trajectory.reward is None or math.isnan(advantage):
            continue
        prompt = list(itertools.takewhile(lambda message: message["role"] != "assistant", trajectory.messages))
        metrics = {
            "reward": trajectory.reward,
            "reward_std": deviation,
            **{f"rewards/{name}": math.nan if score is None else score for name, score in trajectory.rewards.items()},
        }
        for row in trajectory.rows():
            before = len(row.prompt_ids)
            samples.append(
                RolloutSample(
                    prompt=prompt,
                    completion=trajectory.messages[len(prompt) :],
                    input_ids=np.asarray(row.ids, np.int64),
                    completion_mask=np.asarray([0] * before + row.mask, np.int64),
                    old_log_probs=np.asarray([0.0] * before + row.logprobs, np.float32),
                    advantage=advantage,
                    model_version=trajectory.newest_version or 0,
                    group_id=group_id,
                    metrics=dict(metrics),
                )
            )
    return samples


def metrics_of(trajectories: Sequence[Trajectory]) -> dict[str, float | tuple[float, float]]:
    """What the trainer's log is to tell of rollouts: pairs are means, summed up over all that is logged at once."""
    played = [item for item in trajectories if item.outcome.kind in ("terminated", "truncated")]
    count = len(trajectories)

    def mean(values: Sequence[float]) -> tuple[float, float]:
        return float(sum(values)), float(len(values))

    failed = Counter(item.outcome.fault for item in trajectories if item.outcome.kind == "failed")
    return {
        "rollout/turns_mean": mean([len(item.turns) for item in played]),
        "rollout/samples_per_rollout": mean([len(item.rows()) for item in played]),
        "rollout/sampled_tokens_mean": mean([item.sampled_tokens for item in played]),
        "rollout/truncated_frac": mean([item.outcome.kind == "truncated" for item in played]),
        "rollout/invalid_frac": (float(sum(not item.valid for item in played)), float(len(played))),
        "rollout/failed_frac": (float(failed.total()), float(count)),
        **{f"rollout/failed_by_{fault}_total": float(number) for fault, number in failed.items()},
        "tools/call_frequency": mean([sum(turn.calls for turn in item.turns) for item in played]),
        **{
            f"rollout/{stage}_s": mean([getattr(item.timings, stage) for item in played])
            for stage in ("queue", "init", "generation", "environment", "eval")
        },
    }
