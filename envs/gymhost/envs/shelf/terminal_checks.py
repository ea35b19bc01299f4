"""What a chore is to leave behind, and how it is looked at: by trusted programs, whose answers are compared here."""

import asyncio
import hashlib
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from gymhost.envs.sandbox import Sandbox
from gymhost.wire.errors import CommandTimeout, TooLarge

__all__ = ["Holds", "Modes", "Pipe", "Runs", "Script", "Tree", "Unpacks", "Want", "digest", "tree"]

MIB = 2**20

# Seconds for a look, for a run of a script, and for an answer of a process that listens.
_LOOK, _SCRIPT, _ANSWER = 20.0, 10.0, 5.0

# Kinds and contents of all that is in a folder. What is neither file nor folder has the content `-`.
_TREE = """
cd -P -- "$1" || exit
find . ! -type d ! -type f -printf '- %p\\0'
find . -type f -exec sha256sum -z -- {} +
"""
# State and start of processes, where they are there.
_STATES = """
for pid; do
    IFS= read -r -d '' stat <"/proc/$pid/stat"
    set -- ${stat##*) }
    echo "$pid $1 ${20}"
    stat=
done 2>/dev/null
"""


class Want(Protocol):
    """Something that a chore is to leave behind.

    Attributes:
        live: Whether it is looked for while the agent's processes run: it is about them.
    """

    live: ClassVar[bool]

    async def met(self, sandbox: Sandbox) -> bool:
        """Whether it is there. Where it is not live, the sandbox is one that the agent's code never ran in.

        Raises:
            SandboxLost: The sandbox is gone.
        """
        ...


@dataclass(frozen=True, slots=True)
class Holds:
    """A file with a text; white space at its end is of no account."""

    live: ClassVar[bool] = False
    path: str
    text: str

    async def met(self, sandbox: Sandbox) -> bool:
        """Whether it has the text."""
        limit = len(self.text.encode()) + 1024
        return await _read(sandbox, self.path, limit) == self.text.rstrip()


@dataclass(frozen=True, slots=True)
class Tree:
    """A folder that holds files with these digests at these paths, and nothing else."""

    live: ClassVar[bool] = False
    folder: str
    files: Mapping[str, str]

    async def met(self, sandbox: Sandbox) -> bool:
        """Whether it does."""
        return await tree(sandbox, self.folder) == self.files


@dataclass(frozen=True, slots=True)
class Modes:
    """A folder whose files have these permission bits."""

    live: ClassVar[bool] = False
    folder: str
    modes: Mapping[str, int]

    async def met(self, sandbox: Sandbox) -> bool:
        """Whether they do."""
        try:
            found = await sandbox.list(self.folder, depth=6, limit=MIB, timeout=_LOOK)
        except (OSError, TooLarge, CommandTimeout):
            return False
        return {info.path: info.mode for info in found if info.kind == "file"} == self.modes


@dataclass(frozen=True, slots=True)
class Unpacks:
    """An archive, a tar compressed by gzip, that unpacks to files with these digests."""

    live: ClassVar[bool] = False
    path: str
    files: Mapping[str, str]

    async def met(self, sandbox: Sandbox) -> bool:
        """Whether it does."""
        place = f"/tmp/unpacked-{secrets.token_hex(8)}"
        unpack = 'mkdir -- "$1" && exec tar -xzf "$2" -C "$1"'
        done = await sandbox.run(["bash", "-c", unpack, "bash", place, f"./{self.path}"], timeout=_LOOK)
        return done.ok and await tree(sandbox, place) == self.files


@dataclass(frozen=True, slots=True)
class Script:
    """A program that prints what is wanted for files that its author never saw.

    Attributes:
        path: The program.
        runs: Files that there are, arguments, and what is wanted, for each run.
    """

    live: ClassVar[bool] = False
    path: str
    runs: Sequence[tuple[Mapping[str, str], Sequence[str], str]]

    async def met(self, sandbox: Sandbox) -> bool:
        """Whether it does."""
        for files, arguments, wanted in self.runs:
            try:
                await sandbox.upload(files, timeout=_LOOK)
            except OSError:
                return False
            result = await sandbox.run([f"./{self.path}", *arguments], timeout=_SCRIPT, output_limit=64 * 1024)
            if not result.ok or result.truncated or result.stdout.rstrip() != wanted.rstrip():
                return False
        return True


