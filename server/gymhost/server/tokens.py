"""Bearer tokens: how they are made, the hashes that are kept of them, and the file that says whose they are.

A token has 256 random bits, so that a plain SHA-256 of it tells nothing: what slows down the guessing of passwords is
not needed. The file has a line for each token, and a name may have several, as while one takes the place of another:

    # NAME [ROLE] HASH
    alice sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
    watcher read-only sha256:60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752
"""

import enum
import hashlib
import os
import re
import secrets
import stat
import tempfile
from pathlib import Path
from typing import NamedTuple

from gymhost.wire.errors import InvalidArgument

__all__ = [
    "ROLES",
    "Owner",
    "Role",
    "TokenFile",
    "add_to_file",
    "check_name",
    "hash_of",
    "is_hash",
    "new_token",
    "parse_owner",
    "read_tokens",
]

_HASH = re.compile(r"sha256:[0-9a-f]{64}")
_NAME = re.compile(r"[\w.@+-]+")


class Role(enum.IntEnum):
    """What a caller may do; each may do what those before it may."""

    READ_ONLY = 1
    USER = 2
    ADMIN = 3

    @property
    def label(self) -> str:
        """How it is written: `read-only`, `user` or `admin`."""
        return self.name.lower().replace("_", "-")


ROLES = {role.label: role for role in Role}


class Owner(NamedTuple):
    """Whom a token stands for.

    Attributes:
        name: The identity, which sessions belong to.
        role: What it may do.
    """

    name: str
    role: Role = Role.USER


def new_token() -> str:
    """A token that nobody guesses."""
    return secrets.token_hex(32)


def hash_of(token: str) -> str:
    """What is kept of a token: `sha256:` and 64 hexadecimal digits."""
    return "sha256:" + hashlib.sha256(token.encode()).hexdigest()


def parse_owner(text: str) -> Owner:
    """Reads `NAME` or `NAME ROLE`.

    Raises:
        ValueError: It is neither.
    """
    name, _, role = text.strip().partition(" ")
    role = role.strip() or Role.USER.label
    if role not in ROLES:
        raise ValueError(f"a role is one of {', '.join(ROLES)}")
    return Owner(check_name(name), ROLES[role])


def check_name(name: str) -> str:
    """Returns the name of an identity as it is.

    Raises:
        ValueError: It can't be one.
    """
    if not _NAME.fullmatch(name):
        raise ValueError("a name has letters, digits and . @ + - _ alone")
    return name


def is_hash(text: str) -> bool:
    """Whether this is what `hash_of` returns."""
    return _HASH.fullmatch(text) is not None


def read_tokens(text: str) -> dict[str, Owner]:
    """Reads the lines of a token file: whom each hash stands for.

    Raises:
        ValueError: A line is none, or a hash is there for two names. What the line says, which may be a secret, stays
            out of the message.
    """
    owners: dict[str, Owner] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        owner, _, hashed = line.rpartition(" ")
        if not owner or not is_hash(hashed):
            raise ValueError(
                f"line {number} is not NAME [ROLE] sha256:HEX; `gymhost token NAME` makes a token and its line"
            )
        try:
            found = parse_owner(owner)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
        if owners.setdefault(hashed, found) != found:
            raise ValueError(f"line {number} has the token of another name or role")
    return owners


def add_to_file(path: Path, owner: Owner, hashed: str) -> None:
    """Adds a line to a token file, which is replaced as a whole: nobody ever reads half of it.

    Args:
        path: The file; it is made, readable by its user alone, where there is none.
        owner: Whom the token stands for.
        hashed: The token's hash.

    Raises:
        InvalidArgument: The file can't be read or written, or has a line that is none.
    """
    import fcntl  # which Windows does not have

    role = "" if owner.role is Role.USER else f"{owner.role.label} "
    try:
        # Two that add at once do so one after the other. The folder is locked, since the file itself is replaced.
        folder = os.open(path.absolute().parent, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            before = path.read_text() if path.exists() else ""
            read_tokens(before)
            if before and not before.endswith("\n"):
                before += "\n"
            _replace(path.resolve(), f"{before}{owner.name} {role}{hashed}\n")
        finally:
            os.close(folder)
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"can't add to {path}: {error}") from None


def _replace(path: Path, text: str) -> None:
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)  # with mode 600
    try:
        with open(descriptor, "w") as file:
            if path.exists() and (before := path.stat()).st_uid != os.getuid():
                os.fchown(descriptor, before.st_uid, before.st_gid)  # whose file it is must still be able to read it
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


class TokenFile:
    """A token file that is looked at again and again.

    Args:
        path: The file.

    Attributes:
        owners: Whom each hash stands for, as the file had it when it was last in order.
        problem: Why what it has now is not taken; empty if it is.

    Raises:
        InvalidArgument: It can't be read, others may write it, or a line is none.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._taken = self._seen = self._look()
        self.problem = ""
        try:
            self.owners = self._read()
        except (OSError, ValueError) as error:
            raise InvalidArgument(f"can't take tokens from {path}: {error} (--token-file)") from None

    @property
    def readable_by_others(self) -> bool:
        """Whether more than its user may read it. It has hashes alone, but whose they are concerns nobody."""
        return bool(self._path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH))

    def refresh(self) -> bool:
        """Looks at the file, and takes what it has if that is another and the same as at the last look.

        So half of what an editor writes is not taken. A file that is not in order, or gone, changes nothing.

        Returns:
            Whether something was taken, or found not to be in order.
        """
        seen, self._seen = self._seen, self._look()
        if self._seen != seen or self._seen == self._taken:
            return False
        self._taken = self._seen
        try:
            self.owners = self._read()
            self.problem = ""
        except (OSError, ValueError) as error:
            self.problem = str(error)
        return True

    def _look(self) -> tuple[int, ...]:
        try:
            found = self._path.stat()
        except OSError:
            return ()
        return (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size, found.st_mode)

    def _read(self) -> dict[str, Owner]:
        with self._path.open() as file:
            if os.fstat(file.fileno()).st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise ValueError("others than its user may write it: chmod 600")
            return read_tokens(file.read())
