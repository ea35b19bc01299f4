"""Files of a sandbox, by the sandbox's own programs: so every path is resolved inside, and there is no way out."""

import asyncio
import errno
import os
import re
import secrets
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Literal, Protocol

from gymhost.envs.sandbox.results import CommandResult, FileInfo
from gymhost.envs.sandbox.spec import utf8
from gymhost.envs.sandbox.trees import Download, LeftOut, extract, pack_files, pack_folder
from gymhost.wire.errors import CommandTimeout, InvalidArgument, SandboxUnavailable, TooLarge

__all__ = ["Files", "Run", "pack", "unpack"]

MIB = 2**20

# Programs' messages in English, and names of files as the bytes that they are.
_ENV = {"LC_ALL": "C", "TAR_OPTIONS": "--format=gnu"}
_IS_FOLDER, _IS_NO_FILE, _READ_ONLY, _SHORT, _NO_FOLDER = 41, 42, 43, 44, 45
_STATUSES = {
    _IS_FOLDER: (errno.EISDIR, "Is a directory"),
    _IS_NO_FILE: (errno.EINVAL, "Not a regular file but a device, a FIFO or a socket"),
    _READ_ONLY: (errno.EACCES, "Permission denied"),
    _SHORT: (errno.EIO, "Not all of it was written"),
    _NO_FOLDER: (errno.ENOTDIR, "Not a directory"),
}
# Bytes of what is read of the messages of the sandbox's programs.
_COMPLAINTS = 32 * 1024
# What ends the messages of the sandbox's programs: as the GNU library puts it, and where musl's words are others.
_ERRORS = {os.strerror(code): code for code in errno.errorcode} | {
    "Filename too long": errno.ENAMETOOLONG,
    "I/O error": errno.EIO,
    "Out of memory": errno.ENOMEM,
    "Quota exceeded": errno.EDQUOT,
    "Resource busy": errno.EBUSY,
    "Symbolic link loop": errno.ELOOP,
}
# How tar says it when a file was written in part.
_SHORT_WRITE = re.compile(r"Wrote only \d+ of \d+ bytes")
_HINTS = {
    errno.ENOSPC: ": raise limits.disk",
    errno.EDQUOT: ": raise limits.disk",
    errno.ENOMEM: ": raise limits.memory",
    errno.EAGAIN: ": raise limits.processes, or end what runs (halt)",
}

# Only what is a regular file is opened: a FIFO would not come back.
_READ = f"""
[ -d "$1" ] && exit {_IS_FOLDER}
[ -f "$1" ] || {{ stat -L "$1" >/dev/null && exit {_IS_NO_FILE}; exit 1; }}
exec head -c "$2" "$1"
"""
# Written beside and then moved, so that nobody ever sees half of it: not even when the disk is full.
_WRITE = f"""
[ -L "$1" ] && {{ real=$(readlink -fv "$1" && echo .) || exit; set -- "${{real%?.}}" "$2" "$3" "$4"; }}
[ -d "$1" ] && exit {_IS_FOLDER}
mode=$3
if [ -e "$1" ]; then
  [ -f "$1" ] || exit {_IS_NO_FILE}
  [ -w "$1" ] || exit {_READ_ONLY}
  mode=${{3:-$(stat -c %a "$1")}}
fi
[ -e "${{1%/*}}" ] && [ ! -d "${{1%/*}}" ] && exit {_NO_FOLDER}
[ -d "${{1%/*}}/" ] || mkdir -p "${{1%/*}}/" || exit
beside=${{1%/*}}/$2
trap 'rm -f "$beside"' EXIT
cat >"$beside" || exit
[ "$(stat -c %s "$beside")" = "$4" ] || exit {_SHORT}
{{ [ -z "$mode" ] || chmod "$mode" "$beside"; }} && mv -f "$beside" "$1" && trap - EXIT
"""
_LIST = r"""
cd -P "$1" && find . -mindepth 1 -maxdepth "$2" -exec stat --printf '%f %s %.9Y %n\0' {} +
"""
_REMOVE = """
[ -e "$1" ] || [ -L "$1" ] || exec stat "$1"
exec rm -rf "$1"
"""
_UNPACK = """
mkdir -p "$1" && cd -P "$1" && exec tar -xpof -
"""
_PACK = """
set -o pipefail
cd -P "$1" && tar -cf - . | head -c "$2"
"""


