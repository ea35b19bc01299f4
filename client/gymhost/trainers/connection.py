"""The connection of a trainer's script: opened when it is first needed, closed when nobody holds it any more."""

import weakref
from typing import Any

from gymhost.client import RemoteServer, connect
from gymhost.rollout.loop_thread import LoopThread
from gymhost.rollout.sessions import Source

__all__ = ["Connection"]


class Connection:
    """A server to have sessions from, for callers without an event loop.

    Trainers never say when they are done, so nobody has to close it: that happens when it is collected, and at the
    latest when the process ends.

    Args:
        server: An address ("host:port"), None for an embedded server, or what opens sessions itself: it is used as it
            is, and not closed.
        token: The server's token.
    """

    def __init__(self, server: str | Source | None = None, token: str | None = None) -> None:
        self._server = server
        self._token = token
        self._opened: RemoteServer | None = None

    @property
    def source(self) -> Source:
        """What opens sessions."""
        if self._server is not None and not isinstance(self._server, str):
            return self._server
        if self._opened is None:
            self._opened = connect(self._server, token=self._token).open()
            weakref.finalize(self, self._opened.close)
        return self._opened

    def splits(self, env_id: str, kwargs: dict[str, Any]) -> dict[str, int | None]:
        """How many tasks each split of an environment has; None where they have no end."""
        source: Any = self.source
        thread = LoopThread("gymhost-describe")
        try:
            return dict(thread.run(source.describe(env_id, **kwargs)).splits)
        finally:
            thread.close()
