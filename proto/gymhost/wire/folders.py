"""Folders for as long as a process lives, held by a lock: one that nobody holds was left by a process that was killed.

The kernel lets go of a lock when its process ends, in whatever way, so this says more than a process id does.
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path

__all__ = ["HeldFolder", "abandoned"]

_LOCK = "lock"


class HeldFolder:
    """A new folder below the system's for temporary files, which nobody else can open.

    Args:
        prefix: What its name begins with.

    Attributes:
        path: Where it is.

    Raises:
        OSError: It could not be made.
    """

    def __init__(self, prefix: str) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        # The lock gets its name once it is held, so that nobody ever finds one that is not.
        new = self.path / f"{_LOCK}.new"
        self._lock = os.open(new, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with contextlib.suppress(OSError):  # the file system has no locks: then nobody can take it for abandoned
            _lock(self._lock, wait=True)
        new.rename(self.path / _LOCK)

    def remove(self) -> None:
        """Removes it with all that is in it. Twice is no error."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def abandoned(prefix: str) -> Generator[Path]:
    """Yields this user's folders with a prefix whose processes are gone, each held for as long as it is looked at."""
    for path in sorted(Path(tempfile.gettempdir()).glob(f"{prefix}*")):
        try:
            lock = os.open(path / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue  # another user's, or no such folder
        try:
            if os.fstat(lock).st_uid == os.geteuid() and not path.is_symlink():
                _lock(lock, wait=False)
                yield path
        except OSError:
            pass  # its process lives
        finally:
            os.close(lock)


def _lock(descriptor: int, *, wait: bool) -> None:
    import fcntl  # not on Windows, where nothing has such folders

    fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