class Run(Protocol):
    """`Sandbox.run`."""

    async def __call__(
        self,
        command: Sequence[str] | str,
        *,
        stdin: bytes = ...,
        timeout: float = ...,
        output_limit: int = ...,
        env: Mapping[str, str] | None = ...,
    ) -> CommandResult:
        """Runs a command in the sandbox."""
        ...


class Files:
    """Reads and writes files of a sandbox. Relative paths begin in its working folder.

    Every method raises:
        InvalidArgument: A path is empty or has a NUL character.
        CommandTimeout: It was not done within `timeout` seconds, and was stopped.
        SandboxLost: The sandbox is gone.
        SandboxUnavailable: The sandbox's image lacks a program that is needed: GNU coreutils, find or tar.
        OSError: What the sandbox's system said: FileNotFoundError, PermissionError, NotADirectoryError and so on.

    Args:
        run: Runs commands in the sandbox.
    """

    def __init__(self, run: Run) -> None:
        self._run = run

    async def read(self, path: str | PurePath, *, limit: int = 16 * MIB, timeout: float = 60.0) -> bytes:
        """Reads a file.

        Raises:
            FileNotFoundError: There is none.
            IsADirectoryError: It is a folder.
            PermissionError: The sandbox's user may not read it.
            TooLarge: It has more than `limit` bytes.
            OSError: It is a device, a FIFO or a socket, or could not be read for another reason.
        """
        place = _place(path)
        result = await self._call(_READ, place, str(limit + 1), timeout=timeout, output_limit=limit + 1)
        _check(result, path, timeout)
        if len(result.stdout_bytes) > limit:
            raise TooLarge(f"{os.fspath(path)!r} has more than {limit} bytes: raise limit=")
        return result.stdout_bytes

    async def read_text(
        self, path: str | PurePath, *, limit: int = 16 * MIB, errors: str = "replace", timeout: float = 60.0
    ) -> str:
        """Reads a file as UTF-8; `errors` says what becomes of what is none, as in `bytes.decode`.

        Raises:
            UnicodeDecodeError: `errors` is `strict`, and it is no UTF-8.
            OSError: As in `read`.
            TooLarge: It has more than `limit` bytes.
        """
        return (await self.read(path, limit=limit, timeout=timeout)).decode(errors=errors)

    async def write(
        self, path: str | PurePath, data: bytes | str, *, mode: int | None = None, timeout: float = 60.0
    ) -> None:
        """Writes a file as a whole: whoever looks sees what was there before or all of it, also when this fails.

        Folders that are missing on the way are made; a symlink is followed, inside the sandbox.

        Args:
            path: Where.
            data: What; text is written as UTF-8.
            mode: Its permission bits; None leaves those of a file that is there, and the usual ones otherwise.
            timeout: Seconds that it may take.

        Raises:
            IsADirectoryError: It is a folder.
            PermissionError: The sandbox's user may not write it.
            OSError: The disk is full (ENOSPC), or it is a device, a FIFO or a socket, or it could not be written for
                another reason.
        """
        place, content = _place(path), utf8(data, "what is written")
        if place.endswith("/") or place.rpartition("/")[2] in (".", ".."):
            raise IsADirectoryError(errno.EISDIR, "The path is one of a folder", os.fspath(path))
        # Unpredictable: so nothing is there, and a program inside has to look for it to meddle.
        beside = f".{secrets.token_hex(8)}.part"
        bits = "" if mode is None else f"{mode & 0o7777:o}"
        result = await self._call(
            _WRITE, place, beside, bits, str(len(content)), stdin=content, timeout=timeout, output_limit=MIB
        )
        if result.limit is not None:
            await self._run(["rm", "-f", f"{place.rpartition('/')[0]}/{beside}"], timeout=timeout)
        _check(result, path, timeout)

    async def list(
        self, path: str | PurePath = ".", *, depth: int = 1, limit: int = 16 * MIB, timeout: float = 60.0
    ) -> list[FileInfo]:
        """Lists what is in a folder, and to some depth in those in it. Links in it are not followed.

        Args:
            path: The folder.
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
        """
        if depth < 1:
            raise InvalidArgument(f"depth must be at least 1, not {depth}")
        result = await self._call(_LIST, _place(path), str(depth), timeout=timeout, output_limit=limit)
        if result.limit == "output" or result.stdout_left_out:
            raise TooLarge(
                f"the list of {os.fspath(path)!r} has more than {limit} bytes: raise limit=, or lower depth="
            )
        if result.limit or result.exit_status == 127 or not result.stdout_bytes:
            _check(result, path, timeout)
        # What was removed meanwhile, or may not be read, is complained of, and is no reason to tell nothing.
        lines = result.stdout_bytes.split(b"\0")[:-1]
        return sorted((_file_info(line) for line in lines), key=lambda info: info.path)

    async def remove(self, path: str | PurePath, *, timeout: float = 60.0) -> None:
        """Removes a file, a link (not what it leads to) or a folder with all that is in it.

        Raises:
            FileNotFoundError: There is none.
            PermissionError: The sandbox's user may not remove it, or something in it.
            OSError: It could not be removed for another reason.
        """
        place = _place(path)
        _check(await self._call(_REMOVE, place.rstrip("/") or "/", timeout=timeout, output_limit=MIB), path, timeout)

    async def upload(
        self,
        source: str | PurePath | Mapping[str, bytes | str],
        target: str | PurePath = ".",
        *,
        limit: int = 256 * MIB,
        timeout: float = 120.0,
    ) -> None:
        """Puts what is in a folder of the host, or the given files, into a folder of the sandbox.

        Args:
            source: A folder; or names and contents of files. Permissions are kept, but for setuid, setgid and sticky
                bits; all is owned by the sandbox's user.
            target: The folder; made if it is missing. What is there already stays, but for files of the same path.
            limit: Bytes of files.
            timeout: Seconds that it may take.

        Raises:
            InvalidArgument: The source has a link that leads out of it, or something that is neither file, folder nor
                link; or a name has `..` in it or is absolute.
            TooLarge: The source has more than `limit` bytes.
            FileNotFoundError: There is no such folder on the host.
            OSError: The source could not be read; or not all could be written (ENOSPC where the disk is full): then a
                part of it may be there.
        """
        place = _place(target)
        if isinstance(source, Mapping):
            packed = pack_files(source, limit)
        else:
            packed = await asyncio.to_thread(pack_folder, Path(source), limit)
        await unpack(self._run, packed, place, timeout=timeout)

    async def download(
        self,
        source: str | PurePath,
        target: str | PurePath,
        *,
        limit: int = 64 * MIB,
        entries: int = 10_000,
        timeout: float = 120.0,
    ) -> Download:
        """Brings what is in a folder of the sandbox to a folder of the host.

        What runs in the sandbox has no say in where it goes: see `Download.left_out` for what is not brought.

        Args:
            source: The folder in the sandbox.
            target: The folder on the host; it must be empty, or not there yet.
            limit: Bytes of files. What is above it is left out.
            entries: Files, folders and links. What is above it is left out.
            timeout: Seconds that it may take.

        Returns:
            What was written, and what was left out: what is above a limit, could not be read, is a device or a FIFO, or
            is a link that leads out of the folder.

        Raises:
            FileNotFoundError: There is no such folder in the sandbox.
            NotADirectoryError: It is no folder.
            FileExistsError: There is something in the target.
            OSError: The source could not be read, or the target not be written.
        """
        most = limit + (entries + 20) * 2048  # Headers and padding, and what a tar has at its end.
        result = await self._call(_PACK, _place(source), str(most), timeout=timeout, output_limit=most)
        archive = result.stdout_bytes
        if result.limit or result.exit_status == 127 or not archive:
            _check(result, source, timeout)
        download = await asyncio.to_thread(extract, archive, Path(target), limit=limit, entries=entries)
        # Where it was cut off, tar tells of that alone.
        unread = _unread(result) if len(archive) < most else []
        return Download(download.files, download.size, (*download.left_out, *(LeftOut("", line) for line in unread)))

    async def _call(
        self, script: str, *arguments: str, timeout: float, output_limit: int, stdin: bytes = b""
    ) -> CommandResult:
        return await self._run(
            ["bash", "-c", script, "bash", *arguments],
            stdin=stdin,
            timeout=timeout,
            output_limit=output_limit,
            env=_ENV,
        )


