"""A sandbox that is attacked from inside, one beside it, and what is to be true of both afterwards."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator
from pathlib import Path

from gymhost.client import SandboxUnavailable
from gymhost.envs.sandbox import CommandResult, Limits, Sandbox, SandboxSpec, create
from support.server import PATIENCE

MIB = 2**20

LIMITS = Limits(memory=128 * MIB, processes=64, cpus=1.0, disk=32 * MIB, open_files=256)

# What is nowhere in a sandbox but where a test puts it.
MARK = f"mark-{uuid.uuid4().hex}"

# What lies in the attacked one's working folder.
KEPT = "kept"


class Arena:
    """A sandbox that is attacked from inside, and one beside it.

    Attributes:
        lost: Whether the attacked one was declared lost.
    """

    def __init__(self, attacked: Sandbox, beside: Sandbox) -> None:
        self.attacked = attacked
        self.beside = beside
        self.lost = False

    async def attack(self, command: str | list[str], *, timeout: float = 10.0) -> CommandResult | None:
        """Runs a command, bounded; None where the sandbox was declared lost."""
        try:
            async with asyncio.timeout(timeout + PATIENCE):
                return await self.attacked.run(command, timeout=timeout)
        except SandboxUnavailable:
            self.lost = True
            return None

    async def said(self, command: str | list[str], *, timeout: float = 10.0) -> str:
        """Runs a command that is to come to its end, and returns all that it wrote."""
        result = await self.attack(command, timeout=timeout)
        assert result is not None
        assert result.limit is None, result
        return result.stdout + result.stderr

    async def python(self, code: str, *arguments: str, timeout: float = 20.0) -> list[str]:
        """Runs Python that is to come to its end, and returns the lines that it printed."""
        result = await self.attack(["python3", "-c", code, *arguments], timeout=timeout)
        assert result is not None
        assert result.exit_status == 0, result
        return result.stdout.splitlines()

    async def settle(self) -> None:
        """Sees that both are as they should be."""
        async with asyncio.timeout(PATIENCE):
            assert await answers(self.beside)
            try:
                if not await answers(self.attacked):
                    # What an attack left running may still write to what others write to. Ended, it can't.
                    await self.attacked.halt()
                    assert await answers(self.attacked)
                assert (await self.attacked.run("cat kept")).stdout == KEPT
            except SandboxUnavailable:
                self.lost = True


async def answers(sandbox: Sandbox) -> bool:
    """Whether a sandbox does what it is there for."""
    result = await sandbox.run(["echo", "usable"], timeout=PATIENCE)
    shell = await sandbox.shell()
    said = await shell.run("echo $((1 + 1))", timeout=PATIENCE)
    await shell.close()
    await sandbox.write("written", b"usable")
    return (result.stdout, said.stdout, await sandbox.read("written")) == ("usable\n", "2\n", b"usable")


def in_namespace(link: str) -> list[int]:
    """The processes of this machine that are in a namespace."""
    found: list[int] = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if str((process / "ns/pid").readlink()) == link:
                found.append(int(process.name))
    return found


def marked(mark: str) -> list[int]:
    """The processes of this machine with a mark on their command line or in their environment; dead ones have none."""
    return [int(process.name) for process in Path("/proc").glob("[0-9]*") if mark.encode() in _told(process)]


def _told(process: Path) -> bytes:
    said = b""
    for name in ("cmdline", "environ"):
        with contextlib.suppress(OSError):
            said += (process / name).read_bytes()
    return said


@contextlib.asynccontextmanager
async def an_arena() -> AsyncGenerator[Arena]:
    """Makes the two sandboxes; sees afterwards that they are as they should be, and that nothing is left of them."""
    spec = SandboxSpec(limits=LIMITS, network="loopback")
    attacked, beside = await create(spec), await create(spec)
    # What the attacks do would do harm elsewhere.
    assert attacked.backend == "bubblewrap"
    arena = Arena(attacked, beside)
    await attacked.write("kept", KEPT)
    namespaces = [(await each.run(["readlink", "/proc/self/ns/pid"])).stdout.strip() for each in (attacked, beside)]
    assert all(in_namespace(link) for link in namespaces)
    try:
        yield arena
        await arena.settle()
    finally:
        async with asyncio.timeout(PATIENCE):
            await attacked.destroy()
            await beside.destroy()
    for link in namespaces:
        assert in_namespace(link) == []
