"""A backend that has no room for many at once, and environments with a sandbox an episode."""

import asyncio
import contextlib
import os
import secrets
import subprocess
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gymhost.envs import Task, ToolEnv, register, tool
from gymhost.envs.sandbox import (
    Backend,
    CommandResult,
    Container,
    Limits,
    Sandbox,
    SandboxSpec,
    Snapshot,
    Stream,
    Usage,
    create,
)
from gymhost.envs.sandbox.backend import RUNNER
from gymhost.envs.sandbox.streams import PipeStream
from gymhost.wire.errors import CapacityExhausted, SandboxUnavailable


class Crowded(Backend):
    """Refuses to make more than so many at once, of all processes together, and keeps an account in a folder.

    Its containers are plain shells. `peak` and `refusals` tell what happened.

    Args:
        folder: Where the account is kept.
        room: How many creations may be in flight.
        seconds: How long one takes.
    """

    name = "crowded"
    isolates = False

    def __init__(self, folder: str, room: str = "8", seconds: str = "0.02") -> None:
        self._folder = Path(folder)
        self._room, self._seconds = int(room), float(seconds)
        self.made: list[Shells] = []
        self.failure: Exception | None = None
        self.closed = False

    async def problem(self) -> str | None:
        return None

    async def create(self, spec: SandboxSpec, snapshot: Snapshot | None = None) -> Container:
        if self.failure is not None:
            raise self.failure
        async with self._in_flight() as number:
            if number > self._room:
                (self._folder / f"refused-{secrets.token_hex(8)}").touch()
                raise CapacityExhausted(f"{number} creations in flight, of at most {self._room}")
            await asyncio.sleep(self._seconds)
            shells = await Shells.start(spec, self._folder)
        self.made.append(shells)
        return shells

    async def close(self) -> None:
        self.closed = True
        await asyncio.gather(*(shells.destroy() for shells in self.made))

    @contextlib.asynccontextmanager
    async def _in_flight(self) -> AsyncGenerator[int]:
        mine = self._folder / f"flying-{secrets.token_hex(8)}"
        mine.touch()
        try:
            number = len(list(self._folder.glob("flying-*")))
            (self._folder / f"peak-{number}").touch()
            yield number
        finally:
            mine.unlink()


def peak(folder: Path) -> int:
    """The most creations that were ever in flight."""
    return max(int(file.name.partition("-")[2]) for file in folder.glob("peak-*"))


def refusals(folder: Path) -> int:
    """How many were refused."""
    return len(list(folder.glob("refused-*")))


class Shells(Container):
    """Plain shells in a folder."""

    def __init__(self, spec: SandboxSpec, folder: Path) -> None:
        self._folder = folder
        self.id = f"shells-{secrets.token_hex(4)}"
        self.spec = spec
        self.limits_in_force: Mapping[str, str] = {}
        self._processes: list[subprocess.Popen[bytes]] = []
        self._streams: list[Stream] = []
        self.killed = False

    @classmethod
    async def start(cls, spec: SandboxSpec, folder: Path) -> "Shells":
        shells = cls(spec, folder)
        shells.main = await shells.open(RUNNER, {"PATH": os.environ["PATH"]})
        shells.init = shells._processes[0].pid
        return shells

    @property
    def alive(self) -> bool:
        return not self.killed

    async def open(self, argv: Sequence[str], env: Mapping[str, str]) -> Stream:
        stdin, to_stdin = os.pipe()
        from_stdout, stdout = os.pipe()
        from_stderr, stderr = os.pipe()
        try:
            process = subprocess.Popen(argv, stdin=stdin, stdout=stdout, stderr=stderr, env=env, cwd=self._folder)  # noqa: ASYNC220
        finally:
            for end in (stdin, stdout, stderr):
                os.close(end)
        self._processes.append(process)
        self._streams.append(PipeStream(to_stdin, from_stdout, from_stderr))
        return self._streams[-1]

    async def control(self, script: str, *, timeout: float = 10.0) -> bytes:
        raise SandboxUnavailable("nothing is stopped here")

    async def usage(self) -> Usage:
        return Usage()

    async def destroy(self) -> None:
        self.kill()

    def kill(self) -> None:
        self.killed = True
        for process in self._processes:
            process.kill()
            process.wait()
        for stream in self._streams:
            stream.close()


class Rush(ToolEnv):
    """Tells how long its sandbox waited and how long it took, as info of its resets.

    Args:
        memory: The memory that its sandbox may have, in MiB.
        patience: Seconds that its making may take.
    """

    sandbox: Sandbox | None = None

    def __init__(self, *, memory: int = 512, patience: float = 60.0) -> None:
        super().__init__()
        self._spec = SandboxSpec(limits=Limits(memory=memory * 2**20))
        self._patience = patience

    async def setup(self, task: Task) -> None:
        self.sandbox = await create(self._spec, timeout=self._patience)

    def prompt(self, task: Task) -> str:
        return "Run something."

    async def areset(self, **how: Any) -> Any:
        began = time.monotonic()
        observation, info = await super().areset(**how)
        assert self.sandbox is not None
        seconds = time.monotonic() - began
        times = {"queued": self.sandbox.queued_seconds, "created": self.sandbox.created_seconds, "seconds": seconds}
        return observation, info | times

    async def teardown(self) -> None:
        if self.sandbox is not None:
            await self.sandbox.destroy()

    @tool
    async def run(self, command: str) -> str:
        """Runs a command."""
        assert self.sandbox is not None
        result: CommandResult = await self.sandbox.run(command)
        return result.stdout


register("test/Rush-v0", Rush, mode="async")
register("test/RushThread-v0", Rush, mode="thread")
register("test/RushInline-v0", Rush, mode="inline")
