"""What a sandbox is to be like."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, cast

from gymhost.wire.errors import InvalidArgument

__all__ = ["Limits", "Mount", "Network", "SandboxSpec"]

MIB = 2**20

Network = Literal["none", "loopback"]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Limits:
    """What a sandbox may use. A backend says which limits are in force: `Sandbox.limits_in_force`.

    Attributes:
        memory: Bytes of memory, its processes and the files that it writes together.
        processes: Processes and threads at once.
        cpus: Processors' worth of time; None for no limit.
        disk: Bytes of files that it may write in all.
        open_files: Open files a process.
    """

    memory: int = 512 * MIB
    processes: int = 256
    cpus: float | None = None
    disk: int = 256 * MIB
    open_files: int = 1024

    def __post_init__(self) -> None:
        for name, least in (("memory", 16 * MIB), ("processes", 8), ("disk", MIB), ("open_files", 32)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise InvalidArgument(f"limits.{name} must be a whole number, at least {least}, not {value!r}")
        cpus = cast(object, self.cpus)
        if cpus is not None and not (isinstance(cpus, (int, float)) and cpus >= 0.01):
            raise InvalidArgument(f"limits.cpus must be at least 0.01, or None for no limit, not {cpus!r}")


@dataclass(frozen=True, slots=True)
class Mount:
    """A file or folder of the host that is seen in a sandbox.

    Attributes:
        source: An absolute path on the host.
        target: Where it is seen, an absolute path; None means the same path.
        writable: Whether the sandbox may write there, as the user that it runs as on the host (`limits_in_force` names
            it; as root bubblewrap gives each sandbox another one); no limit holds there.
    """

    source: str
    target: str | None = None
    writable: bool = False

    def __post_init__(self) -> None:
        for path in (self.source, self.path):
            check_absolute("a mount's source and target", path)

    @property
    def path(self) -> str:
        """Where it is seen."""
        return self.source if self.target is None else self.target


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSpec:
    """What a sandbox is to be like. Two equal ones can share warm spares.

    Its system is read-only; what it writes goes to the working folder, to /tmp and to `scratch`, and is gone with it.

    Attributes:
        image: What the sandbox's system is: the name of an image where the backend has images (Docker), the path of a
            root file system where it has none (bubblewrap). None means the backend's default; bubblewrap's is the
            host's /usr, read-only, and the little of /etc that programs need.
        mounts: What else of the host is seen.
        scratch: Folders that it may write to besides, within its limits. They begin empty; snapshots leave them out.
        env: Environment variables. Nothing of the server's own environment is handed on, but for `pass_env`.
        pass_env: Names of variables of the server's environment that are handed on where they are set.
        user: The user and group id inside; never 0.
        workdir: The working folder, which is also the home of the user.
        network: `none`, or `loopback`: programs inside may talk to each other by 127.0.0.1. Neither reaches anything
            outside.
        limits: What it may use.
    """

    image: str | None = None
    mounts: tuple[Mount, ...] = ()
    scratch: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    pass_env: tuple[str, ...] = ()
    user: int = 1000
    workdir: str = "/workspace"
    network: Network = "none"
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        """Checks it.

        Raises:
            InvalidArgument: A setting has a value that it can't have; the message names it.
        """
        for name, kind in (("mounts", Mount), ("scratch", str), ("pass_env", str)):
            given = getattr(self, name)
            if not isinstance(given, tuple) or not all(isinstance(item, kind) for item in cast(tuple[object], given)):
                raise InvalidArgument(f"{name} must be a tuple, each item of it a {kind.__name__}, not {given!r}")
        if not isinstance(cast(object, self.limits), Limits):
            raise InvalidArgument(f"limits must be a Limits, not {self.limits!r}")
        check_absolute("workdir", self.workdir)
        if self.workdir == "/":
            raise InvalidArgument("workdir can't be /: name a folder for what the sandbox writes, such as /workspace")
        if not 0 < self.user < 65534:
            raise InvalidArgument(f"user must be from 1 to 65533, not {self.user}: nothing runs as root in a sandbox")
        if self.network not in ("none", "loopback"):
            raise InvalidArgument(f"network must be 'none' or 'loopback', not {self.network!r}")
        for name in (*self.env, *self.pass_env):
            if not _NAME.fullmatch(name):
                raise InvalidArgument(f"{name!r} can't be the name of an environment variable")
        for name, value in self.env.items():
            if not isinstance(cast(object, value), str) or "\0" in value:
                raise InvalidArgument(f"the environment variable {name} must be a text without NUL, not {value!r}")
        for path in self.scratch:
            check_absolute("a scratch folder", path)
        targets = [*(mount.path for mount in self.mounts), *self.scratch]
        if len(set(targets)) < len(targets) or {"/", "/tmp", self.workdir} & set(self.scratch):
            raise InvalidArgument("two of the mounts, the scratch folders, workdir and /tmp are the same folder")

    def __hash__(self) -> int:
        return hash((self.image, self.mounts, tuple(sorted(self.env.items())), self.pass_env, self.user, self.workdir))

    def variables(self) -> dict[str, str]:
        """Returns the whole environment that programs in the sandbox begin with."""
        passed = {name: os.environ[name] for name in self.pass_env if name in os.environ}
        return {
            "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin",
            "HOME": self.workdir,
            "USER": "sandbox",
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            **passed,
            **self.env,
        }


def check_absolute(what: str, path: str) -> None:
    """Refuses a path that is not absolute and plain.

    Raises:
        InvalidArgument: It is neither.
    """
    if "\0" in path or os.path.normpath(path) != path or not path.startswith("/") or path.startswith("//"):
        raise InvalidArgument(f"{what} must be an absolute path without '..' or a slash at its end, not {path!r}")


def utf8(text: str | bytes, what: str) -> bytes:
    """Returns a text as bytes; what Python took from bytes that are no UTF-8 is given back as it was.

    Raises:
        InvalidArgument: It is no text, or has a lone surrogate.
    """
    if not isinstance(cast(object, text), (str, bytes)):
        raise InvalidArgument(f"{what} must be text, not {text!r}")
    try:
        return text if isinstance(text, bytes) else text.encode(errors="surrogateescape")
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"{what} can't be written as UTF-8: {error}") from None
