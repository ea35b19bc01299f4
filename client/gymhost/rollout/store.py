"""Trajectories in files of JSON lines."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from gymhost.rollout.trajectory import Trajectory

__all__ = ["read_jsonl", "write_jsonl"]

SCHEMA = 1


def write_jsonl(path: str | Path, trajectories: Iterable[Trajectory], *, append: bool = False) -> int:
    """Writes trajectories, one a line, and returns how many.

    Each line is flushed as it is written, so a run that is cut off leaves all but its last line whole.
    """
    count = 0
    with Path(path).open("a" if append else "w", encoding="utf-8") as file:
        for trajectory in trajectories:
            record = {"schema": SCHEMA, **trajectory.model_dump(mode="json")}
            file.write(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")
            file.flush()
            count += 1
    return count


def read_jsonl(path: str | Path) -> Iterator[Trajectory]:
    """Reads what `write_jsonl` wrote.

    Raises:
        ValueError: A line is no trajectory, or of a later schema than this version knows.
    """
    with Path(path).open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                record: dict[str, Any] = json.loads(line)
                schema = record.pop("schema")
                trajectory = Trajectory.model_validate(record) if schema == SCHEMA else None
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ValueError(f"{path}, line {number}: this is no trajectory") from error
            if trajectory is None:
                raise ValueError(f"{path}, line {number}: schema {schema}, this version of gymhost reads {SCHEMA}")
            yield trajectory
