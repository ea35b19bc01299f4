"""RolloutService: jobs, results and generators over gRPC; and what is forwarded to the environment servers."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import Any, cast

import grpc

from gymhost.rollout.engine import RolloutEngine
from gymhost.rollout.servers import Servers
from gymhost.server.calls import Context, Guard, abort, admitted, handlers_of
from gymhost.server.identity import Caller, Identities
from gymhost.server.rollouts.generators import Generators
from gymhost.server.rollouts.jobs import Jobs
from gymhost.server.tokens import Role
from gymhost.v1 import environments_pb2 as environments_pb
from gymhost.v1 import rollouts_pb2 as pb
from gymhost.v1 import rollouts_pb2_grpc as rpc
from gymhost.wire import errors

__all__ = ["ENVIRONMENTS", "SERVICE", "Forwarding", "Receivers", "RolloutService", "forwarding_handlers", "handlers"]

SERVICE = pb.DESCRIPTOR.services_by_name["RolloutService"].full_name
ENVIRONMENTS = environments_pb.DESCRIPTOR.services_by_name["EnvironmentService"].full_name

# Requests of more bytes have many tasks, and are read on a thread.
LARGE = 262_144
# Seconds for an environment server to describe an environment, where the caller sets no limit.
FORWARD_LIMIT = 330.0
# What a list has at most where nothing is said.
JOBS_LISTED, ROLLOUTS_LISTED = 100, 1000

_GOING = (pb.JOB_STATE_QUEUED, pb.JOB_STATE_RUNNING)


class Receivers:
    """Those who wait for results, so that they can be told that there will be none."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Timeout, Caller] = {}
        self._why: dict[asyncio.Timeout, errors.Error] = {}
        self._over: errors.Error | None = None

    @contextlib.asynccontextmanager
    async def entered(self, caller: Caller) -> AsyncGenerator[None, None]:
        """Holds a caller for as long as its body runs, which is cancelled when there are to be no results.

        Raises:
            Error: Why there will be none.
        """
        if self._over is not None:
            raise self._over
        scope = asyncio.timeout(None)
        try:
            async with scope:
                self._waiting[scope] = caller
                yield
        except TimeoutError:
            if not scope.expired():
                raise
            raise self._why[scope] from None
        finally:
            self._waiting.pop(scope, None)
            self._why.pop(scope, None)

    def revoke(self, identities: Identities) -> None:
        """Ends the wait of those who are no longer let in."""
        gone = [scope for scope, caller in self._waiting.items() if not identities.is_valid(caller)]
        self._end(gone, errors.Unauthenticated("the token was revoked on this server"))

    def end(self, error: errors.Error) -> None:
        """Ends everybody's wait, and that of those to come."""
        self._over = error
        self._end(list(self._waiting), error)

    def _end(self, scopes: Iterable[asyncio.Timeout], error: errors.Error) -> None:
        for scope in scopes:
            del self._waiting[scope]
            self._why[scope] = error
            scope.reschedule(0.0)


class RolloutService(rpc.RolloutServiceServicer):
    """The service's RPCs.

    Args:
        identities: Who is let in.
        jobs: The jobs.
        generators: The generators.
        engine: What plays.
        source: The environment servers.
        receivers: Those who wait for results.
        agents: The names of the agents that jobs may ask for.
    """

    def __init__(
        self,
        identities: Identities,
        jobs: Jobs,
        generators: Generators,
        engine: RolloutEngine,
        source: Servers,
        receivers: Receivers,
        agents: Iterable[str],
    ) -> None:
        self._identities = identities
        self._jobs = jobs
        self._generators = generators
        self._engine = engine
        self._source = source
        self._receivers = receivers
        self._agents = sorted(agents)
        self._instance = secrets.token_hex(16)
        self._begun = time.monotonic()

    def _caller(self, context: Context, rpc: str) -> contextlib.AbstractAsyncContextManager[Caller]:
        return admitted(self._identities, context, rpc)

    # -- jobs ----------------------------------------------------------------------------------------------------------

    async def SubmitJob(self, request: pb.SubmitJobRequest, context: Context) -> pb.SubmitJobResponse:  # noqa: N802
        """Takes a job, or finds that it is there."""
        async with self._caller(context, "SubmitJob") as caller:
            if request.agent and request.agent not in self._agents and not self._knows(caller, request.key):
                there = ", ".join(self._agents) or "none"
                raise errors.InvalidArgument(f"there is no agent {request.agent!r}; there are: {there} (--agent)")
            job, known = await self._jobs.submit(caller.identity, request)
            return pb.SubmitJobResponse(job=self._told(job), known=known)
        raise AssertionError("unreachable")

    def _knows(self, caller: Caller, key: str) -> bool:
        """Whether a caller has a job with a key, which may wait for an agent that the service does not have now."""
        try:
            self._jobs.get(caller.identity, key=key)
        except errors.UnknownJob:
            return False
        return True

    async def ExtendJob(self, request: pb.ExtendJobRequest, context: Context) -> pb.ExtendJobResponse:  # noqa: N802
        """Gives a job more to do, or closes it."""
        async with self._caller(context, "ExtendJob") as caller:
            return pb.ExtendJobResponse(job=self._told(await self._jobs.extend(caller.identity, request)))
        raise AssertionError("unreachable")

    async def GetJob(self, request: pb.GetJobRequest, context: Context) -> pb.GetJobResponse:  # noqa: N802
        """Says how a job fares."""
        async with self._caller(context, "GetJob") as caller:
            if bool(request.job_id) == bool(request.key):
                raise errors.InvalidArgument("one of job_id and key says which job")
            job = self._jobs.get(caller.identity, request.job_id, request.key, admin=_is_admin(caller))
            return pb.GetJobResponse(job=self._told(job))
        raise AssertionError("unreachable")

    async def ListJobs(self, request: pb.ListJobsRequest, context: Context) -> pb.ListJobsResponse:  # noqa: N802
        """Lists the caller's jobs, or everybody's."""
        async with self._caller(context, "ListJobs") as caller:
            if request.all_identities:
                caller.check(Role.ADMIN, "the list of everybody's jobs")
            whose = None if request.all_identities else caller.identity
            jobs = self._jobs.list(whose, list(request.states), request.limit or JOBS_LISTED)
            return pb.ListJobsResponse(jobs=[self._told(job) for job in jobs])
        raise AssertionError("unreachable")

    async def ListRollouts(  # noqa: N802
        self, request: pb.ListRolloutsRequest, context: Context
    ) -> pb.ListRolloutsResponse:
        """Lists what is in flight or waits in a job."""
        async with self._caller(context, "ListRollouts") as caller:
            limit = request.limit or ROLLOUTS_LISTED
            rollouts = self._jobs.rollouts(caller.identity, request.job_id, limit, admin=_is_admin(caller))
            return pb.ListRolloutsResponse(rollouts=rollouts)
        raise AssertionError("unreachable")

    async def CancelRollouts(  # noqa: N802
        self, request: pb.CancelRolloutsRequest, context: Context
    ) -> pb.CancelRolloutsResponse:
        """Cancels rollouts, jobs, or all of the caller's."""
        async with self._caller(context, "CancelRollouts") as caller:
            cancelled = await self._jobs.cancel(caller.identity, request, admin=_is_admin(caller))
            return pb.CancelRolloutsResponse(cancelled=cancelled)
        raise AssertionError("unreachable")

    async def PauseJob(self, request: pb.PauseJobRequest, context: Context) -> pb.PauseJobResponse:  # noqa: N802
        """Begins no more rollouts of a job."""
        async with self._caller(context, "PauseJob") as caller:
            job = await self._jobs.pause(caller.identity, request.job_id, request.in_flight, admin=_is_admin(caller))
            return pb.PauseJobResponse(job=self._told(job))
        raise AssertionError("unreachable")

    async def ResumeJob(self, request: pb.ResumeJobRequest, context: Context) -> pb.ResumeJobResponse:  # noqa: N802
        """Goes on with a job."""
        async with self._caller(context, "ResumeJob") as caller:
            job = await self._jobs.resume(caller.identity, request.job_id, admin=_is_admin(caller))
            return pb.ResumeJobResponse(job=self._told(job))
        raise AssertionError("unreachable")

    def _told(self, job: pb.Job) -> pb.Job:
        """A job with what keeps all of them from going on, if anything does."""
        if not job.waits_for and job.state in _GOING:
            job.waits_for = self._obstacle()
        return job

    def _obstacle(self) -> str:
        """What keeps all jobs from going on, if anything does."""
        if of_generators := self._generators.obstacle:
            return of_generators
        reachable = self._source.reachable
        return "" if any(reachable.values()) else f"an environment server: can't reach {', '.join(reachable)}"

    # -- results -------------------------------------------------------------------------------------------------------

    async def StreamResults(  # noqa: N802 # pyright: ignore[reportIncompatibleMethodOverride] - it writes instead of yielding
        self, request: pb.StreamResultsRequest, context: Context
    ) -> None:
        """Sends results as they come."""
        async with self._caller(context, "StreamResults") as caller:
            # So that the caller knows that it is heard though there is no result yet.
            await context.send_initial_metadata(())
            results = self._jobs.results(caller.identity, list(request.job_ids), request.after, admin=_is_admin(caller))
            async with self._receivers.entered(caller), aclosing(results):
                async for batch in results:
                    await context.write(pb.StreamResultsResponse(results=batch))

    async def FetchResults(  # noqa: N802
        self, request: pb.FetchResultsRequest, context: Context
    ) -> pb.FetchResultsResponse:
        """Waits for results."""
        async with self._caller(context, "FetchResults") as caller, self._receivers.entered(caller):
            if request.wait < 0:
                raise errors.InvalidArgument("wait must not be below 0")
            return await self._jobs.fetch(caller.identity, request, admin=_is_admin(caller))
        raise AssertionError("unreachable")

    async def AcknowledgeResults(  # noqa: N802
        self, request: pb.AcknowledgeResultsRequest, context: Context
    ) -> pb.AcknowledgeResultsResponse:
        """Takes note that results have arrived."""
        async with self._caller(context, "AcknowledgeResults") as caller:
            acknowledged = await self._jobs.acknowledge(caller.identity, list(request.cursors))
            return pb.AcknowledgeResultsResponse(acknowledged=acknowledged)
        raise AssertionError("unreachable")

    # -- generators ----------------------------------------------------------------------------------------------------

    async def AddGenerator(  # noqa: N802
        self, request: pb.AddGeneratorRequest, context: Context
    ) -> pb.AddGeneratorResponse:
        """Takes in a generator."""
        async with self._caller(context, "AddGenerator"):
            return pb.AddGeneratorResponse(generator=await self._generators.add(request))
        raise AssertionError("unreachable")

    async def DrainGenerator(  # noqa: N802
        self, request: pb.DrainGeneratorRequest, context: Context
    ) -> pb.DrainGeneratorResponse:
        """Sends a generator nothing more, and waits until it has nothing in flight."""
        async with self._caller(context, "DrainGenerator"):
            return pb.DrainGeneratorResponse(generator=await self._generators.drain(request))
        raise AssertionError("unreachable")

    async def RemoveGenerator(  # noqa: N802
        self, request: pb.RemoveGeneratorRequest, context: Context
    ) -> pb.RemoveGeneratorResponse:
        """Takes a generator out."""
        async with self._caller(context, "RemoveGenerator"):
            await self._generators.remove(request.name)
            return pb.RemoveGeneratorResponse()
        raise AssertionError("unreachable")

    async def ListGenerators(  # noqa: N802
        self, request: pb.ListGeneratorsRequest, context: Context
    ) -> pb.ListGeneratorsResponse:
        """Lists the generators."""
        async with self._caller(context, "ListGenerators"):
            return pb.ListGeneratorsResponse(
                generators=self._generators.infos(), policy_version=self._generators.pool.policy_version
            )
        raise AssertionError("unreachable")

    async def AnnouncePolicy(  # noqa: N802
        self, request: pb.AnnouncePolicyRequest, context: Context
    ) -> pb.AnnouncePolicyResponse:
        """Changes the weights, or takes note that they have changed."""
        async with self._caller(context, "AnnouncePolicy"):
            return await self._generators.announce(request)
        raise AssertionError("unreachable")

    async def GetStatus(self, request: pb.GetStatusRequest, context: Context) -> pb.GetStatusResponse:  # noqa: N802
        """Says how the service fares."""
        async with self._caller(context, "GetStatus") as caller:
            status, counts, tally = self._engine.status(), self._jobs.counts(), self._jobs.tally
            reachable = self._source.reachable
            return pb.GetStatusResponse(
                service_instance=self._instance,
                uptime=time.monotonic() - self._begun,
                policy_version=self._generators.pool.policy_version,
                queued=counts.queued,
                init=status.waiting + status.init,
                ready=status.ready,
                run=status.run,
                eval=status.eval,
                jobs=counts.jobs,
                unacknowledged=counts.unacknowledged,
                ended=counts.ended,
                retries=counts.retries,
                sampled_tokens=status.tokens,
                servers=[
                    pb.EnvironmentServer(address=address, reachable=reachable[address], sessions=sessions)
                    for address, sessions in self._source.sessions.items()
                ],
                generators=self._generators.infos(),
                agents=self._agents,
                environments=tally.told(),
                generating=status.generating,
                dropped=tally.dropped,
                unacknowledged_bytes=counts.unacknowledged_bytes,
                waits_for=self._obstacle(),
                role=caller.role.label,
            )
        raise AssertionError("unreachable")


