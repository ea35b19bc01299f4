"""The contract, spoken by hand: numbering, attaching, the unary twins, and what is refused."""

import asyncio
import secrets
from typing import Any

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from gymhost.v1 import environments_pb2 as pb
from gymhost.wire import errors, values
from support.raw import (
    RawStream,
    channel_to,
    command,
    create,
    error_of,
    observation,
    step,
    stub_to,
    trailing,
    until_busy,
)
from support.server import ServerProcess

RESET, STEP = pb.COMMAND_KIND_RESET, pb.COMMAND_KIND_STEP


async def started(stream: RawStream, environment_id: str) -> tuple[str, int]:
    """A session after its first reset: its id and lane."""
    made = await stream.create(environment_id)
    assert not (await stream.ask(RESET, lane=made.lanes[0], number=1)).code
    return made.session_id, made.lanes[0]


def stepping(action: Any) -> bytes:
    return step(action).SerializeToString()


async def test_the_last_command_is_answered_from_the_store_and_never_runs_again(server: ServerProcess) -> None:
    async with stub_to(server.address) as stub, RawStream(stub) as stream:
        _, lane = await started(stream, "test/Counter-v0")
        first = await stream.ask(STEP, stepping(1), lane=lane, number=2)
        for _ in range(3):
            assert await stream.ask(STEP, stepping(1), lane=lane, number=2) == first
        # What is in the repeat does not matter: its number says which command it is.
        assert await stream.ask(RESET, lane=lane, number=2) == first
        assert observation(await stream.ask(STEP, stepping(1), lane=lane, number=3)) == 2


async def test_a_failure_is_stored_like_any_reply(server: ServerProcess) -> None:
    async with stub_to(server.address) as stub, RawStream(stub) as stream:
        _, lane = await started(stream, "test/Raises-v0")
        failed = await stream.ask(STEP, stepping("raise"), lane=lane, number=2)
        assert failed.code == pb.REPLY_CODE_ENVIRONMENT_FAULT
        assert await stream.ask(STEP, stepping("raise"), lane=lane, number=2) == failed
        assert observation(await stream.ask(STEP, stepping("go on"), lane=lane, number=3)) == 1


async def test_a_repeat_of_the_running_command_joins_it(server: ServerProcess) -> None:
    async with stub_to(server.address) as stub, RawStream(stub) as stream:
        _, lane = await started(stream, "test/Slow-v0")
        again = command(STEP, stepping(0.3), lane=lane, number=2)
        await stream.send(again, again)
        await stream.send(again)
        assert observation(await stream.reply()) == 1
        assert observation(await stream.ask(STEP, stepping(0.0), lane=lane, number=3)) == 2


async def test_any_other_number_changes_nothing_and_is_told_the_last(server: ServerProcess) -> None:
    async with stub_to(server.address) as stub, RawStream(stub) as stream:
        _, lane = await started(stream, "test/Slow-v0")
        assert observation(await stream.ask(STEP, stepping(0.0), lane=lane, number=2)) == 1
        for number in (1, 4, 2**63):
            reply = await stream.ask(STEP, stepping(0.0), lane=lane, number=number)
            assert reply.code == pb.REPLY_CODE_OUT_OF_SEQUENCE
            assert pb.Error.FromString(reply.payload).last_sequence == 2
        await stream.send(command(STEP, stepping(0.3), lane=lane, number=3))
        refused = await stream.ask(STEP, stepping(0.0), lane=lane, number=4)
        assert refused.code == pb.REPLY_CODE_OUT_OF_SEQUENCE
        assert "3, which is running" in error_of(refused)[1]
        assert observation(await stream.reply()) == 2
        await stream.send(command(STEP, stepping(0.0), lane=lane, number=0))
        assert (await stream.reply()).code == pb.REPLY_CODE_OUT_OF_SEQUENCE
        assert observation(await stream.ask(STEP, stepping(0.0), lane=lane, number=4)) == 3


