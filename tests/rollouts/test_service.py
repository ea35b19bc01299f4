"""The rollout service over gRPC: every RPC, who may call it, what it refuses, and how it tells."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import grpc.aio
import pytest
from google.protobuf import message_factory
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from gymhost.client import Unimplemented, connect
from gymhost.client.tls import open_channel
from gymhost.rollout import servers
from gymhost.server.identity import RPC_ROLES, Caller
from gymhost.server.rollouts.service import Receivers
from gymhost.server.tokens import Role, hash_of
from gymhost.v1 import environments_pb2 as environments_pb
from gymhost.v1 import environments_pb2_grpc as environments_rpc
from gymhost.v1 import rollouts_pb2 as pb
from gymhost.wire import errors, values
from gymhost.wire.fields import FIELDS, PAYLOAD
from support.certificates import Authority
from support.completions_server import CompletionsServer, choice
from support.raw import bearer, channel_to, stub_to, trailing
from support.rollouts_process import guessing, rollouts_stub, service, submission
from support.server import ServerProcess, until

pytestmark = pytest.mark.heavy

SERVICE = pb.DESCRIPTOR.services_by_name["RolloutService"]
FORWARDED = ("ListEnvironments", "GetEnvironment", "ListTasks")
TOKENS = {"read": "reader read-only", "use": "user", "other": "other", "rule": "ruler admin"}


@pytest.fixture
async def vllm() -> AsyncIterator[CompletionsServer]:
    """A generator that guesses 4."""
    said = guessing(4)
    async with CompletionsServer(lambda _body: choice(said)) as running:
        running.max_model_len = 4096
        yield running


async def ended(stub: Any, job_id: str, token: str | None = None) -> list[pb.Result]:
    """All results of a job, once it has ended."""
    call = stub.StreamResults(pb.StreamResultsRequest(job_ids=[job_id]), metadata=bearer(token))
    return [result async for response in call for result in response.results]


def error_of(raised: grpc.aio.AioRpcError) -> tuple[int, environments_pb.Error]:
    """The code of a failure, and what is said about it."""
    detail = trailing(raised)
    return int(detail["gymhost-code"]), environments_pb.Error.FromString(detail["gymhost-error-bin"])


# -- jobs --------------------------------------------------------------------------------------------------------------


async def test_a_job_from_its_submission_to_its_last_acknowledgement(
    tmp_path: Path, server: ServerProcess, vllm: CompletionsServer
) -> None:
    async with (
        service(tmp_path, server.address, generators=[vllm.url]) as running,
        rollouts_stub(running.address) as stub,
    ):
        submitted = await stub.SubmitJob(submission("run/1", 3, samples=2, label="for people"))
        assert not submitted.known
        again = await stub.SubmitJob(submission("run/1", 50))
        assert again.known
        assert (again.job.id, again.job.samples) == (submitted.job.id, 2)
        results = await ended(stub, submitted.job.id)
        assert len({result.rollout_id for result in results}) == len(results) == 6
        record = json.loads(results[0].record)
        assert record["outcome"]["kind"] == "terminated"
        assert results[0].rows[0].completion_ids[: len(guessing(4))] == guessing(4)
        job = (await stub.GetJob(pb.GetJobRequest(key="run/1"))).job
        assert (job.state, job.terminated, job.unacknowledged) == (pb.JOB_STATE_FINISHED, 6, 6)
        assert job == (await stub.GetJob(pb.GetJobRequest(job_id=job.id))).job
        assert [each.id for each in (await stub.ListJobs(pb.ListJobsRequest())).jobs] == [job.id]
        fetched = await stub.FetchResults(pb.FetchResultsRequest(job_ids=[job.id], after=results[3].cursor, wait=60))
        assert [each.cursor for each in fetched.results] == [each.cursor for each in results[4:]]
        assert fetched.ended
        cursors = pb.AcknowledgeResultsRequest(cursors=[each.cursor for each in results])
        assert [(await stub.AcknowledgeResults(cursors)).acknowledged for _ in range(2)] == [6, 0]
        status = await stub.GetStatus(pb.GetStatusRequest())
        assert (status.ended, status.unacknowledged, status.sampled_tokens) == (6, 0, job.sampled_tokens)
        assert [(each.address, each.reachable) for each in status.servers] == [(server.address, True)]
        assert status.generators[0].sampled_tokens == job.sampled_tokens


async def test_jobs_are_paused_extended_and_cancelled(
    tmp_path: Path, server: ServerProcess, vllm: CompletionsServer
) -> None:
    vllm.hold.clear()
    settings = {"generators": [vllm.url], "run": 2, "ahead": 0, "eval": 1}
    async with service(tmp_path, server.address, **settings) as running, rollouts_stub(running.address) as stub:
        job = (await stub.SubmitJob(submission("open", 6, open=True))).job
        await until(lambda: len(vllm.bodies) == 2)
        rollouts = (await stub.ListRollouts(pb.ListRolloutsRequest(job_id=job.id))).rollouts
        stages = [each.stage for each in rollouts]
        assert stages.count(pb.ROLLOUT_STAGE_RUN) == 2
        assert stages[-1] == pb.ROLLOUT_STAGE_QUEUED
        paused = (await stub.PauseJob(pb.PauseJobRequest(job_id=job.id, in_flight=True))).job
        assert paused.state == pb.JOB_STATE_PAUSED
        assert (await stub.ResumeJob(pb.ResumeJobRequest(job_id=job.id))).job.state == pb.JOB_STATE_RUNNING
        request = pb.ExtendJobRequest(job_id=job.id, number=1, tasks=submission("", 1).tasks, close=True)
        extended = [(await stub.ExtendJob(request)).job for _ in range(2)]
        assert [(each.open, each.extensions) for each in extended] == [(False, 1)] * 2
        one = pb.CancelRolloutsRequest(rollout_ids=[rollouts[0].id])
        assert (await stub.CancelRollouts(one)).cancelled == 1
        assert (await stub.CancelRollouts(pb.CancelRolloutsRequest(all=True))).cancelled == 6
        assert (await stub.GetJob(pb.GetJobRequest(job_id=job.id))).job.state == pb.JOB_STATE_CANCELLED
        vllm.hold.set()
        results = await ended(stub, job.id)
        assert {json.loads(each.record)["outcome"]["kind"] for each in results} == {"cancelled"}


async def test_a_job_is_played_by_the_agent_that_it_names(
    tmp_path: Path, server: ServerProcess, vllm: CompletionsServer
) -> None:
    settings = {"generators": [vllm.url], "agents": {"one": "support.rollouts_process:OneGuess"}}
    async with service(tmp_path, server.address, **settings) as running, rollouts_stub(running.address) as stub:
        assert list((await stub.GetStatus(pb.GetStatusRequest())).agents) == ["one"]
        job = (await stub.SubmitJob(submission("short", 4, agent="one"))).job
        records = [json.loads(result.record) for result in await ended(stub, job.id)]
        assert [len(record["turns"]) for record in records] == [1] * 4
        with pytest.raises(grpc.aio.AioRpcError, match="there is no agent 'two'; there are: one"):
            await stub.SubmitJob(submission("other", agent="two"))


async def test_what_environment_servers_host_is_told_under_the_services_address(
    tmp_path: Path, server: ServerProcess
) -> None:
    listing = environments_pb.ListEnvironmentsRequest(prefix="test/T")
    describing = environments_pb.GetEnvironmentRequest(environment_id="test/Counter-v0")
    tasks = environments_pb.ListTasksRequest(environment_id="test/Tasks-v0", limit=3)
    async with (
        service(tmp_path, server.address) as running,
        stub_to(running.address) as service_stub,
        stub_to(server.address) as server_stub,
    ):
        for method, request in zip(FORWARDED, (listing, describing, tasks), strict=True):
            forwarded = await getattr(service_stub, method)(request)
            assert forwarded == await getattr(server_stub, method)(request)
        unknown = environments_pb.GetEnvironmentRequest(environment_id="test/Nothing-v0")
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await service_stub.GetEnvironment(unknown)
        assert raised.value.code() == grpc.StatusCode.NOT_FOUND
        assert error_of(raised.value)[0] == errors.UnknownEnvironment.code


async def test_a_service_waits_for_servers_that_are_away_and_says_so(
    tmp_path: Path, vllm: CompletionsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "_CONNECT_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nobody = f"127.0.0.1:{taken.getsockname()[1]}"
    async with (
        service(tmp_path, nobody, generators=[vllm.url]) as running,
        rollouts_stub(running.address) as stub,
        stub_to(running.address) as environments,
    ):
        with pytest.raises(grpc.aio.AioRpcError, match="no server can be reached") as raised:
            await environments.ListEnvironments(environments_pb.ListEnvironmentsRequest())
        assert raised.value.code() == grpc.StatusCode.UNAVAILABLE
        job = (await stub.SubmitJob(submission("waits", 2))).job
        assert job.waits_for == f"an environment server: can't reach {nobody}"


# -- the door ----------------------------------------------------------------------------------------------------------


async def status_of(stub: Any, method: Any, request: Any, token: str | None) -> grpc.StatusCode:
    """How a call ends; a stream that goes on is well."""
    call = getattr(stub, method.name)(request, metadata=bearer(token), timeout=20)
    if method.server_streaming:
        reading = asyncio.ensure_future(call.read())
        done, _ = await asyncio.wait([reading], timeout=0.2)
        if not done:
            call.cancel()
            await asyncio.wait([reading])
            return grpc.StatusCode.OK
        reading.exception()
    return await call.code()


async def test_every_rpc_is_refused_to_those_below_its_role(tmp_path: Path, server: ServerProcess) -> None:
    denied, unknown = grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED
    async with service(tmp_path, server.address, tokens=TOKENS) as running, channel_to(running.address) as channel:
        environments: Any = environments_rpc.EnvironmentServiceStub(cast(Any, channel))
        async with rollouts_stub(running.address) as rollouts:
            of_environments = environments_pb.DESCRIPTOR.services_by_name["EnvironmentService"].methods_by_name
            calls = [(rollouts, method) for method in SERVICE.methods]
            calls += [(environments, of_environments[name]) for name in FORWARDED]
            for stub, method in calls:
                request = message_factory.GetMessageClass(method.input_type)()
                for token in (None, "guess"):
                    assert await status_of(stub, method, request, token) == unknown, method.name
                for token, role in (("read", Role.READ_ONLY), ("use", Role.USER), ("rule", Role.ADMIN)):
                    status = await status_of(stub, method, request, token)
                    # Requests are empty: who may make them is told so.
                    assert (status == denied) == (role < RPC_ROLES[method.name]), (method.name, token, status)


async def test_jobs_of_others_are_an_admins_to_see_and_to_end(tmp_path: Path, server: ServerProcess) -> None:
    async with service(tmp_path, server.address, tokens=TOKENS) as running, rollouts_stub(running.address) as stub:
        job = (await stub.SubmitJob(submission("mine"), metadata=bearer("use"))).job
        assert job.identity == "user"
        for method, request in (
            ("GetJob", pb.GetJobRequest(job_id=job.id)),
            ("GetJob", pb.GetJobRequest(key="mine")),
            ("ListRollouts", pb.ListRolloutsRequest(job_id=job.id)),
            ("CancelRollouts", pb.CancelRolloutsRequest(job_ids=[job.id])),
            ("PauseJob", pb.PauseJobRequest(job_id=job.id)),
            ("ExtendJob", pb.ExtendJobRequest(job_id=job.id, number=1)),
            ("FetchResults", pb.FetchResultsRequest(job_ids=[job.id])),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await getattr(stub, method)(request, metadata=bearer("other"))
            assert raised.value.code() == grpc.StatusCode.NOT_FOUND, method
            assert error_of(raised.value)[0] == errors.UnknownJob.code
        assert not (await stub.ListJobs(pb.ListJobsRequest(), metadata=bearer("rule"))).jobs
        everybodys = pb.ListJobsRequest(all_identities=True)
        assert [each.id for each in (await stub.ListJobs(everybodys, metadata=bearer("rule"))).jobs] == [job.id]
        with pytest.raises(grpc.aio.AioRpcError, match="the list of everybody's jobs is for the role 'admin'"):
            await stub.ListJobs(everybodys, metadata=bearer("use"))
        cancel, fetch = pb.CancelRolloutsRequest(job_ids=[job.id]), pb.FetchResultsRequest(job_ids=[job.id])
        assert not (await stub.FetchResults(fetch, metadata=bearer("rule"))).ended
        assert (await stub.CancelRollouts(cancel, metadata=bearer("rule"))).cancelled == 1
        assert (await stub.FetchResults(fetch, metadata=bearer("rule"))).ended


async def test_a_revoked_token_ends_its_streams_of_results_alone(tmp_path: Path, server: ServerProcess) -> None:
    file = tmp_path / "tokens"

    def write(*names: str) -> None:
        file.write_text("".join(f"{name} {hash_of(name)}\n" for name in names))
        file.chmod(0o600)

    write("alice", "bob")
    async with (
        service(tmp_path, server.address, token_file=str(file)) as running,
        rollouts_stub(running.address) as stub,
    ):
        streams = [stub.StreamResults(pb.StreamResultsRequest(), metadata=bearer(name)) for name in ("alice", "bob")]
        fetch = stub.FetchResults(pb.FetchResultsRequest(wait=60), metadata=bearer("alice"))
        reading = [asyncio.ensure_future(stream.read()) for stream in streams]
        for stream in streams:
            await stream.initial_metadata()
        write("bob")
        for call in (reading[0], fetch):
            with pytest.raises(grpc.aio.AioRpcError, match="the token was revoked") as raised:
                await call
            assert error_of(raised.value)[0] == errors.Unauthenticated.code
        assert not reading[1].done()
        streams[1].cancel()
        await asyncio.wait([reading[1]])


async def test_it_speaks_tls_and_takes_certificates_for_identities(tmp_path: Path, server: ServerProcess) -> None:
    authority = Authority(tmp_path / "ca")
    settings = authority.server() | {"tls_client_ca": authority.ca}
    async with service(tmp_path, server.address, **settings) as running:
        tls = authority.client("trainer-7")
        async with open_channel(running.address, tls, 2**20) as channel:
            submit: Any = channel.unary_unary(
                f"/{SERVICE.full_name}/SubmitJob",
                request_serializer=pb.SubmitJobRequest.SerializeToString,
                response_deserializer=pb.SubmitJobResponse.FromString,
            )
            assert (await submit(submission("a"))).job.identity == "trainer-7"


async def test_who_takes_it_for_an_environment_server_is_told(tmp_path: Path, server: ServerProcess) -> None:
    async with service(tmp_path, server.address) as running:
        with pytest.raises(Unimplemented, match="this is a rollout service, which hosts no sessions"):
            await connect(running.address)
        async with stub_to(running.address) as stub:
            with pytest.raises(grpc.aio.AioRpcError, match="which hosts no sessions"):
                await stub.ListSessions(environments_pb.ListSessionsRequest())


async def test_health_and_reflection(tmp_path: Path, server: ServerProcess) -> None:
    async with service(tmp_path, server.address) as running, channel_to(running.address) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        for name in ("", SERVICE.full_name):
            answer = await health.Check(health_pb2.HealthCheckRequest(service=name))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        reflection: Any = reflection_pb2_grpc.ServerReflectionStub(cast(Any, channel))
        call = reflection.ServerReflectionInfo()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        names = {each.name for each in (await call.read()).list_services_response.service}
        assert SERVICE.full_name in names
        await call.done_writing()
        await running.drain()
        answer = await health.Check(health_pb2.HealthCheckRequest())
        assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING


async def test_those_who_wait_for_results_are_told_that_the_service_stops(
    tmp_path: Path, server: ServerProcess
) -> None:
    async with service(tmp_path, server.address) as running, rollouts_stub(running.address) as stub:
        stream = stub.StreamResults(pb.StreamResultsRequest())
        await stream.initial_metadata()
        reading = asyncio.ensure_future(stream.read())
        await running.stop()
        with pytest.raises(grpc.aio.AioRpcError, match="the rollout service is being stopped") as raised:
            await reading
        assert raised.value.code() == grpc.StatusCode.UNAVAILABLE


async def test_whoever_comes_to_wait_once_all_were_told_is_told_too() -> None:
    receivers = Receivers()
    receivers.end(errors.ServerUnavailable("it is being stopped"))
    with pytest.raises(errors.ServerUnavailable, match="being stopped"):
        async with receivers.entered(Caller("one")):
            pytest.fail("nobody may wait")


# -- limits ------------------------------------------------------------------------------------------------------------


def _above(descriptor: Any, name: str, most: int) -> Any:
    message: Any = message_factory.GetMessageClass(descriptor)()
    field = descriptor.fields_by_name[name]
    if field.label == field.LABEL_REPEATED if not hasattr(field, "is_repeated") else field.is_repeated:
        if field.message_type is not None:
            for _ in range(most + 1):
                getattr(message, name).add()
        else:
            getattr(message, name).extend(["x" if field.type == field.TYPE_STRING else 1] * (most + 1))
    elif field.type == field.TYPE_STRING:
        setattr(message, name, "x" * (most + 1))
    elif field.message_type is not None:
        values.encode(bytes(most), getattr(message, name))
    else:
        setattr(message, name, most + 1)
    return message


async def test_every_call_looks_at_its_fields(tmp_path: Path, server: ServerProcess) -> None:
    tried = 0
    async with service(tmp_path, server.address) as running, rollouts_stub(running.address) as stub:
        for entry, most in FIELDS.items():
            message, _, field = entry.partition(".")
            for method in SERVICE.methods:
                if most == PAYLOAD or method.input_type.name != message:
                    continue
                call = getattr(stub, method.name)(_above(method.input_type, field, most))
                with pytest.raises(grpc.aio.AioRpcError, match=rf"{entry} is \d+") as raised:
                    await (call.read() if method.server_streaming else call)
                assert error_of(raised.value)[0] == errors.InvalidArgument.code
                tried += 1
        for within in (
            pb.SubmitJobRequest(tasks=[pb.RolloutTask(environment_id="x" * 257)]),
            pb.ExtendJobRequest(tasks=[pb.RolloutTask(split="x" * 257)]),
        ):
            rpc = stub.SubmitJob if isinstance(within, pb.SubmitJobRequest) else stub.ExtendJob
            with pytest.raises(grpc.aio.AioRpcError, match=r"RolloutTask\.\w+ is 257 characters long"):
                await rpc(within)
        assert tried > 25


async def test_a_large_job_holds_up_nobody(tmp_path: Path, server: ServerProcess) -> None:
    async with service(tmp_path, server.address) as running, rollouts_stub(running.address) as stub:
        task = pb.RolloutTask(environment_id="gymhost/GuessNumber-v0", split="train", task=1)
        request = pb.SubmitJobRequest(key="large", tasks=[task] * 25_000, samples=4)
        job, behind = await asyncio.gather(stub.SubmitJob(request), _worst_wait(stub))
        assert job.job.queued + job.job.in_flight == 100_000
        assert behind < 1.0, f"others waited {behind:.2f} s"
        with pytest.raises(grpc.aio.AioRpcError, match="quota_rollouts"):
            await stub.SubmitJob(submission("more", 1000))
        assert (await stub.CancelRollouts(pb.CancelRolloutsRequest(all=True))).cancelled == 100_000


async def _worst_wait(stub: Any) -> float:
    """The longest that a small call waits for its answer, of some in a row."""
    loop, worst = asyncio.get_running_loop(), 0.0
    for _ in range(40):
        begun = loop.time()
        await stub.ListGenerators(pb.ListGeneratorsRequest())
        worst = max(worst, loop.time() - begun)
        await asyncio.sleep(0.02)
    return worst
