"""How a server is set up: the same settings by keyword, by TOML file and by the options of `gymhost serve`."""

import dataclasses
import math
import os
import re
from pathlib import Path
from typing import Any, ClassVar, cast

from gymhost.server.settings import DoorSettings, holds_texts, tables_of_numbers
from gymhost.wire import limits
from gymhost.wire.attributes import is_public
from gymhost.wire.errors import InvalidArgument

__all__ = ["SANDBOXES", "ServerConfig"]

SANDBOXES = ("bubblewrap", "docker", "local")
# What an identity may have a quota of.
QUOTAS = ("sessions", "queued", "streams", "sandbox_memory")


@dataclasses.dataclass(frozen=True)
class ServerConfig(DoorSettings):
    """The settings of an environment server, beside those of its door. Times are in seconds, sizes in bytes.

    Attributes:
        workers: Worker processes; 0 means one a core.
        modules: Modules to import in the workers; their environments are hosted beside the installed ones.
        paths: Folders to put on the workers' import path.
        python: For modules that can't live in the server's own environment, the interpreter that their workers run in:
            its path, by the module's name in `modules`. It must have gymhost in the same version.
        attributes: What clients may reach of environments beyond what these declare themselves: names of attributes and
            methods, by patterns of ids; `*` stands for all names without a leading underscore.
        wrappers: What clients may have put around environments beyond Gymnasium's own safe wrappers: `module:Class`, or
            `*` for any class that the workers can import.
        replayable: Patterns of the ids of environments whose sessions can be recovered and that do not say so: the same
            commands after the same seeded reset give the same replies, in another process too.
        capacity: The most sessions at once; a create beyond it waits.
        queue_timeout: How long a create waits for a place where its caller names no limit.
        queue_length: The most creates that wait for places; one beyond it is refused at once.
        quota_sessions: The most sessions of one identity at once, each copy of a vector session counted; a create
            beyond it waits. 0 means no quota, here and below.
        quota_queued: The most creates of one identity that wait.
        quota_streams: The most streams of one identity.
        quota_sandbox_memory: The most memory that the sandboxes of one identity may have together, by their limits; a
            sandbox beyond it waits.
        quotas: Quotas of single identities in place of these: for each the names `sessions`, `queued`, `streams` and
            `sandbox_memory`.
        lease: How long a session outlives the last sign of its client.
        heartbeat: How often clients should give a sign.
        max_payload: The largest action or observation.
        grace: How long running commands get when the server is stopped, and the sessions of a worker with a stuck step.
        drain: How long sessions go on after SIGTERM; the server takes no new ones meanwhile, and stops when the last
            one has ended.
        worker_liveness: How long a worker may be silent, as when a step never lets go of the GIL, before it is killed.
        worker_max_age: The age at which a worker is renewed: another takes its place, and it ends with its last
            session. 0 means at no age, and so for the next two.
        worker_max_memory: The memory of a worker and of what it has started at which it is renewed; at half as much
            again it is killed, and its sessions are lost.
        worker_max_sessions: After about how many sessions a worker is renewed.
        quarantine_deaths: After how many workers that ended under an environment its new sessions get workers of their
            own, and after how many of these, one after the other, it is refused for a tenth of the window. 0: never.
        quarantine_window: Within which time.
        sandbox: What environments' sandboxes are made by: `bubblewrap`, `docker`, `local` (which contains nothing), or
            `module:Class` for a backend of one's own.
        sandbox_options: Keyword arguments for the backend, such as `runtime` for `docker`.
        sandbox_creations: The most sandboxes that are being made at once, of all workers together; others wait.
        sandbox_spares: How many sandboxes of each kind that was asked for a worker keeps ready.
        metrics: Whether it counts what sessions do, for those who watch it.
    """

    SIZES: ClassVar[tuple[str, ...]] = ("max_payload", "worker_max_memory", "quota_sandbox_memory")

    workers: int = 0
    modules: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    python: dict[str, str] = dataclasses.field(default_factory=dict[str, str])
    attributes: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict[str, tuple[str, ...]])
    wrappers: tuple[str, ...] = ()
    replayable: tuple[str, ...] = ()
    capacity: int = 32768
    queue_timeout: float = 60.0
    queue_length: int = 4096
    quota_sessions: int = 0
    quota_queued: int = 0
    quota_streams: int = 0
    quota_sandbox_memory: int = 0
    quotas: dict[str, dict[str, int]] = dataclasses.field(default_factory=dict[str, dict[str, int]])
    lease: float = limits.LEASE_SECONDS
    heartbeat: float = limits.HEARTBEAT_SECONDS
    max_payload: int = limits.MAX_PAYLOAD
    grace: float = 10.0
    drain: float = 20.0
    worker_liveness: float = 30.0
    worker_max_age: float = 0.0
    worker_max_memory: int = 0
    worker_max_sessions: int = 0
    quarantine_deaths: int = 3
    quarantine_window: float = 600.0
    sandbox: str = "bubblewrap"
    sandbox_options: dict[str, str] = dataclasses.field(default_factory=dict[str, str])
    sandbox_creations: int = 8
    sandbox_spares: int = 0
    metrics: bool = True

    def __post_init__(self) -> None:
        """Checks the settings.

        Raises:
            InvalidArgument: One is out of range; the message names it.
        """
        self.check_door()
        above_0 = (
            "capacity",
            "queue_timeout",
            "queue_length",
            "lease",
            "heartbeat",
            "max_payload",
            "sandbox_creations",
            "worker_liveness",
            "quarantine_window",
        )
        for name in above_0:
            if not 0 < getattr(self, name) < math.inf:
                raise InvalidArgument(f"{name} must be above 0, not {getattr(self, name)}")
        for name in (
            "workers",
            "grace",
            "drain",
            "worker_max_age",
            "worker_max_memory",
            "worker_max_sessions",
            "quarantine_deaths",
            "sandbox_spares",
            *(f"quota_{name}" for name in QUOTAS),
        ):
            if not 0 <= getattr(self, name) < math.inf:
                raise InvalidArgument(f"{name} must not be negative, not {getattr(self, name)}")
        if self.max_payload < limits.FRAME_BYTES:
            raise InvalidArgument(
                f"max_payload must be at least {limits.FRAME_BYTES} bytes, which a frame of small commands may have"
            )
        if self.lease < 2 * self.heartbeat:
            raise InvalidArgument(f"lease ({self.lease:g} s) must be at least twice heartbeat ({self.heartbeat:g} s)")
        for identity, given in self.quotas.items():
            for name, most in given.items():
                if name not in QUOTAS or most < 0:
                    raise InvalidArgument(
                        f"the quotas of {identity!r} are {', '.join(QUOTAS)}, each a number from 0, not {name} = {most}"
                    )
        for pattern, names in self.attributes.items():
            if private := [name for name in names if not is_public(name)]:
                raise InvalidArgument(
                    f"attributes of {pattern!r} must be public names, not {private[0]!r} (--attributes)"
                )
        for module, python in self.python.items():
            if module not in self.modules:
                raise InvalidArgument(f"{module!r} has an interpreter but is none of the modules to import (--python)")
            if not os.access(python, os.X_OK) or Path(python).is_dir():
                raise InvalidArgument(f"{python!r}, the interpreter of {module!r}, is no program (--python)")
        for name in self.wrappers:
            if not re.fullmatch(r"\*|[\w.]+:[\w.]+", name):
                raise InvalidArgument(f"a wrapper is MODULE:CLASS, not {name!r} (--wrapper)")
        if self.sandbox not in SANDBOXES and not re.fullmatch(r"[\w.]+:[\w.]+", self.sandbox):
            known = ", ".join(SANDBOXES)
            raise InvalidArgument(f"sandbox must be one of {known}, or MODULE:CLASS, not {self.sandbox!r} (--sandbox)")

    def quota(self, name: str, identity: str) -> int:
        """A quota of an identity; 0 where there is none."""
        general: int = getattr(self, f"quota_{name}")
        return self.quotas.get(identity, {}).get(name, general)

    @property
    def bounds_sandbox_memory(self) -> bool:
        """Whether somebody has a quota of it."""
        return bool(self.quota_sandbox_memory or any(given.get("sandbox_memory") for given in self.quotas.values()))

    @property
    def worker_count(self) -> int:
        """How many shared workers to run."""
        return self.workers or len(os.sched_getaffinity(0))

    @classmethod
    def is_table(cls, key: str) -> bool:
        """Whether a setting is a table of other things than texts."""
        return key in ("attributes", "quotas")

    @classmethod
    def read_table(cls, key: str, value: Any) -> Any:
        """Reads such a table.

        Raises:
            InvalidArgument: It is of the wrong type.
        """
        return _name_lists(value) if key == "attributes" else tables_of_numbers(key, value, sizes=("sandbox_memory",))


def _name_lists(value: Any) -> dict[str, tuple[str, ...]]:
    if not isinstance(value, dict) or not all(
        isinstance(names, (list, tuple)) and holds_texts(names) for names in cast(dict[Any, Any], value).values()
    ):
        raise InvalidArgument(f"attributes must be a table of lists of names, by patterns of ids, not {value!r}")
    return {pattern: tuple(names) for pattern, names in cast(dict[str, list[str]], value).items()}