async def test_unknown_kinds_and_lanes_are_refused_and_the_stream_goes_on(server: ServerProcess) -> None:
    async with stub_to(server.address) as stub, RawStream(stub) as stream:
        _, lane = await started(stream, "test/Counter-v0")
        for kind in (16, 99, 1001, 1003, 1005, 2**31 - 1):
            for where in (0, lane):
                refused = await stream.ask(kind, b"whatever", lane=where, number=77)
                assert refused.code == pb.REPLY_CODE_UNIMPLEMENTED
                assert str(kind) in error_of(refused)[1]
        refused = await stream.ask(STEP, stepping(1), lane=lane + 1, number=1)
        assert refused.code == pb.REPLY_CODE_UNKNOWN_SESSION
        refused = await stream.ask(pb.COMMAND_KIND_FORK, lane=lane, number=2)
        assert refused.code == pb.REPLY_CODE_INVALID_ARGUMENT
        refused = await stream.ask(pb.COMMAND_KIND_GET_ATTR, lane=lane, number=3)
        assert refused.code == pb.REPLY_CODE_PERMISSION_DENIED
        assert observation(await stream.ask(STEP, stepping(1), lane=lane, number=4)) == 1


async def test_a_lane_of_a_session_that_ended_says_how(server: ServerProcess) -> None:
    async with stub_to(server.address) as stub, RawStream(stub) as stream:
        session_id, lane = await started(stream, "test/Counter-v0")
        await stub.CloseSession(pb.CloseSessionRequest(session_id=session_id))
        notice = await stream.reply()
        assert (notice.lane, notice.sequence, notice.code) == (lane, 0, pb.REPLY_CODE_SESSION_CLOSED)
        late = await stream.ask(STEP, stepping(1), lane=lane, number=2)
        assert late.code == pb.REPLY_CODE_SESSION_CLOSED
        assert not (await stream.ask(pb.COMMAND_KIND_CLOSE, lane=lane)).code


async def test_the_first_command_must_be_hello(server: ServerProcess) -> None:
    async with stub_to(server.address) as stub:
        call = stub.Interact()
        await call.write(pb.InteractRequest(commands=[command(pb.COMMAND_KIND_HEARTBEAT, number=1)]))
        with pytest.raises(grpc.aio.AioRpcError, match="HELLO") as raised:
            await call.read()
        assert raised.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_the_newest_attach_wins_and_the_other_stream_is_told(server: ServerProcess) -> None:
    async with stub_to(server.address) as stub, RawStream(stub) as old, RawStream(stub) as new:
        session_id, lane = await started(old, "test/Slow-v0")
        await old.send(command(STEP, stepping(1.0), lane=lane, number=2))
        async with asyncio.timeout(10):  # nothing orders what two streams say
            while (await stub.GetSession(pb.GetSessionRequest(session_id=session_id))).session.steps != 2:
                pass
        attached = await new.attach(session_id)
        assert pb.Attached.FromString(attached.payload).last_sequences == [2]
        told = await old.reply()
        assert (told.lane, told.sequence, told.code) == (lane, 0, pb.REPLY_CODE_DETACHED)
        # The new one repeats what is running, and has its reply.
        assert observation(await new.ask(STEP, stepping(1.0), lane=lane, number=2)) == 1
        refused = await old.ask(STEP, stepping(0.0), lane=lane, number=3)
        assert refused.code in (pb.REPLY_CODE_UNKNOWN_SESSION, pb.REPLY_CODE_DETACHED)
        assert observation(await new.ask(STEP, stepping(0.0), lane=lane, number=3)) == 2


async def test_creates_with_one_key_make_one_session(server: ServerProcess) -> None:
    key = secrets.token_bytes(16)
    async with stub_to(server.address) as stub, RawStream(stub) as stream:
        made = await asyncio.gather(
            *(stub.CreateSession(create("test/Slow-v0", idempotency_key=key)) for _ in range(5)),
            stream.create("test/Slow-v0", idempotency_key=key),
        )
        assert len({each.session_id for each in made}) == 1
        assert len((await stub.ListSessions(pb.ListSessionsRequest())).sessions) == 1
        other = await stub.CreateSession(create("test/Slow-v0"))
        assert other.session_id != made[0].session_id
        for session_id in (other.session_id, made[0].session_id):
            await stub.CloseSession(pb.CloseSessionRequest(session_id=session_id))
        with pytest.raises(grpc.aio.AioRpcError, match="16 bytes"):
            await stub.CreateSession(create("test/Slow-v0", idempotency_key=b"short"))


