"""What a trainer's dataset is made of: environments, their tasks, and how they are mixed."""

import itertools
import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

__all__ = ["Env", "check_size", "completed", "envs_of", "mixed", "one_after_another", "options_of"]

logger = logging.getLogger(__name__)

_ENDLESS_ROWS = 10_000
"""How many rows there are where nothing says how many there should be."""

_MOST_ROWS = 100_000
"""How many rows there are at most, unless more are asked for: an environment may have very many tasks."""

_COLUMNS = ("prompt", "environment", "task", "split", "seed")


@dataclass(frozen=True, slots=True)
class Env:
    """One environment among several.

    Args:
        env_id: The environment, such as "gymhost/GuessNumber-v0".
        weight: How often it is played, in proportion to the others.
        split: The split of its tasks; without one that of `Environments`.
        tasks: The indices of the tasks to train on; without them all tasks of the split.
        num_tasks: Only so many of them, from the first.
        kwargs: Keyword arguments of the environment.
        name: What the dataset and the log call it; without one the id. Two of the same id need names.

    Raises:
        ValueError: The weight is not above 0.
    """

    env_id: str
    weight: float = 1.0
    split: str | None = None
    tasks: Sequence[int] | None = None
    num_tasks: int | None = None
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    name: str | None = None

    def __post_init__(self) -> None:
        if not 0 < self.weight < math.inf:
            raise ValueError(f"the weight of {self.env_id} must be above 0, not {self.weight}")

    @property
    def label(self) -> str:
        """What the dataset and the log call it."""
        return self.name or self.env_id


def envs_of(given: str | Env | Mapping[str, float] | Iterable[str | Env], **alone: Any) -> dict[str, Env]:
    """Returns the environments by what they are called.

    Args:
        given: What `Environments` was given.
        **alone: Settings of an `Env` for a single one; None, or empty, where they were not given.

    Raises:
        ValueError: There is none, two are called the same, or `alone` is there with several.
    """
    if isinstance(given, str | Env):
        env = given if isinstance(given, Env) else Env(given)
        env = replace(env, **{name: value for name, value in alone.items() if value})
        return {env.label: env}
    if isinstance(given, Mapping):
        weights = cast("Mapping[str, float]", given)
        envs = [Env(env_id, weight) for env_id, weight in weights.items()]
    else:
        envs = [Env(item) if isinstance(item, str) else item for item in given]
    if not envs:
        raise ValueError("no environment was given")
    if several := [name for name, value in alone.items() if value]:
        raise ValueError(
            f"with several environments, {', '.join(several)} must be given for each of them: Env(env_id, ...)"
        )
    labels = [env.label for env in envs]
    if twice := {label for label in labels if labels.count(label) > 1}:
        raise ValueError(f"{', '.join(sorted(twice))} is there twice: give each a name, Env(env_id, name=...)")
    return dict(zip(labels, envs, strict=True))


@dataclass(frozen=True, slots=True)
class _Tasks:
    """The tasks of an environment: how many, and each after the other without end."""

    env: Env
    split: str | None
    count: int | None
    places: Iterator[int | None]


def _tasks_of(env: Env, split: str | None, splits: Mapping[str, int | None]) -> _Tasks:
    if env.tasks is not None:
        tasks = list(env.tasks)[: env.num_tasks]
        return _Tasks(env, split, _some(env, split, len(tasks)), itertools.cycle(tasks))
    if not splits:
        return _Tasks(env, None, env.num_tasks, itertools.repeat(None))
    split = next(iter(splits)) if split is None else split
    if split not in splits:
        raise ValueError(f"{env.label} has no split {split!r}: there are {', '.join(sorted(splits))}")
    count = min((n for n in (splits[split], env.num_tasks) if n is not None), default=None)
    places = itertools.count() if count is None else itertools.cycle(range(_some(env, split, count)))
    return _Tasks(env, split, count, places)


def _some(env: Env, split: str | None, count: int) -> int:
    if not count:
        raise ValueError(f"no task of {env.label} is to be played: there are 0 in split {split!r}")
    return count


