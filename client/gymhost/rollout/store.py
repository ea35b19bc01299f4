"""Trajectories kept in a folder: appended as they finish, safe against crashes, and read by resuming and by viewers.

A store is three files: `run.json` (the schema's version and the settings of the run), `trajectories.jsonl` (one
trajectory a line) and `pieces.jsonl` (the texts of the token ids that occur, as they first did).
"""

import contextlib
import io
import json
import logging
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

from pydantic import ValidationError
from pydantic_core import from_json

from gymhost.rollout.parquet import write_parquet
from gymhost.rollout.pieces import pieces
from gymhost.rollout.plain import plain
from gymhost.rollout.requests import RolloutRequest
from gymhost.rollout.trajectory import SCHEMA, Outcome, Trajectory

__all__ = ["RolloutKey", "Store", "StoreError", "rollout_key"]

logger = logging.getLogger(__name__)

_RUN = "run.json"
_TRAJECTORIES = "trajectories.jsonl"
_PIECES = "pieces.jsonl"
_LOCK = "lock"
_HEAD = 4096  # bytes of a line, in which what tells one rollout from another nearly always is


class StoreError(Exception):
    """A folder is no store, is in use, or holds what can't be read."""


RolloutKey = tuple[str, str | None, int | None, int | None, str | None, int]
"""What tells the rollouts of a run apart: env_id, split, task, seed, group and index."""

_KEY = ("env_id", "split", "task", "seed", "group", "index")


def rollout_key(item: RolloutRequest | Trajectory) -> RolloutKey:
    """Returns what tells a rollout, made or asked for, from the others of its run."""
    return item.env_id, item.split, item.task, item.seed, item.group, item.index