async def pack(run: Run, folder: str, *, limit: int, timeout: float) -> tuple[bytes, list[str]]:
    """Packs what is in a folder of a sandbox, to unpack it in another one.

    Returns:
        The archive, and what tar says of what it could not read.

    Raises:
        CommandTimeout: It was not done within `timeout` seconds.
        SandboxLost: The sandbox is gone.
        SandboxUnavailable: It has no tar.
        TooLarge: The archive has more than `limit` bytes.
        OSError: The folder could not be read.
    """
    # What is mounted there is in the other one too.
    env = _ENV | {"TAR_OPTIONS": "--format=gnu --one-file-system"}
    command = ["bash", "-c", _PACK, "bash", folder, str(limit + 1)]
    result = await run(command, timeout=timeout, output_limit=limit + 1, env=env)
    archive = result.stdout_bytes
    if result.limit or result.exit_status == 127 or not archive:
        _check(result, folder, timeout)
    if len(archive) > limit:
        raise TooLarge(f"what is in {folder!r} has more than {limit} bytes")
    # The folder itself is there in the other one, and may not be its user's.
    if archive.startswith(b"./\0"):
        archive = archive[512:]
    return archive, _unread(result)


async def unpack(run: Run, archive: bytes, folder: str, *, timeout: float) -> None:
    """Unpacks an archive into a folder of a sandbox, which is made if it is missing.

    Raises:
        CommandTimeout: It was not done within `timeout` seconds.
        SandboxLost: The sandbox is gone.
        SandboxUnavailable: It has no tar.
        OSError: Not all could be written.
    """
    command = ["bash", "-c", _UNPACK, "bash", folder]
    _check(await run(command, stdin=archive, timeout=timeout, output_limit=MIB, env=_ENV), folder, timeout)


