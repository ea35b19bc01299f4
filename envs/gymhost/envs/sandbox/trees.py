"""Trees of files as tar archives: made from what the host has, and unpacked when they come from a sandbox.

An archive from a sandbox is hostile: whatever it says, nothing is written outside the folder that it is unpacked to,
nothing in there leads out, and what comes of it is bounded.
"""

import contextlib
import errno
import io
import os
import stat
import tarfile
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from gymhost.envs.sandbox.spec import utf8
from gymhost.wire.errors import InvalidArgument, TooLarge

__all__ = ["Download", "LeftOut", "extract", "pack_files", "pack_folder"]

_BLOCK = 512
_LONGEST_NAME = 2048
# Folders in one another. Programs of the host's that walk through what was written may call themselves for each.
_DEEPEST = 200
_NO_FILES = {b"3": "a device", b"4": "a device", b"6": "a FIFO", b"S": "a sparse file"}
# What is wrong with one entry alone, and does not keep the others from being unpacked.
_BAD_NAME = {errno.ENAMETOOLONG, errno.EEXIST, errno.ENOTDIR, errno.ELOOP, errno.EISDIR, errno.EINVAL, errno.EILSEQ}


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Something that was not downloaded.

    Attributes:
        path: Its path from the folder that was downloaded on; empty where it is told for more than one.
        reason: Why not.
    """

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Download:
    """What came of a download.

    Attributes:
        files: How many files, links among them, were written.
        size: Bytes in them.
        left_out: What was not written, and why.
    """

    files: int
    size: int
    left_out: tuple[LeftOut, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether nothing was left out."""
        return not self.left_out


def pack_folder(source: Path, limit: int) -> bytes:
    """Packs what is in a folder of the host. Links that stay in it remain links.

    Raises:
        InvalidArgument: A link leads out of the folder, or is absolute; or something is neither file, folder nor link.
        TooLarge: It has more than `limit` bytes.
        OSError: The folder, or something in it, could not be read.
    """
    root = source.resolve(strict=True)
    if not root.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "Not a folder: to upload one file, write it", str(source))
    packed = _Packing(str(source), limit)
    folders = [root]
    while folders:
        with os.scandir(folders.pop()) as found:
            entries = sorted(found, key=lambda entry: entry.name)
        for entry in entries:
            path = Path(entry.path)
            name = str(path.relative_to(root))
            status = entry.stat(follow_symlinks=False)
            if stat.S_ISLNK(status.st_mode):
                target = str(path.readlink())
                if target.startswith("/") or not Path(os.path.realpath(path)).is_relative_to(root):
                    raise InvalidArgument(f"{path} is a link that leads out of {source}, to {target!r}")
                packed.link(name, target, status.st_mtime)
            elif stat.S_ISDIR(status.st_mode):
                packed.folder(name, status.st_mode, status.st_mtime)
                folders.append(path)
            elif stat.S_ISREG(status.st_mode):
                packed.file(name, packed.read(path), status.st_mode, status.st_mtime)
            else:
                raise InvalidArgument(f"{path} is neither a file nor a folder nor a link: it can't be uploaded")
    return packed.finish()


def pack_files(files: Mapping[str, bytes | str], limit: int) -> bytes:
    """Packs files that are given by their names and contents.

    Raises:
        InvalidArgument: A name is empty, absolute or has `..` in it, one is a folder of another, or something can't be
            written as UTF-8.
        TooLarge: They have more than `limit` bytes.
    """
    paths = [PurePosixPath(name) for name in files]
    for name, path in zip(files, paths, strict=True):
        utf8(name, "the name of a file to upload")
        if not path.parts or path.is_absolute() or ".." in path.parts or "\0" in name or name.endswith("/"):
            raise InvalidArgument(f"{name!r} can't be the name of a file to upload: a relative path without '..' can")
    folders = {folder for path in paths for folder in path.parents}
    if len(set(paths)) < len(paths) or folders & set(paths):
        raise InvalidArgument("two of the files to upload have the same path, or one is a folder of another")
    packed = _Packing("what is uploaded", limit)
    now = time.time()
    for path, content in zip(paths, files.values(), strict=True):
        packed.file(str(path), utf8(content, f"the content of {str(path)!r}"), 0o644, now)
    return packed.finish()


