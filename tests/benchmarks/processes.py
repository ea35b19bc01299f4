"""Starting contenders' processes, talking to them, and reading what they use."""

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Self

from gymhost.cli.usage import cpu_seconds, descendants

ROOT = Path(__file__).parents[2]

_TICKS = os.sysconf("SC_CLK_TCK")
_STOP_LIMIT = 20.0


class Failed(Exception):
    """A contender did not do what it should; the message says what it wrote to stderr."""


class Process:
    """A process of a contender, ended with the `with` block.

    Args:
        command: What to run, in the repository's folder.
        limit: Seconds after which it is killed; None for no limit.
        talks: Whether somebody reads what it prints.
    """

    def __init__(self, command: Sequence[str], *, limit: float | None = None, talks: bool = True) -> None:
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        # A session of its own: Ctrl-C reaches the runner alone, which ends the others.
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if talks else self._stderr,
            stderr=self._stderr,
            text=True,
            start_new_session=True,
        )
        self._limit = limit
        self._timer = threading.Timer(limit or 0.0, self._kill)
        self._timer.daemon = True
        if limit is not None:
            self._timer.start()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def line(self) -> str:
        """Waits for the next line that it prints.

        Raises:
            Failed: It ended.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise Failed(self.why())
        return line.strip()

    def expect(self, wanted: str) -> None:
        """Waits for a line that says just this.

        Raises:
            Failed: It ended, or said something else.
        """
        if (line := self.line()) != wanted:
            raise Failed(f"it said {line!r}, not {wanted!r}")

    def json(self) -> dict[str, Any]:
        """Waits for a line of JSON."""
        return json.loads(self.line())

    def go_on(self) -> None:
        """Sends an empty line."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def wait(self) -> None:
        """Waits for its end.

        Raises:
            Failed: It did not end well.
        """
        if self._process.wait():
            raise Failed(self.why())

    def why(self) -> str:
        """Why it ended, in a line."""
        code = self._process.wait(_STOP_LIMIT)
        if code == -signal.SIGKILL and self._limit is not None and not self._timer.is_alive():
            return f"it was killed after {self._limit:g} s"
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()
        return f"exit status {code}: {lines[-1] if lines else 'it said nothing'}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._timer.cancel()
        if self.running:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_LIMIT)
        self._kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._stderr):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def _kill(self) -> None:
        """Kills it and what it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


def tree(pid: int) -> list[int]:
    """A process and its descendants, itself first."""
    return [pid, *descendants(pid)]


def busy_seconds() -> float:
    """The CPU time that the whole machine has used, and what was taken from it."""
    with open("/proc/stat") as stat:
        user, nice, system, _, _, interrupts, soft, stolen, *_ = (int(field) for field in stat.readline().split()[1:])
    return (user + nice + system + interrupts + soft + stolen) / _TICKS


def private_kib(pids: Sequence[int]) -> int:
    """The memory that would be free if these processes alone ended."""
    return sum(
        int(line.split()[1])
        for pid in pids
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        if line.startswith("Private_")
    )


class Usage:
    """What a client, a server and the machine have used up to now.

    Args:
        client: The client's processes.
        server: The server's processes, its first one first.
    """

    def __init__(self, client: Sequence[int], server: Sequence[int]) -> None:
        self.time = time.perf_counter()
        self.client = cpu_seconds(client)
        self.front = cpu_seconds(server[:1])
        self.workers = cpu_seconds(server[1:])
        self.runner = cpu_seconds([os.getpid()])
        self.busy = busy_seconds()

    def since(self, before: "Usage", steps_per_second: float) -> dict[str, float | None]:
        """CPU microseconds a step in the time between, and the share of the machine that others used."""
        elapsed = self.time - before.time

        def a_step(part: str) -> float | None:
            used = getattr(self, part) - getattr(before, part)
            return used / elapsed / steps_per_second * 1e6 if steps_per_second else None

        parts = ("client", "front", "workers")
        own = sum(getattr(self, part) - getattr(before, part) for part in (*parts, "runner"))
        others = (self.busy - before.busy - own) / elapsed / (os.cpu_count() or 1)
        return {f"{part}_us": a_step(part) for part in parts} | {"others": max(0.0, others)}
