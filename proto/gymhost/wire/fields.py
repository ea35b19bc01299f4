"""How much each field of a request may hold.

Every field of a request that is a text, bytes, repeated or a message of open size stands in one table, with its limit,
or with `PAYLOAD` where the message that it stands in is bounded as a whole, by the server's `max_payload`. So do the
numbers that say how many of something are to be made.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from gymhost.wire.errors import InvalidArgument
from gymhost.wire.limits import FRAME_ITEMS

__all__ = ["FIELDS", "PAYLOAD", "check"]

# Bounded by the message that it stands in.
PAYLOAD = -1

_NAME = 256
_SECRET = 128
_ARGUMENTS = 4 * 1024 * 1024
_COPIES = 65_536

# Characters of a text, bytes of bytes and of a message, items of what is repeated, and the size of a number.
FIELDS: dict[str, int] = {
    "InteractRequest.commands": FRAME_ITEMS,
    "Command.payload": PAYLOAD,
    "Hello.client": _NAME,
    "Hello.bulk_of": _SECRET,
    "Attach.session_id": _SECRET,
    "ResetCommand.options": PAYLOAD,
    "ResetCommand.seeds": PAYLOAD,
    "ResetCommand.mask": _COPIES,
    "StepCommand.action": PAYLOAD,
    "CallToolCommand.name": _NAME,
    "CallToolCommand.arguments": PAYLOAD,
    "EvaluateCommand.limit": _NAME,
    "ForkCommand.copies": 1024,
    "AttributeCommand.name": _NAME,
    "AttributeCommand.value": PAYLOAD,
    "AttributeCommand.arguments": PAYLOAD,
    "AttributeCommand.keyword_arguments": PAYLOAD,
    "AttributeCommand.mask": _COPIES,
    "ListEnvironmentsRequest.prefix": _NAME,
    "GetEnvironmentRequest.environment_id": _NAME,
    "GetEnvironmentRequest.kwargs": _ARGUMENTS,
    "ListTasksRequest.environment_id": _NAME,
    "ListTasksRequest.kwargs": _ARGUMENTS,
    "ListTasksRequest.split": _NAME,
    "ListTasksRequest.limit": 1000,
    "CreateSessionRequest.environment_id": _NAME,
    "CreateSessionRequest.idempotency_key": 16,
    "CreateSessionRequest.kwargs": _ARGUMENTS,
    "CreateSessionRequest.split": _NAME,
    "CreateSessionRequest.num_envs": _COPIES,
    "CreateSessionRequest.wrappers": 64,
    "CreateSessionRequest.priority": 1000,
    "WrapperSpec.name": _NAME,
    "WrapperSpec.kwargs": _ARGUMENTS,
    "GetSessionRequest.session_id": _SECRET,
    "CloseSessionRequest.session_id": _SECRET,
    "ResetRequest.session_id": _SECRET,
    "StepRequest.session_id": _SECRET,
    "CallToolRequest.session_id": _SECRET,
    "RenderRequest.session_id": _SECRET,
    "EvaluateRequest.session_id": _SECRET,
    "ForkRequest.session_id": _SECRET,
}


def check(message: Message) -> None:
    """Looks at the fields of a request, and of the messages within it.

    Raises:
        InvalidArgument: One holds more than it may; the message names it.
    """
    checks, within = _of(message.DESCRIPTOR)
    for each in checks:
        size = each.measure(getattr(message, each.field))
        if size > each.most:
            raise InvalidArgument(f"{each.name} is {size} {each.unit}, more than the {each.most} that it may be")
    for field, repeated in within:
        inner = getattr(message, field)
        for part in inner if repeated else (inner,):
            check(part)


class _Check(NamedTuple):
    name: str
    field: str
    most: int
    measure: Callable[[Any], int]
    unit: str


@functools.cache
def _of(descriptor: Descriptor) -> tuple[tuple[_Check, ...], tuple[tuple[str, bool], ...]]:
    """What to look at in messages of a type: fields, and the messages within, each with whether it is repeated."""
    checks: list[_Check] = []
    within: list[tuple[str, bool]] = []
    for field in descriptor.fields:
        name = f"{descriptor.name}.{field.name}"
        most = FIELDS.get(name)
        if most is not None and most != PAYLOAD:
            checks.append(_Check(name, field.name, most, *_measure(field)))
        if field.message_type is not None and (most is None or _is_repeated(field)):
            within.append((field.name, _is_repeated(field)))
    return tuple(checks), tuple(within)


def _measure(field: FieldDescriptor) -> tuple[Callable[[Any], int], str]:
    if _is_repeated(field):
        return len, "items long"
    if field.message_type is not None:
        return lambda value: value.ByteSize(), "bytes long"
    if field.type == field.TYPE_STRING:
        return len, "characters long"
    if field.type == field.TYPE_BYTES:
        return len, "bytes long"
    return abs, "in size"


def _is_repeated(field: Any) -> bool:
    # Newer versions of protobuf have the one, older ones the other.
    return field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED
