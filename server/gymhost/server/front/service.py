"""EnvironmentService: discovery, sessions, the stream, and the unary twins of its commands."""

import asyncio
import contextlib
from typing import Any, cast

import grpc

from gymhost.server import link
from gymhost.server.calls import Context, Guard, admitted, handlers_of
from gymhost.server.front.congestion import until_admitted
from gymhost.server.front.pool import WorkerPool
from gymhost.server.front.sessions import Making, Session, SessionTable, unknown_environment
from gymhost.server.front.stream import Streams
from gymhost.server.front.usage import Usage
from gymhost.server.identity import Caller, Identities, Role
from gymhost.v1 import environments_pb2 as pb
from gymhost.v1 import environments_pb2_grpc as rpc
from gymhost.wire import errors

# Seconds to make an environment for its description.
DESCRIBE_LIMIT = 300.0

SERVICE = pb.DESCRIPTOR.services_by_name["EnvironmentService"].full_name


class UnaryCall:
    """Where the reply of a unary command goes: it drives its session for as long as it runs."""

    def __init__(self, sequence: int) -> None:
        self._sequence = sequence
        self.reply: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def put(self, reply: pb.Reply) -> None:
        """Takes the reply to the command; others are of commands that were given up."""
        if reply.sequence == self._sequence and not self.reply.done():
            if reply.code:
                self.reply.set_exception(errors.from_wire(reply.code, pb.Error.FromString(reply.payload)))
            else:
                self.reply.set_result(reply.payload)

    def notice(self, lane: int, error: errors.Error) -> None:
        """Ends the call: the lane has ended, or is driven by another."""
        if not self.reply.done():
            self.reply.set_exception(error)


class Service(rpc.EnvironmentServiceServicer):
    """The front's gRPC service.

    Args:
        identities: Who is let in.
        table: The sessions.
        pool: The workers.
        streams: What serves Interact.
        queue_timeout: Seconds that a create waits for a place where the call has no deadline.
    """

    def __init__(
        self, identities: Identities, table: SessionTable, pool: WorkerPool, streams: Streams, queue_timeout: float
    ) -> None:
        self._identities = identities
        self._table = table
        self._pool = pool
        self._streams = streams
        self._queue_timeout = queue_timeout
        self._usage = Usage()

    def _caller(self, context: Context, rpc: str) -> contextlib.AbstractAsyncContextManager[Caller]:
        return admitted(self._identities, context, rpc)

    async def Interact(  # noqa: N802 # pyright: ignore[reportIncompatibleMethodOverride] - it writes instead of yielding
        self, request_iterator: Any, context: Context
    ) -> None:
        """Serves a stream."""
        with self._streams.counted() as refusal:
            async with self._caller(context, "Interact") as caller:
                if refusal is not None:
                    raise refusal
                await self._streams.serve(caller, context)

    # -- discovery -----------------------------------------------------------------------------------------------------

    async def ListEnvironments(  # noqa: N802
        self, request: pb.ListEnvironmentsRequest, context: Context
    ) -> pb.ListEnvironmentsResponse:
        """Lists what the workers have registered."""
        async with self._caller(context, "ListEnvironments"):
            infos = [info for id, info in self._pool.catalog.items() if id.startswith(request.prefix)]
            problems = [*self._pool.problems, *self._pool.quarantine.problems]
            return pb.ListEnvironmentsResponse(environments=infos, problems=problems)
        raise AssertionError("unreachable")

    async def GetEnvironment(  # noqa: N802
        self, request: pb.GetEnvironmentRequest, context: Context
    ) -> pb.GetEnvironmentResponse:
        """Describes an environment by an instance that a worker makes."""
        async with self._caller(context, "GetEnvironment") as caller:
            return pb.GetEnvironmentResponse.FromString(await self._ask(caller, link.DESCRIBE, request))
        raise AssertionError("unreachable")

    async def ListTasks(  # noqa: N802
        self, request: pb.ListTasksRequest, context: Context
    ) -> pb.ListTasksResponse:
        """Lists tasks of an environment by an instance that a worker makes."""
        async with self._caller(context, "ListTasks") as caller:
            if not request.limit:
                raise errors.InvalidArgument("limit is how many tasks at most, and must not be 0")
            return pb.ListTasksResponse.FromString(await self._ask(caller, link.TASKS, request))
        raise AssertionError("unreachable")

    async def _ask(self, caller: Caller, kind: int, request: pb.GetEnvironmentRequest | pb.ListTasksRequest) -> bytes:
        """Asks a worker what only an instance of an environment knows."""
        info = self._pool.catalog.get(request.environment_id)
        if info is None:
            raise unknown_environment(request.environment_id, self._pool)
        worker = await self._pool.pick(info, lasts=False)
        lane = worker.new_lane()
        worker.pending[lane] = request.environment_id
        began = asyncio.get_running_loop().time()
        self._table.making[lane] = Making(caller.identity, request.environment_id, began, is_session=False)
        try:
            async with asyncio.timeout(DESCRIBE_LIMIT):
                return await worker.request(kind, lane, request.SerializeToString())
        except errors.CommandTimeout:
            raise  # the worker's own word, which is a TimeoutError too
        except TimeoutError:
            raise errors.CommandTimeout(
                f"making {request.environment_id} took more than {DESCRIBE_LIMIT:g} s", limit="reset"
            ) from None
        finally:
            del worker.pending[lane], self._table.making[lane]
            self._pool.release(worker)

    # -- sessions ------------------------------------------------------------------------------------------------------

    async def CreateSession(  # noqa: N802
        self, request: pb.CreateSessionRequest, context: Context
    ) -> pb.CreateSessionResponse:
        """Creates a session that no stream drives yet."""
        async with self._caller(context, "CreateSession") as caller:
            left = cast(float | None, context.time_remaining())  # pyright: ignore[reportUnknownMemberType]
            _, response = await self._table.create(caller.identity, request, left or self._queue_timeout)
            return pb.CreateSessionResponse.FromString(response)
        raise AssertionError("unreachable")

    async def GetSession(self, request: pb.GetSessionRequest, context: Context) -> pb.GetSessionResponse:  # noqa: N802
        """Says how a session fares, ended ones for a while too."""
        async with self._caller(context, "GetSession") as caller:
            info = self._table.describe(request.session_id, caller.identity)
            if info is None:
                info = await self._info(self._table.find(request.session_id, caller.identity))
            return pb.GetSessionResponse(session=info)
        raise AssertionError("unreachable")

    async def ListSessions(  # noqa: N802
        self, request: pb.ListSessionsRequest, context: Context
    ) -> pb.ListSessionsResponse:
        """Lists the caller's sessions, or everybody's."""
        async with self._caller(context, "ListSessions") as caller:
            if request.everyone:
                caller.check(Role.ADMIN, "the list of everybody's sessions")
            sessions = list(self._table.by_id.values()) if request.everyone else self._table.of(caller.identity)
            infos = [self._table.info(session) for session in sessions]
            if request.everyone:
                for session, info in zip(sessions, infos, strict=True):
                    info.identity = session.identity
            if request.memory:
                await self._usage.add(zip(sessions, infos, strict=True))
            return pb.ListSessionsResponse(sessions=infos)
        raise AssertionError("unreachable")

    async def CloseSession(  # noqa: N802
        self, request: pb.CloseSessionRequest, context: Context
    ) -> pb.CloseSessionResponse:
        """Closes a session, or finds that it has ended."""
        async with self._caller(context, "CloseSession") as caller:
            if self._table.describe(request.session_id, caller.identity) is None:
                await self._table.close(self._table.find(request.session_id, caller.identity))
            return pb.CloseSessionResponse()
        raise AssertionError("unreachable")

    async def _info(self, session: Session) -> pb.SessionInfo:
        info = self._table.info(session)
        try:
            async with asyncio.timeout(2.0):
                info.MergeFromString(await session.worker.request(link.INFO, session.lane, b""))
        except (TimeoutError, errors.Error):
            pass  # a worker that is busy with an inline step answers later; what is known is told
        else:
            await self._usage.add([(session, info)])
        return info

    # -- unary twins ---------------------------------------------------------------------------------------------------

    async def Reset(self, request: pb.ResetRequest, context: Context) -> pb.ResetResponse:  # noqa: N802
        """RESET as a call."""
        reply = await self._command("Reset", pb.COMMAND_KIND_RESET, request, request.command, context)
        return pb.ResetResponse(result=pb.ResetResult.FromString(reply))

    async def Step(self, request: pb.StepRequest, context: Context) -> pb.StepResponse:  # noqa: N802
        """STEP as a call."""
        reply = await self._command("Step", pb.COMMAND_KIND_STEP, request, request.command, context)
        return pb.StepResponse(result=pb.StepResult.FromString(reply))

    async def CallTool(self, request: pb.CallToolRequest, context: Context) -> pb.CallToolResponse:  # noqa: N802
        """CALL_TOOL as a call."""
        reply = await self._command("CallTool", pb.COMMAND_KIND_CALL_TOOL, request, request.command, context)
        return pb.CallToolResponse(result=pb.CallToolResult.FromString(reply))

    async def Render(self, request: pb.RenderRequest, context: Context) -> pb.RenderResponse:  # noqa: N802
        """RENDER as a call."""
        reply = await self._command("Render", pb.COMMAND_KIND_RENDER, request, None, context)
        return pb.RenderResponse(result=pb.RenderResult.FromString(reply))

    async def Evaluate(self, request: pb.EvaluateRequest, context: Context) -> pb.EvaluateResponse:  # noqa: N802
        """EVALUATE as a call."""
        reply = await self._command("Evaluate", pb.COMMAND_KIND_EVALUATE, request, request.command, context)
        return pb.EvaluateResponse(result=pb.EvaluateResult.FromString(reply))

    async def Fork(self, request: pb.ForkRequest, context: Context) -> pb.ForkResponse:  # noqa: N802
        """FORK as a call."""
        reply = await self._command("Fork", pb.COMMAND_KIND_FORK, request, request.command, context)
        return pb.ForkResponse(result=pb.ForkResult.FromString(reply))

    async def _command(self, rpc: str, kind: int, request: Any, payload: Any, context: Context) -> bytes:
        """Runs a numbered command; the call is the sink of its session for as long as it runs."""
        async with self._caller(context, rpc) as caller:
            session = self._table.find(request.session_id, caller.identity)
            if not request.sequence:
                raise errors.InvalidArgument("sequence must count the commands of the session from 1")
            # None without a deadline, whatever its types say.
            left = cast(float | None, context.time_remaining())  # pyright: ignore[reportUnknownMemberType]
            command = pb.Command(
                lane=session.lane,
                sequence=request.sequence,
                kind=kind,  # pyright: ignore[reportArgumentType]
                time_left_ms=max(1, round(left * 1000)) if left is not None else 0,
                payload=payload.SerializeToString() if payload is not None else b"",
            )
            call = UnaryCall(request.sequence)
            session.calls += 1
            self._table.attach(session, call)
            session.worker.calls[session.lane] = call
            try:
                if kind == pb.COMMAND_KIND_FORK:
                    forks = self._streams.forks
                    command, _ = await forks.prepare(session, command, forks.begin(session, command))
                await until_admitted(session.worker, 0, command.ByteSize())
                session.worker.send(pb.InteractRequest(commands=[command]))
                return await call.reply
            except asyncio.CancelledError:
                if not self._streams.forks.cancel(session.lane):
                    cancel = pb.Command(lane=session.lane, kind=pb.COMMAND_KIND_CANCEL)
                    session.worker.send(pb.InteractRequest(commands=[cancel]))
                raise
            finally:
                session.calls -= 1
                if session.worker.calls.get(session.lane) is call:
                    del session.worker.calls[session.lane]
                self._table.detach(session, call)
        raise AssertionError("unreachable")


def handlers(service: Service) -> grpc.GenericRpcHandler:
    """How the service is served: frames of replies leave as the bytes that they are."""
    guard = Guard()
    collected = handlers_of(rpc.add_EnvironmentServiceServicer_to_server, service)
    guarded = {name: guard.around(handler) for name, handler in collected.items() if name != "Interact"}
    guarded["Interact"] = grpc.stream_stream_rpc_method_handler(
        service.Interact, request_deserializer=pb.InteractRequest.FromString
    )
    return grpc.method_handlers_generic_handler(SERVICE, guarded)
