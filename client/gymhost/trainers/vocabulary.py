"""What other trainers say, in this project's words: rows of a dataset as requests, parameters of vLLM as `Sampling`."""

from collections.abc import Mapping
from typing import Any

from gymhost.rollout import RolloutRequest, Sampling, Trajectory

__all__ = ["parameters_of", "request_of", "sampling_of", "was_scored"]

# The shape of the distribution is known by these alone; one that is changed otherwise has other log-probs.
_NEUTRAL = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "min_tokens": 0}


def request_of(
    row: Mapping[str, Any], env_id: str, *, sampling: Sampling | None = None, group: str | None = None, index: int = 0
) -> RolloutRequest:
    """The rollout that a row of a dataset asks for.

    Args:
        row: With `task`, `seed`, `split` and `kwargs`, as far as they are wanted. Without a seed the task is the seed,
            so that all rollouts of a row begin alike. Whatever else it holds is not looked at.
        env_id: The environment.
        sampling: How to sample.
        group: Names the rollouts of the same row.
        index: The place within the group.
    """
    task, seed = (None if row.get(name) is None else int(row[name]) for name in ("task", "seed"))
    kwargs: Mapping[str, Any] = row.get("kwargs") or {}
    return RolloutRequest(
        env_id,
        task,
        seed=task if seed is None else seed,
        split=row.get("split"),
        # Columns of structs give every row the fields of all rows.
        kwargs={name: value for name, value in kwargs.items() if value is not None},
        sampling=sampling,
        group=group,
        index=index,
    )


def sampling_of(parameters: Mapping[str, Any], *, max_tokens: int) -> Sampling:
    """Parameters of vLLM as `Sampling`.

    Args:
        parameters: What the trainer has set.
        max_tokens: The most tokens of a turn, unless the parameters have fewer.

    Raises:
        ValueError: Something is set that rollouts do not know.
    """
    for name, value in _NEUTRAL.items():
        if parameters.get(name) not in (None, value):
            raise ValueError(f"rollouts know no {name}: leave it at {value}")
    if parameters.get("stop"):
        raise ValueError("rollouts know no stop: a turn ends where the model ends it")
    return Sampling(
        temperature=float(parameters.get("temperature", 1.0)),
        top_p=float(parameters.get("top_p", 1.0)),
        top_k=max(0, int(parameters.get("top_k") or 0)),
        min_p=float(parameters.get("min_p") or 0.0),
        max_tokens=min(max_tokens, int(parameters.get("max_tokens") or max_tokens)),
    )


def parameters_of(sampling: Sampling) -> dict[str, Any]:
    """`Sampling` as the parameters of vLLM."""
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or -1,
        "min_p": sampling.min_p,
        "max_tokens": sampling.max_tokens,
        "stop_token_ids": list(sampling.stop_token_ids),
    }


def was_scored(trajectory: Trajectory) -> bool:
    """Whether a trainer can learn from it: it was played, something was sampled, and the reward is known."""
    return trajectory.outcome.kind in ("terminated", "truncated") and trajectory.valid and bool(trajectory.rows())