class Store:
    """A folder of trajectories; made by `create` and `open`.

        with Store.create("runs/1", settings={"env": "gymhost/GuessNumber-v0"}) as store:
            async for trajectory in engine.run(requests):
                store.append(trajectory, tokenizer)

    One store at a time writes to a folder; any number may read it meanwhile, each seeing what was whole when it looked.

    Attributes:
        path: The folder.
        settings: What the run was made with, as JSON has it.
    """

    def __init__(self, path: Path, settings: dict[str, Any], writer: "_Writer | None") -> None:
        self.path = path
        self.settings = settings
        self._writer = writer

    @classmethod
    def create(cls, path: str | Path, settings: Mapping[str, Any] | None = None) -> Self:
        """Makes a new store and opens it for writing.

        Args:
            path: The folder. It is made if it is not there.
            settings: What the run is made with, for whoever reads or resumes it; kept as JSON.

        Raises:
            StoreError: The folder holds a store already, or anything else.
        """
        path = Path(path)
        cls.check_free(path)
        path.mkdir(parents=True, exist_ok=True)
        writer = _Writer(path)
        try:
            kept = plain(dict(settings or {}))
            run = {"schema": SCHEMA, "created": time.time(), "settings": kept}
            half = path / f"{_RUN}.new"
            half.write_text(json.dumps(run, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
            half.replace(path / _RUN)
        except BaseException:
            writer.close()
            raise
        return cls(path, kept, writer)

    @staticmethod
    def check_free(path: str | Path) -> None:
        """Sees whether a store can be made there, and makes none.

        Raises:
            StoreError: The folder holds a store already, or anything else.
        """
        path = Path(path)
        if path.exists() and not path.is_dir():
            raise StoreError(f"{path} is a file: name a folder")
        if (path / _RUN).exists():
            raise StoreError(f"{path} holds a store already: resume it, or name another folder")
        if path.exists() and any(entry.name != _LOCK for entry in path.iterdir()):
            raise StoreError(f"{path} is not empty, and holds no store: name another folder")

    @classmethod
    def open(cls, path: str | Path, *, writing: bool = False) -> Self:
        """Opens a store that is there.

        Args:
            path: The folder.
            writing: Whether to append to it, as resuming a run does. A line that a crash left half written is cut off.

        Raises:
            StoreError: The folder holds no store, or one of a later schema; or another is writing to it.
        """
        path = Path(path)
        try:
            run: dict[str, Any] = json.loads((path / _RUN).read_text(encoding="utf-8"))
            schema, settings = int(run["schema"]), dict(run["settings"])
        except (FileNotFoundError, NotADirectoryError):
            raise StoreError(f"{path} is no store of rollouts: it has no {_RUN}") from None
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(f"{path} is no store of rollouts: its {_RUN} can't be read") from error
        if schema > SCHEMA:
            raise StoreError(f"{path} has schema {schema}, this version of gymhost reads up to {SCHEMA}: update it")
        return cls(path, settings, _Writer(path) if writing else None)

    def append(self, trajectory: Trajectory, tokenizer: Any = None) -> None:
        """Adds a trajectory, which is in the file when this returns.

        Args:
            trajectory: What to keep.
            tokenizer: The tokenizer of its ids. With one, the texts of ids that had not occurred are kept too.

        Raises:
            StoreError: The store was opened for reading, or is closed.
            OSError: The file can't be written, say as the disk is full; the store stays as it was.
        """
        if self._writer is None:
            raise StoreError(f"{self.path} is open for reading alone: open it with writing=True")
        if tokenizer is not None:
            self._writer.note(trajectory, tokenizer)
        self._writer.append(_TRAJECTORIES, trajectory.model_dump_json())

    def sync(self) -> None:
        """Has what was appended outlive the machine: it is on the disk when this returns.

        Raises:
            StoreError: The store was opened for reading, or is closed.
            OSError: The disk refuses.
        """
        if self._writer is None:
            raise StoreError(f"{self.path} is open for reading alone: open it with writing=True")
        self._writer.sync()

    def __iter__(self) -> Iterator[Trajectory]:
        """The trajectories, in the order in which they were appended.

        Raises:
            StoreError: A line is no trajectory; it is named.
        """
        for number, line in enumerate(_lines(self.path / _TRAJECTORIES), 1):
            try:
                trajectory = Trajectory.model_validate_json(line)
            except ValidationError as error:
                raise StoreError(f"{self.path / _TRAJECTORIES}, line {number}: this is no trajectory") from error
            yield trajectory

    def __len__(self) -> int:
        return sum(1 for _ in _lines(self.path / _TRAJECTORIES))

    def done(self) -> set[RolloutKey]:
        """Returns what need not be made again when the run is resumed: all that is here and came to an end.

        What was cancelled, or failed by the fault of infrastructure or of a generator, is not done; made again, it is
        here twice.

            done = store.done()
            left = [request for request in requests if rollout_key(request) not in done]

        A rollout that was asked for without a task has here the one that the environment drew.

        Raises:
            StoreError: A line is no trajectory; it is named.
        """
        found: set[RolloutKey] = set()
        for number, line in enumerate(_lines(self.path / _TRAJECTORIES), 1):
            try:
                head = _head(line)
                if Outcome.model_validate(head["outcome"]).final:
                    found.add(cast(RolloutKey, tuple(head[name] for name in _KEY)))
            except (ValueError, KeyError, TypeError) as error:
                raise StoreError(f"{self.path / _TRAJECTORIES}, line {number}: this is no trajectory") from error
        return found

    @property
    def pieces(self) -> dict[int, str]:
        """The text of each token id that occurs, as far as trajectories were appended with a tokenizer.

        Raises:
            StoreError: The file can't be read.
        """
        return _read_pieces(self.path)

    def to_parquet(self, path: str | Path) -> int:
        """Writes the trajectories into a Parquet file, as `write_parquet` does, and returns how many.

        Raises:
            StoreError: A line is no trajectory; it is named.
            ImportError: pyarrow is not installed.
        """
        return write_parquet(path, self)

    def close(self) -> None:
        """Ends the writing, so that another may begin. The store can still be read."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Store {self.path}>"


class _Writer:
    """The one who may append to a store."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stack = contextlib.ExitStack()
        try:
            self._lock()
            self._files: dict[str, io.FileIO] = {}
            for name in (_PIECES, _TRAJECTORIES):
                self._files[name] = self._stack.enter_context(io.FileIO(path / name, "a+"))
                _cut_half_line(path / name, self._files[name])
            self._known = set(_read_pieces(path))
        except BaseException:
            self._stack.close()
            raise

    def _lock(self) -> None:
        try:
            import fcntl
        except ImportError:  # there is none on Windows
            return
        file = self._stack.enter_context(io.FileIO(self._path / _LOCK, "a+"))
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            owner = file.read(32).decode("ascii", "replace").strip()
            raise StoreError(f"{self._path} is being written by another run (process {owner or 'unknown'})") from None
        except OSError as error:
            logger.warning("%s can't be locked (%s): see to it that one run at a time writes to it", self._path, error)
        file.truncate(0)
        file.write(f"{os.getpid()}\n".encode())

    def note(self, trajectory: Trajectory, tokenizer: Any) -> None:
        """Keeps the texts of the ids that had not occurred."""
        new: set[int] = set()
        for row in trajectory.token_rows:
            new.update(row.prompt_ids, row.completion_ids)
        new -= self._known
        if new:
            self.append(_PIECES, json.dumps(plain(pieces(tokenizer, sorted(new))), ensure_ascii=False))
            self._known |= new

    def append(self, name: str, line: str) -> None:
        """Adds a line: all of it or nothing."""
        file = self._files[name]
        end = file.seek(0, os.SEEK_END)
        left = memoryview(line.encode() + b"\n")
        try:
            while left:
                left = left[file.write(left) :]
        except BaseException:
            file.truncate(end)
            raise

    def sync(self) -> None:
        for file in self._files.values():
            os.fsync(file.fileno())

    def close(self) -> None:
        self._stack.close()


def _lines(path: Path) -> Iterator[bytes]:
    """The whole lines of a file; none if it is not there."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        left = os.fstat(file.fileno()).st_size  # and no more than that: a writer may be faster than whoever reads
        for line in file:
            left -= len(line)
            if left < 0 or not line.endswith(b"\n"):  # the last one may be being written
                return
            yield line


def _head(line: bytes) -> dict[str, Any]:
    """What a line says first, up to the messages at least: token ids, which make it long, come after these."""
    head: dict[str, Any] = from_json(line[:_HEAD], allow_partial=True)
    return head if "messages" in head else from_json(line)


def _cut_half_line(path: Path, file: io.FileIO) -> None:
    end = file.seek(0, os.SEEK_END)
    start = end
    while start:
        block = max(0, start - 65536)
        file.seek(block)
        place = file.read(start - block).rfind(b"\n")
        if place >= 0:
            start = block + place + 1
            break
        start = block
    if start < end:
        logger.warning("%s ended in half a line, which a crash left: %d bytes are cut off", path, end - start)
        file.truncate(start)


def _read_pieces(path: Path) -> dict[int, str]:
    found: dict[int, str] = {}
    for number, line in enumerate(_lines(path / _PIECES), 1):
        try:
            found.update({int(token_id): str(text) for token_id, text in json.loads(line).items()})
        except (ValueError, AttributeError) as error:
            raise StoreError(f"{path / _PIECES}, line {number}: these are no texts of token ids") from error
    return found
