"""How a server is set up: the same settings by keyword, by TOML file and by the options of `gymhost serve`."""

import dataclasses
import ipaddress
import os
import tomllib
from pathlib import Path
from typing import Any

from gymhost.wire import limits
from gymhost.wire.errors import InvalidArgument

__all__ = ["ServerConfig"]


@dataclasses.dataclass(frozen=True)
class ServerConfig:
    """The settings of a server. Times are in seconds, sizes in bytes.

    Attributes:
        address: Where to listen: `HOST:PORT` (port 0: a free one) or `unix:PATH`.
        workers: Worker processes; 0 means one a core.
        modules: Modules to import in the workers; their environments are hosted beside the installed ones.
        paths: Folders to put on the workers' import path.
        tokens: The bearer tokens that are let in, each with the name of its identity. Without any, everybody is let in.
        insecure: Listen beyond loopback without a token.
        capacity: The most sessions at once; a create beyond it waits.
        queue_timeout: How long a create waits for a place where its caller names no limit.
        lease: How long a session outlives the last sign of its client.
        heartbeat: How often clients should give a sign.
        max_payload: The largest action or observation.
        grace: How long running commands get when the server is stopped, and the sessions of a worker with a stuck step.
        worker_liveness: How long a worker may be silent, as when a step never lets go of the GIL, before it is killed.
        log_level: `debug`, `info`, `warning` or `error`.
    """

    address: str = "127.0.0.1:50051"
    workers: int = 0
    modules: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    tokens: dict[str, str] = dataclasses.field(default_factory=dict[str, str], repr=False)
    insecure: bool = False
    capacity: int = 32768
    queue_timeout: float = 60.0
    lease: float = limits.LEASE_SECONDS
    heartbeat: float = limits.HEARTBEAT_SECONDS
    max_payload: int = limits.MAX_PAYLOAD
    grace: float = 10.0
    worker_liveness: float = 30.0
    log_level: str = "info"

    def __post_init__(self) -> None:
        """Checks the settings.

        Raises:
            InvalidArgument: One is out of range; the message names it.
        """
        for name in ("capacity", "queue_timeout", "lease", "heartbeat", "max_payload", "worker_liveness"):
            if getattr(self, name) <= 0:
                raise InvalidArgument(f"{name} must be above 0, not {getattr(self, name)}")
        for name in ("workers", "grace"):
            if getattr(self, name) < 0:
                raise InvalidArgument(f"{name} must not be negative, not {getattr(self, name)}")
        if self.lease < 2 * self.heartbeat:
            raise InvalidArgument(f"lease ({self.lease:g} s) must be at least twice heartbeat ({self.heartbeat:g} s)")
        if self.log_level not in ("debug", "info", "warning", "error"):
            raise InvalidArgument(f"log_level must be debug, info, warning or error, not {self.log_level!r}")
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
            wanted: Any = type(default) if default is not dataclasses.MISSING else dict
            if wanted is tuple and isinstance(value, list):
                value = tuple(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
            elif wanted is float and type(value) is int:
                value = float(value)
            if type(value) is not wanted:  # pyright: ignore[reportUnknownArgumentType]
                raise InvalidArgument(f"{key} must be a {wanted.__name__}, not {value!r}")
            taken[key] = value
        return cls(**taken)

    @classmethod
    def from_file(cls, path: Path, **overrides: Any) -> "ServerConfig":
        """Reads a TOML file whose top-level keys are the attributes' names; keywords win over it.

        Raises:
            InvalidArgument: The file can't be read, or says something that is not known.
        """
        try:
            settings = tomllib.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise InvalidArgument(f"can't read {path}: {error}") from None
        return cls.from_dict(settings | overrides)


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
