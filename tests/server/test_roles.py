"""Roles: what each may do, RPC by RPC and command by command."""

from collections.abc import Callable
from typing import Any

import grpc.aio
import pytest

from gymhost.client import PermissionDenied, connect
from gymhost.server.identity import RPC_ROLES
from gymhost.server.tokens import Role
from gymhost.v1 import environments_pb2 as pb
from gymhost.v1 import environments_pb2_grpc as rpc
from gymhost.v1 import operations_pb2 as operations_pb
from gymhost.v1 import operations_pb2_grpc as operations_rpc
from gymhost.v1 import rollouts_pb2 as rollouts_pb
from support.raw import RawStream, bearer, channel_to, create, error_of, stub_to
from support.server import ServerProcess

StartServer = Callable[..., ServerProcess]

TOKENS = {"read": "reader read-only", "use": "user", "rule": "ruler admin"}
SERVICE = pb.DESCRIPTOR.services_by_name["EnvironmentService"]
OPERATIONS = operations_pb.DESCRIPTOR.services_by_name["OperationsService"]


def test_every_rpc_has_a_role() -> None:
    rollouts = rollouts_pb.DESCRIPTOR.services_by_name["RolloutService"]
    assert set(RPC_ROLES) == {method.name for method in (*SERVICE.methods, *rollouts.methods, *OPERATIONS.methods)}


async def status_of(stub: Any, method: Any, token: str | None, messages: Any = pb) -> grpc.StatusCode:
    """How a call with an empty request ends."""
    metadata = bearer(token)
    try:
        if method.client_streaming:
            async with RawStream(stub, token):
                return grpc.StatusCode.OK
        call = getattr(stub, method.name)(getattr(messages, method.input_type.name)(), metadata=metadata)
        await (call.read() if method.server_streaming else call)
    except grpc.aio.AioRpcError as error:
        # What a stream's first write ran into is of the client's own making.
        return await stub.Interact(metadata=metadata).code() if method.client_streaming else error.code()
    except AssertionError:  # the stream ended instead of greeting
        return await stub.Interact(metadata=metadata).code()
    return grpc.StatusCode.OK


async def test_every_rpc_is_refused_to_those_below_its_role(shared_server: StartServer) -> None:
    server = shared_server(workers=1, tokens=TOKENS)
    denied, unknown = grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED
    async with channel_to(server.address) as channel:
        stub = rpc.EnvironmentServiceStub(channel)
        operations: Any = operations_rpc.OperationsServiceStub(channel)
        of_both = [(stub, pb, method) for method in SERVICE.methods]
        of_both += [(operations, operations_pb, method) for method in OPERATIONS.methods]
        for stub, messages, method in of_both:
            assert await status_of(stub, method, None, messages) == unknown, method.name
            assert await status_of(stub, method, "guess", messages) == unknown, method.name
            for token, role in (("read", Role.READ_ONLY), ("use", Role.USER), ("rule", Role.ADMIN)):
                status = await status_of(stub, method, token, messages)
                # Requests are empty: who may make them is told so.
                assert (status == denied) == (role < RPC_ROLES[method.name]), (method.name, token, status)
        resume = operations_pb.DrainServerRequest(resume=True)  # others share the server
        await operations.DrainServer(resume, metadata=bearer("rule"))


async def test_every_command_on_a_stream_is_refused_to_those_who_only_read(shared_server: StartServer) -> None:
    server = shared_server(workers=1, tokens=TOKENS)
    harmless = {"COMMAND_KIND_HELLO", "COMMAND_KIND_HEARTBEAT"}
    async with (
        stub_to(server.address) as stub,
        RawStream(stub, "use") as user,
        RawStream(stub, "read") as reader,
    ):
        lane = (await user.create()).lanes[0]
        for name, kind in pb.CommandKind.items():
            if name in harmless:
                continue
            for each in (0, lane):
                reply = await reader.ask(kind, create().SerializeToString(), lane=each)
                assert reply.code == pb.REPLY_CODE_PERMISSION_DENIED, (name, error_of(reply))
        assert not (await reader.ask(pb.COMMAND_KIND_HEARTBEAT)).code
        assert not (await user.ask(pb.COMMAND_KIND_RESET, lane=lane, number=1)).code


async def test_a_reader_lists_and_describes_and_does_nothing(shared_server: StartServer) -> None:
    server = shared_server(workers=1, tokens=TOKENS)
    async with connect(server.address, token="read") as remote:
        assert any(each.id == "test/Counter-v0" for each in await remote.environments())
        assert (await remote.describe("test/Counter-v0")).action_space is not None
        assert (await remote.tasks("test/Tasks-v0")).tasks
        assert await remote.sessions() == []
        with pytest.raises(PermissionDenied, match="CREATE is for the role 'user', and 'reader' has 'read-only'"):
            await remote.session("test/Counter-v0").open()


async def test_an_admin_sees_everybodys_sessions_without_their_ids(shared_server: StartServer) -> None:
    server = shared_server(workers=1, tokens=TOKENS)
    async with (
        connect(server.address, token="use") as user,
        connect(server.address, token="rule") as ruler,
        connect(server.address, token="read") as reader,
        user.session("test/Counter-v0"),
        ruler.session("test/Slow-v0"),
    ):
        assert [each["environment_id"] for each in await ruler.sessions()] == ["test/Slow-v0"]
        everyone = await ruler.sessions(everyone=True)
        assert {(each["identity"], each["environment_id"]) for each in everyone} == {
            ("user", "test/Counter-v0"),
            ("ruler", "test/Slow-v0"),
        }
        assert set(everyone[0]) == {"age", "attached", "environment_id", "identity", "worker"}
        for other in (user, reader):
            with pytest.raises(PermissionDenied, match="everybody's sessions is for the role 'admin'"):
                await other.sessions(everyone=True)
