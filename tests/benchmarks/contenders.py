"""Who takes part in W1, and how its server and its client are run."""

import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.processes import ROOT, Failed, Process

# What a peer needs in a virtual environment of its own.
PEERS = {"openenv": ["openenv", "uvicorn", "uvloop"]}

_START_LIMIT = 120.0


@dataclass(frozen=True)
class Contender:
    """A contender.

    Attributes:
        name: Its name in the tables.
        server: The name of the server that it plays on.
        client: What follows `python -m` to run its client; address, sessions and seconds are added.
        most: The most sessions that it plays with; None for no limit.
        peer: The virtual environment that it runs in; None for the project's.
    """

    name: str
    server: str
    client: tuple[str, ...]
    most: int | None = None
    peer: str | None = None

    def plays(self, sessions: int) -> bool:
        """Whether it plays with as many sessions."""
        return self.most is None or sessions <= self.most


def _gymhost(variant: str, id: str) -> tuple[str, ...]:
    return ("tests.benchmarks.gymhost_client", variant, id)


# By default a client on the server's host goes past gRPC; the others are kept from it, as on another host.
GYMHOST, GYMHOST_UVLOOP = "gymhost, asyncio", "gymhost, uvloop"
GYMHOST_GRPC, GYMHOST_GRPC_UVLOOP = "gymhost over gRPC, asyncio", "gymhost over gRPC, uvloop"
STREAM = "bare grpc.aio stream a session"
OPENENV_BEST = "OpenEnv, 2 workers + uvloop"

# What is compared stands next to each other, and so runs next to each other.
CONTENDERS = (
    Contender("raw TCP, uvloop", "raw", ("tests.benchmarks.raw_tcp", "client")),
    Contender(STREAM, "stream", ("tests.benchmarks.grpc_stream", "client")),
    Contender(GYMHOST, "gymhost", _gymhost("asyncio", "benchmarks/Echo-v0")),
    Contender(GYMHOST_UVLOOP, "gymhost", _gymhost("uvloop", "benchmarks/Echo-v0")),
    Contender(GYMHOST_GRPC, "gymhost", _gymhost("asyncio-grpc", "benchmarks/Echo-v0")),
    Contender(GYMHOST_GRPC_UVLOOP, "gymhost", _gymhost("uvloop-grpc", "benchmarks/Echo-v0")),
    Contender(OPENENV_BEST, "openenv-best", ("tests.benchmarks.openenv_echo", "uvloop"), peer="openenv"),
    Contender("OpenEnv, defaults", "openenv", ("tests.benchmarks.openenv_echo", "asyncio"), peer="openenv"),
    Contender("gymhost RemoteEnv, threads", "gymhost", _gymhost("threads", "benchmarks/Echo-v0"), most=64),
    Contender("gymhost mode thread, asyncio", "gymhost", _gymhost("asyncio", "benchmarks/EchoThread-v0")),
    Contender("gymhost mode thread, uvloop", "gymhost", _gymhost("uvloop", "benchmarks/EchoThread-v0")),
)

_UVICORN = ("uvicorn", "tests.benchmarks.openenv_echo:app", "--log-level", "warning")

# What follows `python -m` to run each server.
_SERVERS: dict[str, tuple[str, ...]] = {
    "gymhost": ("gymhost.cli", "serve", "tests.benchmarks.gymhost_environments", "--address", "ADDRESS"),
    "openenv": (*_UVICORN, "--loop", "asyncio", "--port", "PORT"),
    "openenv-best": (*_UVICORN, "--loop", "uvloop", "--workers", "2", "--port", "PORT"),
    "raw": ("tests.benchmarks.raw_tcp", "serve", "ADDRESS"),
    "stream": ("tests.benchmarks.grpc_stream", "serve", "ADDRESS"),
}


class Server(Process):
    """A server that was started on a free port of loopback."""

    def __init__(self, name: str, peer: str | None = None) -> None:
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            port = found.getsockname()[1]
        self.name = name
        self.address = f"127.0.0.1:{port}"
        words = {"ADDRESS": self.address, "PORT": str(port)}
        super().__init__([python(peer), "-m", *(words.get(word, word) for word in _SERVERS[name])], talks=False)

    def wait_ready(self) -> None:
        """Waits until it takes connections.

        Raises:
            Failed: It ended, or took too long.
        """
        host, _, port = self.address.rpartition(":")
        deadline = time.monotonic() + _START_LIMIT
        while self.running and time.monotonic() < deadline:
            try:
                socket.create_connection((host, int(port)), 1.0).close()
                return
            except OSError:
                time.sleep(0.05)
        if self.running:
            raise Failed(f"the server {self.name} did not listen after {_START_LIMIT:g} s")
        raise Failed(f"the server {self.name} ended: {self.why()}")


def python(peer: str | None) -> str:
    """The interpreter that a contender runs in."""
    return sys.executable if peer is None else str(_folder(peer) / "bin" / "python")


def install(peer: str) -> None:
    """Makes a peer's virtual environment, where it is not there already.

    Raises:
        Failed: It could not be installed.
    """
    folder = _folder(peer)
    done = folder / "installed"
    if done.exists():
        return
    print(f"installing {peer} in {os.path.relpath(folder, ROOT)}", file=sys.stderr)
    for command in (
        [sys.executable, "-m", "venv", "--clear", str(folder)],
        [python(peer), "-m", "pip", "-qq", "install", *PEERS[peer]],
    ):
        result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=1200)
        if result.returncode:
            lines = (result.stderr or result.stdout).strip().splitlines()
            raise Failed(f"{peer} could not be installed: {lines[-1] if lines else result.returncode}")
    done.touch()


def _folder(peer: str) -> Path:
    return ROOT / ".venv-bench" / peer
