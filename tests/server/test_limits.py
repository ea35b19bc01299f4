"""Every field of a request has a limit."""

import math
from typing import Any

import grpc.aio
import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor

from gymhost.v1 import environments_pb2 as pb
from gymhost.v1 import operations_pb2 as operations_pb
from gymhost.v1 import rollouts_pb2 as rollouts_pb
from gymhost.wire import values
from gymhost.wire.errors import InvalidArgument
from gymhost.wire.fields import FIELDS, PAYLOAD, check
from support.raw import RawStream, channel_to, create, error_of, stub_to, trailing
from support.server import ServerProcess

METHODS = pb.DESCRIPTOR.services_by_name["EnvironmentService"].methods_by_name
OPERATIONS = operations_pb.DESCRIPTOR.services_by_name["OperationsService"].methods_by_name
ROLLOUTS = rollouts_pb.DESCRIPTOR.services_by_name["RolloutService"].methods_by_name
# What travels as the payload of a command.
PAYLOADS = (
    pb.Hello,
    pb.Attach,
    pb.CreateSessionRequest,
    pb.ResetCommand,
    pb.StepCommand,
    pb.CallToolCommand,
    pb.EvaluateCommand,
    pb.ForkCommand,
    pb.AttributeCommand,
)
# What values are made of: where they stand says how large they may be.
OF_VALUES = {"values.proto"}


def _is_repeated(field: Any) -> bool:
    return field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED


def requests() -> dict[str, Descriptor]:
    """Every message that clients send, and those within."""
    found: dict[str, Descriptor] = {}

    def add(descriptor: Descriptor) -> None:
        if descriptor.name in found or descriptor.file.name.rpartition("/")[2] in OF_VALUES:
            return
        found[descriptor.name] = descriptor
        for field in descriptor.fields:
            if field.message_type is not None:
                add(field.message_type)

    for method in (*METHODS.values(), *ROLLOUTS.values(), *OPERATIONS.values()):
        add(method.input_type)
    for payload in PAYLOADS:
        add(payload.DESCRIPTOR)
    return found


def test_every_field_of_open_size_is_in_the_table() -> None:
    missing: list[str] = []
    known: set[str] = set()
    for name, descriptor in requests().items():
        for field in descriptor.fields:
            entry = f"{name}.{field.name}"
            known.add(entry)
            of_values = field.message_type is not None and field.message_type.name not in requests()
            is_open = _is_repeated(field) or of_values or field.type in (field.TYPE_STRING, field.TYPE_BYTES)
            if is_open and entry not in FIELDS:
                missing.append(entry)
    assert missing == [], "each needs a limit in gymhost.wire.fields"
    assert set(FIELDS) <= known, "fields that are in no request"


def test_every_payload_of_a_command_is_looked_at() -> None:
    named = {payload.DESCRIPTOR.name for payload in PAYLOADS}
    comments = {name for name in pb.DESCRIPTOR.message_types_by_name if name.endswith("Command") and name != "Command"}
    assert comments <= named


def _too_much(descriptor: Descriptor, name: str, most: int) -> Any:
    """A message with one field beyond its limit."""
    message: Any = message_factory.GetMessageClass(descriptor)()
    field = descriptor.fields_by_name[name]
    if _is_repeated(field):
        if field.message_type is None:
            getattr(message, name).extend([1 if field.type != field.TYPE_STRING else "x"] * (most + 1))
        for _ in range(most + 1 if field.message_type is not None else 0):
            getattr(message, name).add()
    elif field.message_type is not None:
        values.encode(bytes(most), getattr(message, name))
    elif field.type == field.TYPE_STRING:
        setattr(message, name, "é" * (most + 1))
    elif field.type == field.TYPE_BYTES:
        setattr(message, name, bytes(most + 1))
    else:
        setattr(message, name, most + 1)
    return message


BOUNDED = [(name, most) for name, most in FIELDS.items() if most != PAYLOAD]


@pytest.mark.parametrize(("name", "most"), BOUNDED, ids=[name for name, _ in BOUNDED])
def test_a_field_above_its_limit_is_refused_by_its_name(name: str, most: int) -> None:
    message, _, field = name.partition(".")
    with pytest.raises(InvalidArgument, match=rf"^{name} is \d+ .*, more than the {most} that it may be"):
        check(_too_much(requests()[message], field, most))
    below = _too_much(requests()[message], field, most - 1)
    if requests()[message].fields_by_name[field].message_type is None:
        check(below)


def _numbers(descriptor: Descriptor) -> list[str]:
    return [field.name for field in descriptor.fields if field.type == field.TYPE_DOUBLE]


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_refused_by_its_name(number: float) -> None:
    tried = 0
    for name, descriptor in requests().items():
        for field in _numbers(descriptor):
            message: Any = message_factory.GetMessageClass(descriptor)(**{field: number})
            with pytest.raises(
                InvalidArgument, match=rf"^{name}\.{field} (must be a finite number, not|is inf in size)"
            ):
                check(message)
            tried += 1
    assert tried > 10