async def test_the_unary_twins_follow_the_same_numbering(server: ServerProcess) -> None:
    async with stub_to(server.address) as stub:
        session_id = (await stub.CreateSession(create("test/Counter-v0"))).session_id

        async def take(number: int) -> pb.StepResponse:
            return await stub.Step(pb.StepRequest(session_id=session_id, sequence=number, command=step(1)))

        reset = await stub.Reset(
            pb.ResetRequest(session_id=session_id, sequence=1, command=pb.ResetCommand(seed=4)), timeout=20
        )
        assert values.decode(reset.result.observation) == 0
        first = await take(2)
        assert values.decode(first.result.observation) == 1
        assert await take(2) == first
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await take(5)
        assert raised.value.code() == grpc.StatusCode.ABORTED
        detail = trailing(raised.value)
        assert int(detail["gymhost-code"]) == pb.REPLY_CODE_OUT_OF_SEQUENCE
        assert pb.Error.FromString(detail["gymhost-error-bin"]).last_sequence == 2
        with pytest.raises(grpc.aio.AioRpcError, match="from 1"):
            await take(0)
        info = (await stub.GetSession(pb.GetSessionRequest(session_id=session_id))).session
        assert (info.environment_id, info.state, info.steps, info.busy) == (
            "test/Counter-v0",
            pb.SESSION_STATE_READY,
            2,
            False,
        )
        for _ in range(2):
            await stub.CloseSession(pb.CloseSessionRequest(session_id=session_id))
        ended = (await stub.GetSession(pb.GetSessionRequest(session_id=session_id))).session
        assert (ended.state, ended.reason) == (pb.SESSION_STATE_CLOSED, "the session was closed")
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await take(3)
        assert raised.value.code() == grpc.StatusCode.FAILED_PRECONDITION
        assert int(trailing(raised.value)["gymhost-code"]) == pb.REPLY_CODE_SESSION_CLOSED


async def test_tools_and_rendering_have_unary_twins(server: ServerProcess) -> None:
    async with stub_to(server.address) as stub:
        made = await stub.CreateSession(create("gymhost/GuessNumber-v0"))
        assert [tool.name for tool in made.tools] == ["guess"]
        await stub.Reset(pb.ResetRequest(session_id=made.session_id, sequence=1), timeout=20)
        guess = pb.CallToolCommand(name="guess", arguments='{"number": 4}')
        called = await stub.CallTool(pb.CallToolRequest(session_id=made.session_id, sequence=2, command=guess))
        assert values.decode(called.result.result.observation)[0]["role"] == "tool"
        bad = pb.CallToolCommand(name="guess", arguments="{4")
        with pytest.raises(grpc.aio.AioRpcError, match="no JSON") as raised:
            await stub.CallTool(pb.CallToolRequest(session_id=made.session_id, sequence=3, command=bad))
        assert raised.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        stop = pb.EvaluateCommand(limit="turns")
        scored = await stub.Evaluate(pb.EvaluateRequest(session_id=made.session_id, sequence=4, command=stop))
        assert scored.result.result.truncated
        assert values.decode(scored.result.result.info)["limit"] == "turns"
        await stub.CloseSession(pb.CloseSessionRequest(session_id=made.session_id))

        lake = await stub.CreateSession(create("FrozenLake-v1", kwargs=values.encode({"render_mode": "ansi"})))
        assert lake.render_mode == "ansi"
        await stub.Reset(pb.ResetRequest(session_id=lake.session_id, sequence=1), timeout=20)
        drawn = await stub.Render(pb.RenderRequest(session_id=lake.session_id, sequence=2), timeout=20)
        assert "FHFH" in values.decode(drawn.result.frame)
        copies = pb.ForkCommand(copies=1)
        forked = await stub.Fork(pb.ForkRequest(session_id=lake.session_id, sequence=3, command=copies), timeout=20)
        await stub.CloseSession(pb.CloseSessionRequest(session_id=forked.result.sessions[0].session_id))
        await stub.CloseSession(pb.CloseSessionRequest(session_id=lake.session_id))


