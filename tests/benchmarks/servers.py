"""The servers that contenders play on."""

import socket
import time

from tests.benchmarks.peers import python
from tests.benchmarks.processes import Failed, Process

_START_LIMIT = 120.0

_UVICORN = ("uvicorn", "tests.benchmarks.openenv_echo:app", "--log-level", "warning")

# What follows `python -m` to run each server.
_SERVERS: dict[str, tuple[str, ...]] = {
    "gymhost": (
        "gymhost.cli",
        "serve",
        "--no-dashboard",
        "tests.benchmarks.gymhost_environments",
        "--address",
        "ADDRESS",
    ),
    "unwatched": (
        *("gymhost.cli", "serve", "tests.benchmarks.gymhost_environments", "--address", "ADDRESS"),
        *("--no-dashboard", "--no-metrics", "--log-format", "text"),
    ),
    "watched": (
        *("gymhost.cli", "serve", "tests.benchmarks.gymhost_environments", "--address", "ADDRESS"),
        *("--dashboard", "127.0.0.1:0", "--log-format", "json"),
    ),
    "rollouts": (
        "gymhost.cli",
        "serve",
        "--no-dashboard",
        "tests.benchmarks.rollout_environments",
        "--address",
        "ADDRESS",
    ),
    "completions": ("tests.benchmarks.completions", "ADDRESS", "FOLDER"),
    "service": (
        *("gymhost.cli", "serve", "--rollouts", "--rollouts-address", "ADDRESS", "--environments", "ENVIRONMENTS"),
        *("--tokenizer", "FOLDER", "--renderer", "qwen3", "--generator", "GENERATOR", "--jobs-file", "FILE"),
        *("--rollouts-run", "RUN", "--no-dashboard"),
    ),
    "sandboxes": (
        "gymhost.cli",
        "serve",
        "--no-dashboard",
        "tests.benchmarks.sandbox_environments",
        "--address",
        "ADDRESS",
    ),
    "openenv": (*_UVICORN, "--loop", "asyncio", "--port", "PORT"),
    "openenv-best": (*_UVICORN, "--loop", "uvloop", "--workers", "2", "--port", "PORT"),
    "openenv-hosted": (
        *("gymhost.cli", "serve", "openenv:tests.benchmarks.openenv_echo:EchoEnvironment"),
        *("--no-dashboard", "--address", "ADDRESS"),
    ),
    "raw": ("tests.benchmarks.raw_tcp", "serve", "ADDRESS"),
    "stream": ("tests.benchmarks.grpc_stream", "serve", "ADDRESS"),
}


class Server(Process):
    """A server that was started on a free port of loopback.

    Args:
        name: Which.
        peer: The virtual environment that it runs in; None for the project's.
        **words: What stands for what in its command.
    """

    def __init__(self, name: str, peer: str | None = None, **words: str) -> None:
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            port = found.getsockname()[1]
        self.name = name
        self._started = time.monotonic()
        self.address = f"127.0.0.1:{port}"
        words |= {"ADDRESS": self.address, "PORT": str(port)}
        super().__init__([python(peer), "-m", *(words.get(word, word) for word in _SERVERS[name])], talks=False)

    @property
    def age(self) -> float:
        """Seconds since it was started."""
        return time.monotonic() - self._started

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
