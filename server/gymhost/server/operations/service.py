"""OperationsService of an environment server."""

import contextlib
from typing import Protocol

import grpc

from gymhost.server.calls import Context, Guard, admitted, handlers_of
from gymhost.server.front.lanes import lane_of
from gymhost.server.front.sessions import Session, SessionTable
from gymhost.server.identity import Caller, Identities
from gymhost.server.operations.failures import Failures
from gymhost.server.operations.follow import Followers
from gymhost.server.operations.history import History
from gymhost.server.operations.live import Live
from gymhost.server.operations.overview import Overview
from gymhost.server.tokens import Role
from gymhost.v1 import operations_pb2 as pb
from gymhost.v1 import operations_pb2_grpc as rpc
from gymhost.wire import errors

__all__ = ["SERVICE", "Drainable", "OperationsService", "handlers"]

SERVICE = pb.DESCRIPTOR.services_by_name["OperationsService"].full_name


class Drainable(Protocol):
    """A server that may be told to take no new sessions."""

    async def set_draining(self, draining: bool) -> int:
        """Has it take no new sessions, or new ones again; returns how many it has.

        Raises:
            ServerUnavailable: It is about to stop.
        """
        ...


class OperationsService(rpc.OperationsServiceServicer):
    """What whoever runs the server sees of it, and may do about it.

    Args:
        identities: Who is let in.
        server: The server, which may be told to drain.
        table: Its sessions.
        overview: Looks at it as a whole.
        live: Looks at these.
        history: How it went.
        failures: What failed.
        followers: Those who follow sessions.
    """

    def __init__(
        self,
        identities: Identities,
        server: Drainable,
        table: SessionTable,
        overview: Overview,
        live: Live,
        history: History,
        failures: Failures,
        followers: Followers,
    ) -> None:
        self._identities = identities
        self._server = server
        self._table = table
        self._overview = overview
        self._live = live
        self._history = history
        self._failures = failures
        self._followers = followers

    def _caller(self, context: Context, rpc: str) -> contextlib.AbstractAsyncContextManager[Caller]:
        return admitted(self._identities, context, rpc)

    # -- figures -------------------------------------------------------------------------------------------------------

    async def GetMetrics(self, request: pb.GetMetricsRequest, context: Context) -> pb.GetMetricsResponse:  # noqa: N802
        """All that the server counts."""
        async with self._caller(context, "GetMetrics"):
            return pb.GetMetricsResponse(text=await self._overview.metrics())
        raise AssertionError("unreachable")

    async def GetOverview(  # noqa: N802
        self, request: pb.GetOverviewRequest, context: Context
    ) -> pb.GetOverviewResponse:
        """What there is at this moment."""
        async with self._caller(context, "GetOverview") as caller:
            overview = await self._overview.look()
            overview.role = caller.role.label
            return overview
        raise AssertionError("unreachable")

    async def GetHistory(self, request: pb.GetHistoryRequest, context: Context) -> pb.GetHistoryResponse:  # noqa: N802
        """How it went over the last hour."""
        async with self._caller(context, "GetHistory"):
            return self._history.since(request.after)
        raise AssertionError("unreachable")

    # -- sessions ------------------------------------------------------------------------------------------------------

    async def ListLiveSessions(  # noqa: N802
        self, request: pb.ListLiveSessionsRequest, context: Context
    ) -> pb.ListLiveSessionsResponse:
        """Sessions one by one: the caller's own, or to an admin everybody's."""
        async with self._caller(context, "ListLiveSessions") as caller:
            return await self._live.look(request, _whose(caller))
        raise AssertionError("unreachable")

    async def ListFailures(  # noqa: N802
        self, request: pb.ListFailuresRequest, context: Context
    ) -> pb.ListFailuresResponse:
        """The last failures: of the caller's own sessions, or to an admin of everybody's."""
        async with self._caller(context, "ListFailures") as caller:
            return pb.ListFailuresResponse(failures=self._failures.told(request.environment_id, _whose(caller)))
        raise AssertionError("unreachable")

    async def FollowSession(  # noqa: N802 # pyright: ignore[reportIncompatibleMethodOverride] - it writes instead of yielding
        self, request: pb.FollowSessionRequest, context: Context
    ) -> None:
        """Follows a session, turn by turn."""
        async with self._caller(context, "FollowSession") as caller:
            following = self._followers.follow(caller, self._find(request.name, caller))
            async with contextlib.aclosing(following):
                async for response in following:
                    await context.write(response)

    async def EndSession(self, request: pb.EndSessionRequest, context: Context) -> pb.EndSessionResponse:  # noqa: N802
        """Ends a session; its client is told why."""
        async with self._caller(context, "EndSession") as caller:
            session = self._find(request.name, caller)
            reason = request.reason or "an operator ended it"
            self._table.end(session, errors.SessionClosed(f"the session was ended: {reason}"))
            return pb.EndSessionResponse()
        raise AssertionError("unreachable")

    async def DrainServer(  # noqa: N802
        self, request: pb.DrainServerRequest, context: Context
    ) -> pb.DrainServerResponse:
        """Has the server take no new sessions, or new ones again."""
        async with self._caller(context, "DrainServer"):
            return pb.DrainServerResponse(sessions=await self._server.set_draining(not request.resume))
        raise AssertionError("unreachable")

    def _find(self, name: str, caller: Caller) -> Session:
        session = self._table.on_lane(lane_of(name))
        if session is None or _whose(caller) not in (None, session.identity):
            raise errors.UnknownSession(f"there is no session {name!r}, or it is another's")
        return session


def _whose(caller: Caller) -> str | None:
    """Whose sessions a caller sees; None for everybody's."""
    return None if caller.role >= Role.ADMIN else caller.identity


def handlers(service: OperationsService) -> grpc.GenericRpcHandler:
    """How the service is served."""
    guard = Guard()
    collected = handlers_of(rpc.add_OperationsServiceServicer_to_server, service)
    return grpc.method_handlers_generic_handler(
        SERVICE, {name: guard.around(handler) for name, handler in collected.items()}
    )
