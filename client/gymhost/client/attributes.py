"""Attributes of remote environments: the payloads of GET_ATTR, SET_ATTR and CALL."""

import contextlib
from collections.abc import Collection, Generator
from typing import Any

from google.protobuf.message import DecodeError as ProtobufDecodeError

from gymhost.v1 import environments_pb2 as pb
from gymhost.wire import values
from gymhost.wire.attributes import EVERY, is_public, pack, unpack
from gymhost.wire.errors import DecodeError, EnvironmentFault


def reaches(allowed: Collection[str], name: str) -> bool:
    """Whether a server that allows these names lets an attribute be reached."""
    return name in allowed or (EVERY in allowed and is_public(name))


def encode_get(name: str) -> bytes:
    """The payload of a GET_ATTR."""
    return pb.AttributeCommand(name=name).SerializeToString()


def encode_set(name: str, value: Any) -> bytes:
    """The payload of a SET_ATTR.

    Raises:
        EncodeError: The value can't travel.
    """
    command = pb.AttributeCommand(name=name)
    values.encode(pack(value), command.value, name=name)
    return command.SerializeToString()


def encode_call(name: str, arguments: tuple[Any, ...], keyword_arguments: dict[str, Any], mask: bytes = b"") -> bytes:
    """The payload of a CALL.

    Args:
        name: What is called.
        arguments: With what.
        keyword_arguments: The same, by name.
        mask: Which copies of a vector session, a byte each; empty for all.

    Raises:
        EncodeError: An argument can't travel.
    """
    command = pb.AttributeCommand(name=name, mask=mask)
    if arguments:
        values.encode(arguments, command.arguments, name=f"{name}'s arguments")
    if keyword_arguments:
        values.encode(keyword_arguments, command.keyword_arguments, name=f"{name}'s keyword arguments")
    return command.SerializeToString()


def decode_attribute(reply: bytes) -> tuple[Any, bool]:
    """The value that came back, and whether the attribute is a method.

    Raises:
        DecodeError: The reply is malformed.
    """
    try:
        result = pb.AttributeResult.FromString(reply)
    except ProtobufDecodeError as error:
        raise DecodeError(f"the server's reply is no AttributeResult: {error}") from None
    return unpack(values.decode(result.value)), result.is_method


@contextlib.contextmanager
def missing_as_usual() -> Generator[None]:
    """Raises AttributeError, as Python does, where the environment has no such attribute."""
    try:
        yield
    except EnvironmentFault as fault:
        if fault.exception != AttributeError.__name__:
            raise
        raise AttributeError(fault.message.removeprefix("AttributeError: ")) from fault
