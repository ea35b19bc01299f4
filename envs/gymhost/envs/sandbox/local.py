"""The backend that contains nothing: plain processes of this machine."""

import asyncio
import contextlib
import dataclasses
import json
import logging
import os
import queue
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path

from gymhost.envs.sandbox.backend import RUNNER, Backend, Container, Stream, StreamEnded
from gymhost.envs.sandbox.local_reaper import END_LIMIT, descendants
from gymhost.envs.sandbox.results import Usage
from gymhost.envs.sandbox.snapshots import Snapshot
from gymhost.envs.sandbox.spec import SandboxSpec
from gymhost.envs.sandbox.streams import PipeStream
from gymhost.wire.errors import InvalidArgument, SandboxLost, SandboxUnavailable

__all__ = ["Local"]

log = logging.getLogger("gymhost.envs.sandbox")

# Seconds that the start of a process may take.
START_LIMIT = 30.0
# Seconds between two looks at what is ending.
LOOK_AGAIN = 0.005
# The most bytes that a script of `control` may print.
CONTROL_OUTPUT = 16 * 2**20

NOT_CONTAINED = (
    "sandboxes of the backend 'local' contain nothing: what runs in them can do all that this process can. "
    "It is for code that you trust; use 'bubblewrap' or 'docker' for what a model wrote"
)

_USUAL = SandboxSpec()
_REAPER = Path(__file__).with_name("local_reaper.py")


class Local(Backend):
    """Plain processes, for trusted code and for machines where nothing else works. It is never used unasked.

    Nothing is contained. Programs run as the user of this process, see all of its files, its network and its processes,
    and can end it. The working folder is a fresh temporary one, whatever `workdir` says by default, and goes with the
    sandbox; /tmp is the machine's own, and what is written there stays. Memory, open files and the size of a file
    are limited for each process by itself; processes, processors and the disk in all are not limited. When a
    sandbox is destroyed, or the process that made it ends, all processes that were started in it end, also those that
    left their session or whose parents have ended.
    """

    name = "local"
    isolates = False

    def __init__(self) -> None:
        warnings.warn(NOT_CONTAINED, stacklevel=2)
        log.warning("%s", NOT_CONTAINED)
        self._containers: weakref.WeakSet[LocalContainer] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._closed = False
        # Those that were killed. A queue of this kind may be filled from a finalizer, where no thread could be started.
        self._killed: queue.SimpleQueue[LocalContainer | None] = queue.SimpleQueue()
        threading.Thread(target=_see_off, args=(self._killed,), name="gymhost-local", daemon=True).start()
        weakref.finalize(self, self._killed.put, None).atexit = False

    async def problem(self) -> str | None:
        """Returns why this machine can't use it: that it is no Linux."""
        if sys.platform != "linux":
            return f"the backend 'local' needs Linux, not {sys.platform}"
        return None

    async def create(self, spec: SandboxSpec, snapshot: Snapshot | None = None) -> Container:
        """Starts the processes of a sandbox.

        Raises:
            InvalidArgument: The spec asks for what plain processes don't have: an image, mounts, another user, another
                working folder, a network of their own.
            SandboxUnavailable: They could not be started.
        """
        _check(spec)
        if snapshot is not None:
            raise InvalidArgument("the backend 'local' keeps no snapshots of its own")
        if (problem := await self.problem()) is not None:
            raise SandboxUnavailable(problem)
        container = LocalContainer(spec, self._killed)
        try:
            with self._lock:
                if self._closed:
                    raise SandboxUnavailable("the backend 'local' was closed")
                self._containers.add(container)
            await container.start()
        except BaseException:
            container.kill()
            raise
        return container

    async def close(self) -> None:
        """Destroys all that it made."""
        with self._lock:
            self._closed = True
            containers = list(self._containers)
        await asyncio.gather(*(container.destroy() for container in containers))


