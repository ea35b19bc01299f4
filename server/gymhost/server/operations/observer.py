"""All that there is of OperationsService in an environment server, put together."""

from collections.abc import Coroutine
from typing import Any

import grpc

from gymhost.server.config import ServerConfig
from gymhost.server.front.pool import WorkerPool
from gymhost.server.front.sessions import SessionTable
from gymhost.server.front.stream import Streams
from gymhost.server.front.workers import Worker
from gymhost.server.identity import Identities
from gymhost.server.operations.failures import Failures
from gymhost.server.operations.follow import Followers
from gymhost.server.operations.history import History
from gymhost.server.operations.live import Live
from gymhost.server.operations.overview import SERIES, Overview
from gymhost.server.operations.service import SERVICE, Drainable, OperationsService, handlers
from gymhost.v1 import operations_pb2 as pb

__all__ = ["Observer"]


class Observer:
    """Sees how a server fares.

    Args:
        config: The server's settings.
        identities: Who is let in.
        server: The server, which may be told to drain.
        table: Its sessions.
        pool: Its workers.
        streams: Its streams.
    """

    def __init__(
        self,
        config: ServerConfig,
        identities: Identities,
        server: Drainable,
        table: SessionTable,
        pool: WorkerPool,
        streams: Streams,
    ) -> None:
        live = Live(table)
        overview = Overview(table, pool, streams, live, config.capacity)
        self._history = History(SERIES, overview.figures)
        self._failures = Failures(table)
        self._followers = Followers(table, live)
        self._service = OperationsService(
            identities, server, table, overview, live, self._history, self._failures, self._followers
        )

    @property
    def services(self) -> dict[str, grpc.GenericRpcHandler]:
        """How the service is served, by its full name."""
        return {SERVICE: handlers(self._service)}

    def watch(self) -> Coroutine[Any, Any, None]:
        """Looks every few seconds, for ever."""
        return self._history.watch()

    def revoke(self, identities: Identities) -> None:
        """Ends what those follow who are no longer let in."""
        self._followers.revoke(identities)

    def failed(self, lane: int, failure: pb.Failure) -> None:
        """Takes note of what went wrong on a lane."""
        self._failures.add(lane, failure)

    def lost(self, worker: Worker) -> None:
        """Takes note of sessions that are about to end with their worker, which has died."""
        self._failures.lost(worker)