class _Packing:
    """An archive in the making. GNU's format: names are bytes in it, and each tar reads it."""

    def __init__(self, what: str, limit: int) -> None:
        self._what, self._limit, self._left = what, limit, limit
        self._archive = io.BytesIO()
        self._tar = tarfile.open(  # noqa: SIM115 - closed by `finish`; it holds memory alone
            fileobj=self._archive, mode="w", format=tarfile.GNU_FORMAT, encoding="utf-8", errors="surrogateescape"
        )

    def read(self, path: Path) -> bytes:
        """Reads a file, without waiting for anybody and following no link if it was replaced meanwhile."""
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            return file.read(self._left + 1)

    def file(self, name: str, content: bytes, mode: int, modified: float) -> None:
        self._left -= len(content)
        if self._left < 0:
            raise TooLarge(f"{self._what} has more than {self._limit} bytes: raise limit=")
        info = self._info(name, tarfile.REGTYPE, mode, modified)
        info.size = len(content)
        self._tar.addfile(info, io.BytesIO(content))

    def folder(self, name: str, mode: int, modified: float) -> None:
        self._tar.addfile(self._info(name, tarfile.DIRTYPE, mode, modified))

    def link(self, name: str, target: str, modified: float) -> None:
        info = self._info(name, tarfile.SYMTYPE, 0o777, modified)
        info.linkname = target
        self._tar.addfile(info)

    def finish(self) -> bytes:
        self._tar.close()
        return self._archive.getvalue()

    def _info(self, name: str, kind: bytes, mode: int, modified: float) -> tarfile.TarInfo:
        info = tarfile.TarInfo(f"./{name}")
        info.type, info.mode, info.mtime = kind, mode & 0o777, max(0, int(modified))
        return info


def extract(archive: bytes, target: Path, *, limit: int, entries: int) -> Download:
    """Unpacks a hostile archive.

    Args:
        archive: The archive; it may have been cut off.
        target: A folder of the host that is empty or not there yet: so no link that was there can be followed.
        limit: Bytes of files that are written at most.
        entries: Files, folders and links that are made at most.

    Returns:
        What was written, and what was not. Left out are paths that are absolute or go up, links that lead or might lead
        out, devices and FIFOs, what comes twice, and what is above a limit. No setuid, setgid or sticky bit is set, and
        nobody but its owner may write to what was written.

    Raises:
        FileExistsError: The target has something in it.
        OSError: The target can't be written to.
    """
    target.mkdir(parents=True, exist_ok=True)
    root = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if os.listdir(root):
            raise FileExistsError(errno.EEXIST, "The folder to download to is not empty", str(target))
        unpacking = _Unpacking(root, limit, entries)
        try:
            for member in _members(memoryview(archive)):
                unpacking.take(member)
        except _EndOfArchiveError as end:
            unpacking.left_out.append(LeftOut("", str(end)))
        return Download(len(unpacking.files) + unpacking.links, limit - unpacking.left, tuple(unpacking.left_out))
    finally:
        os.close(root)


@dataclass(frozen=True, slots=True)
class _Member:
    name: bytes
    kind: bytes
    mode: int
    link: bytes
    content: memoryview


class _EndOfArchiveError(Exception):
    """An archive ended before its end, or is none from some point on."""


class _Refused(Exception):
    """An entry that is not unpacked."""