class LocalContainer(Container):
    """The processes below a reaper of their own."""

    def __init__(self, spec: SandboxSpec, killed: "queue.SimpleQueue[LocalContainer | None]") -> None:
        self.id = f"local-{secrets.token_hex(4)}"
        self._folder = tempfile.mkdtemp(prefix="gymhost-local-")
        self.spec = dataclasses.replace(spec, workdir=self._folder)
        limits = spec.limits
        rlimits = {
            "RLIMIT_CORE": 0,
            "RLIMIT_DATA": limits.memory,
            "RLIMIT_FSIZE": limits.disk,
            "RLIMIT_NOFILE": limits.open_files,
        }
        self.limits_in_force = {
            "memory": "rlimit, each process by itself",
            "processes": "",
            "cpus": "",
            "disk": "rlimit, each file by itself",
            "open_files": "rlimit, each process by itself",
            "seccomp": "",
            "user": "",
            "network": "",
        }
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setblocking(False)
        try:
            self._reaper = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_REAPER), str(theirs.fileno()), self._folder, json.dumps(rlimits)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={},
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        except OSError as error:
            self._socket.close()
            os.rmdir(self._folder)  # noqa: PTH106
            raise SandboxUnavailable(f"the processes of a local sandbox could not be started: {error}") from None
        finally:
            theirs.close()
        self.init = self._reaper.pid
        self._killed = killed
        self._deadline = 0.0
        self._ended = threading.Event()

    async def start(self) -> None:
        """Starts the first process.

        Raises:
            SandboxUnavailable: It could not be started.
        """
        self.main = await self.open(RUNNER, self.spec.variables())

    @property
    def alive(self) -> bool:
        """Whether its reaper runs."""
        return not self._deadline and self._reaper.poll() is None

    async def open(self, argv: Sequence[str], env: Mapping[str, str]) -> Stream:
        """Starts another process below the reaper."""
        _, stream = await self._open(argv, env)
        return stream

    async def control(self, script: str, *, timeout: float = 10.0) -> bytes:
        """Runs a bash script below the reaper."""
        output = bytearray()

        def take(number: int, data: bytes) -> bool:
            if number == 1:
                output.extend(data)
            return len(output) > CONTROL_OUTPUT

        pid, stream = await self._open([*RUNNER, "-c", script], self.spec.variables())
        try:
            async with asyncio.timeout(timeout):
                await stream.exchange(b"", take)
        except StreamEnded:
            return bytes(output)
        except BaseException as error:
            # It is the leader of a session of its own.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            if isinstance(error, TimeoutError):
                raise SandboxLost(f"{self.id} did not answer in {timeout:g} s") from None
            raise
        finally:
            stream.close()
        raise SandboxLost(f"{self.id} answered with more than {CONTROL_OUTPUT} bytes")

    async def usage(self) -> Usage:
        """Adds up what its processes use."""
        if not self.alive:
            raise self._lost()
        return await asyncio.to_thread(_usage, self.init, self._folder)

    async def destroy(self) -> None:
        """Ends all processes and removes the folder."""
        self.kill()
        await asyncio.to_thread(self._ended.wait, END_LIMIT + 2 * START_LIMIT)

    def kill(self) -> None:
        """Begins to do so."""
        if not self._deadline:
            self._deadline = time.monotonic() + END_LIMIT + START_LIMIT
            # The reaper sees that and ends all, whatever becomes of this process.
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._killed.put(self)

    def has_ended(self) -> bool:
        """Whether nothing is left of one that was killed."""
        if self._reaper.poll() is None:
            if time.monotonic() < self._deadline:
                return False
            log.error("the processes of %s did not end in time; their reaper is killed", self.id)
            self._reaper.kill()
            self._reaper.wait()
        self._socket.close()
        self._ended.set()
        return True

    async def _open(self, argv: Sequence[str], env: Mapping[str, str]) -> tuple[int, PipeStream]:
        """Starts a process; its id, and its streams."""
        if not self.alive:
            raise self._lost()
        request = json.dumps({"argv": list(argv), "env": dict(env)}).encode()
        pipes: list[int] = []
        try:
            for _ in range(4):
                pipes += os.pipe()
            # Standard input is the only one that is read by the process.
            stdin, to_stdin, from_stdout, stdout, from_stderr, stderr, answer, answers = pipes
            try:
                socket.send_fds(self._socket, [request], [stdin, stdout, stderr, answers])
            except OSError as error:
                if isinstance(error, BrokenPipeError | ConnectionError):
                    raise self._lost() from None
                raise SandboxUnavailable(
                    f"{argv[0]} could not be started in {self.id}, with {len(request)} bytes of arguments and "
                    f"environment: {error}"
                ) from None
            for theirs in (stdin, stdout, stderr, answers):
                os.close(theirs)
                pipes.remove(theirs)
            words = (await _read_all(answer)).split()
            if not words:
                raise self._lost()
            if len(words) > 1:
                raise SandboxUnavailable(f"{argv[0]} could not be started in {self.id}: {os.strerror(int(words[1]))}")
            stream = PipeStream(to_stdin, from_stdout, from_stderr)
            pipes[:] = [answer]
            return int(words[0]), stream
        finally:
            for pipe in pipes:
                os.close(pipe)

    def _lost(self) -> SandboxLost:
        return SandboxLost(f"{self.id} is gone: it was destroyed, or its first process was ended")


