"""The connection of a trainer's script: opened when it is first needed, closed when nobody holds it any more."""

import threading
import weakref
from collections.abc import Sequence
from typing import Any

from gymhost.client import RemoteServer, connect
from gymhost.client.tls import TlsLike
from gymhost.rollout.loop_thread import LoopThread
from gymhost.rollout.servers import Servers
from gymhost.rollout.sessions import Source

__all__ = ["Connection"]


class Connection:
    """A server, or several, to have sessions from, for callers without an event loop.

    Trainers never say when they are done, so nobody has to close it: that happens when it is collected, and at the
    latest when the process ends.

    Args:
        server: An address ("host:port"), a list of them, None for an embedded server, or what opens sessions itself: it
            is used as it is, and not closed.
        token: The server's token.
        tls: How TLS is spoken with it, as for `gymhost.client.connect`.
    """

    def __init__(
        self, server: str | Sequence[str] | Source | None = None, token: str | None = None, tls: TlsLike = None
    ) -> None:
        self._server = server
        self._token = token
        self._tls = tls
        self._opened: Source | None = None

    @property
    def source(self) -> Source:
        """What opens sessions."""
        if self._opened is None:
            server = self._server
            if server is None or isinstance(server, str):
                self._opened = opened = connect(server, token=self._token, tls=self._tls).open()
            elif isinstance(server, Sequence):
                self._opened = opened = Servers(server, self._token, self._tls)
            else:
                return server
            # At exit all connections are closed.
            weakref.finalize(self, _let_go, opened).atexit = False
        return self._opened

    def splits(self, env_id: str, kwargs: dict[str, Any]) -> dict[str, int | None]:
        """How many tasks each split of an environment has; None where they have no end."""
        source: Any = self.source
        thread = LoopThread("gymhost-describe")
        try:
            return dict(thread.run(source.describe(env_id, **kwargs)).splits)
        finally:
            thread.close()


def _let_go(opened: RemoteServer | Servers) -> None:
    """Closes a connection that nobody holds any more."""
    # The collector may run anywhere, on the connection's own loop or with its lock held: this must not wait here.
    threading.Thread(target=opened.close, daemon=True).start()
