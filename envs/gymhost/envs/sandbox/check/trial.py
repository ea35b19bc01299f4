"""What the checks of a backend share: families of cases, and what a case may do to try a backend and say of it."""

import asyncio
import contextlib
import dataclasses
import random
import time
import traceback
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from gymhost.envs.findings import Finding
from gymhost.envs.sandbox.check.host import Secrets, command_lines
from gymhost.envs.sandbox.pool import Pool
from gymhost.envs.sandbox.results import CommandResult
from gymhost.envs.sandbox.sandbox import Sandbox
from gymhost.envs.sandbox.snapshots import Snapshot
from gymhost.envs.sandbox.spec import SandboxSpec
from gymhost.wire.errors import SandboxLost

__all__ = ["SLACK", "SOON", "UNSEEN", "Case", "Family", "NotTried", "Trial", "new_mark", "shown", "soon"]

# Seconds beyond a time limit in which all must be over: stopping a command on a busy machine takes some.
SLACK = 3.0
# Seconds that a case may take in all, and the clearing up after it.
CASE_SECONDS = 60.0
DESTROY_SECONDS = 20.0
# Seconds for what should come or go at once, until it counts as not happening.
SOON = 5.0

# Why what is left on the host can't be told.
UNSEEN = "processes of its sandboxes are not seen on this machine"


