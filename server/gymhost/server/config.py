"""How a server is set up: the same settings by keyword, by TOML file and by the options of `gymhost serve`."""

import dataclasses
import math
import os
import re
import tomllib
from pathlib import Path
from typing import Any, cast

from gymhost.server.tokens import is_hash, parse_owner
from gymhost.wire import limits
from gymhost.wire.attributes import is_public
from gymhost.wire.errors import InvalidArgument
from gymhost.wire.host import is_loopback

__all__ = ["LOG_LEVELS", "SANDBOXES", "ServerConfig", "parse_size", "read_file"]

LOG_LEVELS = ("debug", "info", "warning", "error")
SANDBOXES = ("bubblewrap", "docker", "local")
# Settings that name a file.
FILES = ("token_file", "tls_cert", "tls_key", "tls_client_ca")
# What an identity may have a quota of.
QUOTAS = ("sessions", "queued", "streams")

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
        replayable: Patterns of the ids of environments whose sessions can be recovered and that do not say so: the same
            commands after the same seeded reset give the same replies, in another process too.
        tokens: The hashes of bearer tokens that are let in (`sha256:HEX`), each with the name of its identity and its
            role (`NAME` or `NAME ROLE`). Without any, a token file or `tls_client_ca` everybody is let in.
        token_file: A file with more of them, a line each, which is read again when it changes.
        tls_cert: The server's certificate and those between it and its authority, in PEM: clients must speak TLS. This
            file and the next two are read again when they change.
        tls_key: The key of that certificate, in PEM and without a password.
        tls_client_ca: The authorities of clients' certificates, in PEM: a client must have one (mutual TLS). Where no
            token is wanted, the common name of the certificate is its identity.
        insecure: Listen beyond loopback without a token.
        capacity: The most sessions at once; a create beyond it waits.
        queue_timeout: How long a create waits for a place where its caller names no limit.
        queue_length: The most creates that wait for places; one beyond it is refused at once.
        quota_sessions: The most sessions of one identity at once, each copy of a vector session counted; a create
            beyond it waits. 0 means no quota, here and below.
        quota_queued: The most creates of one identity that wait.
        quota_streams: The most streams of one identity.
        quotas: Quotas of single identities in place of these: for each the names `sessions`, `queued` and `streams`.
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
        log_level: `debug`, `info`, `warning` or `error`.
    """

    address: str = "127.0.0.1:50051"
    workers: int = 0
    modules: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    attributes: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict[str, tuple[str, ...]])
    wrappers: tuple[str, ...] = ()
    replayable: tuple[str, ...] = ()
    tokens: dict[str, str] = dataclasses.field(default_factory=dict[str, str])
    token_file: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_client_ca: str = ""
    insecure: bool = False
    capacity: int = 32768
    queue_timeout: float = 60.0
    queue_length: int = 4096
    quota_sessions: int = 0
    quota_queued: int = 0
    quota_streams: int = 0
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
        for name in self.wrappers:
            if not re.fullmatch(r"\*|[\w.]+:[\w.]+", name):
                raise InvalidArgument(f"a wrapper is MODULE:CLASS, not {name!r} (--wrapper)")
        if self.sandbox not in SANDBOXES and not re.fullmatch(r"[\w.]+:[\w.]+", self.sandbox):
            known = ", ".join(SANDBOXES)
            raise InvalidArgument(f"sandbox must be one of {known}, or MODULE:CLASS, not {self.sandbox!r} (--sandbox)")
        if self.log_level not in LOG_LEVELS:
            raise InvalidArgument(f"log_level must be one of {', '.join(LOG_LEVELS)}, not {self.log_level!r}")
        self._check_callers()

    def quota(self, name: str, identity: str) -> int:
        """A quota of an identity; 0 where there is none."""
        general: int = getattr(self, f"quota_{name}")
        return self.quotas.get(identity, {}).get(name, general)

    def _check_callers(self) -> None:
        for number, (hashed, owner) in enumerate(self.tokens.items(), 1):
            # On either side may stand the token itself: both stay out of the message.
            if not is_hash(hashed):
                raise InvalidArgument(
                    f'number {number} of tokens must be given as its hash, "sha256:HEX" = "NAME [ROLE]"; '
                    "`gymhost token NAME` makes both"
                )
            try:
                parse_owner(owner)
            except ValueError as error:
                raise InvalidArgument(f"a token is of NAME or NAME ROLE, not of {owner!r}: {error}") from None
        if bool(self.tls_cert) != bool(self.tls_key) or (self.tls_client_ca and not self.tls_cert):
            raise InvalidArgument("TLS wants both --tls-cert and --tls-key; --tls-client-ca goes with them")
        if self.tls_cert and self.address.startswith("unix:"):
            raise InvalidArgument("what goes over a Unix socket leaves the host's kernel nowhere: TLS is for HOST:PORT")
        if not (self.is_closed or self.insecure or is_loopback(self.address)):
            raise InvalidArgument(
                f"{self.address} can be reached from other machines: set a token (--token-file, or tokens in the "
                "configuration) or --tls-client-ca, or say --insecure to let everybody in"
            )

    @property
    def is_closed(self) -> bool:
        """Whether callers must show a token or a certificate."""
        return bool(self.tokens or self.token_file or self.tls_client_ca)

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
            elif key in ("max_payload", "worker_max_memory") and isinstance(value, str):
                value = parse_size(value)
            if key == "attributes":
                value = _name_lists(value)
            elif key == "quotas":
                value = _quotas(value)
            elif type(value) is not wanted or not _holds_texts(value):
                # Tables have secrets: tokens, and passwords of sandboxes' backends.
                said = "" if dict in (wanted, type(value)) else f", not {value!r}"
                raise InvalidArgument(f"{key} must be {_KINDS[wanted]}{said}")
            taken[key] = value
        return cls(**taken)


def read_file(path: Path) -> dict[str, Any]:
    """Reads a TOML file whose top-level keys are the attributes' names, for `ServerConfig.from_dict`.

    Folders in `paths`, and the files that settings name, are taken from the file's own folder on. A size may be a text,
    such as "64MiB".

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
    for name in FILES:
        if settings.get(name) and isinstance(settings[name], str):
            settings[name] = str(path.parent.resolve() / settings[name])
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


def _quotas(value: Any) -> dict[str, dict[str, int]]:
    quotas: dict[str, Any] = cast(dict[str, Any], value) if isinstance(value, dict) else {"": None}
    for table in quotas.values():
        if not isinstance(table, dict) or not all(type(each) is int for each in cast(dict[str, Any], table).values()):
            raise InvalidArgument(f"quotas must be a table of numbers for each identity, not {value!r}")
    return quotas


def _check_address(address: str) -> None:
    kind, _, rest = address.partition(":")
    if kind == "unix" and rest:
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise InvalidArgument(f"an address is HOST:PORT or unix:PATH, not {address!r} (--address)")