def _see_off(killed: "queue.SimpleQueue[LocalContainer | None]") -> None:
    """Waits for the reapers of containers that were killed, so that none stays a zombie. On a thread of its own."""
    left: set[LocalContainer] = set()
    goes_on = True
    while goes_on or left:
        with contextlib.suppress(queue.Empty):
            container = killed.get(timeout=LOOK_AGAIN if left else None)
            if container is None:
                goes_on = False
            else:
                left.add(container)
        left = {container for container in left if not container.has_ended()}


async def _read_all(pipe: int) -> bytes:
    """Reads a few bytes to their end.

    Raises:
        SandboxUnavailable: The end did not come in time.
    """
    os.set_blocking(pipe, False)
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    data = bytearray()

    def read() -> None:
        try:
            more = os.read(pipe, 4096)
        except BlockingIOError:
            return
        data.extend(more)
        if not more and not done.done():
            done.set_result(None)

    loop.add_reader(pipe, read)
    try:
        async with asyncio.timeout(START_LIMIT):
            await done
    except TimeoutError:
        raise SandboxUnavailable(f"a process was not started in {START_LIMIT:g} s") from None
    finally:
        loop.remove_reader(pipe)
    return bytes(data)


def _check(spec: SandboxSpec) -> None:
    """Refuses what this backend can't do.

    Raises:
        InvalidArgument: The spec asks for it.
    """
    what = {
        "image": spec.image is not None,
        "mounts": bool(spec.mounts),
        "scratch": bool(spec.scratch),
        "user": spec.user not in (_USUAL.user, os.getuid()),
        "workdir": spec.workdir != _USUAL.workdir,
        "network": spec.network != _USUAL.network,
    }
    if refused := [name for name, asked in what.items() if asked]:
        raise InvalidArgument(
            f"the backend 'local' has no {refused[0]} to set: its sandboxes are plain processes in a fresh folder"
        )


def _usage(root: int, folder: str) -> Usage:
    tick, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    memory = ticks = 0
    pids = descendants(root)
    for pid in [root, *pids]:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        # Its own time and that of its children that have ended: orphans count for the reaper.
        ticks += sum(int(field) for field in fields[11:15])
        memory += int(fields[21]) * page if pid != root else 0
    disk = sum(
        os.lstat(os.path.join(parent, name)).st_blocks * 512  # noqa: PTH118
        for parent, _, files in os.walk(folder)
        for name in files
        if os.path.lexists(os.path.join(parent, name))  # noqa: PTH118
    )
    return Usage(memory=memory, processes=len(pids), cpu_seconds=ticks / tick, disk=disk)
