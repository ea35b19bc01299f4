"""The `gymhost` command as people run it: in a process of its own."""

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from gymhost.cli.app import gymhost as command
from support.server import PATIENCE, children, running

COMMAND = [sys.executable, "-m", "gymhost.cli"]


def environment(**extra: str) -> dict[str, str]:
    """The process's environment without settings of gymhost, and with some that a test names."""
    return {name: value for name, value in os.environ.items() if not name.startswith("GYMHOST_")} | extra


def called(*arguments: str) -> str:
    """Runs the command in this process, which is quicker: for what ends with its help, or with 2 and what is wrong."""
    said = CliRunner().invoke(command, arguments, prog_name="gymhost")
    assert said.exit_code == (0 if "--help" in arguments else 2), said.output
    return said.output


def gymhost(
    *arguments: str, cwd: Path | None = None, limit: float = PATIENCE, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs the command to its end, within seconds."""
    return subprocess.run(
        [*COMMAND, *arguments],
        check=False,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=limit,
        cwd=cwd,
        env=environment(**variables),
    )


class Serving:
    """A `gymhost serve` that listens.

    Attributes:
        line: What it said when it did.
        address: Where it listens.
        workers: The process ids of its workers.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        assert process.stderr is not None
        self.stderr = process.stderr
        self.line = process.stdout.readline()
        match = re.search(r" on (\S+) with ", self.line)
        assert match is not None, f"it did not start: {self.line}{self.stderr.read()}"
        self.address = match[1]
        self.workers = children(process.pid)

    def end(self, *signals: int) -> int:
        """Sends signals and returns the exit code."""
        for number in signals:
            self.process.send_signal(number)
        return self.process.wait(PATIENCE)


@contextlib.contextmanager
def serving(
    *arguments: str, cwd: Path | None = None, address: str = "127.0.0.1:0", **variables: str
) -> Generator[Serving, None, None]:
    """Runs `gymhost serve` with one worker and no dashboard; it is killed at the end if it still runs."""
    options: dict[str, Any] = {"cwd": cwd, "env": environment(**variables), "stdin": subprocess.DEVNULL}
    shown = any(word.startswith("--dashboard") for word in arguments)
    words = [*COMMAND, "serve", "--workers", "1", *(["--address", address] if address else [])]
    words += arguments if shown else ["--no-dashboard", *arguments]
    with running(words, **options) as process:
        yield Serving(process)
