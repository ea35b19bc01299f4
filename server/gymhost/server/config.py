"""How a server is set up: the same settings by keyword, by TOML file and by the options of `gymhost serve`."""

import dataclasses
import ipaddress
import math
import os
import re
import tomllib
from pathlib import Path
from typing import Any, cast

from gymhost.wire import limits
from gymhost.wire.attributes import is_public
from gymhost.wire.errors import InvalidArgument

__all__ = ["LOG_LEVELS", "SANDBOXES", "ServerConfig", "parse_size", "read_file"]

LOG_LEVELS = ("debug", "info", "warning", "error")
SANDBOXES = ("bubblewrap", "docker", "local")

_UNITS = {"": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "kb": 10**3, "mb": 10**6, "gb": 10**9}

_KINDS: dict[type, str] = {
    bool: "true or false",
    dict: "a table of texts",
    float: "a number",
    int: "a whole number",
    str: "a text",
    tuple: "a list of texts",
}


@dataclasses.dataclass(frozen=True)
class ServerConfig:
    """The settings of a server. Times are in seconds, sizes in bytes.

    Attributes:
        address: Where to listen: `HOST:PORT` (port 0: a free one) or `unix:PATH`.
        workers: Worker processes; 0 means one a core.
        modules: Modules to import in the workers; their environments are hosted beside the installed ones.
        paths: Folders to put on the workers' import path.
        attributes: What clients may reach of environments beyond what these declare themselves: names of attributes and
            methods, by patterns of ids; `*` stands for all names without a leading underscore.
        wrappers: What clients may have put around environments beyond Gymnasium's own safe wrappers: `module:Class`, or
            `*` for any class that the workers can import.
        tokens: The bearer tokens that are let in, each with the name of its identity. Without any, everybody is let in.
        insecure: Listen beyond loopback without a token.
        capacity: The most sessions at once; a create beyond it waits.
        queue_timeout: How long a create waits for a place where its caller names no limit.
        lease: How long a session outlives the last sign of its client.
        heartbeat: How often clients should give a sign.
        max_payload: The largest action or observation.
        grace: How long running commands get when the server is stopped, and the sessions of a worker with a stuck step.
        worker_liveness: How long a worker may be silent, as when a step never lets go of the GIL, before it is killed.
        sandbox: What environments' sandboxes are made by: `bubblewrap`, `docker`, `local` (which contains nothing), or
            `module:Class` for a backend of one's own.
        sandbox_options: Keyword arguments for the backend, such as `runtime` for `docker`.
        sandbox_creations: The most sandboxes that are being made at once, of all workers together; others wait.
        sandbox_spares: How many sandboxes of each kind that was asked for a worker keeps ready.
        log_level: `debug`, `info`, `warning` or `error`.
    """

    address: str = "127.0.0.1:50051"
    workers: int = 0
    modules: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    attributes: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict[str, tuple[str, ...]])
    wrappers: tuple[str, ...] = ()
    tokens: dict[str, str] = dataclasses.field(default_factory=dict[str, str], repr=False)
    insecure: bool = False
    capacity: int = 32768
    queue_timeout: float = 60.0
    lease: float = limits.LEASE_SECONDS
    heartbeat: float = limits.HEARTBEAT_SECONDS
    max_payload: int = limits.MAX_PAYLOAD
    grace: float = 10.0
    worker_liveness: float = 30.0
    sandbox: str = "bubblewrap"
    sandbox_options: dict[str, str] = dataclasses.field(default_factory=dict[str, str])
    sandbox_creations: int = 8
    sandbox_spares: int = 0
    log_level: str = "info"

    def __post_init__(self) -> None:
        """Checks the settings.

        Raises:
            InvalidArgument: One is out of range; the message names it.
        """
        _check_address(self.address)
        above_0 = (
            "capacity",
            "queue_timeout",
            "lease",
            "heartbeat",
            "max_payload",
            "sandbox_creations",
            "worker_liveness",
        )
        for name in above_0:
            if not 0 < getattr(self, name) < math.inf:
                raise InvalidArgument(f"{name} must be above 0, not {getattr(self, name)}")
        for name in ("workers", "grace", "sandbox_spares"):
            if not 0 <= getattr(self, name) < math.inf:
                raise InvalidArgument(f"{name} must not be negative, not {getattr(self, name)}")
        if self.max_payload < limits.FRAME_BYTES:
            raise InvalidArgument(
                f"max_payload must be at least {limits.FRAME_BYTES} bytes, which a frame of small commands may have"
            )
        if self.lease < 2 * self.heartbeat:
            raise InvalidArgument(f"lease ({self.lease:g} s) must be at least twice heartbeat ({self.heartbeat:g} s)")
        for pattern, names in self.attributes.items():
            if private := [name for name in names if not is_public(name)]:
                raise InvalidArgument(
                    f"attributes of {pattern!r} must be public names, not {private[0]!r} (--attributes)"
                )
        for name in self.wrappers:
            if not re.fullmatch(r"\*|[\w.]+:[\w.]+", name):
                raise InvalidArgument(f"a wrapper is MODULE:CLASS, not {name!r} (--wrapper)")
        if self.sandbox not in SANDBOXES and not re.fullmatch(r"[\w.]+:[\w.]+", self.sandbox):
            known = ", ".join(SANDBOXES)
            raise InvalidArgument(f"sandbox must be one of {known}, or MODULE:CLASS, not {self.sandbox!r} (--sandbox)")
        if self.log_level not in LOG_LEVELS:
            raise InvalidArgument(f"log_level must be one of {', '.join(LOG_LEVELS)}, not {self.log_level!r}")
        if not self.tokens and not self.insecure and not _is_loopback(self.address):
            raise InvalidArgument(
                f"{self.address} can be reached from other machines: set a token (--token-file, or tokens in the "
                "configuration), or say --insecure to let everybody in"
            )

    @property
    def worker_count(self) -> int:
        """How many shared workers to run."""
        return self.workers or len(os.sched_getaffinity(0))

    @classmethod
    def from_dict(cls, settings: dict[str, Any]) -> "ServerConfig":
        """Makes a configuration from a table with the attributes' names as keys.

        Raises:
            InvalidArgument: A key is not known, or a value is of the wrong type.
        """
        known = {field.name: field for field in dataclasses.fields(cls)}
        taken: dict[str, Any] = {}
        for key, value in settings.items():
            if key not in known:
                raise InvalidArgument(f"no setting {key!r}; there are {', '.join(sorted(known))}")
            default = known[key].default
            wanted = cast(type[Any], dict if default is dataclasses.MISSING else type(default))
            if wanted is tuple and isinstance(value, list):
                value = tuple(cast(list[Any], value))
            elif wanted is float and type(value) is int:
                value = float(value)
            elif key == "max_payload" and isinstance(value, str):
                value = parse_size(value)
            if key == "attributes":
                value = _name_lists(value)
            elif type(value) is not wanted or not _holds_texts(value):
                raise InvalidArgument(f"{key} must be {_KINDS[wanted]}, not {value!r}")
            taken[key] = value
        return cls(**taken)


