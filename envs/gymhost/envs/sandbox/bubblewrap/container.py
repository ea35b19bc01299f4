"""A sandbox of bubblewrap's."""

import asyncio
import contextlib
import os
import re
import secrets
from collections.abc import Mapping, Sequence

from gymhost.envs.sandbox.backend import RUNNER, Container, Stream, StreamEnded
from gymhost.envs.sandbox.bubblewrap import arguments, cgroups
from gymhost.envs.sandbox.bubblewrap.keeper_client import KeeperClient
from gymhost.envs.sandbox.bubblewrap.terms import BOX
from gymhost.envs.sandbox.results import Usage
from gymhost.envs.sandbox.snapshots import Snapshot
from gymhost.envs.sandbox.spec import SandboxSpec
from gymhost.envs.sandbox.streams import PipeStream
from gymhost.wire.errors import CapacityExhausted, InvalidArgument, SandboxLost, SandboxUnavailable

__all__ = ["BubblewrapContainer", "LayerSnapshot"]

# Seconds that a sandbox has to start, or a process in it; and to end.
START_LIMIT = 20.0
END_LIMIT = 10.0
# Seconds that what a sandbox has written may take to be copied.
SNAPSHOT_LIMIT = 120.0

# The most bytes that a script of `control` may print, and that are kept of what bubblewrap says.
CONTROL_OUTPUT = 16 * 2**20
WORDS = 4096

# What bubblewrap says of a machine that has not enough of something now.
PASSING = (
    "Cannot allocate memory",
    "No space left on device",
    "Resource temporarily unavailable",
    "Too many open files",
    "namespaces exceeded",
)


class LayerSnapshot(Snapshot):
    """What a sandbox had written, as a stack of layers that the keeper holds."""

    def __init__(self, client: KeeperClient, name: str, uid: int | None) -> None:
        self.client = client
        self.name = name
        self.uid = uid
        self._discarded = False

    @property
    def discarded(self) -> bool:
        """Whether it is given up."""
        return self._discarded

    async def discard(self) -> None:
        """Has the keeper remove the layers that nothing else stands on."""
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
        # What a sandbox writes lies in its memory: room is left for processes, so that a full disk ends none of them.
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
        ours, theirs = _pipes(self._uid)
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
            "more": len(spec.scratch),
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
        """Whether it runs; the keeper tells when it has ended."""
        return self._alive and self._client.alive

    def lost(self) -> None:
        """It has ended, unasked or as it was told."""
        self.out_of_memory()
        self._alive = False

    async def open(self, argv: Sequence[str], env: Mapping[str, str]) -> Stream:
        """Starts another process in its namespaces and its control group, with its filter and its user.

        Raises:
            SandboxLost: It is gone, or does not answer in time.
            CapacityExhausted: There are too many processes or open files now.
            SandboxUnavailable: The program could not be run.
        """
        stream, _ = await self._open(argv, env, control=False, timeout=START_LIMIT)
        return stream

    async def _open(
        self, argv: Sequence[str], env: Mapping[str, str], *, control: bool, timeout: float
    ) -> tuple[PipeStream, int]:
        if not self.alive:
            raise SandboxLost("the sandbox is gone")
        ours, theirs = _pipes(self._uid)
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
        """Runs a bash script beside the sandbox's control group, so that its limits do not hold.

        Raises:
            SandboxLost: It is gone, or does not answer in time; the script is ended then.
        """
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
        """Returns what it uses: what control groups count where there are any, and the file system of what it writes.

        Raises:
            SandboxLost: It is gone.
        """
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
        """Returns how many processes its control group's memory limit ended; the last figure when it is gone."""
        self._killed = self._counted("killed") or self._killed
        return self._killed

    async def snapshot(self) -> Snapshot | None:
        """Copies what it has written since it began, as a layer, while its processes stand still.

        In a sandbox that begins with it a file with several names is several files once it is written to.

        Raises:
            SandboxLost: It is gone.
            CapacityExhausted: Snapshots take as much memory as they may have; discard some.
            SandboxUnavailable: The files can't be copied, such as folders that are nested hundreds deep.
        """
        try:
            answer = await self._client.request("snapshot", timeout=SNAPSHOT_LIMIT, name=self.id)
        except CapacityExhausted as error:
            raise CapacityExhausted(f"there is no room for another snapshot, discard some: {error.message}") from error
        return LayerSnapshot(self._client, answer["snapshot"], self._uid)

    async def destroy(self) -> None:
        """Has the keeper kill all of it, and waits until it is gone."""
        self.out_of_memory()
        self._alive = False
        if self._begun:
            self._begun = False
            self.main.close()
            with contextlib.suppress(SandboxLost, SandboxUnavailable, CapacityExhausted):
                await self._client.request("destroy", timeout=END_LIMIT, name=self.id)

    def kill(self) -> None:
        """Has the keeper kill all of it, without waiting."""
        self._alive = False
        if self._begun:
            self.main.close()
            self._client.post("destroy", name=self.id)


def _pipes(uid: int | None) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Returns both ends of three pipes, ours and theirs: the user's of the sandbox, who may open /dev/stderr anew."""
    made: list[int] = []
    try:
        for _ in range(3):
            made += os.pipe()
            if uid is not None:
                os.fchown(made[-1], uid, -1)
    except OSError as error:
        for descriptor in made:
            os.close(descriptor)
        raise CapacityExhausted(f"this process has too many files open for another sandbox: {error}") from error
    return (made[1], made[2], made[4]), (made[0], made[3], made[5])


def _kernel() -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", os.uname().release)[:2])
