"""Copies of what sandboxes wrote, as layers that overlays are stacked on. Standard library alone: the keeper uses it.

A layer holds what a sandbox wrote over the layers below: new and changed files, marks for deleted ones (character
devices 0/0) and for folders that hide what is below (an attribute). The trees are hostile: nothing is followed, all is
bounded.
"""

import errno
import os
import shutil
import stat
from collections.abc import Sequence

from gymhost.envs.sandbox.bubblewrap import syscalls
from gymhost.envs.sandbox.bubblewrap.terms import BOX

__all__ = ["copy_tree", "make", "overlay", "remove_tree", "stacked", "standing", "try_overlay"]

# What a sandbox writes to, as folders of a layer.
FOLDERS = ("work", "tmp")

# Layers in a stack. Beyond that many it is made one.
DEEPEST = 12

# How deeply folders may be nested in what is copied.
NESTED = 400

CHUNK = 2**20


def overlay(target: str, lower: list[str], upper: str | None = None, scratch: str | None = None) -> None:
    """Mounts folders one above the other, the topmost first; what is written goes to `upper`.

    Raises:
        OSError: The kernel refuses.
    """
    options = f"lowerdir={':'.join(lower)}"
    if upper is not None:
        options += f",upperdir={upper},workdir={scratch}"
    flags = syscalls.MS_NODEV | syscalls.MS_NOSUID
    try:
        syscalls.mount("overlay", target, "overlay", flags, f"{options},redirect_dir=on,index=off,metacopy=off")
    except OSError:
        # Whoever has no rights outside a user namespace may not set the attributes that marks are usually kept in.
        syscalls.mount("overlay", target, "overlay", flags, f"{options},userxattr")


def stacked(layers: Sequence[str], folder: str) -> list[str]:
    """Returns the paths of one folder in layers, the topmost first."""
    return [os.path.join(layer, folder) for layer in layers]


def standing(layer: str, below: Sequence[str]) -> list[str]:
    """Returns the stack with a layer on top, which is one of its own where it would be too high otherwise."""
    return [layer, *below] if len(below) < DEEPEST else [layer]


def make(layer: str, source: str, below: Sequence[str]) -> None:
    """Makes a layer of what was written on top of others.

    Args:
        layer: Its path, where nothing is.
        source: Folders that were written to.
        below: The others, the topmost first.

    Raises:
        OSError: It could not be made; parts of it may be there.
    """
    os.mkdir(layer)
    if len(standing(layer, below)) == 1 and below:
        # All layers as one, by an overlay that is only read.
        syscalls.unshare(syscalls.CLONE_NEWNS)
        syscalls.mount("tmpfs", BOX, "tmpfs", syscalls.MS_NODEV | syscalls.MS_NOSUID)
        for folder in FOLDERS:
            copy_tree(os.path.join(source, folder), f"{BOX}/{folder}", marks=True)
            os.mkdir(f"{BOX}/whole-{folder}")
            overlay(f"{BOX}/whole-{folder}", [f"{BOX}/{folder}", *stacked(below, folder)])
            copy_tree(f"{BOX}/whole-{folder}", os.path.join(layer, folder), marks=False)
    else:
        for folder in FOLDERS:
            copy_tree(os.path.join(source, folder), os.path.join(layer, folder), marks=bool(below))


def copy_tree(source: str, target: str, *, marks: bool) -> None:
    """Copies a folder to a place where nothing is: kinds, owners, modes, times, holes and hard links.

    Args:
        source: The folder.
        target: The place.
        marks: Whether it was written to as part of an overlay, whose marks are then kept.

    Raises:
        OSError: It could not be copied.
    """
    os.mkdir(target)
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    with _Descriptor(source, flags) as above, _Descriptor(target, flags) as below:
        _Copy(marks).folder(above, below)


class _Descriptor:
    """An open file that is closed at the end."""

    def __init__(self, path: str, flags: int, folder: int | None = None) -> None:
        self._number = os.open(path, flags, mode=0o600, dir_fd=folder)

    def __enter__(self) -> int:
        return self._number

    def __exit__(self, *_: object) -> None:
        os.close(self._number)