class NotTried(Exception):
    """What a case tries can't be tried here; the text says why."""


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to find out.

    Attributes:
        topic: What it is about, in some words.
        run: Tries it.
    """

    topic: str
    run: Callable[["Trial"], Awaitable[None]]


@dataclass(slots=True)
class Family:
    """Cases that belong together.

    Attributes:
        name: What users call it.
        alone: Whether it measures, or takes what the machine has, so that nothing should run beside it.
        cases: Its cases in their order.
    """

    name: str
    alone: bool = False
    cases: list[Case] = field(default_factory=list[Case])

    def case(
        self, topic: str
    ) -> Callable[[Callable[["Trial"], Awaitable[None]]], Callable[["Trial"], Awaitable[None]]]:
        """Adds a case."""

        def add(run: Callable[[Trial], Awaitable[None]]) -> Callable[[Trial], Awaitable[None]]:
            self.cases.append(Case(topic, run))
            return run

        return add


class Trial:
    """What a case is given.

    Args:
        pool: Makes sandboxes of the backend that is tried.
        spec: What its sandboxes are like, but for what a case changes.
        secrets: What no sandbox may see.
    """

    def __init__(self, pool: Pool, spec: SandboxSpec, secrets: Secrets) -> None:
        self.backend = pool.backend
        self.spec = spec
        self.secrets = secrets
        self._pool = pool
        self._faults: list[str] = []
        self._advice: list[str] = []
        self._notes: list[str] = []

    def fault(self, text: str) -> None:
        """Says what is wrong."""
        self._faults.append(text)

    def expect(self, holds: bool, text: str) -> bool:
        """Says what is wrong unless a condition holds, and returns the condition."""
        if not holds:
            self.fault(text)
        return holds

    def advise(self, text: str) -> None:
        """Says what could be better."""
        self._advice.append(text)

    def note(self, text: str) -> None:
        """Says what is good to know."""
        self._notes.append(text)

    async def run(self, title: str, case: Case) -> Finding:
        """Runs a case to its end, within a time limit, and returns what it found under a title."""
        limit = asyncio.timeout(CASE_SECONDS)
        try:
            async with limit:
                await case.run(self)
        except NotTried as reason:
            self.advise(f"Not tried: {reason}.")
        except Exception as error:  # noqa: BLE001 - it is a finding
            over = isinstance(error, TimeoutError) and limit.expired()
            self.fault(f"it was not over after {CASE_SECONDS:g} s" if over else _told(error))
        level = "error" if self._faults else "advice" if self._advice else "ok"
        detail = "\n".join([*dict.fromkeys(self._faults), *self._advice, *self._notes])
        return Finding(level, title, detail)

    @contextlib.asynccontextmanager
    async def sandbox(self, **changes: Any) -> AsyncGenerator[Sandbox, None]:
        """A sandbox, destroyed in the end.

        Args:
            changes: What differs from the spec.
        """
        sandbox = await self.create(**changes)
        try:
            yield sandbox
        finally:
            await self.destroy(sandbox)

    async def create(self, snapshot: Snapshot | None = None, **changes: Any) -> Sandbox:
        """Makes a sandbox that the case destroys."""
        return await self._pool.create(dataclasses.replace(self.spec, **changes), snapshot=snapshot)

    async def destroy(self, *sandboxes: Sandbox) -> None:
        """Destroys sandboxes; one that takes too long is a fault."""
        for sandbox in sandboxes:
            try:
                async with asyncio.timeout(DESTROY_SECONDS):
                    await sandbox.destroy()
            except TimeoutError:
                self.fault(f"destroy() was not over after {DESTROY_SECONDS:g} s")

    async def python_of(self, sandbox: Sandbox) -> str:
        """Returns the Python inside.

        Raises:
            NotTried: It has none.
        """
        found = (await sandbox.run("command -v python3")).stdout.strip()
        if not found:
            raise NotTried("the image has no python3, by which it is tried")
        return found

    async def script(self, sandbox: Sandbox, text: str, *arguments: str, timeout: float = 20.0) -> CommandResult:
        """Runs a Python script inside, with the script itself on standard input."""
        python = await self.python_of(sandbox)
        return await sandbox.run([python, "-I", "-", *arguments], stdin=text.encode(), timeout=timeout)

    async def usable(self, sandbox: Sandbox) -> bool:
        """Whether a sandbox can still be used; one that is neither that nor declared lost is a fault."""
        try:
            result = await sandbox.run("echo fine", timeout=10)
        except SandboxLost as lost:
            self.note(f"The sandbox was given up afterwards: {lost}")
            return False
        return self.expect(result.ok and result.stdout == "fine\n", f"afterwards `echo fine` gave {shown(result)}")

    async def appears(self, sandbox: Sandbox, *marks: str) -> bool:
        """Waits until processes of a sandbox with marks in their command lines are there.

        Returns:
            Whether the host sees them too.

        Raises:
            RuntimeError: They don't come up.
        """

        async def are_there() -> bool:
            seen = await self._command_lines(sandbox)
            return all(mark.encode() in seen for mark in marks)

        if not await soon(are_there):
            raise RuntimeError("a process that was started is not seen in the sandbox")
        seen = command_lines()
        return all(mark.encode() in seen for mark in marks)

    async def left(self, *marks: str, sandbox: Sandbox | None = None) -> list[str]:
        """Returns the marks of processes that are there, inside or for the host, and do not go soon."""
        left: list[str] = []

        async def none_is_left() -> bool:
            seen = command_lines()
            if sandbox is not None:
                seen += await self._command_lines(sandbox)
            left[:] = [mark for mark in marks if mark.encode() in seen]
            return not left

        await soon(none_is_left)
        return left

    async def gone(self, mark: str, sandbox: Sandbox | None = None) -> bool:
        """Whether no process with a mark is left."""
        return not await self.left(mark, sandbox=sandbox)

    async def _command_lines(self, sandbox: Sandbox) -> bytes:
        result = await sandbox.run("cat /proc/[0-9]*/cmdline 2>/dev/null", output_limit=2**22)
        return result.stdout_bytes


def new_mark() -> str:
    """Returns a number that no other command line has: as the time of a `sleep` it marks a process without an end."""
    return str(random.randrange(10**11, 10**12))


async def soon(happens: Callable[[], Awaitable[bool]], within: float = SOON) -> bool:
    """Whether something happens, asked again and again for some seconds."""
    end = time.monotonic() + within
    while not await happens():
        if time.monotonic() > end:
            return False
        await asyncio.sleep(0.02)
    return True


def _told(error: Exception) -> str:
    """Returns an exception with the place that it came from, for whoever wrote the backend."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({place.filename}:{place.lineno}, in {place.name})"


def shown(result: CommandResult) -> str:
    """Returns a result as a message tells it."""
    limit = f", the limit {result.limit}" if result.limit else ""
    said = "".join(f", {stream} {text!r:.200}" for stream, text in _streams(result) if text)
    return f"exit status {result.exit_status}{limit}{said}"


def _streams(result: CommandResult) -> tuple[tuple[str, str], ...]:
    return ("stdout", result.stdout), ("stderr", result.stderr)
