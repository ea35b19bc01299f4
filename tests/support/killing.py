"""Killing the worker that an environment runs in, at a given point of what it does."""

import contextlib
import os
import signal
import time
from pathlib import Path

from support.server import PATIENCE, alive


class Notes:
    """The file where an environment of `support.replayable_environments` notes what it begins.

    Args:
        file: The file.
    """

    def __init__(self, file: Path) -> None:
        self._file = file

    def __str__(self) -> str:
        return str(self._file)

    @property
    def lines(self) -> list[tuple[str, int]]:
        """What was begun, and by which process."""
        try:
            text = self._file.read_text()
        except FileNotFoundError:
            return []
        return [(line.split()[0], int(line.split()[1])) for line in text.splitlines()]

    @property
    def process(self) -> int:
        """The process that began something last."""
        return self.lines[-1][1]

    def of(self, process: int) -> list[str]:
        """What one process began."""
        return [what for what, by in self.lines if by == process]

    def wait(self, count: int) -> None:
        """Blocks until so many things were begun."""
        deadline = time.monotonic() + PATIENCE
        while len(self.lines) < count:
            assert time.monotonic() < deadline, f"{len(self.lines)} things were begun, not {count}"
            time.sleep(0.005)

    def kill(self) -> None:
        """Kills the process that began something last, and waits until it is gone."""
        kill(self.process)


def kill(process: int) -> None:
    """Kills a process, and waits until it is gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)
    deadline = time.monotonic() + PATIENCE
    while alive(process):
        assert time.monotonic() < deadline, f"{process} is still there"
        time.sleep(0.005)
