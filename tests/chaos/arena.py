"""Where faults are injected: a server that may be killed and started again, a proxy in front of it, and players."""

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

from chaos.history import Event, read_events
from chaos.players import Play
from gymhost.client import connect
from support.proxy import Proxy
from support.server import TESTS, ServerProcess

# What every process of an arena has in its environment, so that one that is left behind is found.
MARK = "CHAOS_ARENA"
COUNTERS = ("chaos/Counter-v0", "chaos/Fragile-v0")
# The environments that no fault may take an episode from.
REPLAYABLE = COUNTERS[:1]
# Seconds in which what a fault has harmed must be whole again.
RECOVERY = 60.0
# How often a server is started before that counts as failed.
STARTS = 3
DISK = 64 * 2**20
# What makes the server's clock one that can be set: its own steady one and those of its workers, whose sleeps it would
# break, are left alone.
FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)


class Arena:
    """A server under attack, and those who play on it. A context manager.

    Args:
        seed: Makes what the players do.
        sessions: How many sessions of each environment each of the two players has: one plays through the proxy, by
            gRPC; the other on the same host, past gRPC.
        sandboxes: Whether an environment with a sandbox is among them.
        settings: Of the server, beside those that make it notice faults soon.
    """

    def __init__(self, seed: int, *, sessions: int = 8, sandboxes: bool = True, **settings: Any) -> None:
        self._seed = seed
        self._sessions = dict.fromkeys(COUNTERS, sessions) | ({"chaos/Files-v0": 2} if sandboxes else {})
        self._settings = {
            "modules": ["chaos.environments"],
            "workers": 3,
            "worker_liveness": 10.0,
            "lease": 30.0,
            "heartbeat": 5.0,
            "grace": 2.0,
            # The workers are killed from outside, and no environment is to blame.
            "quarantine_deaths": 0,
        } | settings
        self._ends = contextlib.ExitStack()
        self._mark = uuid.uuid4().hex
        self.folder: Path
        self.disk: Path
        self.server: ServerProcess
        self.proxy: Proxy
        self._players: list[subprocess.Popen[str]] = []
        self.told: list[dict[str, Any]] = []

    def __enter__(self) -> "Arena":
        with contextlib.ExitStack() as ends:
            self.folder = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="gymhost-chaos-")))
            self.disk = self.folder / "disk"
            self.disk.mkdir()
            if os.geteuid() == 0:
                # A disk of the server's own, which can be filled.
                subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "chaos", str(self.disk)], check=True)
                ends.callback(subprocess.run, ["umount", "--lazy", str(self.disk)], check=True)
            ends.enter_context(_environment({MARK: self._mark, "TMPDIR": str(self.disk), "PYTHONPATH": str(TESTS)}))
            if FAKETIME is not None:
                self.set_clock(0)
                clock = {"FAKETIME_TIMESTAMP_FILE": str(self._clock), "FAKETIME_NO_CACHE": "1"}
                ends.enter_context(_environment({**clock, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}))
            self.server = ends.enter_context(ServerProcess(module="chaos.clocked_server", **self._settings))
            self.proxy = ends.enter_context(Proxy(self.server.address))
            for name, address in (("far", self.proxy.address), ("near", self.server.address)):
                self._start_player(name, address)
                ends.callback(self._players[-1].kill)
            self._ends = ends.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ends.close()
        for player in self._players:
            player.wait()
            for pipe in (player.stdin, player.stdout):
                if pipe is not None:
                    pipe.close()

    def _start_player(self, name: str, address: str) -> None:
        play = Play(f"{self._seed} {name}", name == "near", self._sessions, str(self.log))
        player = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "chaos.players",
                address,
                str(self.folder),
                name,
                json.dumps(dataclasses.asdict(play)),
            ],
            cwd=TESTS,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._players.append(player)
        assert player.stdout is not None
        if player.stdout.readline() != "playing\n":
            raise RuntimeError(f"the player {name} did not start")

    @property
    def _clock(self) -> Path:
        return self.folder / "clock"

    def set_clock(self, seconds: int) -> None:
        """Sets the server's clock so much ahead of the true one, or behind."""
        new = self._clock.with_suffix(".new")
        new.write_text(f"{seconds:+d}")
        new.replace(self._clock)

    @property
    def log(self) -> Path:
        """Where counters write what they ran; not on the disk that is filled."""
        return self.folder / "ran"

    @property
    def workers(self) -> list[int]:
        """The process ids of the workers that live."""
        return self.server.workers

    @property
    def players(self) -> list[int]:
        """The process ids of the players."""
        return [player.pid for player in self._players]

    def finish(self) -> None:
        """Has the players end their play, and waits for them.

        Raises:
            RuntimeError: One did not end, or ended badly.
        """
        for player in self._players:
            assert player.stdin is not None
            player.stdin.close()
            player.stdin = None
        for player in self._players:
            try:
                told, _ = player.communicate(timeout=RECOVERY + 120.0)
            except subprocess.TimeoutExpired:
                player.kill()
                raise RuntimeError("a player hangs: a session of it waits for something that never comes") from None
            if player.returncode != 0:
                raise RuntimeError(f"a player ended with status {player.returncode}")
            self.told.append(json.loads(told.splitlines()[-1]))

    def events(self) -> Iterator[Event]:
        """What the players saw, session by session."""
        for path in sorted(self.folder.glob("*.jsonl")):
            yield from read_events(path)

    # -- what is left --------------------------------------------------------------------------------------------------

    def whole(self) -> bool:
        """Whether the server has all its workers, and they run."""
        workers = self.workers
        return len(workers) == self._settings["workers"] and not any(_state(pid) == "T" for pid in workers)

    def left_sessions(self) -> int:
        """How many places of the server are taken, once none is or after a time."""

        async def count() -> int:
            async with connect(self.server.address, connect_timeout=RECOVERY) as server:
                return len(await server.sessions())

        give_up = time.monotonic() + RECOVERY
        while (left := asyncio.run(count())) and time.monotonic() < give_up:
            time.sleep(0.2)
        return left

    def left_behind(self) -> list[str]:
        """What there is after the server has been stopped that should not be: processes, files, mounts."""
        left = [f"process {pid}: {_command(pid)}" for pid in self._marked()]
        left += [f"file {path}" for path in self.disk.rglob("*")]
        for line in Path("/proc/self/mounts").read_text().splitlines():
            if str(self.disk) in line and f" {self.disk} " not in line:
                left.append(f"mount {line}")
        return left

    def _marked(self) -> list[int]:
        """The processes of this arena, but the players and this one; those in its sandboxes too."""
        own = {os.getpid(), *(player.pid for player in self._players)}
        mark = f"{MARK}={self._mark}".encode()
        layer = f"upperdir={self.disk}".encode()
        found: list[int] = []
        for path in Path("/proc").iterdir():
            if path.name.isdigit() and int(path.name) not in own:
                with contextlib.suppress(OSError):
                    if mark in (path / "environ").read_bytes() or layer in (path / "mountinfo").read_bytes():
                        found.append(int(path.name))
        return found

    def restart(self) -> None:
        """Kills the front, as a fault of the machine would, and starts another on the same port."""
        self.server.signal(signal.SIGKILL)
        self.server.wait()
        for tries_left in reversed(range(STARTS)):
            self.server.stop()
            try:
                self.server.start()
                return
            except RuntimeError:  # what is left of another fault may meet its first worker; then it starts again
                if not tries_left:
                    raise


@contextlib.contextmanager
def _environment(variables: dict[str, str]) -> Generator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""
