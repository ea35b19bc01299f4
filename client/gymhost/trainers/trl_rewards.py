"""What TRL is given of a trajectory: a row of tokens, a reward or None, and the conversation in words."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gymhost.rollout import Trajectory
from gymhost.rollout.text import message_text

__all__ = ["Learnable", "Metrics", "RewardFunction", "reward_functions", "training_row"]

RewardFunction = Callable[..., list[float | None]]
Metrics = Callable[[Sequence[Trajectory]], dict[str, float]]


def _was_played(trajectory: Trajectory) -> bool:
    """Whether there are tokens to learn from: a rollout that did not fail, in which the model said something."""
    return trajectory.outcome.kind in ("terminated", "truncated") and bool(trajectory.rows())


@dataclass(frozen=True, slots=True)
class Learnable:
    """Tells of a rollout whether there is anything to learn from.

    TRL adds up the columns that are not None. So where one of an environment's rubrics could not be computed, all are
    None: a sum without it would count it as 0.0.

    Args:
        rubrics: The rubrics that become reward functions; None for the reward as it is.
        mixed: Whether it may have been sampled by more than one version of the weights.
    """

    rubrics: Sequence[str] | None = None
    mixed: bool = True

    def __call__(self, trajectory: Trajectory) -> bool:
        """Whether there is."""
        return self.scored(trajectory) and (self.mixed or not trajectory.mixed_versions)

    def scored(self, trajectory: Trajectory) -> bool:
        """Whether it was played and has its rewards."""
        if not _was_played(trajectory):
            return False
        if self.rubrics is None:
            return trajectory.valid
        scores = [trajectory.rewards[name] for name in self.rubrics if name in trajectory.rewards]
        return bool(scores) and all(score is not None and math.isfinite(score) for score in scores)


def reward_functions(learnable: Learnable, metrics: Metrics) -> list[RewardFunction]:
    """Makes the trainer's reward functions: one for each rubric, or `total`, the reward as the environment weights it.

    Args:
        learnable: Tells what has a reward.
        metrics: What the first of them puts into the trainer's log.
    """
    functions = [_reward_function(name, learnable) for name in learnable.rubrics or [None]]
    functions[0] = _with_log(functions[0], metrics)
    return functions


def _reward_function(rubric: str | None, learnable: Learnable) -> RewardFunction:
    def function(trajectory: Sequence[Trajectory], **_: Any) -> list[float | None]:
        return [(t.reward if rubric is None else t.rewards.get(rubric)) if learnable(t) else None for t in trajectory]

    function.__name__ = rubric or "total"
    return function


def _with_log(function: RewardFunction, metrics: Metrics) -> RewardFunction:
    """Has a reward function fill the trainer's log too.

    TRL puts the means of all ranks of the metrics into its log. What it shows of completions are the lists that reward
    functions are given: until here they hold the dataset's prompt, and all tokens of the rollout as one text.
    """

    def logging_function(
        trajectory: Sequence[Trajectory],
        prompts: list[Any],
        completions: list[Any],
        log_metric: Callable[[str, float], None],
        log_extra: Callable[[str, list[Any]], None],
        **rest: Any,
    ) -> list[float | None]:
        for name, value in metrics(trajectory).items():
            log_metric(name, value)
        log_extra("environment", [_place(t) for t in trajectory])
        log_extra("outcome", [str(t.outcome) for t in trajectory])
        for i, t in enumerate(trajectory):
            opening, conversation = _conversation(t)
            prompts[i] = opening or prompts[i]
            completions[i] = conversation
        return function(trajectory=trajectory, **rest)

    logging_function.__name__ = function.__name__
    return logging_function


def _place(trajectory: Trajectory) -> str:
    label = trajectory.labels.get("environment", trajectory.env_id)
    task = "" if trajectory.task is None else f", task {trajectory.task}"
    return f"{label}{task}, seed {trajectory.seed}"


def _conversation(trajectory: Trajectory) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """The messages up to the model's first, and the rest; as plain text, since TRL makes a table of them."""
    messages = [{"role": str(m["role"]), "content": message_text(m)} for m in trajectory.messages]
    first = next((i for i, message in enumerate(messages) if message["role"] == "assistant"), len(messages))
    return messages[:first], messages[first:] or [{"role": "assistant", "content": ""}]


def training_row(
    trajectory: Trajectory, learnable: Learnable, eos: int
) -> tuple[list[int], list[int], list[int], list[float]]:
    """Prompt, completion, mask and log-probs as TRL takes them: it can't do without a token.

    So a rollout that was not played is one end-of-sequence token that is masked. One that was played and is not to be
    learned from is masked too: its advantage is 0 anyway, but a divergence from a reference model or an entropy bonus
    would move the weights.
    """
    if not _was_played(trajectory):
        return trajectory.prompt_ids or [eos], [eos], [0], [0.0]
    row = trajectory.rows()[-1]
    mask = row.mask if learnable(trajectory) else [0] * len(row.mask)
    return row.prompt_ids, row.completion_ids, mask, row.logprobs