def _check(result: CommandResult, path: str | PurePath, timeout: float) -> None:
    """Raises what a command on a file said."""
    name = os.fspath(path)
    if result.limit == "time":
        raise CommandTimeout(f"{name!r} was not done within timeout={timeout} s", limit="timeout")
    if result.exit_status == 0:
        # The scripts say 0 where all of them came to its end: what else wanted memory is no affair of theirs.
        return
    if result.limit == "memory":
        raise OSError(errno.ENOMEM, "The sandbox's memory is used up: raise limits.memory", name)
    if result.exit_status == 127:
        raise SandboxUnavailable(f"the sandbox's image lacks a program that is needed: {_told(result).strip()}")
    if result.exit_status in _STATUSES:
        raise OSError(*_STATUSES[result.exit_status], name)
    told = _told(result).strip()
    for line in told.splitlines():
        reason = _SHORT_WRITE.sub(os.strerror(errno.ENOSPC), line.rpartition(": ")[2])
        if code := _ERRORS.get(reason):
            raise OSError(code, reason + _HINTS.get(code, ""), name)
    raise OSError(errno.EIO, told or f"The sandbox's programs failed with status {result.exit_status}", name)


def _unread(result: CommandResult) -> list[str]:
    """Returns what tar says of what it could not read; it goes on without."""
    lines = _told(result).splitlines() if result.exit_status else []
    return [line for line in lines if "exit" not in line.lower()]


def _told(result: CommandResult) -> str:
    """Returns what programs complained of, and no more than they would: others inside may write there too."""
    return result.stderr_bytes[:_COMPLAINTS].decode(errors="replace")


def _place(path: str | PurePath) -> str:
    """Returns a path that no program takes for an option."""
    text = os.fspath(path)
    if not text or "\0" in text:
        raise InvalidArgument(f"{text!r} can't be a path: it is empty, or has a NUL character")
    return text if text.startswith("/") else f"./{text}"


_KINDS: dict[int, Literal["file", "directory", "symlink"]] = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "symlink",
}
_INFO = re.compile(rb"([0-9a-f]{1,8}) (\d{1,20}) (-?\d{1,20}(?:\.\d{,20})?) \./(.*)", re.DOTALL)


def _file_info(line: bytes) -> FileInfo:
    if not (match := _INFO.fullmatch(line)):
        raise SandboxUnavailable("the sandbox's image lacks GNU coreutils, whose `stat` is needed to list files")
    mode = int(match[1], 16)
    return FileInfo(
        path=os.fsdecode(match[4]),
        kind=_KINDS.get(stat.S_IFMT(mode), "other"),
        size=int(match[2]),
        mode=stat.S_IMODE(mode),
        modified=float(match[3]),
    )
