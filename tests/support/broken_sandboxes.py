"""Sandbox backends that do as another one, but for one thing, which the self-check has to find."""

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gymhost.envs.sandbox import Backend, Container, Mount, SandboxSpec, Snapshot, Stream, Usage
from gymhost.envs.sandbox.backend import Take


class PassedOnStream(Stream):
    """A stream that passes all on to another."""

    def __init__(self, real: Stream) -> None:
        self.real = real

    async def exchange(self, data: bytes, take: Take) -> None:
        await self.real.exchange(data, take)

    def close(self) -> None:
        self.real.close()


class PassedOn(Container):
    """A container that passes all on to another."""

    stream: type[PassedOnStream] = PassedOnStream

    def __init__(self, real: Container) -> None:
        self.real = real
        self.id = real.id
        self.spec = real.spec
        self.main = self.stream(real.main)
        self.init = real.init
        self.limits_in_force = real.limits_in_force

    @property
    def alive(self) -> bool:
        return self.real.alive

    async def open(self, argv: Sequence[str], env: Mapping[str, str]) -> Stream:
        return self.stream(await self.real.open(argv, env))

    async def control(self, script: str, *, timeout: float = 10.0) -> bytes:
        return await self.real.control(script, timeout=timeout)

    async def usage(self) -> Usage:
        return await self.real.usage()

    def out_of_memory(self) -> int:
        return self.real.out_of_memory()

    async def snapshot(self) -> Snapshot | None:
        return await self.real.snapshot()

    async def destroy(self) -> None:
        await self.real.destroy()

    def kill(self) -> None:
        self.real.kill()


class Broken(Backend):
    """A backend that passes all on to another; what is broken overrides something."""

    container: type[PassedOn] = PassedOn

    def __init__(self, real: Backend) -> None:
        self.real = real
        self.name = real.name
        self.isolates = real.isolates

    def change(self, spec: SandboxSpec) -> SandboxSpec:
        return spec

    async def problem(self) -> str | None:
        return await self.real.problem()

    async def create(self, spec: SandboxSpec, snapshot: Snapshot | None = None) -> Container:
        return self.container(await self.real.create(self.change(spec), snapshot))

    async def close(self) -> None:
        await self.real.close()


class LeaksVariables(Broken):
    """Its sandboxes have the server's environment, but for names that are known to be secret."""

    def change(self, spec: SandboxSpec) -> SandboxSpec:
        known = ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", *spec.variables())
        return replace(spec, env={**spec.env, **{name: os.environ[name] for name in os.environ if name not in known}})


class MountsHost(Broken):
    """Its sandboxes see the host's temporary files, in another place."""

    def change(self, spec: SandboxSpec) -> SandboxSpec:
        return replace(spec, mounts=(*spec.mounts, Mount(tempfile.gettempdir(), "/mnt")))


class HoldsNoMemory(Broken):
    """It says that memory is limited, but it is not."""

    def change(self, spec: SandboxSpec) -> SandboxSpec:
        return replace(spec, limits=replace(spec.limits, memory=2**33))


class HoldsNoProcesses(Broken):
    """It says that the number of processes is limited, but it is not."""

    def change(self, spec: SandboxSpec) -> SandboxSpec:
        return replace(spec, limits=replace(spec.limits, processes=1000))


class FrankContainer(PassedOn):
    def __init__(self, real: Container) -> None:
        super().__init__(real)
        self.limits_in_force = dict.fromkeys(real.limits_in_force, "")


class SaysThatItHoldsNothing(Broken):
    """It says that no limit is in force."""

    container = FrankContainer


class StrictStream(PassedOnStream):
    async def exchange(self, data: bytes, take: Take) -> None:
        await self.real.exchange(data, lambda source, text: take(source, text.decode().encode()))


class StrictContainer(PassedOn):
    stream = StrictStream


class ReadsText(Broken):
    """It takes what is written for text."""

    container = StrictContainer


class UnstoppedContainer(PassedOn):
    async def control(self, script: str, *, timeout: float = 10.0) -> bytes:
        return b"0\n"


class StopsNothing(Broken):
    """Its time limits end the wait, but not the work."""

    container = UnstoppedContainer


class LenientContainer(PassedOn):
    async def control(self, script: str, *, timeout: float = 10.0) -> bytes:
        assert "\norphans=" in script
        return await self.real.control(script.replace("\norphans=1\n", "\norphans=0\n"), timeout=timeout)


class SparesOrphans(Broken):
    """Its time limits end what a command started, but for what has left its tree."""

    container = LenientContainer


class LastingStream(PassedOnStream):
    def close(self) -> None:
        pass


class LastingContainer(PassedOn):
    stream = LastingStream
    destroyed = False

    def __init__(self, real: Container) -> None:
        super().__init__(real)
        LeavesProcesses.left.append(self)

    async def open(self, argv: Sequence[str], env: Mapping[str, str]) -> Stream:
        stream = await super().open(argv, env)
        LeavesProcesses.left.append(stream)
        return stream

    @property
    def alive(self) -> bool:
        return not self.destroyed and self.real.alive

    async def destroy(self) -> None:
        self.destroyed = True

    def kill(self) -> None:
        self.destroyed = True


class LeavesProcesses(Broken):
    """Its sandboxes go on when they are destroyed, until it is closed."""

    container = LastingContainer
    left: list[object] = []

    async def close(self) -> None:
        self.left.clear()
        await super().close()


class HomingStream(PassedOnStream):
    async def exchange(self, data: bytes, take: Take) -> None:
        await self.real.exchange(b'cd "$HOME"\n' + data if data else data, take)


class HomingContainer(PassedOn):
    async def open(self, argv: Sequence[str], env: Mapping[str, str]) -> Stream:
        return HomingStream(await self.real.open(argv, env))


class ForgetsFolder(Broken):
    """Its shells begin each command in the working folder."""

    container = HomingContainer


class MendingStream(PassedOnStream):
    async def exchange(self, data: bytes, take: Take) -> None:
        await self.real.exchange(data, lambda source, text: take(source, text.replace(b"\r\n", b"\n")))


class MendingContainer(PassedOn):
    stream = MendingStream


class MendsLineEnds(Broken):
    """It hands out what it reads with the line ends of this system."""

    container = MendingContainer


class Nothing(Snapshot):
    async def discard(self) -> None:
        pass


class SharingContainer(PassedOn):
    async def snapshot(self) -> Snapshot | None:
        return Nothing()


class SharesFiles(Broken):
    """Its copies have the files of the sandbox that they were made from, rather than their own."""

    container = SharingContainer

    def __init__(self, real: Backend) -> None:
        super().__init__(real)
        self._folder = tempfile.TemporaryDirectory(prefix="gymhost-test-")
        Path(self._folder.name).chmod(0o777)

    def change(self, spec: SandboxSpec) -> SandboxSpec:
        return replace(spec, workdir="/shared", mounts=(Mount(self._folder.name, "/shared", writable=True),))

    async def create(self, spec: SandboxSpec, snapshot: Snapshot | None = None) -> Container:
        return await super().create(spec)

    async def close(self) -> None:
        await super().close()
        self._folder.cleanup()


class LeakingContainer(PassedOn):
    async def destroy(self) -> None:
        await super().destroy()
        LeaksDescriptors.left.append(os.open(os.devnull, os.O_RDONLY))


class LeaksDescriptors(Broken):
    """Each of its sandboxes leaves an open file."""

    container = LeakingContainer
    left: list[int] = []

    async def close(self) -> None:
        while self.left:
            os.close(self.left.pop())
        await super().close()
