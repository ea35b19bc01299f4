"""How callers get at the server: the port with or without TLS, and tokens that come and go while it runs."""

import asyncio
import logging
import os
from typing import Any, Protocol

from gymhost.server import tls
from gymhost.server.identity import Identities, SideDoor
from gymhost.server.settings import DoorSettings
from gymhost.server.tokens import Role, TokenFile
from gymhost.wire.host import is_loopback

log = logging.getLogger("gymhost.server")

# Seconds between looks at the token file. What it has is taken at the second look that finds the same.
LOOK = 0.5


class Revocable(Protocol):
    """What callers hold on to."""

    def revoke(self, identities: Identities) -> None:
        """Ends what those have who are no longer let in."""
        ...


class Access:
    """The door of a server.

    Args:
        settings: The server's settings.
        untold: The role of those who show no token, on a server that wants none.
        side: A way in for a process of the server's own.

    Raises:
        InvalidArgument: The token file, the certificate or its key can't be used.
    """

    def __init__(self, settings: DoorSettings, untold: Role = Role.USER, side: SideDoor | None = None) -> None:
        self._side = side
        self._address = settings.address
        self._is_closed = settings.is_closed
        self._file = TokenFile(settings.token_file) if settings.token_file else None
        self._credentials = tls.credentials(settings) if settings.tls_cert else None
        self.identities = Identities(settings, self._file.owners if self._file else {}, untold, side)
        if self._file is not None:
            self._warn_if_empty(self._file)
            if self._file.readable_by_others:
                log.warning("%s can be read by others than its user: chmod 600 (--token-file)", settings.token_file)
        if self.identities.wants_token and not settings.tls_cert and not is_loopback(settings.address):
            log.warning("tokens reach %s unencrypted: --tls-cert and --tls-key encrypt what is sent", settings.address)

    def listen(self, server: Any) -> int:
        """Has a gRPC server listen; returns the port, or 0 if it can't."""
        try:
            if self._side is not None:
                _listen_alone(server, self._side.address)
            if self._credentials is not None:
                return server.add_secure_port(self._address, self._credentials)
            # A Unix socket that wants no token is there for its user alone, as the workers' sockets are.
            if self._address.startswith("unix:") and not self._is_closed:
                return _listen_alone(server, self._address)
            return server.add_insecure_port(self._address)
        except RuntimeError:
            return 0

    async def watch(self, held: Revocable) -> None:
        """Takes what the token file has when it changes, and cuts off whom it no longer has; for ever."""
        while self._file is not None:
            await asyncio.sleep(LOOK)
            try:
                # The file may be on a disk that does not answer.
                if await asyncio.to_thread(self._file.refresh):
                    if self._file.problem:
                        log.error("the tokens in use are kept: %s (--token-file)", self._file.problem)
                        continue
                    log.info("the token file was read again: tokens it has: %d", len(self._file.owners))
                    self._warn_if_empty(self._file)
                    self.identities.replace(self._file.owners)
                    held.revoke(self.identities)
                elif self.identities.revoked:
                    held.revoke(self.identities)  # sessions that were being made as their caller was cut off
            except Exception:
                log.exception("a fault of the server as it looked at the token file")

    def _warn_if_empty(self, file: TokenFile) -> None:
        if not file.owners:
            log.warning("the token file has no token: nobody is let in by it (gymhost token NAME --file FILE)")


def _listen_alone(server: Any, address: str) -> int:
    """Has a server listen on a Unix socket that its user alone can connect to."""
    before = os.umask(0o077)
    try:
        return server.add_insecure_port(address)
    finally:
        os.umask(before)
