"""Running Python as an ordinary user from a root session, even where the checkout or Python lie in folders of root's.

The command gets a mount namespace of its own, in which such folders are covered by empty ones that all may enter, with
what Python needs put back into them. Nothing changes outside that namespace.
"""

import contextlib
import ctypes
import json
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]

# Seconds that a command may take.
_PATIENCE = 50.0

_CLONE_NEWNS = 0x20000
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000

# User ids from here on are nobody's, where the machine is an ordinary one. Each user is another one.
_FIRST_UID = 61_000


class OrdinaryUser:
    """A user without rights, with a home of its own; the session's own user where that is not root.

    Attributes:
        uid: The user and group id.
        home: A fresh folder.
    """

    def __init__(self, uid: int, home: Path) -> None:
        self.uid = uid
        self.home = home

    @property
    def environment(self) -> dict[str, str]:
        """The session's environment, as far as it has to do with the user and settings of gymhost."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("GYMHOST_", "XDG_"))}
        return kept | {"HOME": str(self.home), "TMPDIR": str(self.home)}

    def command(self, *arguments: str) -> list[str]:
        """Returns what to run in order to run Python with these arguments as the user."""
        if os.geteuid() == self.uid:
            return [sys.executable, *arguments]
        needed = [str(tree) for tree in _needed()]
        return [sys.executable, "-P", __file__, json.dumps({"uid": self.uid, "needed": needed}), *arguments]

    def run(self, *arguments: str, timeout: float = _PATIENCE, **how: Any) -> subprocess.CompletedProcess[str]:
        """Runs Python with arguments as the user, in the repository's folder, to its end.

        Raises:
            subprocess.TimeoutExpired: It took longer; then it was killed with what it started.
        """
        options: dict[str, Any] = {"cwd": ROOT, "env": self.environment, "stdin": subprocess.DEVNULL} | how
        with subprocess.Popen(
            self.command(*arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            **options,
        ) as process:
            try:
                stdout, stderr = process.communicate(timeout=timeout)
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)
                raise
        return subprocess.CompletedProcess(arguments, process.returncode, stdout, stderr)

    def processes(self) -> list[int]:
        """The process ids of all that runs as the user; not to be asked where that is the session's own."""
        assert self.uid != os.geteuid()
        found: list[int] = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if entry.name.isdigit() and entry.stat().st_uid == self.uid:
                    found.append(int(entry.name))
        return found


@contextlib.contextmanager
def ordinary_user() -> Generator[OrdinaryUser]:
    """Gives an ordinary user for a while."""
    # Not where temporary files usually go: that may be a folder of root's.
    home = Path(tempfile.mkdtemp(prefix="gymhost-user-", dir="/tmp"))
    try:
        uid = os.geteuid() or _free_uid()
        os.chown(home, uid, -1 if os.geteuid() else uid)
        yield OrdinaryUser(uid, home)
    finally:
        shutil.rmtree(home)


def _free_uid() -> int:
    """A user id without a name, and most likely without processes."""
    taken = {user.pw_uid for user in pwd.getpwall()}
    return next(uid for uid in range(_FIRST_UID + os.getpid() % 1000, 2**31) if uid not in taken)


def _needed() -> list[Path]:
    """The folders that Python reads, the outer ones alone, by the names that lead to them and by their real ones."""
    executable = Path(sys.executable)
    named = [
        Path(sys.prefix),
        Path(sys.base_prefix),
        ROOT,
        *(Path(entry) for entry in sys.path if Path(entry).is_dir()),
    ]
    # Each link on the way from the executable to the real one is read where it lies.
    named.append(executable.parent)
    while executable.is_symlink():
        executable = executable.parent / executable.readlink()
        named.append(Path(os.path.normpath(executable)).parent)
    found = {path for one in named for path in (one.absolute(), one.resolve())}
    return sorted(path for path in found if not found.intersection(path.parents))


def _become(uid: int, needed: Iterable[str]) -> None:
    """Makes this process one of the user's, which can read the trees."""
    closed = sorted({folder for tree in needed if (folder := _closed(Path(tree))) is not None})
    if closed:
        libc = ctypes.CDLL(None, use_errno=True)
        _check("unshare", libc.unshare(_CLONE_NEWNS))
        _mount(libc, b"none", Path("/"), None, _MS_REC | _MS_PRIVATE)
        for folder in closed:
            _cover(libc, folder, [Path(tree) for tree in needed if folder in (Path(tree), *Path(tree).parents)])
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def _closed(tree: Path) -> Path | None:
    """The outermost folder on the way into a tree that only its owner may enter."""
    way = [*reversed(tree.parents), tree]
    return next((folder for folder in way if not _open(folder)), None)


def _open(folder: Path) -> bool:
    return bool(folder.stat().st_mode & stat.S_IXOTH)


def _cover(libc: ctypes.CDLL, folder: Path, trees: list[Path]) -> None:
    """Puts an empty folder over a closed one, and the trees back into it; a tree that is closed itself by its parts."""
    parts = [part for tree in trees for part in ([tree] if _open(tree) else tree.iterdir())]
    held = [(part, part.is_dir(), os.open(part, os.O_PATH)) for part in parts if not part.is_symlink()]
    links = [(part, part.readlink()) for part in parts if part.is_symlink()]
    _mount(libc, b"tmpfs", folder, b"tmpfs", 0, b"mode=0755,size=1m")
    for part, is_folder, fd in held:
        (part if is_folder else part.parent).mkdir(mode=0o755, parents=True, exist_ok=True)
        if not is_folder:
            part.touch()
        _mount(libc, f"/proc/self/fd/{fd}".encode(), part, None, _MS_BIND | _MS_REC)
        os.close(fd)
    for part, target in links:
        part.symlink_to(target)


def _mount(libc: ctypes.CDLL, source: bytes, target: Path, kind: bytes | None, flags: int, data: bytes = b"") -> None:
    _check(f"mount on {target}", libc.mount(source, os.fsencode(target), kind, ctypes.c_ulong(flags), data or None))


def _check(what: str, result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(
            number, f"{what}: {os.strerror(number)}; a root session needs CAP_SYS_ADMIN to play an ordinary user"
        )


def _main(plan: str, arguments: Iterator[str]) -> None:
    settings: dict[str, Any] = json.loads(plan)
    # What is made on the way must not depend on the session.
    before = os.umask(0o022)
    where = Path.cwd()
    _become(settings["uid"], settings["needed"])
    os.umask(before)
    # Once more, since the folder may have been covered.
    os.chdir(where)
    os.execv(sys.executable, [sys.executable, *arguments])


if __name__ == "__main__":
    _main(sys.argv[1], iter(sys.argv[2:]))