class Forwarding:
    """What the environment servers answer: a trainer needs to know no other address.

    Args:
        identities: Who is let in.
        source: The environment servers.
    """

    def __init__(self, identities: Identities, source: Servers) -> None:
        self._identities = identities
        self._source = source

    async def ListEnvironments(self, request: Any, context: Context) -> Any:  # noqa: N802
        """Lists what they host."""
        return await self._forward("ListEnvironments", request, context)

    async def GetEnvironment(self, request: Any, context: Context) -> Any:  # noqa: N802
        """Describes an environment."""
        return await self._forward("GetEnvironment", request, context)

    async def ListTasks(self, request: Any, context: Context) -> Any:  # noqa: N802
        """Lists tasks of an environment."""
        return await self._forward("ListTasks", request, context)

    async def _forward(self, method: str, request: Any, context: Context) -> bytes:
        async with admitted(self._identities, context, method):
            # None without a deadline, whatever its types say.
            left = cast(float | None, context.time_remaining())  # pyright: ignore[reportUnknownMemberType]
            return await self._source.forward(method, request.SerializeToString(), timeout=left or FORWARD_LIMIT)
        raise AssertionError("unreachable")


def _is_admin(caller: Caller) -> bool:
    return caller.role >= Role.ADMIN


def handlers(service: RolloutService) -> grpc.GenericRpcHandler:
    """How the service is served."""
    guard = Guard(LARGE)
    collected = handlers_of(rpc.add_RolloutServiceServicer_to_server, service)
    return grpc.method_handlers_generic_handler(
        SERVICE, {name: guard.around(handler) for name, handler in collected.items()}
    )


def forwarding_handlers(service: Forwarding) -> grpc.GenericRpcHandler:
    """How what is forwarded is served: requests are looked at, responses stay the bytes that they are."""
    guard = Guard()
    made: dict[str, Any] = {}
    grpc_: Any = grpc
    for method in environments_pb.DESCRIPTOR.services_by_name["EnvironmentService"].methods:
        serve = getattr(service, method.name, None)
        if method.client_streaming:
            made[method.name] = grpc_.stream_stream_rpc_method_handler(_no_sessions)
        elif serve is None:
            made[method.name] = grpc_.unary_unary_rpc_method_handler(_no_sessions)
        else:
            read = getattr(environments_pb, method.input_type.name).FromString
            made[method.name] = guard.around(grpc_.unary_unary_rpc_method_handler(serve, read))
    return grpc.method_handlers_generic_handler(ENVIRONMENTS, made)


async def _no_sessions(_request: Any, context: Context) -> None:
    """Answers whoever takes the service for an environment server."""
    await abort(
        context,
        errors.Unimplemented(
            "this is a rollout service, which hosts no sessions: they are at the environment servers that it plays on"
        ),
    )
