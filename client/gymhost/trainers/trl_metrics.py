"""What rollouts put into the trainer's log, and what is said of those that failed."""

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import fields
from statistics import fmean

from gymhost.rollout import CannotRender, Limits, Timings, Trajectory
from gymhost.trainers.trl_rewards import Learnable

__all__ = ["Lookout", "Measures"]

logger = logging.getLogger(__name__)

_FRUITLESS_BATCHES = 3
"""So many batches in a row without one rollout to learn from end the training: something is broken for good."""

_FAULTS = ("environment", "agent", "infrastructure", "generator")
_BUDGETS = ("turns", "sampled_tokens", "completion_tokens", "context_tokens", "episode_seconds")


class Measures:
    """Makes numbers of trajectories; called with those of a batch.

    Args:
        labels: What the environments are called.
        limits: What ends a rollout.
    """

    def __init__(self, labels: Iterable[str], limits: Limits) -> None:
        self._labels = _short(list(labels))
        # A share must be there when it is 0 too, or its mean over several batches would be wrong.
        set_ones = (item.name for item in fields(limits) if getattr(limits, item.name) is not None)
        self._limits = {name for name in set_ones if name in _BUDGETS} | {"completion_tokens"}

    def __call__(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        """The metrics of a batch, by their names in the log."""
        outcomes = [t.outcome for t in trajectories]
        self._limits |= {o.limit for o in outcomes if o.kind == "truncated" and o.limit is not None}
        metrics = {
            "rollouts/failed": fmean(o.kind == "failed" for o in outcomes),
            **{f"rollouts/failed/{fault}": fmean(o.fault == fault for o in outcomes) for fault in _FAULTS},
            "rollouts/begun_again": fmean(t.attempts > 1 for t in trajectories),
            "rollouts/mixed_versions": fmean(t.mixed_versions for t in trajectories),
            "rollouts/truncated": fmean(o.kind == "truncated" for o in outcomes),
        }
        for limit in sorted(self._limits):
            share = fmean(o.kind == "truncated" and o.limit == limit for o in outcomes)
            metrics[f"rollouts/truncated/{limit}"] = share
        metrics |= {
            "rollouts/turns": fmean(len(t.turns) for t in trajectories),
            "rollouts/tool_calls": fmean(sum(turn.calls for turn in t.turns) for t in trajectories),
            "rollouts/sampled_tokens": fmean(t.sampled_tokens for t in trajectories),
        }
        for stage in Timings.model_fields:
            metrics[f"rollouts/{stage}_seconds"] = fmean(getattr(t.timings, stage) for t in trajectories)
        metrics |= _rubrics("rubrics", trajectories)
        if len(self._labels) > 1:
            for label, short in self._labels.items():
                of_it = [t for t in trajectories if t.labels.get("environment") == label]
                if of_it:
                    metrics |= _apart(f"environments/{short}", of_it)
        return metrics


def _apart(name: str, trajectories: Sequence[Trajectory]) -> dict[str, float]:
    metrics = {
        f"{name}/failed": fmean(t.outcome.kind == "failed" for t in trajectories),
        f"{name}/truncated": fmean(t.outcome.kind == "truncated" for t in trajectories),
        f"{name}/turns": fmean(len(t.turns) for t in trajectories),
    }
    if rewards := [t.reward for t in trajectories if t.reward is not None and t.valid]:
        metrics[f"{name}/reward"] = fmean(rewards)
    return metrics | _rubrics(f"{name}/rubrics", trajectories)


def _rubrics(name: str, trajectories: Sequence[Trajectory]) -> dict[str, float]:
    scores: dict[str, list[float]] = {}
    for trajectory in trajectories:
        for rubric, score in trajectory.rewards.items():
            if score is not None:
                scores.setdefault(rubric, []).append(score)
    return {f"{name}/{rubric}": fmean(values) for rubric, values in scores.items()}


def _short(labels: Sequence[str]) -> dict[str, str]:
    """Without the namespace, which boards that sort metrics by their slashes would make a group of."""
    short = [label.rpartition("/")[2] for label in labels]
    return dict(zip(labels, short if len(set(short)) == len(short) else labels, strict=True))


class Lookout:
    """Tells of failures in the log, and ends a training that has only such.

    Args:
        learnable: Tells what there is to learn from.
    """

    def __init__(self, learnable: Learnable) -> None:
        self._learnable = learnable
        self._fruitless = 0
        self._warned_of_versions = False
        self._warned_of_rewriting = False

    def look(self, trajectories: Sequence[Trajectory]) -> None:
        """Looks over a batch.

        Raises:
            ValueError: An environment has none of the rubrics, or shows what models are not shown.
            RuntimeError: There was nothing to learn from for several batches.
        """
        self._tell_failures(trajectories)
        self._tell_versions(trajectories)
        if all(t.outcome.cause == CannotRender.__name__ for t in trajectories):  # and it would be in all batches
            raise ValueError(
                f"{trajectories[0].env_id} can't be played: every rollout {trajectories[0].outcome}. To train a model"
                " that sees pictures, give TRL's environment_factory a gymhost.trainers.trl_factory.remote_environment"
            )
        if self._learnable.rubrics is not None:
            self._check_rubrics(self._learnable.rubrics, trajectories)
        fruitful = any(map(self._learnable, trajectories))
        self._fruitless = 0 if fruitful else self._fruitless + 1
        if self._fruitless >= _FRUITLESS_BATCHES:
            last = trajectories[-1].outcome
            why = f"{last}" if last.kind == "failed" else f"{last}, and not learned from"
            raise RuntimeError(
                f"{_FRUITLESS_BATCHES} batches in a row had no rollout to learn from; the last one {why}"
            )
        if not self._warned_of_rewriting and any(t.rewritten for t in trajectories):
            self._warned_of_rewriting = True
            logger.warning(
                "the chat template rewrote history, so that a rollout is several rows of tokens; TRL takes one, the"
                " last. Give the renderer's configuration thinking_retention='all'"
            )

    def _tell_failures(self, trajectories: Sequence[Trajectory]) -> None:
        count = len(trajectories)
        failures = Counter((t.env_id, t.outcome.fault, t.outcome.cause) for t in _failed(trajectories))
        for (env_id, fault, cause), number in failures.most_common(3):
            example = next(
                t
                for t in _failed(trajectories)
                if (t.env_id, t.outcome.fault, t.outcome.cause) == (env_id, fault, cause)
            )
            logger.warning("%d of %d rollouts, of %s, %s", number, count, env_id, example.outcome)
        if again := sum(t.attempts > 1 for t in trajectories):
            logger.warning("%d of %d rollouts were begun again after a fault of server or generator", again, count)
        unknown = sum(t.outcome.kind != "failed" and not self._learnable.scored(t) for t in trajectories)
        if unknown:
            logger.warning(
                "%d of %d rollouts were played and have no reward: they are not learned from", unknown, count
            )

    def _tell_versions(self, trajectories: Sequence[Trajectory]) -> None:
        mixed = sum(t.mixed_versions for t in trajectories)
        if not mixed or (self._learnable.mixed and self._warned_of_versions):
            return
        self._warned_of_versions = True
        then = "they are learned from as others are" if self._learnable.mixed else "they are not learned from"
        logger.warning(
            "%d of %d rollouts were sampled by more than one version of the weights: %s (mixed_versions=)",
            mixed,
            len(trajectories),
            then,
        )

    def _check_rubrics(self, rubrics: Sequence[str], trajectories: Sequence[Trajectory]) -> None:
        for trajectory in trajectories:
            if trajectory.rewards and not trajectory.rewards.keys() & set(rubrics):
                raise ValueError(
                    f"{trajectory.env_id} has none of the rubrics rewards={list(rubrics)}: it has"
                    f" {', '.join(sorted(trajectory.rewards))}"
                )


def _failed(trajectories: Iterable[Trajectory]) -> list[Trajectory]:
    return [trajectory for trajectory in trajectories if trajectory.outcome.kind == "failed"]
