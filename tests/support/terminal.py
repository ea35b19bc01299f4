"""A program in a terminal, as somebody sees it who sits before it."""

import contextlib
import fcntl
import os
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Generator
from typing import Any

import pyte

from support.server import PATIENCE

__all__ = ["Terminal", "terminal"]


class Terminal:
    """A terminal, and the program that runs in it.

    Args:
        process: The program.
        master: The terminal's other end.
        columns: How wide it is.
        rows: How high it is.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", master: int, columns: int, rows: int) -> None:
        self.process = process
        self._master = master
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen)

    @property
    def lines(self) -> list[str]:
        """What stands on it."""
        return [line.rstrip() for line in self._screen.display]

    @property
    def text(self) -> str:
        """What stands on it, as one text."""
        return "\n".join(self.lines)

    def type(self, keys: str) -> None:
        """Types something."""
        os.write(self._master, keys.encode())

    def click(self, column: int, row: int) -> None:
        """Clicks somewhere; both count from 0."""
        for end in "Mm":
            self.type(f"\x1b[<0;{column + 1};{row + 1}{end}")

    def find(self, text: str) -> tuple[int, int]:
        """Where a text stands: its column and its row."""
        row = next(number for number, line in enumerate(self.lines) if text in line)
        return self.lines[row].index(text), row

    def read(self, limit: float = 0.1) -> bool:
        """Takes what the program writes, and waits for it a while; whether there may be more."""
        if not select.select([self._master], [], [], limit)[0]:
            return True
        try:
            data = os.read(self._master, 1 << 16)
        except OSError:  # the program has ended
            return False
        self._stream.feed(data)
        return bool(data)

    def until(self, wanted: "str | Callable[[str], Any]", limit: float = PATIENCE) -> Any:
        """Waits until a text stands there, or something is true of what does; returns that."""
        deadline = time.monotonic() + limit
        while True:
            found = wanted in self.text if isinstance(wanted, str) else wanted(self.text)
            if found:
                return found
            more = self.read()
            assert more or self.text, "the program has ended"
            assert time.monotonic() < deadline, f"not there after {limit:g} s: {wanted}\n{self.text}"

    def end(self) -> int:
        """Waits for the program to end, and returns its exit code."""
        deadline = time.monotonic() + PATIENCE
        while self.process.poll() is None:
            self.read()
            assert time.monotonic() < deadline, f"it does not end:\n{self.text}"
        return self.process.returncode


@contextlib.contextmanager
def terminal(command: list[str], *, columns: int = 80, rows: int = 24, env: dict[str, str]) -> Generator[Terminal]:
    """Runs a program in a terminal; it is killed at the end if it still runs."""
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    process = subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, start_new_session=True, env=env | {"TERM": "xterm-256color"}
    )
    os.close(slave)
    try:
        yield Terminal(process, master, columns, rows)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(master)
