"""TLS on the client's side: the files that it wants, and the channels that it makes."""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias, cast

from gymhost.client.grpc_core import grpc
from gymhost.client.options import channel_options
from gymhost.wire.errors import InvalidArgument

__all__ = ["Tls", "TlsLike", "open_channel", "tls_of"]

_VARIABLES = {"ca": "GYMHOST_TLS_CA", "cert": "GYMHOST_TLS_CERT", "key": "GYMHOST_TLS_KEY"}


@dataclasses.dataclass(frozen=True)
class Tls:
    """How TLS is spoken with a server. The files are in PEM, and read when the connection is opened.

    Attributes:
        ca: The file with the authorities of the server's certificate; None for the public ones that gRPC brings along.
        cert: For a server that asks for one (mutual TLS), the file with the client's certificate chain.
        key: The file with that certificate's key, without a password.
        name: What the server's certificate is for, where that is not the host of the address.

    Raises:
        InvalidArgument: One of `cert` and `key` is there without the other.
    """

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        for field in ("ca", "cert", "key"):
            if (path := getattr(self, field)) is not None:
                object.__setattr__(self, field, os.fspath(path))
        if (self.cert is None) != (self.key is None):
            raise InvalidArgument("a client's certificate and its key go together: Tls(cert=..., key=...)")


TlsLike: TypeAlias = Tls | Mapping[str, str | None] | bool | None
"""What `tls=` may be: a `Tls`, its fields as a dict, True for public authorities, False for no TLS; None for what the
environment variables GYMHOST_TLS_CA, GYMHOST_TLS_CERT and GYMHOST_TLS_KEY say."""


def tls_of(given: TlsLike) -> Tls | None:
    """What `tls=` of `connect` stands for; None for no TLS.

    Raises:
        InvalidArgument: It is none of what may be given.
    """
    if given is None:
        named = {field: os.environ.get(variable) or None for field, variable in _VARIABLES.items()}
        return Tls(**named) if any(named.values()) else None
    if isinstance(given, bool):
        return Tls() if given else None
    if isinstance(given, Mapping):
        try:
            return Tls(**given)
        except TypeError:
            raise InvalidArgument(f"tls has ca, cert, key and name, not {', '.join(given)}") from None
    if not isinstance(cast(object, given), Tls):
        raise InvalidArgument(f"tls is Tls(ca=...), True for public authorities, or False, not {given!r}")
    return given


def open_channel(address: str, tls: Tls | None, max_payload: int) -> grpc.aio.Channel:
    """A channel to a server.

    Args:
        address: `HOST:PORT` or `unix:PATH`.
        tls: How TLS is spoken; None for no TLS.
        max_payload: The largest payload that is taken, in bytes.

    Raises:
        InvalidArgument: A file can't be read.
    """
    options: list[tuple[str, Any]] = [*channel_options(max_payload)]
    if tls is None:
        return grpc.aio.insecure_channel(address, options=options)
    if tls.name:
        options.append(("grpc.ssl_target_name_override", tls.name))
    credentials = grpc.ssl_channel_credentials(_read(tls.ca), _read(tls.key), _read(tls.cert))
    return grpc.aio.secure_channel(address, credentials, options=options)


def _read(path: str | None) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidArgument(f"can't read {path}: {error.strerror} (tls)") from None