@dataclass(frozen=True, slots=True)
class Runs:
    """Processes that a chore found, by the names of what they were started with: one is to be ended, the rest go on.

    Attributes:
        ended: The one.
        started: Process id and start of each; put in when they were started.
    """

    live: ClassVar[bool] = True
    ended: str
    started: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])

    async def begin(self, sandbox: Sandbox, command: str, names: Sequence[str]) -> None:
        """Starts them.

        Raises:
            SandboxLost: The sandbox is gone.
        """
        start = f'for name; do setsid {command} "$name" </dev/null >/dev/null 2>&1 & echo $!; done'
        result = await sandbox.run(["bash", "-c", start, "bash", *names], timeout=_LOOK)
        pids = result.stdout.split()
        states = await _states(sandbox, pids)
        self.started.update({name: (pid, states[pid][1]) for name, pid in zip(names, pids, strict=True)})

    async def met(self, sandbox: Sandbox) -> bool:
        """Whether it is so. A process that is stopped does not go on, but has not ended either."""
        states = await _states(sandbox, [pid for pid, _ in self.started.values()])
        for name, (pid, start) in self.started.items():
            state, begun = states.get(pid, ("Z", start))
            there = begun == start and state not in "ZX"
            if there == (name == self.ended) or (there and state in "Tt"):
                return False
        return True


@dataclass(frozen=True, slots=True)
class Pipe:
    """A FIFO with a process that adds each line that it is given to a file, in capitals.

    Attributes:
        fifo: The FIFO.
        path: The file.
        lines: What it is given: one after the other, by another writer each.
    """

    live: ClassVar[bool] = True
    fifo: str
    path: str
    lines: Sequence[str]

    async def met(self, sandbox: Sandbox) -> bool:
        """Whether it answers."""
        write = '[ -p "$1" ] && printf "%s\\n" "$2" >"$1"'
        for line in self.lines:
            result = await sandbox.run(["bash", "-c", write, "bash", self.fifo, line], timeout=_ANSWER)
            if not result.ok:
                return False
            # Written one by one, since a reader may close between two lines.
            if not await self._answers(sandbox, line.upper()):
                return False
        return True

    async def _answers(self, sandbox: Sandbox, wanted: str) -> bool:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _ANSWER
        while loop.time() < deadline:
            text = await _read(sandbox, self.path, MIB)
            if text is not None and text.splitlines()[-1:] == [wanted]:
                return True
            await asyncio.sleep(0.05)
        return False


def digest(content: str | bytes) -> str:
    """Returns what tells a file's content."""
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()


async def tree(sandbox: Sandbox, folder: str) -> dict[str, str] | None:
    """Returns the digests of the files in a folder by their paths, `-` for what is no file; None where it has too many.

    Raises:
        SandboxLost: The sandbox is gone.
    """
    result = await sandbox.run(["bash", "-c", _TREE, "bash", folder], timeout=_LOOK, output_limit=MIB)
    if result.limit is not None or result.truncated:
        return None
    found = [entry.partition(" ") for entry in result.stdout_bytes.decode(errors="surrogateescape").split("\0")[:-1]]
    return {re.sub(r"^ ?\./", "", path): said for said, _, path in found}


async def _read(sandbox: Sandbox, path: str, limit: int) -> str | None:
    try:
        return (await sandbox.read_text(path, limit=limit, timeout=_LOOK)).rstrip()
    except (OSError, TooLarge, CommandTimeout):
        return None


async def _states(sandbox: Sandbox, pids: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Returns state and start of processes by their ids, of those that are there."""
    result = await sandbox.run(["bash", "-c", _STATES, "bash", *pids], timeout=_LOOK)
    lines = [line.split() for line in result.stdout.splitlines()]
    return {words[0]: (words[1], words[2]) for words in lines if len(words) == 3}