async def test_failures_of_unary_calls_carry_the_whole_error(server: ServerProcess) -> None:
    async with stub_to(server.address) as stub:
        session_id = (await stub.CreateSession(create("test/Raises-v0"))).session_id
        await stub.Reset(pb.ResetRequest(session_id=session_id, sequence=1))
        with pytest.raises(grpc.aio.AioRpcError, match="this step was told to raise") as raised:
            await stub.Step(pb.StepRequest(session_id=session_id, sequence=2, command=step("raise")))
        assert raised.value.code() == grpc.StatusCode.INTERNAL
        error = pb.Error.FromString(trailing(raised.value)["gymhost-error-bin"])
        assert error.exception == "ValueError"
        assert "environments.py" in error.traceback
        await stub.CloseSession(pb.CloseSessionRequest(session_id=session_id))
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await stub.GetEnvironment(pb.GetEnvironmentRequest(environment_id="no/such"))
        assert raised.value.code() == grpc.StatusCode.NOT_FOUND
        assert int(trailing(raised.value)["gymhost-code"]) == errors.UnknownEnvironment.code


async def test_a_unary_step_takes_the_session_from_its_stream(server: ServerProcess) -> None:
    async with stub_to(server.address) as stub, RawStream(stub) as stream:
        session_id, lane = await started(stream, "test/Counter-v0")
        await stub.Step(pb.StepRequest(session_id=session_id, sequence=2, command=step(1)))
        told = await stream.reply()
        assert (told.lane, told.sequence, told.code) == (lane, 0, pb.REPLY_CODE_DETACHED)
        await stub.CloseSession(pb.CloseSessionRequest(session_id=session_id))


async def test_a_unary_call_that_is_cut_short_stops_the_work(server: ServerProcess) -> None:
    async with stub_to(server.address) as stub:
        session_id = (await stub.CreateSession(create("test/Async-v0"))).session_id
        await stub.Reset(pb.ResetRequest(session_id=session_id, sequence=1))
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await stub.Step(pb.StepRequest(session_id=session_id, sequence=2, command=step(600.0)), timeout=0.3)
        assert raised.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        await until_busy(stub, session_id, False)
        after = await stub.Step(pb.StepRequest(session_id=session_id, sequence=3, command=step(0.0)))
        assert values.decode(after.result.observation) == 1
        await stub.CloseSession(pb.CloseSessionRequest(session_id=session_id))


async def test_lists_show_no_ids(server: ServerProcess) -> None:
    async with stub_to(server.address) as stub:
        made = await stub.CreateSession(create())
        listed = await stub.ListSessions(pb.ListSessionsRequest())
        assert [info.environment_id for info in listed.sessions] == ["test/Counter-v0"]
        assert made.session_id.encode() not in listed.SerializeToString()
        await stub.CloseSession(pb.CloseSessionRequest(session_id=made.session_id))


async def test_health_and_reflection_are_served(server: ServerProcess) -> None:
    async with channel_to(server.address) as channel:
        any_channel: Any = channel  # the stubs' types know the blocking one alone
        health: Any = health_pb2_grpc.HealthStub(any_channel)
        for name in ("", "gymhost.v1.EnvironmentService"):
            answer = await health.Check(health_pb2.HealthCheckRequest(service=name))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        reflection: Any = reflection_pb2_grpc.ServerReflectionStub(any_channel)
        call = reflection.ServerReflectionInfo()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        names = {service.name for service in (await call.read()).list_services_response.service}
        assert names >= {"gymhost.v1.EnvironmentService", "grpc.health.v1.Health"}
        call.cancel()


async def test_a_command_that_is_cancelled_in_the_frame_that_brings_it_is_answered(server: ServerProcess) -> None:
    async with stub_to(server.address) as stub, RawStream(stub) as stream:
        lane = (await stream.create("test/Async-v0")).lanes[0]
        await stream.ask(RESET, lane=lane, number=1)
        for number in (2, 4):
            stepping = command(STEP, step(600.0).SerializeToString(), lane=lane, number=number)
            await stream.send(stepping, command(pb.COMMAND_KIND_CANCEL, lane=lane))
            async with asyncio.timeout(10):
                assert (await stream.reply()).code == errors.Cancelled.code
            reply = await stream.ask(STEP, step(0.0).SerializeToString(), lane=lane, number=number + 1)
            assert observation(reply) == number // 2
