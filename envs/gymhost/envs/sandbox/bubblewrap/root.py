"""The keeper's own root: the host's folders at their own paths, and one for what it makes. Standard library alone."""

import os
import shutil
from collections.abc import Mapping, Sequence

from gymhost.envs.sandbox.bubblewrap import syscalls
from gymhost.envs.sandbox.bubblewrap.terms import BOX, BWRAP, ETC, HOME, LAYERS

__all__ = ["enter", "make_etc", "own_namespaces"]

# How much of the machine's memory the layers of snapshots may take.
SIZE = "25%"

_OLD = ".host"

# Folders of the host that sandboxes have no use for; the keeper's own processes are seen in a /proc of its own.
_LEFT_OUT = ("proc", "sys", "boot", "lost+found", _OLD)


def own_namespaces() -> bool:
    """Gives this process's children a mount and a process namespace of their own, and says whether it is real root.

    Whoever is not may do so in a user namespace, where it stays the user that it is.

    Raises:
        OSError: The machine refuses.
    """
    flags = syscalls.CLONE_NEWNS | syscalls.CLONE_NEWPID
    user, group = os.geteuid(), os.getegid()
    if user == 0:
        try:
            syscalls.unshare(flags)
        except PermissionError:
            pass
        else:
            os.setgroups(())
            return True
    syscalls.unshare(syscalls.CLONE_NEWUSER | flags)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    return False


def enter(bwrap: Mapping[str, str]) -> None:
    """Makes the root, of which nobody else sees anything, and copies bubblewrap's own files to it.

    Raises:
        OSError: The machine refuses.
    """
    syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
    syscalls.mount("tmpfs", "/tmp", "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, f"mode=0755,size={SIZE}")
    os.mkdir(f"/tmp/{_OLD}")
    syscalls.pivot_root("/tmp", f"/tmp/{_OLD}")
    os.chdir("/")
    for name in os.listdir(f"/{_OLD}"):
        host, own = f"/{_OLD}/{name}", f"/{name}"
        if os.path.islink(host):
            os.symlink(os.readlink(host), own)
        elif os.path.isdir(host) and name not in _LEFT_OUT:
            os.mkdir(own)
            syscalls.bind(host, own)
    os.mkdir("/proc")
    syscalls.mount("proc", "/proc", "proc", syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC)
    for folder in (HOME, BOX, BWRAP, ETC, LAYERS):
        os.mkdir(folder)
    for source, target in bwrap.items():
        path = os.path.join(BWRAP, target)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        shutil.copy(source, path)
    syscalls.unmount(f"/{_OLD}")
    os.rmdir(f"/{_OLD}")


def make_etc(name: str, texts: Mapping[str, str], copies: Sequence[str]) -> str:
    """Returns a folder that is seen as /etc, which is made where it is not there.

    Args:
        name: Of the folder; the same name is the same folder.
        texts: What is written to files.
        copies: Paths below the host's /etc of what is copied from there, where it can be read.
    """
    folder = os.path.join(ETC, name)
    if os.path.isdir(folder):
        return folder
    making = f"{folder}.new"
    shutil.rmtree(making, ignore_errors=True)
    os.mkdir(making)
    for path in copies:
        _copy(f"/etc/{path}", f"{making}/{path}")
    for path, text in texts.items():
        with open(f"{making}/{path}", "w") as file:
            file.write(text)
    os.rename(making, folder)
    return folder


def _copy(source: str, target: str) -> None:
    try:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if os.path.isdir(source):
            shutil.copytree(source, target, symlinks=True)
        else:
            shutil.copy(source, target)
    except (OSError, shutil.Error):
        pass  # it is not there, or part of it is not for this user