def read_file(path: Path) -> dict[str, Any]:
    """Reads a TOML file whose top-level keys are the attributes' names, for `ServerConfig.from_dict`.

    Folders in `paths` are taken from the file's own folder on. A size may be a text, such as "64MiB".

    Raises:
        InvalidArgument: The file can't be read.
    """
    try:
        settings = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"can't read {path}: {error}") from None
    folders = settings.get("paths")
    if isinstance(folders, list) and _holds_texts(folders):
        settings["paths"] = [str(path.parent.resolve() / folder) for folder in cast(list[str], folders)]
    return settings


def parse_size(text: str) -> int:
    """Reads a number of bytes, such as `64MiB`, `1.5 GB` or `4096`.

    Raises:
        InvalidArgument: It is none.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]i?b)?", text.strip().lower())
    if match is None:
        raise InvalidArgument(f"{text!r} is no size: write 64MiB, 500kB or a number of bytes")
    return int(float(match[1]) * _UNITS[match[2] or ""])


def _holds_texts(value: Any) -> bool:
    """Whether a value, if it is a list or a table, has texts alone."""
    if isinstance(value, dict):
        return all(isinstance(item, str) for item in cast(dict[Any, Any], value).values())
    if isinstance(value, (list, tuple)):
        return all(isinstance(item, str) for item in cast(tuple[Any, ...], value))
    return True


def _name_lists(value: Any) -> dict[str, tuple[str, ...]]:
    if not isinstance(value, dict) or not all(
        isinstance(names, (list, tuple)) and _holds_texts(names) for names in cast(dict[Any, Any], value).values()
    ):
        raise InvalidArgument(f"attributes must be a table of lists of names, by patterns of ids, not {value!r}")
    return {pattern: tuple(names) for pattern, names in cast(dict[str, list[str]], value).items()}


def _check_address(address: str) -> None:
    kind, _, rest = address.partition(":")
    if kind == "unix" and rest:
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise InvalidArgument(f"an address is HOST:PORT or unix:PATH, not {address!r} (--address)")


def _is_loopback(address: str) -> bool:
    if address.startswith("unix:"):
        return True
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