def mixed(
    envs: Iterable[tuple[Env, str | None, Mapping[str, int | None]]], *, total: int | None, first_seed: int = 0
) -> list[dict[str, Any]]:
    """Mixes the tasks of environments by their weights, always in the same way.

    Each is asked for its next task when it is its turn, and begins anew after the last one, with other seeds. It ends
    when each has been through its tasks, or after 100,000 rows; those without an end do not count.

    Args:
        envs: Environments, with the split of their tasks and the number of tasks of each split.
        total: How many rows there are to be instead.
        first_seed: The seed of the first row; the rows after it count on from there.

    Raises:
        ValueError: An environment has no such split.
    """
    parts = [_tasks_of(*each) for each in envs]
    finite = [place for place, part in enumerate(parts) if part.count is not None]
    if total is None and not finite:
        total = _ENDLESS_ROWS
        logger.warning(
            "%s has no fixed number of tasks: the dataset has %d rows, each with a seed of its own; num_tasks= says"
            " otherwise",
            " or ".join(part.env.label for part in parts),
            total,
        )
    taken = [0] * len(parts)
    rows: list[dict[str, Any]] = []
    while len(rows) < total if total is not None else any(taken[i] < (parts[i].count or 0) for i in finite):
        if total is None and len(rows) == _MOST_ROWS:
            logger.warning("the dataset ends after %d rows, before all tasks are in it; see num_tasks=", _MOST_ROWS)
            break
        turn = min(range(len(parts)), key=lambda i: (taken[i] + 1) / parts[i].env.weight)
        taken[turn] += 1
        rows.append(_row(parts[turn], first_seed + len(rows)))
    return rows


def one_after_another(
    envs: Iterable[tuple[Env, str | None, Mapping[str, int | None]]], *, first_seed: int = 0
) -> list[dict[str, Any]]:
    """Each task of each environment once, whatever their weights.

    Raises:
        ValueError: An environment has no such split, or tasks without end.
    """
    rows: list[dict[str, Any]] = []
    for part in [_tasks_of(*each) for each in envs]:
        if part.count is None:
            raise ValueError(f"{part.env.label} has no fixed number of tasks: say how many to evaluate (eval_tasks=)")
        for _ in range(part.count):
            rows.append(_row(part, first_seed + len(rows)))
    return rows


def _row(part: _Tasks, seed: int) -> dict[str, Any]:
    label, task = part.env.label, next(part.places)
    parts = [label, *([] if part.split is None else [part.split]), *([] if task is None else [f"task {task}"])]
    return {"prompt": _said(", ".join(parts)), "environment": label, "task": task, "split": part.split, "seed": seed}


def _said(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def completed(dataset: Any, envs: Mapping[str, Env]) -> Any:
    """The user's dataset, with a prompt and a seed in each row.

    Args:
        dataset: A `datasets.Dataset` or `datasets.IterableDataset`.
        envs: The environments.

    Raises:
        TypeError: It is no dataset.
        ValueError: It does not say which environment a row is for, or names one that is not there.
    """
    endless = _is_stream(dataset)
    label = next(iter(envs))
    columns: list[str] | None = dataset.column_names  # None where a stream does not know them
    if columns is not None and len(envs) > 1 and "environment" not in columns:
        raise ValueError(f"the dataset needs a column `environment`, which says one of {', '.join(envs)} for each row")
    if endless:

        def fill(row: dict[str, Any], place: int) -> dict[str, Any]:
            return {"prompt": _said(f"{row.get('environment') or label}, row {place}"), "seed": place} | row

        return dataset.map(fill, with_indices=True)
    labels = [label] * len(dataset)
    if "environment" in dataset.column_names:
        labels = list(dataset["environment"])
        if unknown := sorted(map(repr, set(labels) - set(envs))):
            given = ", ".join(envs)
            raise ValueError(
                f"the dataset names environments that were not given: {', '.join(unknown)}; given: {given}"
            )
    if "seed" not in dataset.column_names:
        dataset = dataset.add_column("seed", list(range(len(dataset))))
    if "prompt" not in dataset.column_names:
        dataset = dataset.add_column("prompt", [_said(f"{name}, row {i}") for i, name in enumerate(labels)])
    return dataset


def check_size(dataset: Any, config: Any) -> None:
    """Refuses a dataset that does not fill one batch of rollouts: TRL would train no step.

    Args:
        dataset: A `datasets.Dataset` or `datasets.IterableDataset`, which may have any length.
        config: The trainer's `GRPOConfig`.

    Raises:
        ValueError: It is too small.
    """
    prompts = config.generation_batch_size // config.num_generations
    if not _is_stream(dataset) and len(dataset) < prompts:
        raise ValueError(
            f"the dataset has {len(dataset)} rows, and TRL trains on whole batches of rollouts alone, which are of"
            f" {prompts} rows here (generation_batch_size={config.generation_batch_size} /"
            f" num_generations={config.num_generations}), so that it would train 0 steps: give more tasks (num_tasks=),"
            " or lower per_device_train_batch_size, gradient_accumulation_steps or steps_per_generation, or raise"
            " num_generations"
        )


def _is_stream(dataset: Any) -> bool:
    from datasets import Dataset, IterableDataset

    if not isinstance(dataset, Dataset | IterableDataset):
        raise TypeError(f"dataset must be a datasets.Dataset or IterableDataset, not {type(dataset).__name__}")
    return isinstance(dataset, IterableDataset)


def options_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """What a row tells the environment's reset beyond what all rows have."""
    return {name: value for name, value in row.items() if name not in _COLUMNS and value is not None}
