"""Peers that send what would run code if anybody unpickled it (S33)."""

import asyncio
import os
import pickle
import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc.aio
import gymnasium
import pytest

from gymhost.client import DecodeError, Error, connect
from gymhost.v1 import environments_pb2 as pb
from gymhost.v1 import environments_pb2_grpc as rpc
from gymhost.v1 import values_pb2
from gymhost.wire import spaces
from support.raw import RawStream, create, error_of, step, stub_to, trailing
from support.server import ServerProcess


class _Bomb:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.marker}",)  # pyright: ignore[reportDeprecated] - attackers take no advice


@pytest.fixture
def marker(tmp_path: Path) -> Iterator[Path]:
    """The file that a bomb makes; at the end it must not be there."""
    path = tmp_path / "marker"
    pickle.loads(pickle.dumps(_Bomb(path)))
    assert path.exists(), "the bomb is a dud"
    path.unlink()
    yield path
    assert not path.exists()


def bombs(marker: Path) -> list[bytes]:
    """Pickles of every protocol."""
    return [pickle.dumps(_Bomb(marker), protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]


async def test_pickles_in_the_payloads_of_commands_are_invalid(server: ServerProcess, marker: Path) -> None:
    kinds = (pb.COMMAND_KIND_RESET, pb.COMMAND_KIND_STEP, pb.COMMAND_KIND_CALL_TOOL)
    async with stub_to(server.address) as stub, RawStream(stub) as stream:
        for environment_id in ("test/Counter-v0", "test/Slow-v0", "test/Async-v0"):
            lane = (await stream.create(environment_id)).lanes[0]
            number = 1
            assert not (await stream.ask(pb.COMMAND_KIND_RESET, lane=lane, number=number)).code
            for bomb in bombs(marker):
                for kind in kinds:
                    number += 1
                    reply = await stream.ask(kind, bomb, lane=lane, number=number)
                    assert reply.code == pb.REPLY_CODE_INVALID_ARGUMENT, error_of(reply)
            number += 1
            reply = await stream.ask(pb.COMMAND_KIND_RESET, lane=lane, number=number)
            assert not reply.code
        for bomb in bombs(marker):
            for kind in (pb.COMMAND_KIND_CREATE, pb.COMMAND_KIND_ATTACH):
                reply = await stream.ask(kind, bomb)
                assert reply.code in (pb.REPLY_CODE_INVALID_ARGUMENT, pb.REPLY_CODE_UNKNOWN_SESSION), error_of(reply)


async def test_a_pickle_as_hello_ends_that_stream_alone(server: ServerProcess, marker: Path) -> None:
    async with stub_to(server.address) as stub:
        for bomb in bombs(marker):
            call = stub.Interact()
            hello = pb.Command(sequence=1, kind=pb.COMMAND_KIND_HELLO, payload=bomb)
            await call.write(pb.InteractRequest(commands=[hello]))
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await call.read()
            assert raised.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        async with RawStream(stub) as stream:
            await stream.create()


def poisoned_values(bomb: bytes) -> list[values_pb2.Value]:
    """Values with a pickle wherever there are bytes."""
    found: list[values_pb2.Value] = []

    def fill(message: Any, depth: int) -> Iterator[Any]:
        for field in message.DESCRIPTOR.fields:
            repeated = field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED
            if field.type == field.TYPE_BYTES:
                copy = type(message)()
                setattr(copy, field.name, [bomb] if repeated else bomb)
                yield copy
            elif field.message_type is not None and depth < 4 and not field.message_type.GetOptions().map_entry:
                inner = getattr(message, field.name)
                for filled in fill(inner.add() if repeated else inner, depth + 1):
                    copy = type(message)()
                    if repeated:
                        getattr(copy, field.name).append(filled)
                    else:
                        getattr(copy, field.name).CopyFrom(filled)
                    yield copy

    found.extend(fill(values_pb2.Value(), 0))
    return found


async def test_pickles_inside_of_values_are_bytes_or_invalid(server: ServerProcess, marker: Path) -> None:
    bomb = bombs(marker)[-1]
    poisoned = poisoned_values(bomb)
    assert len(poisoned) > 3
    async with stub_to(server.address) as stub, RawStream(stub) as stream:
        lane = (await stream.create("test/Counter-v0")).lanes[0]
        assert not (await stream.ask(pb.COMMAND_KIND_RESET, lane=lane, number=1)).code
        for number, value in enumerate(poisoned, 2):
            reply = await stream.ask(
                pb.COMMAND_KIND_STEP, pb.StepCommand(action=value).SerializeToString(), lane=lane, number=number
            )
            # As plain bytes it is a value like any other; as part of anything else it makes no sense.
            assert reply.code in (0, pb.REPLY_CODE_INVALID_ARGUMENT), error_of(reply)
            status = await _status_of_create(stub, value)
            assert status in (grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.INTERNAL)


async def _status_of_create(stub: Any, kwargs: values_pb2.Value) -> grpc.StatusCode:
    try:
        made = await stub.CreateSession(create(kwargs=kwargs))
    except grpc.aio.AioRpcError as error:
        return error.code()
    await stub.CloseSession(pb.CloseSessionRequest(session_id=made.session_id))
    return grpc.StatusCode.OK


async def test_pickles_in_the_fields_of_calls_are_refused(server: ServerProcess, marker: Path) -> None:
    bomb = bombs(marker)[0]
    text = bomb.decode("latin-1")
    calls: list[tuple[str, Any]] = [
        ("GetEnvironment", pb.GetEnvironmentRequest(environment_id=text)),
        ("CreateSession", create(text)),
        ("CreateSession", create("test/Counter-v0", idempotency_key=bomb)),
        ("GetSession", pb.GetSessionRequest(session_id=text)),
        ("CloseSession", pb.CloseSessionRequest(session_id=text)),
        ("Reset", pb.ResetRequest(session_id=text, sequence=1)),
        ("Step", pb.StepRequest(session_id=text, sequence=1, command=step(1))),
        ("CallTool", pb.CallToolRequest(session_id=text, sequence=1)),
        ("Render", pb.RenderRequest(session_id=text, sequence=1)),
        ("Fork", pb.ForkRequest(session_id=text, sequence=1)),
    ]
    async with stub_to(server.address) as stub:
        for method, request in calls:
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await getattr(stub, method)(request)
            assert raised.value.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND), method
            assert "gymhost-code" in trailing(raised.value)
        assert not (await stub.ListEnvironments(pb.ListEnvironmentsRequest(prefix=text))).environments
        made = await stub.CreateSession(create("gymhost/GuessNumber-v0"))
        await stub.Reset(pb.ResetRequest(session_id=made.session_id, sequence=1))
        tool = pb.CallToolCommand(name="guess", arguments=text)
        with pytest.raises(grpc.aio.AioRpcError, match="no JSON"):
            await stub.CallTool(pb.CallToolRequest(session_id=made.session_id, sequence=2, command=tool))
        await stub.CloseSession(pb.CloseSessionRequest(session_id=made.session_id))