class _Copy:
    """One copying."""

    def __init__(self, marks: bool) -> None:
        self._marks = marks
        # What has more than one name: the path of the first one.
        self._linked: dict[tuple[int, int], str] = {}
        self._top = -1

    def folder(self, source: int, target: int, depth: int = 0, path: str = "") -> None:
        if depth == 0:
            self._top = target
        if depth > NESTED:
            raise OSError(errno.ELOOP, f"folders are nested more than {NESTED} deep")
        with os.scandir(source) as entries:
            names = [entry.name for entry in entries]
        for name in names:
            status = os.stat(name, dir_fd=source, follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                os.mkdir(name, 0o700, dir_fd=target)
                flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                with _Descriptor(name, flags, source) as above, _Descriptor(name, flags, target) as below:
                    self.folder(above, below, depth + 1, f"{path}{name}/")
            elif not self._is_linked(status, name, target, path):
                self._entry(name, status, source, target)
        self._attributes(source, target)
        status = os.fstat(source)
        os.chown(target, status.st_uid, status.st_gid)
        os.chmod(target, stat.S_IMODE(status.st_mode))
        os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))

    def _is_linked(self, status: os.stat_result, name: str, target: int, path: str) -> bool:
        """Whether it was copied under another name, of which it is now a link."""
        if status.st_nlink == 1 or stat.S_ISCHR(status.st_mode):
            return False
        first = self._linked.setdefault((status.st_dev, status.st_ino), path + name)
        if first == path + name:
            return False
        try:
            os.link(first, name, src_dir_fd=self._top, dst_dir_fd=target, follow_symlinks=False)
        except OSError:
            return False  # its path is too long: one copy more
        return True

    def _entry(self, name: str, status: os.stat_result, source: int, target: int) -> None:
        mode = stat.S_IMODE(status.st_mode)
        if stat.S_ISREG(status.st_mode):
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            made = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with _Descriptor(name, flags, source) as above, _Descriptor(name, made, target) as below:
                _content(above, below, status.st_size)
                self._attributes(above, below)
                os.chown(below, status.st_uid, status.st_gid)
                os.chmod(below, mode)
        elif stat.S_ISLNK(status.st_mode):
            os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
        elif stat.S_ISCHR(status.st_mode):
            if self._marks and status.st_rdev == 0:
                os.mknod(name, stat.S_IFCHR, 0, dir_fd=target)
            return
        else:
            os.mknod(name, stat.S_IFMT(status.st_mode) | mode, dir_fd=target)
        if not stat.S_ISREG(status.st_mode):
            os.chown(name, status.st_uid, status.st_gid, dir_fd=target, follow_symlinks=False)
        os.utime(name, ns=(status.st_atime_ns, status.st_mtime_ns), dir_fd=target, follow_symlinks=False)

    def _attributes(self, source: int, target: int) -> None:
        """Copies attributes: of an overlay's own those that say how a folder lies over what is below, nothing else."""
        for name in os.listxattr(source):
            kind, _, rest = name.partition(".")
            if rest.startswith("overlay."):
                if not self._marks or rest not in ("overlay.opaque", "overlay.redirect"):
                    continue
            elif kind != "user":
                continue
            os.setxattr(target, name, os.getxattr(source, name))


def _content(source: int, target: int, size: int) -> None:
    """Copies a file's bytes, its holes as holes."""
    at = 0
    while at < size:
        try:
            start = os.lseek(source, at, os.SEEK_DATA)
        except OSError:
            break  # there is but a hole
        at = end = os.lseek(source, start, os.SEEK_HOLE)
        while start < end:
            data = os.pread(source, min(CHUNK, end - start), start)
            if not data:
                return
            start += os.pwrite(target, data, start)
    os.ftruncate(target, size)


def remove_tree(path: str) -> None:
    """Removes a layer, whatever rights its folders have."""
    shutil.rmtree(path)


def try_overlay() -> None:
    """Mounts an overlay that is written to, in a mount namespace of its own.

    Raises:
        OSError: This machine, or this user, can't.
    """
    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.mount("tmpfs", BOX, "tmpfs", syscalls.MS_NODEV | syscalls.MS_NOSUID)
    for name in ("lower", "upper", "scratch", "point"):
        os.mkdir(f"{BOX}/{name}")
    os.mkdir(f"{BOX}/lower/folder")
    overlay(f"{BOX}/point", [f"{BOX}/lower"], f"{BOX}/upper", f"{BOX}/scratch")
    # A folder in the place of a deleted one needs an attribute, to hide what is below.
    os.rmdir(f"{BOX}/point/folder")
    os.mkdir(f"{BOX}/point/folder")
