"""TLS: the server's certificate and the authority of its clients', read again when their files change."""

import logging
import ssl
import threading
from pathlib import Path
from typing import Any

import grpc

from gymhost.server.settings import DoorSettings
from gymhost.wire.errors import InvalidArgument

__all__ = ["credentials"]

log = logging.getLogger("gymhost.server")


def credentials(settings: DoorSettings) -> grpc.ServerCredentials:
    """The credentials of a server with these settings: each handshake is made with what the files have by then.

    Raises:
        InvalidArgument: A file can't be read, or the certificate and the key do not go together.
    """
    files = _Files(settings)
    return grpc.dynamic_ssl_server_credentials(  # pyright: ignore[reportUnknownMemberType]
        files.initial, files.renewed, require_client_authentication=bool(settings.tls_client_ca)
    )


class _Files:
    """The files, and what they had when they were last in order."""

    def __init__(self, settings: DoorSettings) -> None:
        self._cert, self._key = Path(settings.tls_cert), Path(settings.tls_key)
        self._client_ca = Path(settings.tls_client_ca) if settings.tls_client_ca else None
        self._lock = threading.Lock()
        self._seen = self._look()
        try:
            self.initial = self._read()
        except (OSError, ValueError) as error:
            raise InvalidArgument(f"{_words(error)} (--tls-cert, --tls-key, --tls-client-ca)") from None
        if self._key.stat().st_mode & 0o077:
            log.warning("%s can be read by others than its user: chmod 600 (--tls-key)", self._key)

    def renewed(self) -> Any:
        """What gRPC asks for before each handshake, on a thread of its own; None: go on with what you have."""
        with self._lock:
            seen = self._look()
            if seen == self._seen:
                return None
            self._seen = seen
            try:
                fresh = self._read()
            except (OSError, ValueError) as error:
                # As between the renewal of the one file and of the other.
                log.warning("the certificates in use are kept: %s", _words(error))
                return None
            log.info("the certificates were read again")
            return fresh

    def _look(self) -> list[tuple[int, ...]]:
        found: list[tuple[int, ...]] = []
        for path in (self._cert, self._key, self._client_ca):
            try:
                status = path.stat() if path else None
            except OSError:
                status = None
            found.append((status.st_ino, status.st_mtime_ns, status.st_size) if status else ())
        return found

    def _read(self) -> Any:
        pair = self._key.read_bytes(), self._cert.read_bytes()
        authority = self._client_ca.read_bytes() if self._client_ca else None
        # gRPC takes anything, and then refuses every handshake without a reason.
        checked = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            checked.load_cert_chain(self._cert, self._key, password=lambda: "")
        except ssl.SSLError as error:
            raise ValueError(
                f"{self._cert} is not a certificate in PEM, or {self._key} not its key without a password: "
                f"{error.reason or error}"
            ) from None
        if authority is not None:
            try:
                checked.load_verify_locations(cadata=authority.decode(errors="replace"))
            except ssl.SSLError as error:
                raise ValueError(f"{self._client_ca} has no certificates in PEM: {error.reason or error}") from None
        return grpc.ssl_server_certificate_configuration([pair], root_certificates=authority)  # pyright: ignore[reportUnknownMemberType]


def _words(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename:
        return f"can't read {error.filename}: {error.strerror}"
    return str(error)