class _HostileServer(rpc.EnvironmentServiceServicer):
    """Greets, makes sessions, and answers every command with a pickle."""

    def __init__(self, bomb: bytes) -> None:
        self.bomb = bomb
        self.code = 0
        self.creates = True

    async def Interact(self, request_iterator: Any, context: Any) -> AsyncIterator[pb.InteractResponse]:  # noqa: N802
        lanes = 0
        async for frame in request_iterator:
            for command in frame.commands:
                payload, code, lane = self.bomb, self.code, command.lane
                if command.kind == pb.COMMAND_KIND_HELLO:
                    welcome = pb.Welcome(server_instance="x", stream_id="y", max_payload_bytes=2**20)
                    payload, code = welcome.SerializeToString(), 0
                elif command.kind == pb.COMMAND_KIND_CREATE and self.creates:
                    lanes += 1
                    made = pb.CreateSessionResponse(session_id=secrets.token_hex(16), lanes=[lanes])
                    for space in (made.observation_space, made.action_space):
                        space.CopyFrom(spaces.encode(gymnasium.spaces.Discrete(2)))
                    payload, code = made.SerializeToString(), 0
                elif command.kind in (pb.COMMAND_KIND_CLOSE, pb.COMMAND_KIND_HEARTBEAT):
                    payload, code = b"", 0
                if command.kind < pb.COMMAND_KIND_RESET:
                    lane = 0
                yield pb.InteractResponse(
                    replies=[pb.Reply(lane=lane, sequence=command.sequence, code=code, payload=payload)]  # pyright: ignore[reportArgumentType]
                )


async def test_pickles_in_the_replies_of_a_server_are_errors_of_gymhost(marker: Path) -> None:
    for bomb in bombs(marker):
        hostile = _HostileServer(bomb)  # pyright: ignore[reportAbstractUsage] - nobody makes unary calls
        host = grpc.aio.server()
        rpc.add_EnvironmentServiceServicer_to_server(hostile, host)
        port = host.add_insecure_port("127.0.0.1:0")
        await host.start()
        try:
            async with connect(f"127.0.0.1:{port}") as remote, asyncio.timeout(15):
                session = await remote.session("any").open()
                for use in (session.reset(), session.step(0), session.render(), session.call_tool("a", {})):
                    with pytest.raises(DecodeError):
                        await use
                for code in (pb.REPLY_CODE_ENVIRONMENT_FAULT, 7777):
                    hostile.code = code
                    with pytest.raises(Error):
                        await session.step(0)
                hostile.code = 0
                hostile.creates = False
                with pytest.raises(Error):
                    await remote.session("any").open()
        finally:
            await host.stop(0)
