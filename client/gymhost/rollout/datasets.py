"""Trajectories as datasets of Hugging Face: to look at, to filter, to share and to learn from."""

from collections.abc import Iterable
from typing import Any

from pydantic_core import from_json

from gymhost.rollout.extras import require
from gymhost.rollout.trajectory import Trajectory

__all__ = ["sft_dataset", "to_dataset"]

# The columns, in their order; "json" is what has another shape with each environment.
_COLUMNS = {
    "env_id": "string",
    "id": "string",
    "split": "string",
    "task": "int64",
    "seed": "int64",
    "group": "string",
    "index": "int64",
    "messages": "list of json",
    "tools": "list of json",
    "reward": "float64",
    "rewards": "json",
    "outcome": "string",
    "limit": "string",
    "fault": "string",
    "turns": "int64",
    "sampled_tokens": "int64",
    "oldest_version": "int64",
    "newest_version": "int64",
    "created": "float64",
    "labels": "json",
    "info": "json",
}


def to_dataset(trajectories: Iterable[Trajectory]) -> Any:
    """Returns a `datasets.Dataset` with a row for each trajectory: what was said and how it ended, without token ids.

    Its columns are fields and properties of `Trajectory`, but `outcome`, `limit` and `fault` are those of the outcome,
    and `turns` is the number of them. `reward` is None where it is not known. A message has the keys that it was made
    with, whatever keys others have.

    Args:
        trajectories: What to show; all of the dataset is in memory.

    Raises:
        ImportError: datasets is not installed.
    """
    datasets = require("datasets", "data")
    kinds = {"json": datasets.Json(), "list of json": datasets.List(datasets.Json())}
    features = {name: kinds.get(kind) or datasets.Value(kind) for name, kind in _COLUMNS.items()}
    return _dataset([_row(trajectory) for trajectory in trajectories], features)


def sft_dataset(rows: Iterable[dict[str, Any]]) -> Any:
    """Returns a `datasets.Dataset` of what `sft_rows` or `sft_token_rows` yield, for TRL's SFTTrainer.

    Left to itself, `Dataset.from_list` gives each tool and each call the keys of all others.

    Args:
        rows: Rows of one kind; all of the dataset is in memory.

    Raises:
        ImportError: datasets is not installed.
    """
    datasets = require("datasets", "data")
    rows = list(rows)
    of_tokens = bool(rows) and "input_ids" in rows[0]
    inner = datasets.Value("int64") if of_tokens else datasets.Json()
    return _dataset(rows, {name: datasets.List(inner) for name in (rows[0] if rows else ("messages", "tools"))})


def _dataset(rows: list[dict[str, Any]], features: dict[str, Any]) -> Any:
    datasets = require("datasets", "data")
    columns = {name: [row[name] for row in rows] for name in features}
    return datasets.Dataset.from_dict(columns, features=datasets.Features(features))


def _row(trajectory: Trajectory) -> dict[str, Any]:
    # By way of JSON, so that nothing is left that JSON can't hold.
    record: dict[str, Any] = from_json(trajectory.model_dump_json(exclude={"token_rows", "turns"}))
    outcome = record["outcome"]
    record |= {"outcome": outcome["kind"], "limit": outcome["limit"], "fault": outcome["fault"]}
    record["turns"] = len(trajectory.turns)
    return {name: record[name] if name in record else getattr(trajectory, name) for name in _COLUMNS}
