"""Tasks: the problem instances of an environment, by index."""

import importlib
import json
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, SupportsIndex, cast, overload

import numpy as np

from gymhost.wire.errors import InvalidArgument

Task = dict[str, Any]

ENDLESS = 2**31
"""Endless tasks are drawn from as many; any index can be asked for."""


class Tasks(Sequence[Task]):
    """A split's tasks: dicts by index, listed or made on demand.

    Attributes:
        size: How many there are; None where they are made without end.
    """

    __slots__ = ("_get", "size")

    def __init__(self, tasks: Iterable[Task]) -> None:
        """Takes a list of tasks."""
        listed = list(tasks)
        self._get: Callable[[int], Task] = listed.__getitem__
        self.size: int | None = len(listed)

    @classmethod
    def generate(cls, function: Callable[[int], Task], size: int | None = None) -> Self:
        """Makes tasks on demand.

        Args:
            function: Returns the task of an index, the same one each time.
            size: How many there are; None means without end.
        """
        self = cls(())
        self._get = function
        self.size = size
        return self

    @classmethod
    def of(cls, tasks: Any) -> Self:
        """Takes anything with a length whose items are mappings, such as a `datasets.Dataset`; reads them on demand."""
        return cls.generate(lambda index: dict(tasks[index]), len(tasks))

    @classmethod
    def parquet(cls, path: str | Path) -> Self:
        """Reads tasks from a Parquet file, a row each; its columns are the fields.

        Raises:
            ModuleNotFoundError: pyarrow is not installed.
            OSError: The file can't be read.
            ValueError: It is no Parquet file.
        """
        table = _needed("pyarrow.parquet", "Tasks.parquet").read_table(path)
        return cls.generate(lambda index: table.slice(index, 1).to_pylist()[0], table.num_rows)

    @classmethod
    def dataset(cls, path: str, name: str | None = None, *, split: str, **options: Any) -> Self:
        """Loads a Hugging Face dataset, a row each.

        Args:
            path: What `datasets.load_dataset` calls so: a repository of the hub, a folder, or a format such as `csv`.
            name: The dataset's configuration.
            split: The dataset's split.
            **options: What else `datasets.load_dataset` takes, such as `revision` or `data_files`.

        Raises:
            ModuleNotFoundError: datasets is not installed.
        """
        return cls.of(_needed("datasets", "Tasks.dataset").load_dataset(path, name, split=split, **options))

    @classmethod
    def jsonl(cls, path: str | Path) -> Self:
        """Reads tasks from a file with a JSON object on each line.

        Raises:
            ValueError: A line is no JSON object; the message names file and line.
        """
        tasks: list[Task] = []
        for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), start=1):
            if not line.strip():
                continue
            try:
                task: object = json.loads(line)
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}") from None
            if not isinstance(task, dict):
                raise ValueError(f"{path}, line {number}: a task is a JSON object")
            tasks.append(cast(Task, task))
        return cls(tasks)

    def __deepcopy__(self, memo: object) -> Self:
        # Nothing changes them.
        return self

    def __len__(self) -> int:
        """Returns how many tasks there are.

        Raises:
            TypeError: They have no end; see `size`.
        """
        if self.size is None:
            raise TypeError("these tasks have no end, so no length")
        return self.size

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> list[Task]: ...
    def __getitem__(self, index: int | slice) -> Task | list[Task]:
        """Returns the task of an index, or a list of those of a slice."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(ENDLESS if self.size is None else self.size))]
        if self.size is not None and index < 0:
            index += self.size
        if index < 0 or (self.size is not None and index >= self.size):
            raise IndexError(f"there is no task {index}: {self._extent()}")
        return self._get(index)

    def __iter__(self) -> Iterator[Task]:
        """Goes through the tasks in order."""
        index = 0
        while self.size is None or index < self.size:
            yield self._get(index)
            index += 1

    def _extent(self) -> str:
        if self.size == 0:
            return "there is none"
        return "they begin at 0" if self.size is None else f"they are 0 to {self.size - 1}"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a task is.

    Attributes:
        split: The split's name.
        task: The task's index in it.
    """

    split: str
    task: int


def choose(
    splits: Mapping[str, Tasks], split: str | None, index: object, random: Callable[[], np.random.Generator]
) -> tuple[Place | None, Task]:
    """Finds the task to play.

    Args:
        splits: The tasks by split.
        split: The split's name; None means the first.
        index: The task's index in it; None draws one.
        random: Returns what to draw from.

    Returns:
        The place of the task, and the task: None and an empty one where there are no tasks.

    Raises:
        InvalidArgument: There is no such split or task; it is a ValueError too.
    """
    if not splits:
        if split is not None or index is not None:
            raise InvalidArgument("this environment has no tasks to choose from: give no `task` and no `split`")
        return None, {}
    if split is None:
        split = next(iter(splits))
    tasks = splits.get(split)
    if tasks is None:
        raise InvalidArgument(f"there is no split {split!r}: the splits are {', '.join(splits)}")
    if index is None:
        if tasks.size == 0:
            raise InvalidArgument(f"the split {split!r} has no tasks")
        index = random().integers(ENDLESS if tasks.size is None else tasks.size)
    if isinstance(index, bool) or not isinstance(index, SupportsIndex):
        raise InvalidArgument(f"`task` is the index of a task, not {index!r}")
    index = operator.index(index)
    try:
        if index < 0:
            raise IndexError(f"there is no task {index}: a task's index is 0 or more")
        return Place(split, index), tasks[index]
    except IndexError as error:
        raise InvalidArgument(f"split {split!r}: {error}") from None


def _needed(module: str, by: str) -> Any:
    """Imports what is no dependency of every environment."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        raise ModuleNotFoundError(f"{by} needs {package}: pip install {package}", name=error.name) from None
