"""Real server processes for tests, and a look at what they are made of."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, ClassVar

from gymhost.client import RemoteServer
from gymhost.server.tokens import hash_of

TESTS = Path(__file__).parent.parent

# Seconds that anything in a test may take that should take much less: the machine may be busy.
PATIENCE = 30.0


class ServerProcess:
    """A server in a process of its own, with the environments of `support.environments`.

    Args:
        module: What is run.
        settings: Settings of `ServerConfig` beyond the usual ones of tests; `tokens` are the tokens themselves.
    """

    DEFAULTS: ClassVar[dict[str, Any]] = {
        "address": "127.0.0.1:0",
        "workers": 2,
        "modules": ["support.environments"],
        "paths": [str(TESTS)],
    }

    def __init__(self, *, module: str = "gymhost.server", **settings: Any) -> None:
        self._module = module
        self.settings = self.DEFAULTS | settings
        # Tests name tokens as their callers do, a server knows their hashes alone.
        if tokens := self.settings.get("tokens"):
            self.settings["tokens"] = {hash_of(token): owner for token, owner in tokens.items()}
        self._log = tempfile.NamedTemporaryFile(prefix="gymhost-test-", suffix=".log")  # noqa: SIM115 - ends with stop
        self.address = ""
        self._process: subprocess.Popen[bytes]
        self._parent = -1
        self.start()

    def start(self) -> None:
        """Starts the server; again on the same port after it has ended."""
        ready, ready_writer = os.pipe()
        parent_reader, self._parent = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-m", self._module, str(parent_reader), str(ready_writer)],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            pass_fds=(parent_reader, ready_writer),
            start_new_session=True,
        )
        os.close(parent_reader)
        os.close(ready_writer)
        os.write(self._parent, json.dumps(self.settings).encode() + b"\n")
        with open(ready) as answer:
            self.address = answer.read().strip()
        if not self.address:
            self._process.wait(PATIENCE)
            said = self.log
            self._log.close()
            raise RuntimeError(f"the server did not start:\n{said}")
        self.settings["address"] = self.address

    @property
    def pid(self) -> int:
        """The process id of the front."""
        return self._process.pid

    @property
    def log(self) -> str:
        """What the server said so far."""
        return Path(self._log.name).read_text(errors="replace")

    @property
    def workers(self) -> list[int]:
        """The process ids of the workers, oldest first."""
        return [pid for pid in children(self.pid) if b"gymhost.server.worker" in _cmdline(pid)]

    def signal(self, number: int) -> None:
        """Sends a signal to the front."""
        self._process.send_signal(number)

    def wait(self, limit: float = PATIENCE) -> int:
        """Waits for the front to end."""
        return self._process.wait(limit)

    def stop(self) -> None:
        """Stops the server as a parent that goes away does, and waits for it."""
        if self._parent >= 0:
            os.close(self._parent)
            self._parent = -1
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> "ServerProcess":
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()
        self._log.close()


@contextlib.contextmanager
def running(command: list[str], **how: Any) -> Generator[subprocess.Popen[str]]:
    """A process that is killed at the end if it still runs."""
    process = subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **how)
    with process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()


def children(pid: int) -> list[int]:
    """The children of a process, oldest first."""
    found = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and _parent_of(entry) == pid]
    return sorted(found)


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def resident(pid: int) -> float:
    """The memory that a process has, in MiB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def connections_to(address: str, pid: int) -> int:
    """How many TCP connections of a process there are to a server."""
    port = int(address.rpartition(":")[2])
    sockets = {
        line.split()[9]
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
        if int(line.split()[2].rpartition(":")[2], 16) == port and line.split()[3] == "01"
    }
    owned = 0
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            owned += str(fd.readlink()).removeprefix("socket:[").removesuffix("]") in sockets
    return owned


async def until(condition: Callable[[], Any], limit: float = PATIENCE) -> Any:
    """Waits until something is true that can't be awaited, such as a file or a process."""
    deadline = time.monotonic() + limit
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not true after {limit:g} s"
        await asyncio.sleep(0.01)
    return value


async def until_sessions(remote: RemoteServer, wanted: int, limit: float = PATIENCE) -> None:
    """Waits until the caller has so many sessions on a server."""
    deadline = time.monotonic() + limit
    while (number := len(await remote.sessions())) != wanted:
        assert time.monotonic() < deadline, f"{number} sessions after {limit:g} s, not {wanted}"
        await asyncio.sleep(0.01)


def _parent_of(process: Path) -> int:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return -1


def _cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
