"""`Operations`: what whoever runs servers sees of them, and does about them."""

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Awaitable
from typing import Any, Self, TypeVar

from gymhost.client.api import check_address, check_token
from gymhost.client.connection import warn_of_plain_token
from gymhost.client.grpc_core import grpc
from gymhost.client.loop import LoopThread, loop_thread, on_fork
from gymhost.client.rpc_errors import from_rpc
from gymhost.client.tls import TlsLike, open_channel, tls_of
from gymhost.client.tls_probe import find_problem
from gymhost.v1 import operations_pb2 as pb
from gymhost.v1 import operations_pb2_grpc as rpc
from gymhost.wire import errors, limits

__all__ = ["ANSWER_LIMIT", "Operations"]

T = TypeVar("T")

# Seconds for a call, and for the first word of a session that is followed; and for letting go of the server.
ANSWER_LIMIT = 10.0
CLOSE_LIMIT = 5.0


class Operations:
    """A server, as whoever runs it sees it: an environment server, or a rollout service, which has less of it.

        async with Operations("cpu7:50051") as operations:
            for environment in (await operations.overview()).environments:
                print(environment.environment_id, environment.steps)

    What is told are the messages of `gymhost.v1.operations_pb2`. Each call is one try, and takes `timeout` seconds at
    most. Methods may be awaited on any event loop; nothing is sent before the first of them.

    Args:
        address: `HOST:PORT` or `unix:PATH`.
        token: The bearer token; None takes the environment variable GYMHOST_TOKEN, and an empty text is no token.
        tls: How TLS is spoken with the server; as in `gymhost.client.connect`.
        timeout: Seconds for each call.

    Raises:
        InvalidArgument: The address, the token or `tls` can't be one.
    """

    def __init__(
        self, address: str, token: str | None = None, tls: TlsLike = None, *, timeout: float = ANSWER_LIMIT
    ) -> None:
        check_address(address)
        token = os.environ.get("GYMHOST_TOKEN") if token is None else token
        if token:
            check_token(token)
        if tls and address.startswith("unix:"):
            raise errors.InvalidArgument("tls is for a server at HOST:PORT: nothing else leaves this machine")
        self.address = address
        self._tls = None if address.startswith("unix:") else tls_of(tls)
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()
        self._timeout = timeout
        self._thread: LoopThread | None = None
        self._channel: grpc.aio.Channel | None = None
        self._stub: Any = None
        self._met = False
        self._dead: errors.Error | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Lets go of the server, and ends what is under way. Twice is no error."""
        if self._dead is None:
            self._dead = errors.ConnectionLost(f"the operations of the server at {self.address} were closed")
            if self._thread is not None:
                with contextlib.suppress(TimeoutError, errors.ConnectionLost):
                    async with asyncio.timeout(CLOSE_LIMIT):
                        await self._thread.acall(self._close())

    # -- what there is -------------------------------------------------------------------------------------------------

    async def metrics(self) -> str:
        """All that the server counts, in Prometheus' text format.

        Raises:
            Unimplemented: The server counts nothing (gymhost serve --no-metrics).
            PermissionDenied: The token's role is not enough; so below.
            Unauthenticated: The server wants a token, or a certificate, and did not take what it got; so below.
            ServerUnavailable: The server could not be reached, or did not answer in time; so below.
        """
        return (await self._call("GetMetrics", pb.GetMetricsRequest())).text

    async def overview(self) -> pb.GetOverviewResponse:
        """What there is at this moment.

        Raises:
            Unimplemented: It is a rollout service.
        """
        return await self._call("GetOverview", pb.GetOverviewRequest())

    async def history(self, after: float = 0.0) -> pb.GetHistoryResponse:
        """How it went over the last hour.

        Args:
            after: Points after this time alone, in seconds since 1970.
        """
        return await self._call("GetHistory", pb.GetHistoryRequest(after=after))

    # -- sessions ------------------------------------------------------------------------------------------------------

    async def live(self, environment_id: str = "", state: str = "", limit: int = 0) -> pb.ListLiveSessionsResponse:
        """Sessions one by one, those first whose state has lasted longest: one's own, for an admin everybody's.

        Args:
            environment_id: Only those of this environment; empty for all.
            state: Only those that are `making`, `running`, `waiting` or `closing`; empty for all.
            limit: How many at most, up to 1000; 0 for 100.

        Raises:
            InvalidArgument: There is no such state.
            Unimplemented: It is a rollout service.
        """
        request = pb.ListLiveSessionsRequest(environment_id=environment_id, state=state, limit=limit)
        return await self._call("ListLiveSessions", request)

    async def failures(self, environment_id: str = "") -> list[pb.Failure]:
        """The last failures, the newest first: of one's own sessions, for an admin of everybody's.

        Args:
            environment_id: Only those of this environment; empty for all.

        Raises:
            Unimplemented: It is a rollout service.
        """
        response = await self._call("ListFailures", pb.ListFailuresRequest(environment_id=environment_id))
        return list(response.failures)

    async def follow(self, name: str) -> AsyncGenerator[pb.FollowSessionResponse, None]:
        """Follows a session turn by turn, from now on until it ends: the last message says why in `ended`.

        The first message is there at once, within the time of a call, and has the session as it stands. Leaving early
        ends the following.

        Args:
            name: What operators call the session, `LiveSession.name`.

        Yields:
            What came since the message before.

        Raises:
            UnknownSession: There is no such session, or it is another's.
            CapacityExhausted: Too many follow already.
            ServerUnavailable: The server could not be reached, or was lost.
        """
        thread = self._loop_thread()
        call = await thread.acall(self._opened(name))
        limit: float | None = self._timeout
        try:
            while (response := await thread.acall(self._next(call, limit))) is not None:
                limit = None  # a session may be quiet for long; a server that is gone is noticed by the channel
                yield response
        finally:
            with contextlib.suppress(RuntimeError):  # the loop has stopped: the interpreter is exiting
                thread.loop.call_soon_threadsafe(call.cancel)

    # -- what may be done ----------------------------------------------------------------------------------------------

    async def end(self, name: str, reason: str = "") -> None:
        """Ends a session as if its client had closed it.

        Args:
            name: What operators call the session, `LiveSession.name`.
            reason: What its client is told.

        Raises:
            UnknownSession: There is no such session, or it is another's.
        """
        await self._call("EndSession", pb.EndSessionRequest(name=name, reason=reason))

    async def drain(self, resume: bool = False) -> int:
        """Has the server take no new sessions; it goes on with those that it has, and does not stop.

        Args:
            resume: Have it take new ones again.

        Returns:
            How many sessions it has.

        Raises:
            ServerUnavailable: It is to be resumed and is about to stop.
        """
        return (await self._call("DrainServer", pb.DrainServerRequest(resume=resume))).sessions

    # -- on the loop of gRPC -------------------------------------------------------------------------------------------

    def _loop_thread(self) -> LoopThread:
        if self._dead is not None:
            raise errors.ConnectionLost(self._dead.message)
        if self._thread is None:
            self._thread = loop_thread()
            on_fork(self)
            if self._metadata and self._tls is None:
                warn_of_plain_token(self.address, "Operations")
        return self._thread

    def forked(self) -> None:
        """Called in a forked child, where gRPC no longer works."""
        self._dead = errors.ConnectionLost("this was made before a fork: make one after it, or spawn")

    async def _call(self, method: str, request: Any) -> Any:
        return await self._loop_thread().acall(self._made(method, request))

    def _opened_stub(self) -> Any:
        if self._dead is not None:
            raise errors.ConnectionLost(self._dead.message)
        if self._channel is None:
            self._channel = open_channel(self.address, self._tls, limits.MAX_PAYLOAD)
            self._stub = rpc.OperationsServiceStub(self._channel)
        return self._stub

    async def _made(self, method: str, request: Any) -> Any:
        call = getattr(self._opened_stub(), method)
        response = await self._answered(call(request, metadata=self._metadata, timeout=self._timeout))
        self._met = True
        return response

    async def _opened(self, name: str) -> Any:
        return self._opened_stub().FollowSession(pb.FollowSessionRequest(name=name), metadata=self._metadata)

    async def _next(self, call: Any, limit: float | None) -> pb.FollowSessionResponse | None:
        try:
            async with asyncio.timeout(limit):
                response = await self._answered(call.read())
        except TimeoutError:
            raise errors.ConnectionLost(f"{self.address} did not answer within {limit:g} s") from None
        return None if response is grpc.aio.EOF else response

    async def _answered(self, answer: Awaitable[T]) -> T:
        try:
            return await answer
        except grpc.aio.AioRpcError as raised:
            error = raised
        except asyncio.CancelledError:
            # gRPC cancels what waits for a channel that is closed.
            task = asyncio.current_task()
            if self._dead is None or task is None or task.cancelling():
                raise
            raise errors.ConnectionLost(self._dead.message) from None
        raise await self._failure(error)

    async def _failure(self, raised: grpc.aio.AioRpcError) -> errors.Error:
        if any(key == errors.CODE_KEY for key, _ in raised.trailing_metadata() or ()):
            self._met = True
            return from_rpc(raised, self.address)
        code = raised.code()
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return errors.Unimplemented(
                f"the server at {self.address} does not do this: it is of another kind ({raised.details()})"
            )
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return errors.ConnectionLost(f"{self.address} did not answer within {self._timeout:g} s")
        problem = None
        if code is grpc.StatusCode.UNAVAILABLE and not self._met:
            problem = await asyncio.to_thread(find_problem, self.address, self._tls)
        return problem or from_rpc(raised, self.address)

    async def _close(self) -> None:
        if self._channel is not None:
            await self._channel.close()
            self._channel, self._stub = None, None