def _members(archive: memoryview) -> Iterator[_Member]:
    """Reads GNU's format and its parent, and no more: the library's reader has more ways to be led astray."""
    offset, name, link = 0, b"", b""
    while True:
        header = bytes(archive[offset : offset + _BLOCK])
        if len(header) == _BLOCK and not any(header):
            return
        if len(header) < _BLOCK:
            raise _EndOfArchiveError("the rest: the archive was cut off, above the limits or as it was made")
        if _number(header[148:156]) != sum(header[:148]) + sum(header[156:]) + 8 * 32:
            raise _EndOfArchiveError("the rest: what came was no archive")
        offset += _BLOCK
        kind, size = header[156:157], _number(header[124:136])
        content = archive[offset : offset + size]
        if len(content) < size:
            raise _EndOfArchiveError("the rest: the archive was cut off, above the limits or as it was made")
        offset += -(-size // _BLOCK) * _BLOCK
        if kind == b"L":
            name = _text(bytes(content))
        elif kind == b"K":
            link = _text(bytes(content))
        else:
            if not name:
                name = _text(header[:100])
                if header[257:263] == b"ustar\0" and (prefix := _text(header[345:500])):
                    name = prefix + b"/" + name
            yield _Member(name, kind, _number(header[100:108]), link or _text(header[157:257]), content)
            name = link = b""


def _number(field: bytes) -> int:
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.strip(b" \0")
    if not all(b"0"[0] <= digit <= b"7"[0] for digit in digits):
        raise _EndOfArchiveError("the rest: what came was no archive")
    return int(digits or b"0", 8)


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


class _Unpacking:
    """Writes members below a folder, and nowhere else: every step of every path is taken without following links."""

    def __init__(self, root: int, limit: int, entries: int) -> None:
        self._root, self._entries = root, entries
        self.left = limit
        self.files: set[bytes] = set()
        self.links = 0
        self.left_out: list[LeftOut] = []
        self._seen = 0

    def take(self, member: _Member) -> None:
        self._seen += 1
        if self._seen > self._entries:
            raise _EndOfArchiveError(f"the rest: there are more than entries={self._entries}")
        try:
            self._write(member, _parts(member.name))
        except _Refused as refused:
            self.left_out.append(LeftOut(os.fsdecode(member.name[:_LONGEST_NAME]), str(refused)))
        except OSError as error:
            if error.errno not in _BAD_NAME:
                raise
            self.left_out.append(LeftOut(os.fsdecode(member.name[:_LONGEST_NAME]), error.strerror or str(error)))

    def _write(self, member: _Member, parts: list[bytes]) -> None:
        if member.kind == b"5" or (member.kind in (b"0", b"\0") and member.name.endswith(b"/")):
            with self._folder(parts) as folder:
                os.fchmod(folder, member.mode & 0o755 | 0o700)
        elif not parts:
            raise _Refused("it has no name")
        elif member.kind in (b"0", b"\0", b"7"):
            self._file(member, parts)
        elif member.kind == b"1":
            self._hard_link(_parts(member.link), parts)
        elif member.kind == b"2":
            _check_link(member.link, depth=len(parts) - 1)
            with self._folder(parts[:-1]) as folder:
                os.symlink(member.link, parts[-1], dir_fd=folder)
            self.links += 1
        else:
            raise _Refused(f"it is {_NO_FILES.get(member.kind, 'of a kind that is not known')}")

    def _file(self, member: _Member, parts: list[bytes]) -> None:
        if len(member.content) > self.left:
            raise _Refused("it is above limit=, the bytes to download in all")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with self._folder(parts[:-1]) as folder:
            descriptor = os.open(parts[-1], flags, 0o600, dir_fd=folder)
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            rest = member.content
            while rest:
                rest = rest[file.write(rest) :]
            os.fchmod(file.fileno(), member.mode & 0o755 | 0o600)
        self.left -= len(member.content)
        self.files.add(b"/".join(parts))

    def _hard_link(self, source: list[bytes], parts: list[bytes]) -> None:
        # Of files alone: a symlink at another depth would lead elsewhere.
        if b"/".join(source) not in self.files:
            raise _Refused("it is a link to a file that was not downloaded")
        with self._folder(source[:-1]) as there, self._folder(parts[:-1]) as here:
            os.link(source[-1], parts[-1], src_dir_fd=there, dst_dir_fd=here, follow_symlinks=False)
        self.files.add(b"/".join(parts))

    @contextlib.contextmanager
    def _folder(self, parts: list[bytes]) -> Generator[int]:
        """Opens a folder below the root, after making what is missing of its path."""
        folder = os.dup(self._root)
        try:
            for part in parts:
                try:
                    os.mkdir(part, 0o755, dir_fd=folder)
                except FileExistsError:
                    pass
                else:
                    self._seen += 1  # So that one entry can't make thousands.
                inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
                os.close(folder)
                folder = inner
            yield folder
        finally:
            os.close(folder)


def _parts(name: bytes) -> list[bytes]:
    """Splits a path that stays below where it begins."""
    if name.startswith(b"/"):
        raise _Refused("its path is absolute")
    if len(name) > _LONGEST_NAME:
        raise _Refused("its path is too long")
    parts = [part for part in name.split(b"/") if part not in (b"", b".")]
    if b".." in parts:
        raise _Refused("its path goes up by '..'")
    if len(parts) > _DEEPEST:
        raise _Refused(f"it is nested more than {_DEEPEST} folders deep")
    return parts


def _check_link(target: bytes, depth: int) -> None:
    """Refuses a symlink that leads out, whatever other links stand on its way.

    Where `..` comes before all names, it goes up from the real folder that the link is in, which is `depth` below the
    root. After a name it could go up from wherever another link leads.
    """
    if target.startswith(b"/"):
        raise _Refused("it is a link to an absolute path")
    parts = [part for part in target.split(b"/") if part not in (b"", b".")]
    ups = next((index for index, part in enumerate(parts) if part != b".."), len(parts))
    if not target or ups > depth or b".." in parts[ups:]:
        raise _Refused("it is a link that leads, or might lead, out of the folder")
