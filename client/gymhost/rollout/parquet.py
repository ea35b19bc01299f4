"""Trajectories in Parquet files, a row each, for tools that read tables."""

import json
import types
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import from_json

from gymhost.rollout.extras import require
from gymhost.rollout.trajectory import SCHEMA, Outcome, Row, Timings, Trajectory

__all__ = ["read_parquet", "write_parquet"]

_SCHEMA_KEY = b"gymhost.rollout.schema"
_BATCH = 256  # trajectories that are in memory at once, which make up a row group of the file

_FLAT: dict[str, type[BaseModel]] = {"outcome": Outcome, "timings": Timings}  # a column for each of their fields
_JSON = ("rewards", "messages", "asides", "tools", "labels", "info")  # of another shape with each environment
_ROWS = "token_rows"  # a column for each field of a row, which holds a list for each row


def write_parquet(path: str | Path, trajectories: Iterable[Trajectory]) -> int:
    """Writes trajectories into a Parquet file and returns how many.

    The columns are the fields of `Trajectory`. Those of the outcome and of the timings are columns of their own, such
    as `outcome_kind`; `prompt_ids`, `completion_ids`, `mask`, `logprobs` and `policy_versions` hold a list for each
    token row; `turns` is a list of structs; `rewards`, `messages`, `asides`, `tools`, `labels` and `info` are JSON
    text.

    Args:
        path: The file. It is there when all of it is written, in place of one that was there before.
        trajectories: What to write. Of an iterator, a part at a time is in memory.

    Raises:
        ImportError: pyarrow is not installed.
    """
    pyarrow, parquet = require("pyarrow", "data"), require("pyarrow.parquet", "data")
    schema = _schema()
    path = Path(path)
    half = path.with_name(f"{path.name}.new")
    items = iter(trajectories)
    count = 0
    try:
        with parquet.ParquetWriter(half, schema, compression="zstd") as writer:
            while batch := [_record(trajectory) for trajectory in islice(items, _BATCH)]:
                writer.write_table(pyarrow.Table.from_pylist(batch, schema))
                count += len(batch)
        half.replace(path)
    finally:
        half.unlink(missing_ok=True)
    return count


def read_parquet(path: str | Path) -> Iterator[Trajectory]:
    """Reads what `write_parquet` wrote, a part at a time.

    Raises:
        ValueError: The file holds no trajectories, or those of a later schema than this version knows.
        ImportError: pyarrow is not installed.
    """
    pyarrow, parquet = require("pyarrow", "data"), require("pyarrow.parquet", "data")
    try:
        file = parquet.ParquetFile(path)
    except pyarrow.ArrowInvalid as error:
        raise ValueError(f"{path} is no Parquet file") from error
    with file:
        metadata: dict[bytes, bytes] = file.schema_arrow.metadata or {}
        if _SCHEMA_KEY not in metadata:
            raise ValueError(f"{path} holds no trajectories of gymhost")
        schema = int(metadata[_SCHEMA_KEY])
        if schema > SCHEMA:
            raise ValueError(f"{path} has schema {schema}, this version of gymhost reads up to {SCHEMA}: update it")
        for batch in file.iter_batches(batch_size=_BATCH):
            for record in batch.to_pylist():
                yield _trajectory(record)


def _schema() -> Any:
    pyarrow = require("pyarrow", "data")
    columns: dict[str, Any] = {}
    for name, field in Trajectory.model_fields.items():
        if name in _JSON:
            columns[name] = pyarrow.string()
        elif name in _FLAT:
            columns |= {f"{name}_{inner}": kind for inner, kind in _kinds(_FLAT[name]).items()}
        elif name == _ROWS:
            columns |= {inner: pyarrow.list_(kind) for inner, kind in _kinds(Row).items()}
        else:
            columns[name] = _kind(field.annotation)
    return pyarrow.schema(columns, {_SCHEMA_KEY: str(SCHEMA)})


def _kinds(model: type[BaseModel]) -> dict[str, Any]:
    return {name: _kind(field.annotation) for name, field in model.model_fields.items()}


def _kind(annotation: Any) -> Any:
    """The type of a column for what a field is annotated with; any column may be null."""
    pyarrow = require("pyarrow", "data")
    scalars = {str: pyarrow.string(), int: pyarrow.int64(), float: pyarrow.float64(), bool: pyarrow.bool_()}
    if annotation in scalars:
        return scalars[annotation]
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is list:
        return pyarrow.list_(_kind(inner[0]))
    if origin is Literal:
        return pyarrow.string()
    if origin in (types.UnionType, Union):
        return _kind(next(kind for kind in inner if kind is not type(None)))
    if origin is Annotated:
        return _kind(inner[0])
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return pyarrow.struct(_kinds(annotation))
    raise TypeError(f"no column can hold {annotation}")


def _record(trajectory: Trajectory) -> dict[str, Any]:
    record: dict[str, Any] = from_json(trajectory.model_dump_json(exclude={_ROWS}))
    for name in _FLAT:
        record |= {f"{name}_{inner}": value for inner, value in record.pop(name).items()}
    for name in _JSON:
        record[name] = json.dumps(record[name], ensure_ascii=False)
    for name in Row.model_fields:
        record[name] = [getattr(row, name) for row in trajectory.token_rows]
    return record


def _trajectory(record: dict[str, Any]) -> Trajectory:
    for name, model in _FLAT.items():
        record[name] = {inner: record.pop(f"{name}_{inner}") for inner in model.model_fields}
    for name in _JSON:
        record[name] = from_json(record[name])
    columns = {name: record.pop(name) for name in Row.model_fields}
    record[_ROWS] = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return Trajectory.model_validate({name: record[name] for name in Trajectory.model_fields})
