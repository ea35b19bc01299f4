"""How callers get at the server: the port with or without TLS, and tokens that come and go while it runs."""

import asyncio
import logging
import os
from typing import Any

from gymhost.server import tls
from gymhost.server.config import ServerConfig
from gymhost.server.front.identity import Identities
from gymhost.server.front.stream import Streams
from gymhost.server.tokens import TokenFile
from gymhost.wire.host import is_loopback

log = logging.getLogger("gymhost.server")

# Seconds between looks at the token file. What it has is taken at the second look that finds the same.
LOOK = 0.5


class Access:
    """The door of a server.

    Args:
        config: The server's settings.

    Raises:
        InvalidArgument: The token file, the certificate or its key can't be used.
    """

    def __init__(self, config: ServerConfig) -> None:
        self._address = config.address
        self._is_closed = config.is_closed
        self._file = TokenFile(config.token_file) if config.token_file else None
        self._credentials = tls.credentials(config) if config.tls_cert else None
        self.identities = Identities(config, self._file.owners if self._file else {})
        if self._file is not None:
            self._warn_if_empty(self._file)
            if self._file.readable_by_others:
                log.warning("%s can be read by others than its user: chmod 600 (--token-file)", config.token_file)
        if self.identities.wants_token and not config.tls_cert and not is_loopback(config.address):
            log.warning("tokens reach %s unencrypted: --tls-cert and --tls-key encrypt what is sent", config.address)

    def listen(self, server: Any) -> int:
        """Has a gRPC server listen; returns the port, or 0 if it can't."""
        # A Unix socket that wants no token is there for its user alone, as the workers' sockets are.
        before = os.umask(0o077) if self._address.startswith("unix:") and not self._is_closed else None
        try:
            if self._credentials is not None:
                return server.add_secure_port(self._address, self._credentials)
            return server.add_insecure_port(self._address)
        except RuntimeError:
            return 0
        finally:
            if before is not None:
                os.umask(before)

    async def watch(self, streams: Streams) -> None:
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
                    streams.revoke(self.identities)
                elif self.identities.revoked:
                    streams.revoke(self.identities)  # sessions that were being made as their caller was cut off
            except Exception:
                log.exception("a fault of the server as it looked at the token file")

    def _warn_if_empty(self, file: TokenFile) -> None:
        if not file.owners:
            log.warning("the token file has no token: nobody is let in by it (gymhost token NAME --file FILE)")
