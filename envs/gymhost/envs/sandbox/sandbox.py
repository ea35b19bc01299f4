"""A sandbox, as its users see it."""

import asyncio
import builtins
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from pathlib import PurePath
from typing import Any, Protocol, Self

from gymhost.envs.sandbox.backend import Container, Stream
from gymhost.envs.sandbox.commands import OUTPUT_LIMIT, TIMEOUT, Commands
from gymhost.envs.sandbox.files import Files
from gymhost.envs.sandbox.python_session import PythonSession
from gymhost.envs.sandbox.results import CommandResult, FileInfo, Usage
from gymhost.envs.sandbox.shell import Shell
from gymhost.envs.sandbox.snapshots import Snapshot, TarSnapshot
from gymhost.envs.sandbox.spec import utf8
from gymhost.envs.sandbox.trees import Download
from gymhost.wire.errors import InvalidArgument

__all__ = ["Sandbox"]

MIB = 2**20

SNAPSHOT_TIMEOUT = 120.0


class Create(Protocol):
    """Makes another sandbox of the same backend and spec, as `gymhost.envs.sandbox.create` does."""

    async def __call__(self, *, snapshot: Snapshot | None, timeout: float) -> "Sandbox":
        """Makes it."""
        ...


class Sandbox:
    """A place where code runs that nobody trusts, made by `gymhost.envs.sandbox.create`.

    All but `kill` is asynchronous. Hooks, tools and rubrics of a `ToolEnv` may be `async def` in every mode; plain code
    that blocks, on a thread without an event loop, says `asyncio.run(sandbox.run(...))`.

    What is done with it may come from any event loop, but from one thread at a time; `kill` may come from any. It is
    ended when it is destroyed, when `async with` is left, when nobody holds it or a shell or a Python of it any more,
    and when the session of a server ends that it was made in.

    Where methods for commands and files are cancelled, what they began in the sandbox is stopped first, and it can be
    used on. They all raise `SandboxLost` when the sandbox is gone, which is then so for good.

    Attributes:
        id: A name that tells it from others in logs.
        spec: What was asked for.
        backend: The name of its backend.
        limits_in_force: How each limit is held, by the names of the attributes of `Limits`, and `seccomp`, `user` and
            `network`; an empty text where it is not.
        queued_seconds: How long its making waited for its turn.
        created_seconds: How long its making took then.
    """

    def __init__(
        self,
        commands: Commands,
        *,
        backend: str,
        create: Create,
        queued_seconds: float,
        created_seconds: float,
        give_back: Callable[[], object],
    ) -> None:
        self._commands = commands
        self._container = container = commands.container
        self._create = create
        self._files = Files(commands.run)
        self.id = container.id
        self.spec = container.spec
        self.backend = backend
        self.limits_in_force: Mapping[str, str] = container.limits_in_force
        self.queued_seconds = queued_seconds
        self.created_seconds = created_seconds
        self._end = weakref.finalize(self, _end, container, give_back)

    @classmethod
    async def begin(
        cls,
        container: Container,
        snapshot: Snapshot | None = None,
        *,
        backend: str,
        create: Create,
        queued_seconds: float = 0.0,
        created_seconds: float = 0.0,
        give_back: Callable[[], object] = lambda: None,
    ) -> Self:
        """Takes over a container that was just made; where this fails, it is the caller's to end.

        Args:
            container: The container.
            snapshot: What it was made from.
            backend: The name of its backend.
            create: Makes others like it.
            queued_seconds: How long its making waited for its turn.
            created_seconds: How long its making took then.
            give_back: Is called when it ends.

        Raises:
            CommandTimeout: It took too long to write what the snapshot has.
            InvalidArgument: The snapshot was discarded.
            OSError: Not all that the snapshot has could be written.
            SandboxLost: It ended.
            SandboxUnavailable: It does not answer, or its image lacks bash or coreutils.
        """
        commands = Commands(container)
        await commands.begin()
        if isinstance(snapshot, TarSnapshot):
            await snapshot.restore(commands.run)
        return cls(
            commands,
            backend=backend,
            create=create,
            queued_seconds=queued_seconds,
            created_seconds=created_seconds,
            give_back=give_back,
        )

    def __repr__(self) -> str:
        return f"<Sandbox {self.id}{'' if self.alive else ', which is gone'}>"

    @property
    def alive(self) -> bool:
        """Whether it is there, as far as is known without asking."""
        return self._end.alive and self._container.alive

    async def run(
        self,
        command: str | Sequence[str],
        *,
        stdin: bytes | str = b"",
        timeout: float = TIMEOUT,
        output_limit: int = OUTPUT_LIMIT,
        env: Mapping[str, str] | None = None,
        cwd: str | PurePath | None = None,
    ) -> CommandResult:
        """Runs a command in a process of its own. Up to eight run at once; more wait.

        Args:
            command: A program and its arguments; or a text, which bash runs.
            stdin: What it can read from standard input; text goes as UTF-8.
            timeout: Seconds after which it is stopped, with all that it started.
            output_limit: How many bytes of standard output, and of standard error, are kept: the first and the last.
                A command that writes far more is stopped.
            env: Environment variables that it has besides those of `spec`.
            cwd: The folder that it runs in, from the working folder on. If there is none its exit status is 126.

        Returns:
            How it ended. What it left running in the background, without a limit, goes on until `halt` or `destroy`;
            what that writes then may be part of the output of a later command.

        Raises:
            InvalidArgument: The command is empty, something is no text or has a NUL character, or a limit is none.
            SandboxLost: The sandbox is gone.
            SandboxUnavailable: No process could be started for it.
        """
        return await self._commands.run(
            command,
            stdin=utf8(stdin, "stdin"),
            timeout=timeout,
            output_limit=output_limit,
            env=env,
            cwd=None if cwd is None else str(cwd),
        )

    async def shell(self) -> Shell:
        """Starts a shell whose variables and working folder last. A sandbox may have several.

        Raises:
            SandboxLost: The sandbox is gone.
            SandboxUnavailable: It could not be started.
        """
        shell = Shell(self._commands, self)
        await shell.begin()
        return shell

    async def python(self, *, executable: str = "python3") -> PythonSession:
        """Starts a Python whose variables last. A sandbox may have several.

        Args:
            executable: What it is called in the sandbox. By default it is the system's own, with the packages of the
                image; `interpreter_mounts` gives the sandbox the Python that runs this, `sys.executable`, with all that
                is installed for it.

        Raises:
            SandboxLost: The sandbox is gone.
            SandboxUnavailable: There is none, or it could not be started.
        """
        session = PythonSession(self._commands, self, executable)
        await session.begin()
        return session

    async def open(self, command: Sequence[str], *, env: Mapping[str, str] | None = None) -> Stream:
        """Starts a program whose standard streams are the caller's, in the working folder.

        It goes on until it ends by itself, or by `halt` or `destroy`; closing its streams ends its standard input.
        Whoever holds them does not hold the sandbox.

        Args:
            command: The program and its arguments.
            env: Environment variables that it has besides those of `spec`.

        Raises:
            InvalidArgument: The command is empty.
            CapacityExhausted: There are too many processes or open files now.
            SandboxLost: The sandbox is gone.
            SandboxUnavailable: The program could not be started.
        """
        if not command:
            raise InvalidArgument("a command must have a program")
        self._commands.check()
        return await self._container.open(list(command), {**self.spec.variables(), **(env or {})})

    async def read(self, path: str | PurePath, *, limit: int = 16 * MIB, timeout: float = TIMEOUT) -> bytes:
        """Reads a file.

        Args:
            path: Which, from the working folder on.
            limit: Bytes that it may have.
            timeout: Seconds that it may take.

        Raises:
            FileNotFoundError: There is none.
            IsADirectoryError: It is a folder.
            PermissionError: The sandbox's user may not read it.
            TooLarge: It has more than `limit` bytes.
            OSError: It is a device, a FIFO or a socket, or could not be read for another reason.
            CommandTimeout: It took longer.
            SandboxLost: The sandbox is gone.
        """
        return await self._files.read(path, limit=limit, timeout=timeout)

    async def read_text(
        self, path: str | PurePath, *, limit: int = 16 * MIB, errors: str = "replace", timeout: float = TIMEOUT
    ) -> str:
        """Reads a file as UTF-8, as `read` does; `errors` says what becomes of what is none, as in `bytes.decode`.

        Raises:
            UnicodeDecodeError: `errors` is `strict`, and it is no UTF-8.
            CommandTimeout, OSError, SandboxLost, TooLarge: As in `read`.
        """
        return await self._files.read_text(path, limit=limit, errors=errors, timeout=timeout)

    async def write(
        self, path: str | PurePath, data: bytes | str, *, mode: int | None = None, timeout: float = TIMEOUT
    ) -> None:
        """Writes a file as a whole: whoever looks sees what was there before or all of it.

        Args:
            path: Where, from the working folder on. Folders that are missing on the way are made.
            data: What; text is written as UTF-8.
            mode: Its permission bits; None leaves those of a file that is there, and the usual ones otherwise.
            timeout: Seconds that it may take.

        Raises:
            IsADirectoryError: There is a folder of this path.
            PermissionError: The sandbox's user may not write it.
            OSError: The disk is full (ENOSPC), the system is read-only there (EROFS), or it could not be written for
                another reason.
            CommandTimeout: It took longer.
            SandboxLost: The sandbox is gone.
        """
        await self._files.write(path, data, mode=mode, timeout=timeout)

    async def list(
        self, path: str | PurePath = ".", *, depth: int = 1, limit: int = 16 * MIB, timeout: float = TIMEOUT
    ) -> list[FileInfo]:
        """Lists what is in a folder, and to some depth in those in it. Links in it are not followed.

        Args:
            path: The folder, from the working folder on.
            depth: How deep: 1 means what is in the folder itself.
            limit: Bytes of names and figures.
            timeout: Seconds that it may take.

        Returns:
            What is there, sorted by path. Folders that can't be read are there themselves, but not what is in them.

        Raises:
            InvalidArgument: The depth is below 1.
            FileNotFoundError: There is no such folder.
            NotADirectoryError: It is no folder.
            PermissionError: The sandbox's user may not look into it.
            TooLarge: The list has more than `limit` bytes.
            CommandTimeout: It took longer.
            SandboxLost: The sandbox is gone.
        """
        return await self._files.list(path, depth=depth, limit=limit, timeout=timeout)

    async def remove(self, path: str | PurePath, *, timeout: float = TIMEOUT) -> None:
        """Removes a file, a link (not what it leads to) or a folder with all that is in it.

        Raises:
            FileNotFoundError: There is none.
            PermissionError: The sandbox's user may not remove it, or something in it.
            OSError: It could not be removed for another reason.
            CommandTimeout: It took longer.
            SandboxLost: The sandbox is gone.
        """
        await self._files.remove(path, timeout=timeout)

    async def upload(
        self,
        source: str | PurePath | Mapping[str, bytes | str],
        target: str | PurePath = ".",
        *,
        limit: int = 256 * MIB,
        timeout: float = 2 * TIMEOUT,
    ) -> None:
        """Puts what is in a folder of the host, or the given files, into a folder of the sandbox.

        Args:
            source: A folder of the host; or names and contents of files.
            target: The folder, from the working folder on; made if it is missing. What is there already stays, but for
                files of the same path.
            limit: Bytes of files.
            timeout: Seconds that it may take.

        Raises:
            InvalidArgument: The source has a link that leads out of it, or something that is neither file, folder nor
                link; or a name has `..` in it or is absolute.
            TooLarge: The source has more than `limit` bytes.
            FileNotFoundError: There is no such folder on the host.
            NotADirectoryError: It is a file: `write` takes those.
            OSError: The source could not be read; or not all could be written (ENOSPC where the disk is full): then a
                part of it may be there.
            CommandTimeout: It took longer.
            SandboxLost: The sandbox is gone.
        """
        await self._files.upload(source, target, limit=limit, timeout=timeout)

    async def download(
        self,
        source: str | PurePath,
        target: str | PurePath,
        *,
        limit: int = 64 * MIB,
        entries: int = 10_000,
        timeout: float = 2 * TIMEOUT,
    ) -> Download:
        """Brings what is in a folder of the sandbox to a folder of the host, and nothing anywhere else.

        Args:
            source: The folder in the sandbox, from the working folder on.
            target: The folder on the host; it must be empty, or not there yet.
            limit: Bytes of files. What is above it is left out.
            entries: Files, folders and links. What is above it is left out.
            timeout: Seconds that it may take.

        Returns:
            What was written, and what was left out: what is above a limit, could not be read, is a device or a FIFO, or
            is a link that leads out of the folder.

        Raises:
            FileNotFoundError: There is no such folder in the sandbox.
            NotADirectoryError: It is no folder: `read` takes files.
            FileExistsError: There is something in the target.
            OSError: The source could not be read, or the target not be written.
            CommandTimeout: It took longer.
            SandboxLost: The sandbox is gone.
        """
        return await self._files.download(source, target, limit=limit, entries=entries, timeout=timeout)

    async def snapshot(self, *, timeout: float = SNAPSHOT_TIMEOUT) -> Snapshot:
        """Keeps the files that it has written: `create(spec, snapshot=...)` makes sandboxes that begin with them.

        Programs that run meanwhile may be half-way through writing. Files under writable mounts are no part of it.
        Where the backend can't keep files by itself (Docker, local), they are read: those in the working folder and
        /tmp that the sandbox's user can read.

        Args:
            timeout: Seconds that it may take, where files are read.

        Raises:
            CommandTimeout: It took longer.
            SandboxLost: The sandbox is gone.
            OSError: Files could not be read.
        """
        self._commands.check()
        snapshot = await self._container.snapshot()
        if snapshot is not None:
            return snapshot
        # Without process namespaces /tmp is the host's.
        folders = (".", "/tmp") if self._container.init == 1 else (".",)
        # A tar is somewhat larger than what is in it.
        limit = 2 * self.spec.limits.disk + 16 * MIB
        return await TarSnapshot.take(self._commands.run, folders, limit=limit, timeout=timeout)

    async def halt(self) -> None:
        """Ends all that runs in it, shells and Pythons too. Its files stay, and it can be used on.

        Raises:
            SandboxLost: The sandbox is gone.
        """
        await self._commands.halt()

    async def fork(
        self, number: int = 1, *, timeout: float = SNAPSHOT_TIMEOUT, contexts: Sequence[Context] | None = None
    ) -> "builtins.list[Sandbox]":
        """Makes sandboxes that begin with the files of this one. What runs in this one does not run in them.

        Args:
            number: How many.
            timeout: Seconds that it may take to keep the files, and then to make all of them.
            contexts: What each is made in, which on a server says the session that it belongs to; None for the
                caller's.

        Raises:
            CapacityExhausted: The time passed before there was room for them.
            CommandTimeout: It took longer to keep the files.
            InvalidArgument: The number is below 1.
            SandboxLost: The sandbox is gone, or a new one.
            SandboxUnavailable: One could not be made; then there is none.
            OSError: Files could not be read or written.
        """
        if number < 1:
            raise InvalidArgument(f"the number of forks must be at least 1, not {number}")
        snapshot = await self.snapshot(timeout=timeout)
        makings = [
            asyncio.create_task(self._make(snapshot, timeout), context=context)
            for context in contexts or [None] * number
        ]
        try:
            return await asyncio.gather(*makings)
        except BaseException:
            await _undo(makings)
            raise
        finally:
            await snapshot.discard()

    async def _make(self, snapshot: Snapshot, timeout: float) -> "Sandbox":
        return await self._create(snapshot=snapshot, timeout=timeout)

    async def usage(self) -> Usage:
        """Returns what it uses now.

        Raises:
            SandboxLost: The sandbox is gone.
        """
        self._commands.check()
        return await self._container.usage()

    async def destroy(self) -> None:
        """Ends all that runs in it and removes all that it wrote.

        Whoever waits for something in it is told that it is lost. Bounded. May be called twice.
        """
        self.kill()
        await self._container.destroy()

    def kill(self) -> None:
        """Begins what `destroy` does, from any thread and without waiting."""
        self._commands.close()
        self._end()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        # Where what holds it is forked, the memo has the fork.
        raise TypeError("a sandbox is not copied, but forked: await sandbox.fork()")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.destroy()


def _end(container: Container, give_back: Callable[[], object]) -> None:
    container.kill()
    give_back()


async def _undo(makings: "list[asyncio.Task[Sandbox]]") -> None:
    """Ends what was made of a number of sandboxes that can't all be had."""
    for making in makings:
        making.cancel()
    for made in await asyncio.gather(*makings, return_exceptions=True):
        if isinstance(made, Sandbox):
            made.kill()
