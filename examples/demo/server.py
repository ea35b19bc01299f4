"""The environment server of the demo: `gymhost serve` as a process of its own."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import select
import signal
import subprocess
import sys
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

START_SECONDS = 120.0
STOP_SECONDS = 20.0


@dataclass(frozen=True)
class Server:
    """A server that is running: where it listens, and the token that it wants."""

    address: str
    token: str


@contextlib.contextmanager
def environment_server(log: Path, *modules: str) -> Generator[Server]:
    """Runs an environment server on a free port, and stops it on leaving.

    Args:
        log: Where it logs.
        *modules: Modules whose environments it has besides those of the shelf.

    Raises:
        RuntimeError: It did not start; the message has what it said.
    """
    token = secrets.token_hex(16)
    with log.open("w") as errors:
        # A session of its own: Ctrl-C in the terminal reaches the demo alone, which then stops the server.
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "gymhost.cli",
                "serve",
                *modules,
                "--no-dashboard",
                "--address",
                "127.0.0.1:0",
                "--grace",
                "2",
            ],
            env=os.environ | {"GYMHOST_TOKEN": token},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
            text=True,
        )
        try:
            yield Server(_address_of(process, log), token)
        finally:
            _stop(process)


def _address_of(process: subprocess.Popen[str], log: Path) -> str:
    """Waits for the line with which the server says where it listens."""
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], START_SECONDS)
    said = process.stdout.readline() if readable else ""
    match = re.search(r" on (\S+:\d+) ", said)
    if match is None:
        raise RuntimeError(f"the environment server did not start; it said:\n{said}{log.read_text()}")
    return match[1]


def _stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        pass
    finally:  # also when a second Ctrl-C interrupts the wait
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # its workers are of the same group
            process.wait(STOP_SECONDS)
        if process.stdout is not None:
            process.stdout.close()