def _requests_above(method: Any) -> dict[str, Any]:
    """Requests of a method with one field above its limit each, by the name of the field."""
    made: dict[str, Any] = {}
    for entry, most in BOUNDED:
        message, _, field = entry.partition(".")
        if message == method.input_type.name:
            made[entry] = _too_much(method.input_type, field, most)
        elif message.endswith("Command"):
            within = method.input_type.fields_by_name.get("command")
            if within is not None and within.message_type.name == message:
                request: Any = getattr(pb, method.input_type.name)(sequence=1)
                request.command.CopyFrom(_too_much(requests()[message], field, most))
                made[entry] = request
    return made


async def test_every_call_looks_at_its_fields(server: ServerProcess) -> None:
    tried = 0
    async with stub_to(server.address) as stub:
        for method in METHODS.values():
            if method.name == "Interact":
                continue
            for entry, request in _requests_above(method).items():
                with pytest.raises(grpc.aio.AioRpcError, match=rf"{entry} is \d+") as raised:
                    await getattr(stub, method.name)(request)
                assert raised.value.code() == grpc.StatusCode.INVALID_ARGUMENT
                assert int(trailing(raised.value)["gymhost-code"]) == pb.REPLY_CODE_INVALID_ARGUMENT
                tried += 1
    assert tried > 20


async def test_every_command_looks_at_its_fields_and_the_stream_goes_on(server: ServerProcess) -> None:
    kinds = {
        "Attach": [pb.COMMAND_KIND_ATTACH],
        "CreateSessionRequest": [pb.COMMAND_KIND_CREATE],
        "ResetCommand": [pb.COMMAND_KIND_RESET],
        "CallToolCommand": [pb.COMMAND_KIND_CALL_TOOL],
        "EvaluateCommand": [pb.COMMAND_KIND_EVALUATE],
        "ForkCommand": [pb.COMMAND_KIND_FORK],
        "AttributeCommand": [pb.COMMAND_KIND_GET_ATTR, pb.COMMAND_KIND_SET_ATTR, pb.COMMAND_KIND_CALL],
    }
    async with stub_to(server.address) as stub, RawStream(stub) as stream:
        lane = (await stream.create()).lanes[0]
        number = 0
        for entry, most in BOUNDED:
            message, _, field = entry.partition(".")
            for kind in kinds.get(message, ()):
                payload = _too_much(requests()[message], field, most).SerializeToString()
                if kind >= pb.COMMAND_KIND_RESET:
                    number += 1
                    reply = await stream.ask(kind, payload, lane=lane, number=number)
                else:
                    reply = await stream.ask(kind, payload)
                assert reply.code == pb.REPLY_CODE_INVALID_ARGUMENT, entry
                assert error_of(reply)[1].startswith(f"{entry} is ")
        assert not (await stream.ask(pb.COMMAND_KIND_RESET, lane=lane, number=number + 1)).code


async def test_a_hello_above_its_limits_is_refused(server: ServerProcess) -> None:
    async with stub_to(server.address) as stub:
        for hello in (pb.Hello(client="x" * 257), pb.Hello(bulk_of="x" * 129)):
            call = stub.Interact()
            first = pb.Command(sequence=1, kind=pb.COMMAND_KIND_HELLO, payload=hello.SerializeToString())
            await call.write(pb.InteractRequest(commands=[first]))
            with pytest.raises(grpc.aio.AioRpcError, match=r"Hello\.\w+ is \d+ characters long"):
                await call.read()


async def test_wrappers_within_a_create_are_looked_at_too(server: ServerProcess) -> None:
    async with stub_to(server.address) as stub:
        for wrapper in (
            pb.WrapperSpec(name="x" * 257),
            pb.WrapperSpec(name="x", kwargs=values.encode(bytes(5 * 1024 * 1024))),
        ):
            with pytest.raises(grpc.aio.AioRpcError, match=r"WrapperSpec\.\w+ is \d+"):
                await stub.CreateSession(create(wrappers=[wrapper]))


@pytest.mark.parametrize("garbage", [b"\xff\xff\xff", b"\x0a\xff\xff\xff\x7f", b"\x0a\x02\xff\xfe"])
async def test_bytes_that_are_no_request_are_an_invalid_argument(server: ServerProcess, garbage: bytes) -> None:
    async with channel_to(server.address) as channel:
        for method in METHODS.values():
            if method.name == "ListSessions" and garbage.startswith(b"\x0a"):
                continue  # what it does not know it leaves alone
            with pytest.raises(grpc.aio.AioRpcError, match="no message of its kind") as raised:
                await _send(channel, method.name, garbage)
            assert raised.value.code() == grpc.StatusCode.INVALID_ARGUMENT, method.name
            assert int(trailing(raised.value)["gymhost-code"]) == pb.REPLY_CODE_INVALID_ARGUMENT


async def _send(channel: grpc.aio.Channel, method: str, data: bytes) -> None:
    path = f"/gymhost.v1.EnvironmentService/{method}"
    if method == "Interact":
        call = channel.stream_stream(path)()
        await call.write(data)
        await call.read()
    else:
        await channel.unary_unary(path)(data)
