"""What all kinds of servers are set up with: where they listen and who is let in; and how settings are read."""

import dataclasses
import re
import tomllib
from pathlib import Path
from typing import Any, ClassVar, Self, cast

from gymhost.server.tokens import is_hash, parse_owner
from gymhost.wire.errors import InvalidArgument
from gymhost.wire.host import is_loopback

__all__ = [
    "LOG_FORMATS",
    "LOG_LEVELS",
    "DoorSettings",
    "check_address",
    "holds_texts",
    "parse_size",
    "read_file",
    "tables_of_numbers",
]

LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("text", "json")
# Settings that name a file, which a configuration file names from its own folder on.
FILES = (
    "token_file",
    "tls_cert",
    "tls_key",
    "tls_client_ca",
    "environments_ca",
    "environments_cert",
    "environments_key",
    "store",
)

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
class DoorSettings:
    """Where a server listens, and who is let in.

    Attributes:
        address: Where to listen: `HOST:PORT` (port 0: a free one) or `unix:PATH`.
        tokens: The hashes of bearer tokens that are let in (`sha256:HEX`), each with the name of its identity and its
            role (`NAME` or `NAME ROLE`). Without any, a token file or `tls_client_ca` everybody is let in.
        token_file: A file with more of them, a line each, which is read again when it changes.
        tls_cert: The server's certificate and those between it and its authority, in PEM: clients must speak TLS. This
            file and the next two are read again when they change.
        tls_key: The key of that certificate, in PEM and without a password.
        tls_client_ca: The authorities of clients' certificates, in PEM: a client must have one (mutual TLS). Where no
            token is wanted, the common name of the certificate is its identity.
        insecure: Listen beyond loopback without a token.
        log_level: `debug`, `info`, `warning` or `error`.
        log_format: `text`, or `json` for an object a line.
    """

    SIZES: ClassVar[tuple[str, ...]] = ()
    """The settings that may be given as a text such as "64MiB"."""

    ADDRESS_OPTION: ClassVar[str] = "--address"
    """The option that `address` is given by, for what is said of it."""

    address: str = "127.0.0.1:50051"
    tokens: dict[str, str] = dataclasses.field(default_factory=dict[str, str])
    token_file: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_client_ca: str = ""
    insecure: bool = False
    log_level: str = "info"
    log_format: str = "text"

    def check_door(self) -> None:
        """Checks these settings.

        Raises:
            InvalidArgument: One is wrong; the message names it.
        """
        check_address(self.address, self.ADDRESS_OPTION)
        if self.log_level not in LOG_LEVELS:
            raise InvalidArgument(f"log_level must be one of {', '.join(LOG_LEVELS)}, not {self.log_level!r}")
        if self.log_format not in LOG_FORMATS:
            raise InvalidArgument(f"log_format must be one of {', '.join(LOG_FORMATS)}, not {self.log_format!r}")
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

    @classmethod
    def from_dict(cls, settings: dict[str, Any]) -> Self:
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
            taken[key] = cls.read_table(key, value) if cls.is_table(key) else _read(key, value, wanted, cls.SIZES)
        return cls(**taken)

    @classmethod
    def is_table(cls, key: str) -> bool:
        """Whether a setting is a table of other things than texts, which `read_table` reads."""
        return False

    @classmethod
    def read_table(cls, key: str, value: Any) -> Any:
        """Reads such a setting.

        Raises:
            InvalidArgument: It is of the wrong type.
        """
        raise NotImplementedError


def _read(key: str, value: Any, wanted: type[Any], sizes: tuple[str, ...]) -> Any:
    if wanted is tuple and isinstance(value, list):
        value = tuple(cast(list[Any], value))
    elif wanted is float and type(value) is int:
        value = float(value)
    elif key in sizes and isinstance(value, str):
        value = parse_size(value)
    if type(value) is not wanted or not holds_texts(value):
        # Tables have secrets: tokens, and passwords of sandboxes' backends.
        said = "" if dict in (wanted, type(value)) else f", not {value!r}"
        raise InvalidArgument(f"{key} must be {_KINDS[wanted]}{said}")
    return value


def read_file(path: Path) -> dict[str, Any]:
    """Reads a TOML file whose top-level keys are the settings' names, for `from_dict`.

    Folders in `paths`, and the files that settings name, are taken from the file's own folder on, those of the table
    `rollouts` too. A size may be a text, such as "64MiB".

    Raises:
        InvalidArgument: The file can't be read.
    """
    try:
        settings = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"can't read {path}: {error}") from None
    folder = path.parent.resolve()
    _from_folder(settings, folder)
    if isinstance(rollouts := settings.get("rollouts"), dict):
        _from_folder(cast(dict[str, Any], rollouts), folder)
    return settings


def _from_folder(settings: dict[str, Any], folder: Path) -> None:
    folders = settings.get("paths")
    if isinstance(folders, list) and holds_texts(folders):
        settings["paths"] = [str(folder / each) for each in cast(list[str], folders)]
    if isinstance(pythons := settings.get("python"), dict) and holds_texts(pythons):
        # Its links as they are: an interpreter finds its environment by where it was called.
        settings["python"] = {module: str(folder / python) for module, python in cast(dict[str, str], pythons).items()}
    for name in FILES:
        if settings.get(name) and isinstance(settings[name], str):
            settings[name] = str(folder / settings[name])
    # Which may be a name as well.
    if isinstance(tokenizer := settings.get("tokenizer"), str) and (folder / tokenizer).is_dir():
        settings["tokenizer"] = str(folder / tokenizer)


def parse_size(text: str) -> int:
    """Reads a number of bytes, such as `64MiB`, `1.5 GB` or `4096`.

    Raises:
        InvalidArgument: It is none.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]i?b)?", text.strip().lower())
    if match is None:
        raise InvalidArgument(f"{text!r} is no size: write 64MiB, 500kB or a number of bytes")
    return int(float(match[1]) * _UNITS[match[2] or ""])


def holds_texts(value: Any) -> bool:
    """Whether a value, if it is a list or a table, has texts alone."""
    if isinstance(value, dict):
        return all(isinstance(item, str) for item in cast(dict[Any, Any], value).values())
    if isinstance(value, (list, tuple)):
        return all(isinstance(item, str) for item in cast(tuple[Any, ...], value))
    return True


def tables_of_numbers(key: str, value: Any, sizes: tuple[str, ...] = ()) -> dict[str, dict[str, int]]:
    """Reads a table of numbers for each identity.

    Args:
        key: The setting's name.
        value: What was given.
        sizes: The numbers that may be given as a text such as "64MiB".

    Raises:
        InvalidArgument: It is none.
    """
    tables: dict[str, dict[str, int]] = {}
    for identity, table in cast(dict[str, Any], value if isinstance(value, dict) else {"": None}).items():
        given: dict[str, Any] = dict(cast(dict[str, Any], table)) if isinstance(table, dict) else {"": None}
        for name in sizes:
            if isinstance(size := given.get(name), str):
                given[name] = parse_size(size)
        if not all(type(each) is int for each in given.values()):
            raise InvalidArgument(f"{key} must be a table of numbers for each identity, not {value!r}")
        tables[identity] = given
    return tables


def check_address(address: str, option: str = "--address") -> None:
    """Checks that an address, that of an option, is `HOST:PORT` or `unix:PATH`.

    Raises:
        InvalidArgument: It is neither.
    """
    kind, _, rest = address.partition(":")
    if kind == "unix" and rest:
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise InvalidArgument(f"an address is HOST:PORT or unix:PATH, not {address!r} ({option})")
