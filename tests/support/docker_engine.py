"""A real Docker engine of the tests' own, in fresh folders and without a network, which leaves nothing behind."""

import contextlib
import http.client
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.server import PATIENCE

# Seconds that a cold engine may take to start.
_START = 60.0

# The engine's files are in memory, and its mounts in a mount namespace of its own: both end with its last process.
_COMMAND = """
mount -t tmpfs -o size=4g tmpfs "$1/tmpfs"
exec dockerd --iptables=false --ip6tables=false --ip-forward=false --ip-masq=false --bridge=none --log-driver none \
    --data-root "$1/tmpfs/data" --exec-root "$1/exec" --pidfile "$1/pid" --host "unix://$1/socket" \
    --cgroup-parent "$2"
"""


class DockerEngine:
    """An engine, from its construction on until `stop`.

    Attributes:
        base_url: Where it listens.
    """

    def __init__(self) -> None:
        for program in ("dockerd", "containerd", "runc"):
            if shutil.which(program) is None:
                pytest.fail(f"these tests need Docker's engine, and there is no {program}: apt-get install docker.io")
        if os.geteuid() != 0:
            pytest.fail("these tests start Docker's engine, which takes root; `-m 'not docker'` leaves them out")
        # Sockets have short paths.
        self._folder = Path(tempfile.mkdtemp(prefix="gymhost-docker-", dir="/tmp"))
        (self._folder / "tmpfs").mkdir()
        self._groups = f"/{self._folder.name}"
        self.base_url = f"unix://{self._folder}/socket"
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                ["unshare", "--mount", "sh", "-ec", _COMMAND, "sh", str(self._folder), self._groups],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            self._await_start()
        except BaseException:
            self.stop()
            raise

    @property
    def log(self) -> str:
        """What it said so far."""
        return (self._folder / "log").read_text(errors="replace")

    def kill(self) -> None:
        """Ends the engine's main process at once; what it started goes on."""
        self._process.kill()
        self._process.wait()

    def freeze(self) -> None:
        """Stops the engine's main process: it answers nothing until `thaw`."""
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Has it go on."""
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Ends it and all that it started, and removes its files."""
        self.thaw()
        self._process.terminate()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        deadline = time.monotonic() + PATIENCE
        while (left := self._left()) and time.monotonic() < deadline:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        for group in self._control_groups():
            with contextlib.suppress(OSError):
                group.rmdir()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _await_start(self) -> None:
        deadline = time.monotonic() + _START
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"Docker's engine did not start:\n{self.log[-4000:]}")
            time.sleep(0.02)

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection("localhost")
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(PATIENCE)
        with contextlib.closing(connection), contextlib.suppress(OSError):
            connection.sock.connect(str(self._folder / "socket"))
            connection.request("GET", "/_ping")
            return connection.getresponse().status == 200
        return False

    def _left(self) -> set[int]:
        """The processes of its that are there still: its helpers name its folder, its containers are in its groups."""
        mark, found = os.fsencode(self._folder), set[int]()
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark in (process / "cmdline").read_bytes() and int(process.name) != os.getpid():
                    found.add(int(process.name))
        for group in self._control_groups():
            with contextlib.suppress(OSError):
                found.update(map(int, (group / "cgroup.procs").read_text().split()))
        return found

    def _control_groups(self) -> list[Path]:
        """Its control groups, innermost first."""
        tops = [*Path("/sys/fs/cgroup").glob(f"*{self._groups}"), Path(f"/sys/fs/cgroup{self._groups}")]
        return [Path(folder) for top in tops for folder, _, _ in os.walk(top, topdown=False)]


@pytest.fixture(scope="session")
def docker_engine() -> Iterator[DockerEngine]:
    """An engine that many tests share: leave it running."""
    engine = DockerEngine()
    yield engine
    engine.stop()
