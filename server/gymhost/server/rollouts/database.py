"""A SQLite file that one process writes, in transactions that gather what comes while the last one is committed."""

import asyncio
import contextlib
import fcntl
import logging
import os
import sqlite3
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, TypeVar

from gymhost.wire.errors import ServerFault

__all__ = ["Change", "Database", "Record", "StoreError"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

Change = tuple[str, tuple[Any, ...]]
"""A statement and its parameters. It must do no harm if it is done twice."""

_COMMIT_SECONDS = 60.0
_TRY_AGAIN_SECONDS = 1.0
_MOST_PENDING, _MOST_PENDING_BYTES = 4096, 64 * 2**20


class StoreError(Exception):
    """The file can't be used: another process has it, it is none of ours, or it is of a later version."""


class Record(Protocol):
    """Something in memory with a row of its own, which is written once a transaction, however often it changed."""

    def snapshot(self) -> Change:
        """The statement that writes the row as it is now."""
        ...

    def saved(self) -> None:
        """Called when the last snapshot is on disk."""
        ...


class Database:
    """A SQLite file, written by one thread. The methods are called in one event loop.

    What is changed is gathered, and written in one transaction, together with a snapshot of all records that were
    touched: the file holds what memory held at one moment, and what came later not at all. A transaction that fails,
    say as the disk is full, is tried again until it succeeds, and meanwhile nobody is told of what it holds.

    Args:
        path: The file; it is made where there is none, for its user alone. `PATH.lock` is made beside it.
        application: The number that tells such files from others.
        schemas: The statements that lead from each version of the tables to the next one.

    Raises:
        StoreError: The file can't be used.
    """

    def __init__(self, path: str | Path, application: int, schemas: list[str]) -> None:
        self.path = Path(path)
        self.trouble = ""
        """Why nothing can be written at this moment; empty where it can."""
        self._pending: list[Change] = []
        self._pending_bytes = 0
        self._touched: dict[int, Record] = {}
        self._gathering: asyncio.Future[None] | None = None
        self._writing: asyncio.Future[None] | None = None
        self._committer: asyncio.Task[None] | None = None
        self._broken: BaseException | None = None
        self._failed = asyncio.Event()
        self._stack = contextlib.ExitStack()
        try:
            self._lock()
            self._thread = self._stack.enter_context(ThreadPoolExecutor(1, "gymhost-store"))
            self._db = self._thread.submit(_open, self.path, application, schemas).result()
        except BaseException:
            self._stack.close()
            raise

    # -- writing -------------------------------------------------------------------------------------------------------

    @property
    def behind(self) -> bool:
        """Whether so much waits to be written that nothing should be added to it, or nothing can be written."""
        return bool(self.trouble) or len(self._pending) > _MOST_PENDING or self._pending_bytes > _MOST_PENDING_BYTES

    @property
    def broken(self) -> bool:
        """Whether the file is written no more."""
        return self._broken is not None

    def change(self, statement: str, *parameters: Any) -> None:
        """Has a statement done in the next transaction. It must do no harm if it is done twice.

        Raises:
            ServerFault: The file is written no more.
        """
        self._pending.append((statement, parameters))
        self._pending_bytes += sum(len(value) for value in parameters if isinstance(value, bytes))
        self._begin()

    def touch(self, record: Record) -> None:
        """Has a record written in the next transaction, as it is then."""
        self._touched[id(record)] = record
        self._begin()

    async def commit(self) -> None:
        """Returns when all that was changed is on disk.

        Raises:
            ServerFault: It is not for a minute, say as the disk is full. It will be as soon as that is possible.
        """
        future = self._gathering or self._writing
        if future is None:
            self._check()
            return
        try:
            async with asyncio.timeout(_COMMIT_SECONDS):
                await asyncio.shield(future)
        except TimeoutError:
            raise ServerFault(f"{self.path} can't be written: {self.trouble or 'the disk is too slow'}") from None

    def once_written(self, then: Callable[[], object]) -> None:
        """Has a function called when all that was changed is on disk, or the file is written no more."""
        if (future := self._gathering or self._writing) is None:
            then()
        else:
            future.add_done_callback(lambda _: then())

    async def read(self, function: Callable[[sqlite3.Connection], T]) -> T:
        """Calls a function with the connection, in the database's thread; it sees what is on disk."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, self._db)

    async def failed(self) -> str:
        """Waits until the file is written no more, which is a fault of gymhost's; returns why."""
        await self._failed.wait()
        return repr(self._broken)

    async def aclose(self) -> None:
        """Writes what waits, as far as it can be written, and closes the file."""
        try:
            await self.commit()
        finally:
            if self._committer is not None:
                self._committer.cancel()
                await asyncio.wait([self._committer])
            self.close()

    def close(self) -> None:
        """Closes the file; what waits to be written is lost."""
        self._thread.submit(self._db.close).result()
        self._stack.close()

    # ------------------------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._broken is not None:
            raise ServerFault(f"{self.path} is written no more: {self._broken!r}")

    def _begin(self) -> None:
        self._check()
        if self._gathering is None:
            self._gathering = asyncio.get_running_loop().create_future()
            self._gathering.add_done_callback(_seen)
        if self._committer is None:
            self._committer = asyncio.get_running_loop().create_task(self._commit_all())

    async def _commit_all(self) -> None:
        """Writes until nothing is left; it begins when the loop has done what it is about, all of which goes along."""
        loop = asyncio.get_running_loop()
        while (future := self._gathering) is not None:
            self._gathering, self._writing = None, future
            batch, self._pending, self._pending_bytes = self._pending, [], 0
            touched, self._touched = list(self._touched.values()), {}
            try:
                batch.extend(record.snapshot() for record in touched)
                while (error := await loop.run_in_executor(self._thread, _write, self._db, batch)) is not None:
                    self.trouble = str(error)
                    logger.error("%s can't be written, and is tried again: %s", self.path, error)
                    await asyncio.sleep(_TRY_AGAIN_SECONDS)
                self.trouble = ""
                for record in touched:
                    record.saved()
            except BaseException as error:
                # Memory and file have parted: nothing that comes now may be told to anybody.
                self._broken = error
                self._failed.set()
                for waiting in (future, self._gathering):
                    if waiting is not None and not waiting.done():
                        waiting.set_exception(ServerFault(f"{self.path} is written no more: {error!r}"))
                if isinstance(error, Exception):
                    logger.critical("%s is written no more", self.path, exc_info=True)
                raise
            self._writing = None
            future.set_result(None)
        self._committer = None

    def _lock(self) -> None:
        """Sees to it that no other process has the file. The lock goes with the process, however it ends."""
        place = self.path.with_name(self.path.name + ".lock")
        try:
            descriptor = os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreError(f"{place} can't be opened: {error.strerror}") from None
        self._stack.callback(os.close, descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(descriptor, 32).decode("ascii", "replace").strip()
            raise StoreError(
                f"{self.path} is in use (by process {owner or 'unknown'}): stop that service, or name another file"
            ) from None
        os.truncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())


def _open(path: Path, application: int, schemas: list[str]) -> sqlite3.Connection:
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))  # SQLite's other files get its mode
        db = sqlite3.connect(path, isolation_level=None)
    except (OSError, sqlite3.Error) as error:
        raise StoreError(f"{path} can't be opened: {error}") from None
    try:
        [found], [version] = (
            db.execute("PRAGMA application_id").fetchone(),
            db.execute("PRAGMA user_version").fetchone(),
        )
        empty = db.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)
        if not empty and found != application:
            raise StoreError(f"{path} is no store of a rollout service: name another file")
        if version > len(schemas):
            raise StoreError(
                f"{path} has version {version}, this version of gymhost reads up to {len(schemas)}: update it"
            )
        _make_private(path)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        for number, schema in enumerate(schemas[version:], version + 1):
            script = f"PRAGMA application_id = {application}; {schema}; PRAGMA user_version = {number}"
            db.executescript(f"BEGIN; {script}; COMMIT")
    except sqlite3.Error as error:
        db.close()
        raise StoreError(f"{path} can't be read: {error}") from None
    except BaseException:
        db.close()
        raise
    return db


def _make_private(path: Path) -> None:
    """Sees to it that nobody but its user can read a file that was there already, and what SQLite has beside it."""
    path = path.resolve()
    for each in (path, *(path.with_name(path.name + end) for end in ("-wal", "-shm"))):
        try:
            if stat.S_IMODE(each.stat().st_mode) & 0o077:
                each.chmod(0o600)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise StoreError(f"{each} can be read by others: make it mode 0600 ({error.strerror})") from None


def _write(db: sqlite3.Connection, batch: list[Change]) -> sqlite3.OperationalError | None:
    """Does a batch in one transaction; returns the error if it may go well another time."""
    try:
        db.execute("BEGIN IMMEDIATE")
        for statement, parameters in batch:
            db.execute(statement, parameters)
        db.execute("COMMIT")
    except BaseException as error:
        if db.in_transaction:
            db.execute("ROLLBACK")
        if isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
            return error
        raise
    return None


def _seen(future: asyncio.Future[None]) -> None:
    """An error that nobody waited for is logged where it happens."""
    if not future.cancelled():
        future.exception()
