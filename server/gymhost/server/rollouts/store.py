"""What the rollout service keeps: jobs, what they have begun, and results until they are acknowledged."""

import enum
import json
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from gymhost.rollout.trajectory import Trajectory
from gymhost.server.rollouts.database import Change, Database, StoreError
from gymhost.v1 import rollouts_pb2 as pb

__all__ = ["JobRow", "JobStore", "RolloutRow", "State", "StoreError"]

_APPLICATION = 0x67796D68  # "gymh"

# A rollout has a row from when it begins until its result is acknowledged, and then none: whatever a job has begun and
# has no row is over. `next` is the first rollout that has never begun.
_TABLES = """
    CREATE TABLE settings (name TEXT PRIMARY KEY, value BLOB NOT NULL);
    CREATE TABLE jobs (
        job INTEGER PRIMARY KEY, info BLOB NOT NULL, tasks INTEGER NOT NULL, next INTEGER NOT NULL,
        paused INTEGER NOT NULL, rewards REAL NOT NULL, touched REAL NOT NULL
    );
    CREATE TABLE requests (job INTEGER PRIMARY KEY, request BLOB NOT NULL);
    CREATE TABLE tasks (job INTEGER NOT NULL, first INTEGER NOT NULL, tasks BLOB NOT NULL, UNIQUE (job, first));
    CREATE TABLE rollouts (
        id INTEGER PRIMARY KEY, job INTEGER NOT NULL, number INTEGER NOT NULL, state INTEGER NOT NULL,
        attempts INTEGER NOT NULL, kind TEXT, reward REAL, oldest INTEGER, ended REAL, bytes INTEGER,
        cursor INTEGER UNIQUE, last INTEGER, UNIQUE (job, number)
    );
    CREATE INDEX results ON rollouts (job, cursor) WHERE cursor IS NOT NULL;
    CREATE TABLE bodies (rollout INTEGER PRIMARY KEY, body BLOB NOT NULL);
    CREATE TRIGGER forgotten AFTER DELETE ON rollouts BEGIN DELETE FROM bodies WHERE rollout = old.id; END
"""

_TASKS_BYTES = 256 * 1024
_TASKS_COUNT = 64
# The setting that holds the last cursor; what others remember is called otherwise.
_CURSOR = "jobs.cursor"


class State(enum.IntEnum):
    """Where a rollout is that has a row."""

    BEGUN = 0
    """It is in flight, or will be begun again."""
    HELD = 1
    """It has ended, and its group has not."""
    COMPLETE = 2
    """Its group is complete, and waits for the target to be raised."""
    READY = 3
    """It has a cursor: its result waits to be acknowledged."""
    SKIPPED = 4
    """It was cancelled before its turn came."""


class JobRow(NamedTuple):
    """A job as it is on disk."""

    job: int
    info: bytes
    tasks: int
    next: int
    paused: int
    rewards: float
    touched: float


class RolloutRow(NamedTuple):
    """A rollout as it is on disk."""

    job: int
    number: int
    state: int
    attempts: int
    kind: str | None
    reward: float | None
    oldest: int | None
    bytes: int | None


class JobStore(Database):
    """The file of a rollout service.

    Args:
        path: The SQLite file; it is made where there is none.

    Raises:
        StoreError: It can't be used: another process has it, it is none of ours, or it is of a later version.
    """

    def __init__(self, path: str | Path) -> None:
        super().__init__(path, _APPLICATION, [_TABLES])
        rows = self._thread.submit(lambda: self._db.execute("SELECT name, value FROM settings").fetchall()).result()
        self._settings: dict[str, bytes] = dict(rows)
        self.cursors = Cursors(int(self._settings.get(_CURSOR, b"0")))

    # -- settings ------------------------------------------------------------------------------------------------------

    async def remember(self, name: str, value: bytes | None) -> None:
        """Keeps something under a name, or with None nothing any more; it is on disk when this returns.

        Raises:
            ServerFault: The file can't be written.
        """
        if value is None:
            self._settings.pop(name, None)
            self.change("DELETE FROM settings WHERE name = ?", name)
        else:
            self._settings[name] = value
            self.change("INSERT OR REPLACE INTO settings VALUES (?, ?)", name, value)
        await self.commit()

    def recall(self, name: str) -> bytes | None:
        """Returns what was kept last under a name."""
        return self._settings.get(name)

    # -- jobs ----------------------------------------------------------------------------------------------------------

    def add_job(self, job: int, request: pb.SubmitJobRequest, tasks: Sequence["Tasks"]) -> None:
        """Keeps what was submitted: the request without its tasks, and these apart."""
        self.change("INSERT OR REPLACE INTO requests VALUES (?, ?)", job, request.SerializeToString())
        self.add_tasks(job, 0, tasks)

    def add_tasks(self, job: int, first: int, tasks: Sequence["Tasks"]) -> None:
        """Keeps more tasks of a job, the first of which has the place `first`."""
        for each in tasks:
            self.change("INSERT OR REPLACE INTO tasks VALUES (?, ?, ?)", job, first, each.data)
            first += each.number

    def end_job(self, job: int) -> None:
        """Forgets what a job that has ended needs no more: all but its results."""
        self.change("DELETE FROM rollouts WHERE job = ? AND state <> ?", job, State.READY)
        self.change("DELETE FROM tasks WHERE job = ?", job)

    def forget_job(self, job: int) -> None:
        """Forgets a job, its results too."""
        for table in ("jobs", "requests", "tasks", "rollouts"):
            self.change(f"DELETE FROM {table} WHERE job = ?", job)

    async def tasks(self, job: int, place: int) -> tuple[int, list[pb.RolloutTask]]:
        """Reads the tasks around a place.

        Returns:
            The place of the first of them, and the tasks; none if they are kept no more.

        Raises:
            ServerFault: They are not in the file yet, which can't be written.
        """
        query = "SELECT first, tasks FROM tasks WHERE job = ? AND first <= ? ORDER BY first DESC LIMIT 1"
        for written in (False, True):
            if written:  # it may be that they were not
                await self.commit()
            found = await self.read(lambda db: db.execute(query, (job, place)).fetchone())
            if found is not None:
                first, data = found
                tasks = list(pb.SubmitJobRequest.FromString(data).tasks)
                if place < first + len(tasks):
                    return first, tasks
        return place, []

    # -- rollouts ------------------------------------------------------------------------------------------------------

    def begun(self, job: int, number: int, attempts: int) -> None:
        """A rollout begins, or is to begin again; whatever had come of it is forgotten.

        Args:
            job: The job.
            number: The rollout's.
            attempts: How often it has ended in a fault.
        """
        self.change("DELETE FROM rollouts WHERE job = ? AND number = ?", job, number)
        self.change(
            "INSERT INTO rollouts (job, number, state, attempts) VALUES (?, ?, ?, ?)",
            job, number, State.BEGUN, attempts,
        )  # fmt: skip

    def ended(self, job: int, number: int, trajectory: Trajectory, ended: float, body: bytes) -> None:
        """Keeps what came of a rollout: it is held, until it is said what becomes of it."""
        self.change(
            "UPDATE rollouts SET state = ?, kind = ?, reward = ?, oldest = ?, ended = ?, bytes = ?"
            " WHERE job = ? AND number = ?",
            State.HELD, trajectory.outcome.kind, trajectory.reward if trajectory.valid else None,
            trajectory.oldest_version, ended, len(body), job, number,
        )  # fmt: skip
        self.change(
            "INSERT OR REPLACE INTO bodies SELECT id, ? FROM rollouts WHERE job = ? AND number = ?", body, job, number
        )

    def complete(self, job: int, number: int) -> None:
        """A result that is held belongs to a group that is complete, and waits for the target to be raised."""
        self.change("UPDATE rollouts SET state = ? WHERE job = ? AND number = ?", State.COMPLETE, job, number)

    def deliver(self, job: int, number: int, last: bool) -> int:
        """Lets a result be sent; returns its cursor.

        Args:
            job: The job.
            number: The rollout's.
            last: Whether it is the last of its group.
        """
        cursor = self.cursors.next()
        self.touch(self.cursors)
        self.change(
            "UPDATE rollouts SET state = ?, cursor = ?, last = ? WHERE job = ? AND number = ?",
            State.READY, cursor, last, job, number,
        )  # fmt: skip
        return cursor

    def forget(self, job: int, number: int) -> None:
        """A rollout is over, and has no result, or none any more."""
        self.change("DELETE FROM rollouts WHERE job = ? AND number = ?", job, number)

    def skip(self, job: int, number: int) -> None:
        """A rollout is not to begin when its turn comes."""
        self.change(
            "INSERT OR REPLACE INTO rollouts (job, number, state, attempts) VALUES (?, ?, ?, 0)",
            job, number, State.SKIPPED,
        )  # fmt: skip

    # -- results -------------------------------------------------------------------------------------------------------

    async def results(self, jobs: Iterable[int], after: int, upto: int, most: int, size: int) -> list["Kept"]:
        """Reads results in the order of their cursors.

        Args:
            jobs: Whose.
            after: Only those with higher cursors.
            upto: Only those with cursors no higher.
            most: At most so many.
            size: Bytes after which no more are read.
        """
        chosen = list(jobs)
        one = len(chosen) == 1
        query = (
            "SELECT r.cursor, r.job, r.last, r.bytes, b.body FROM rollouts r JOIN bodies b ON b.rollout = r.id WHERE "
            # With the sign in front the index of cursors is walked, and nothing sorted.
            + ("r.job = ?1" if one else "+r.job IN (SELECT value FROM json_each(?1))")
            + " AND r.cursor > ?2 AND r.cursor <= ?3 ORDER BY r.cursor LIMIT ?4"
        )
        given = chosen[0] if one else json.dumps(chosen)

        def read(db: sqlite3.Connection) -> list[Kept]:
            found: list[Kept] = []
            for cursor, job, last, length, body in db.execute(query, (given, after, upto, most)):
                found.append(Kept(cursor, job, bool(last), body))
                size_left[0] -= length
                if size_left[0] <= 0:
                    break
            return found

        size_left = [size]
        return await self.read(read)

    async def holders(self, cursors: Iterable[int]) -> list[tuple[int, int, int, int]]:
        """Whose results these are, of those that are kept: cursor, job, number and bytes."""
        query = "SELECT cursor, job, number, bytes FROM rollouts WHERE cursor IN (SELECT value FROM json_each(?))"
        given = json.dumps(list(cursors))
        return await self.read(lambda db: db.execute(query, (given,)).fetchall())

    async def older(self, than: float, most: int) -> list[int]:
        """The cursors of results of rollouts that ended before a moment, the oldest first."""
        query = "SELECT cursor FROM rollouts WHERE cursor IS NOT NULL AND ended < ? ORDER BY cursor LIMIT ?"
        return [cursor for (cursor,) in await self.read(lambda db: db.execute(query, (than, most)).fetchall())]

    # -- after a restart -----------------------------------------------------------------------------------------------

    async def load(self) -> "Loaded":
        """Reads all that is kept but tasks and results."""

        def read(db: sqlite3.Connection) -> Loaded:
            live = "SELECT job, number, state, attempts, kind, reward, oldest, bytes FROM rollouts WHERE state <> ?"
            sums = "SELECT job, count(*), sum(bytes) FROM rollouts WHERE state = ? GROUP BY job"
            return Loaded(
                [JobRow(*row) for row in db.execute("SELECT * FROM jobs ORDER BY job")],
                dict(db.execute("SELECT job, request FROM requests")),
                [RolloutRow(*row) for row in db.execute(live + " ORDER BY ended, id", (State.READY,))],
                {job: (count, size) for job, count, size in db.execute(sums, (State.READY,))},
            )

        return await self.read(read)


class Cursors:
    """The cursors of results, none of which is used twice: a record of the last one."""

    def __init__(self, last: int) -> None:
        self._last = last

    def next(self) -> int:
        """Returns one that was never used."""
        self._last += 1
        return self._last

    def snapshot(self) -> Change:
        """The statement that writes it."""
        return "INSERT OR REPLACE INTO settings VALUES (?, ?)", (_CURSOR, b"%d" % self._last)

    def saved(self) -> None:
        """Nobody is told."""


class Kept(NamedTuple):
    """A result that waits to be acknowledged."""

    cursor: int
    job: int
    last: bool
    body: bytes


class Loaded(NamedTuple):
    """What was found in the file."""

    jobs: list[JobRow]
    requests: dict[int, bytes]
    rollouts: list[RolloutRow]
    unacknowledged: dict[int, tuple[int, int]]


class Tasks(NamedTuple):
    """Some tasks as they are kept."""

    number: int
    data: bytes

    @classmethod
    def pack(cls, tasks: Iterable[pb.RolloutTask]) -> list["Tasks"]:
        """Packs tasks, so many together as are worth reading at once."""
        packed: list[Tasks] = []
        some, size = pb.SubmitJobRequest(), 0
        for task in tasks:
            some.tasks.append(task)
            size += task.ByteSize()
            if size >= _TASKS_BYTES or len(some.tasks) == _TASKS_COUNT:
                packed.append(cls(len(some.tasks), some.SerializeToString()))
                some, size = pb.SubmitJobRequest(), 0
        if some.tasks:
            packed.append(cls(len(some.tasks), some.SerializeToString()))
        return packed
