"""A container of the Docker backend."""

import asyncio
import contextlib
import logging
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from gymhost.envs.sandbox.backend import Container, StreamEnded
from gymhost.envs.sandbox.docker import oom
from gymhost.envs.sandbox.docker.attach import AttachedStream
from gymhost.envs.sandbox.docker.engine import Engine, NotFound
from gymhost.envs.sandbox.docker.settings import command_line
from gymhost.envs.sandbox.results import Usage
from gymhost.envs.sandbox.spec import SandboxSpec
from gymhost.wire.errors import Error, SandboxLost, SandboxUnavailable

__all__ = ["DockerContainer"]

T = TypeVar("T")

# The most bytes that a script of `control` may print.
_CONTROL_OUTPUT = 16 * 2**20

# Seconds until another attempt to run something in a sandbox out of band.
_AGAIN = 0.02

_log = logging.getLogger(__name__)


class DockerContainer(Container):
    """A running container.

    Args:
        container_id: The engine's id of it.
        name: Its name.
        spec: What it is like.
        main: The streams of its first process.
        engine: The engine.
        limits_in_force: How its limits are held.
        killed: Where the kernel counts the processes that it ended for want of memory; None where that can't be seen.
        forget: Is told when it is gone.
    """

    def __init__(
        self,
        container_id: str,
        name: str,
        spec: SandboxSpec,
        main: AttachedStream,
        engine: Engine,
        limits_in_force: Mapping[str, str],
        killed: Path | None,
        forget: "Callable[[DockerContainer], object]",
    ) -> None:
        self.id = name
        self.spec = spec
        self.main = self._main = main
        self._streams = [main]
        self.limits_in_force = limits_in_force
        self._container = container_id
        self._engine = engine
        self._killed = killed
        self._forget = forget
        self._lock = threading.Lock()
        self._removal: Future[None] | None = None

    @property
    def alive(self) -> bool:
        """Whether it is neither given up nor ended, nor the engine gone."""
        return self._removal is None and not self._main.ended

    async def open(self, argv: Sequence[str], env: Mapping[str, str]) -> AttachedStream:
        """Starts another process in it; see `Container.open`."""
        stream = await self._call(lambda: self._exec(command_line(argv, env), stdin=True), AttachedStream.close)
        with self._lock:
            self._streams = [stream, *(other for other in self._streams if not other.closed)]
            lost = self._removal is not None
        if lost:
            stream.close()
            raise SandboxLost(f"the sandbox {self.id} was destroyed")
        return stream

    async def control(self, script: str, *, timeout: float = 10.0) -> bytes:
        """Runs a bash script in it out of band; see `Container.control`."""
        try:
            async with asyncio.timeout(timeout):
                while True:
                    answer = await self._ask(script)
                    if answer is not None:
                        return answer
                    # While its processes are at their limit, the engine's own may fail to begin in it.
                    await asyncio.sleep(_AGAIN)
        except TimeoutError:
            # What runs on in it can't be ended from outside but with the container.
            self.kill()
            raise SandboxLost(f"the sandbox {self.id} did not answer within {timeout:g} s and was given up") from None

    async def _ask(self, script: str) -> bytes | None:
        """Runs a script and returns its output; None where it was not even begun."""
        begin = secrets.token_hex(16).encode()
        command = command_line(["bash", "--noprofile", "--norc", "-c", f"echo {begin.decode()}\n{script}"], {})
        said = bytearray()

        def take(stream: int, data: bytes) -> bool:
            if stream == 1:
                said.extend(data)
            return len(said) > _CONTROL_OUTPUT

        stream = await self._call(lambda: self._exec(command, stdin=False), AttachedStream.close)
        with contextlib.closing(stream), contextlib.suppress(StreamEnded):
            await stream.exchange(b"", take)
        if len(said) > _CONTROL_OUTPUT:
            self.kill()
            raise SandboxLost(f"the sandbox {self.id} answered with more than {_CONTROL_OUTPUT} bytes and was given up")
        first, _, rest = bytes(said).partition(b"\n")
        return rest if first == begin else None

    async def usage(self) -> Usage:
        """Returns what it uses; see `Container.usage`."""
        stats: Mapping[str, Any] = await self._call(
            lambda: self._engine.api().stats(self._container, stream=False, one_shot=True)
        )
        if not self.alive:
            # The engine tells nothing but zeros of a container that it is about to remove.
            raise SandboxLost(f"the sandbox {self.id} has ended")
        memory = _part(stats, "memory_stats")
        kinds = _part(memory, "stats")
        used, cpu = memory.get("usage"), _part(stats, "cpu_stats", "cpu_usage").get("total_usage")
        return Usage(
            # What is read from files of images and can be dropped at any time is not counted.
            memory=None if used is None else used - kinds.get("inactive_file", kinds.get("total_inactive_file", 0)),
            processes=_part(stats, "pids_stats").get("current"),
            cpu_seconds=None if cpu is None else cpu / 1e9,
            disk=_files(kinds),
        )

    def out_of_memory(self) -> int:
        """Returns how many of its processes were ended for want of memory; see `Container.out_of_memory`."""
        return 0 if self._killed is None else oom.count(self._killed)

    async def destroy(self) -> None:
        """Ends and removes it; see `Container.destroy`."""
        removal = asyncio.wrap_future(self._begin_removal())
        with contextlib.suppress(Exception):
            await asyncio.wait([removal], timeout=2 * self._engine.timeout)

    def kill(self) -> None:
        """Begins to end and remove it; see `Container.kill`."""
        self._begin_removal()

    def remove(self) -> None:
        """Ends and removes it; blocks, and raises nothing."""
        try:
            self._engine.remove(self._container)
        except Exception as error:  # noqa: BLE001 - whatever it is, there is nobody to tell
            _log.warning("could not remove container %s, which is tried again at the next start: %s", self.id, error)
        finally:
            with self._lock:
                streams = self._streams
            for stream in streams:
                stream.close()
            self._forget(self)

    def _begin_removal(self) -> "Future[None]":
        with self._lock:
            if self._removal is None:
                self._removal = self._engine.submit(self.remove)
            return self._removal

    def _exec(self, command: Sequence[str], *, stdin: bool) -> AttachedStream:
        """Starts a process and returns its streams; blocks."""
        api = self._engine.api()
        made = api.exec_create(
            self._container, list(command), stdin=stdin, stdout=True, stderr=True, workdir=self.spec.workdir
        )
        return self._engine.hand_over(f"/exec/{made['Id']}/start", {"Detach": False, "Tty": False})

    async def _call(self, function: Callable[[], T], late: Callable[[T], object] | None = None) -> T:
        """Runs what blocks; says that the sandbox is lost where that is what a failure means."""
        if self._removal is not None:
            raise SandboxLost(f"the sandbox {self.id} was destroyed")
        try:
            return await self._engine.call(function, late=late)
        except NotFound as error:
            raise SandboxLost(f"the sandbox {self.id} has ended") from error
        except Error as error:
            if self.alive:
                raise SandboxUnavailable(f"the sandbox {self.id} can't be used: {error}") from error
            raise SandboxLost(f"the sandbox {self.id} has ended: {error}") from error


def _part(stats: Mapping[str, Any], *path: str) -> Mapping[str, Any]:
    """Returns a part of what the engine measured; an empty one where it has none."""
    for name in path:
        stats = stats.get(name) or {}
    return stats


def _files(kinds: Mapping[str, int]) -> int | None:
    """Returns the bytes of files in memory, which are all that it can write."""
    if "total_cache" not in kinds:
        return kinds.get("shmem")
    # The control groups of old count them with what was read from disks, and those apart.
    return max(0, kinds["total_cache"] - kinds.get("total_active_file", 0) - kinds.get("total_inactive_file", 0))
