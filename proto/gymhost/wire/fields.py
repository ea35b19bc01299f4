"""How much each field of a request may hold.

Every field of a request that is a text, bytes, repeated or a message of open size stands in one table, with its limit,
or with `PAYLOAD` where the message that it stands in is bounded as a whole, by the server's `max_payload`. So do the
numbers that say how many of something are to be made. Numbers with a point must be finite, in all fields.
"""

import functools
import math
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
_PLACE = 4096
_TASKS = 100_000
_IDS = 10_000
_GROUPS = 100_000_000
# What everything that counts them can hold: JSON, SQLite, signed integers.
_VERSION = 2**53

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
    "ResetCommand.label": 128,
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
    "RolloutTask.environment_id": _NAME,
    "RolloutTask.split": _NAME,
    "RolloutTask.kwargs": _ARGUMENTS,
    "RolloutTask.options": _ARGUMENTS,
    "RolloutTask.labels": _ARGUMENTS,
    "RolloutTask.group": _NAME,
    "RolloutSampling.stop_token_ids": 1024,
    "RolloutLimits.attempts": 1000,
    "RolloutGrouping.extra": _COPIES,
    "RolloutGrouping.target": _GROUPS,
    "SubmitJobRequest.key": _NAME,
    "SubmitJobRequest.tasks": _TASKS,
    "SubmitJobRequest.samples": _COPIES,
    "SubmitJobRequest.agent": _NAME,
    "SubmitJobRequest.agent_options": _ARGUMENTS,
    "SubmitJobRequest.label": 1024,
    "ExtendJobRequest.job_id": _SECRET,
    "ExtendJobRequest.tasks": _TASKS,
    "ExtendJobRequest.more_groups": _TASKS,
    "GetJobRequest.job_id": _SECRET,
    "GetJobRequest.key": _NAME,
    "ListJobsRequest.states": 16,
    "ListJobsRequest.limit": _IDS,
    "ListRolloutsRequest.job_id": _SECRET,
    "ListRolloutsRequest.limit": _IDS,
    "CancelRolloutsRequest.job_ids": _IDS,
    "CancelRolloutsRequest.rollout_ids": _TASKS,
    "PauseJobRequest.job_id": _SECRET,
    "ResumeJobRequest.job_id": _SECRET,
    "StreamResultsRequest.job_ids": _IDS,
    "FetchResultsRequest.job_ids": _IDS,
    "FetchResultsRequest.limit": _IDS,
    "FetchResultsRequest.wait": 60,
    "AcknowledgeResultsRequest.cursors": _TASKS,
    "AddGeneratorRequest.name": _NAME,
    "AddGeneratorRequest.url": _PLACE,
    "AddGeneratorRequest.model": _PLACE,
    "AddGeneratorRequest.api_key": _PLACE,
    "DrainGeneratorRequest.name": _NAME,
    "DrainGeneratorRequest.patience": 86_400,
    "RemoveGeneratorRequest.name": _NAME,
    "AnnouncePolicyRequest.version": _VERSION,
    "AnnouncePolicyRequest.weights": _PLACE,
    "AnnouncePolicyRequest.patience": 86_400,
    "ListLiveSessionsRequest.environment_id": _NAME,
    "ListLiveSessionsRequest.state": _NAME,
    "ListLiveSessionsRequest.limit": 1000,
    "ListFailuresRequest.environment_id": _NAME,
    "FollowSessionRequest.name": _SECRET,
    "EndSessionRequest.name": _SECRET,
    "EndSessionRequest.reason": 1000,
}


def check(message: Message) -> None:
    """Looks at the fields of a request, and of the messages within it.

    Raises:
        InvalidArgument: One holds more than it may; the message names it.
    """
    checks, within, numbers = _of(message.DESCRIPTOR)
    for field in numbers:
        if not math.isfinite(number := getattr(message, field)):
            raise InvalidArgument(f"{message.DESCRIPTOR.name}.{field} must be a finite number, not {number}")
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
def _of(descriptor: Descriptor) -> tuple[tuple[_Check, ...], tuple[tuple[str, bool], ...], tuple[str, ...]]:
    """What to look at in messages of a type.

    Returns:
        Fields with a limit; the messages within, each with whether it is repeated; and numbers with a point.
    """
    checks: list[_Check] = []
    within: list[tuple[str, bool]] = []
    numbers: list[str] = []
    for field in descriptor.fields:
        name = f"{descriptor.name}.{field.name}"
        most = FIELDS.get(name)
        if most is not None and most != PAYLOAD:
            checks.append(_Check(name, field.name, most, *_measure(field)))
        if field.message_type is not None and (most is None or _is_repeated(field)):
            within.append((field.name, _is_repeated(field)))
        if field.type == field.TYPE_DOUBLE and not _is_repeated(field):
            numbers.append(field.name)
    return tuple(checks), tuple(within), tuple(numbers)


def _measure(field: FieldDescriptor) -> tuple[Callable[[Any], int], str]:
    if _is_repeated(field):
        return len, "items long"
    if field.message_type is not None:
        return lambda value: value.ByteSize(), "bytes long"
    if field.type == field.TYPE_STRING:
        return len, "characters long"
    if field.type == field.TYPE_BYTES:
        return len, "bytes long"
    return lambda value: math.ceil(abs(value)), "in size"


def _is_repeated(field: Any) -> bool:
    # Newer versions of protobuf have the one, older ones the other.
    return field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED
