"""Snapshots: what a sandbox had written at a moment, from which others begin."""

import abc
import asyncio
import os
import tempfile
import weakref
from collections.abc import Sequence
from typing import IO, Self

from gymhost.envs.sandbox.files import Run, pack, unpack
from gymhost.wire.errors import InvalidArgument

__all__ = ["Snapshot", "TarSnapshot"]


class Snapshot(abc.ABC):
    """The files of a sandbox at a moment. Processes are no part of it."""

    @abc.abstractmethod
    async def discard(self) -> None:
        """Frees what it holds. Sandboxes that were made from it go on. May be called twice."""


class TarSnapshot(Snapshot):
    """Copies of folders of a sandbox, in files of the host without names: gone when they are let go, whatever happens.

    Attributes:
        left_out: What the sandbox's user could not read, and so is no part of it, as tar says it.
    """

    def __init__(self) -> None:
        self.left_out: list[str] = []
        self._archives: dict[str, IO[bytes]] = {}
        self._end = weakref.finalize(self, _close, self._archives)

    @classmethod
    async def take(cls, run: Run, folders: Sequence[str], *, limit: int, timeout: float = 120.0) -> Self:
        """Copies what is in folders of a sandbox.

        Args:
            run: Runs commands in the sandbox.
            folders: Which ones; `.` is the working folder, whatever it is called.
            limit: Bytes of archives in all.
            timeout: Seconds that each folder may take.

        Raises:
            CommandTimeout: It took longer.
            SandboxLost: The sandbox is gone.
            TooLarge: There is more.
            OSError: A folder could not be read.
        """
        snapshot = cls()
        for folder in folders:
            archive, unread = await pack(run, folder, limit=limit, timeout=timeout)
            limit -= len(archive)
            snapshot.left_out += unread
            snapshot._archives[folder] = await asyncio.to_thread(_keep, archive)
        return snapshot

    async def restore(self, run: Run, *, timeout: float = 120.0) -> None:
        """Puts the copies where they were taken, in another sandbox.

        Raises:
            InvalidArgument: The snapshot was discarded.
            CommandTimeout: It took longer.
            SandboxLost: The sandbox is gone.
            OSError: Not all could be written.
        """
        if not self._end.alive:
            raise InvalidArgument("the snapshot was discarded")
        for folder, archive in self._archives.items():
            await unpack(run, await asyncio.to_thread(_read, archive), folder, timeout=timeout)

    async def discard(self) -> None:
        """Frees the copies."""
        self._end()


def _keep(archive: bytes) -> IO[bytes]:
    file = tempfile.TemporaryFile()  # noqa: SIM115 - it is closed with the snapshot
    file.write(archive)
    file.flush()
    return file


def _read(file: IO[bytes]) -> bytes:
    # Several may read at once.
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0)


def _close(archives: dict[str, IO[bytes]]) -> None:
    for file in archives.values():
        file.close()
