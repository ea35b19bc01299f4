"""The environment server of the demo: `gymhost serve` as a process of its own."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gymhost.client import Error, connect

START_SECONDS = 120.0
STOP_SECONDS = 20.0


@dataclass(frozen=True)
class Server:
    """A server that is running: where it listens, and the token that it wants."""

    address: str
    token: str


@contextlib.contextmanager
def environment_server(log: Path) -> Iterator[Server]:
    """Runs an environment server, and stops it on leaving.

    Args:
        log: Where its output goes.

    Raises:
        RuntimeError: It did not start; the message has what it said.
    """
    server = Server(f"127.0.0.1:{_free_port()}", secrets.token_hex(16))
    with log.open("w") as output:
        # A process group of its own: Ctrl-C in the terminal reaches the demo alone, which then stops the server.
        process = subprocess.Popen(
            [sys.executable, "-m", "gymhost.cli", "serve", "--address", server.address],
            env=os.environ | {"GYMHOST_TOKEN": server.token},
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            _await_start(process, server, log)
            yield server
        finally:
            _stop(process)


def _await_start(process: subprocess.Popen[bytes], server: Server, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            connect(server.address, token=server.token, connect_timeout=5.0).open().close()
        except Error:
            time.sleep(0.1)
        else:
            return
    raise RuntimeError(f"the environment server did not start; it said:\n{log.read_text()}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # its workers are of the same group
        process.wait(STOP_SECONDS)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
