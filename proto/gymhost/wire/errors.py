"""The errors of gymhost, and how they travel.

    Error                            all of gymhost's errors
    ├── InvalidArgument              also a ValueError: a request that is malformed, outside the space or above a limit
    │   ├── EncodeError              a value that can't travel, with its path
    │   └── DecodeError              bytes that are no value
    ├── UnknownEnvironment           no environment of this id was registered on the server
    ├── UnknownJob                   no such job or rollout in the rollout service (or somebody else's)
    ├── SessionError
    │   ├── UnknownSession           no such session (or somebody else's)
    │   ├── SessionClosed            its client closed it
    │   ├── SessionExpired           its lease or idle limit ran out
    │   ├── SessionLost              its worker died, or a step could not be stopped otherwise
    │   │   └── ReplayDiverged       it was made again, and answered in another way than before
    │   ├── Detached                 another stream drives it now
    │   └── OutOfSequence            a command with a number that is neither the last nor the next
    ├── ResetNeeded                  also gymnasium.error.ResetNeeded
    ├── EnvironmentFault             the environment's own code raised; carries the remote traceback
    ├── CommandTimeout               also a TimeoutError; names the limit that fired
    ├── Cancelled                    the command was stopped because its caller asked
    ├── CapacityExhausted            the server is full
    ├── TooLarge                     a message above the server's limit
    ├── Unauthenticated
    ├── PermissionDenied
    ├── Unimplemented
    ├── SandboxUnavailable           a sandbox could not be had
    │   └── SandboxLost              a sandbox is gone, or was given up because it did not answer
    ├── ServerFault                  a fault of the server itself
    └── ServerUnavailable            the server is going away, has no worker, or can't be reached
        └── ConnectionLost           the connection could not be restored in time; the outcome of the command is unknown

Each class but Error and SessionError has the code (`gymhost.v1.ReplyCode`) that it travels as and the number of the
gRPC status that stands for it on unary calls; statuses are plain numbers here, so that workers need no grpc.
"""

import math
import traceback as _traceback
from typing import Any, ClassVar

import gymnasium.error

from gymhost.v1 import environments_pb2 as pb

__all__ = [
    "Cancelled",
    "CapacityExhausted",
    "CommandTimeout",
    "ConnectionLost",
    "DecodeError",
    "Detached",
    "EncodeError",
    "EnvironmentFault",
    "Error",
    "InvalidArgument",
    "OutOfSequence",
    "PermissionDenied",
    "ReplayDiverged",
    "ResetNeeded",
    "SandboxLost",
    "SandboxUnavailable",
    "ServerFault",
    "ServerUnavailable",
    "SessionClosed",
    "SessionError",
    "SessionExpired",
    "SessionLost",
    "TooLarge",
    "Unauthenticated",
    "Unimplemented",
    "UnknownEnvironment",
    "UnknownJob",
    "UnknownSession",
    "from_wire",
    "to_wire",
]


class Error(Exception):
    """What every error of gymhost is.

    Args:
        message: One line that says what happened and, where there is one, which setting to change.
        exception: The name of the remote exception's type, where the environment's code raised.
        traceback: The formatted remote traceback, where there is one.
        limit: The time limit that fired, where one did.
        last_sequence: The last number that ran on the lane, where the numbering was broken.
        retry_after: Seconds after which it is worth asking again, where a server that is full or going away can tell.
    """

    code: ClassVar[int] = pb.REPLY_CODE_SERVER_FAULT
    status: ClassVar[int] = 13  # INTERNAL

    def __init__(
        self,
        message: str = "",
        *,
        exception: str = "",
        traceback: str = "",
        limit: str = "",
        last_sequence: int = 0,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.exception = exception
        self.traceback = traceback
        self.limit = limit
        self.last_sequence = last_sequence
        self.retry_after = retry_after

    def __str__(self) -> str:
        return f"{self.message}\n\nRemote traceback:\n{self.traceback.rstrip()}" if self.traceback else self.message

    def __reduce__(self) -> tuple[object, ...]:
        told = {name: getattr(self, name) for name in _TOLD}
        return _restore, (type(self), self.message, told)


_TOLD = ("exception", "traceback", "limit", "last_sequence", "retry_after")


def _restore(cls: type[Error], message: str, told: dict[str, Any]) -> Error:
    return cls(message, **told)


class InvalidArgument(Error, ValueError):
    """A request that is malformed, outside the space or above a limit."""

    code = pb.REPLY_CODE_INVALID_ARGUMENT
    status = 3


class EncodeError(InvalidArgument):
    """A value that can't travel; the message begins with its path."""


class DecodeError(InvalidArgument):
    """Bytes that are no value, space or message."""


class UnknownEnvironment(Error):
    """No environment of this id was registered when the server started."""

    code = pb.REPLY_CODE_UNKNOWN_ENVIRONMENT
    status = 5


class UnknownJob(Error):
    """No such job or rollout in the rollout service, or one of another identity."""

    code = pb.REPLY_CODE_UNKNOWN_JOB
    status = 5


class SessionError(Error):
    """The session can't take the command."""


class UnknownSession(SessionError):
    """No such session, or one of another identity."""

    code = pb.REPLY_CODE_UNKNOWN_SESSION
    status = 5


class SessionClosed(SessionError):
    """The session's client closed it."""

    code = pb.REPLY_CODE_SESSION_CLOSED
    status = 9


class SessionExpired(SessionError):
    """The session's lease or idle limit ran out."""

    code = pb.REPLY_CODE_SESSION_EXPIRED
    status = 9


class SessionLost(SessionError):
    """The session's worker died, or had to be given up because a step could not be stopped."""

    code = pb.REPLY_CODE_SESSION_LOST
    status = 15


class ReplayDiverged(SessionLost):
    """The session was lost, and what was made in its place answered the same commands in another way."""


class Detached(SessionError):
    """Another stream attached the session's lanes."""

    code = pb.REPLY_CODE_DETACHED
    status = 10


class OutOfSequence(SessionError):
    """A command with a number that is neither the last nor the next one of its lane."""

    code = pb.REPLY_CODE_OUT_OF_SEQUENCE
    status = 10


class ResetNeeded(Error, gymnasium.error.ResetNeeded):
    """The environment wants a reset first."""

    code = pb.REPLY_CODE_RESET_NEEDED
    status = 9


class EnvironmentFault(Error):
    """The environment's own code raised; `exception` and `traceback` tell of it."""

    code = pb.REPLY_CODE_ENVIRONMENT_FAULT
    status = 13


class CommandTimeout(Error, TimeoutError):
    """A time limit fired and the work was stopped; `limit` names it."""

    code = pb.REPLY_CODE_TIMEOUT
    status = 4


class Cancelled(Error):
    """The command was stopped because its caller asked for it."""

    code = pb.REPLY_CODE_CANCELLED
    status = 1


class CapacityExhausted(Error):
    """The server is full, or the caller has its share; `retry_after` tells when it is worth asking again."""

    code = pb.REPLY_CODE_CAPACITY
    status = 8


class TooLarge(Error):
    """A message above the server's limit; the message names size, limit and setting."""

    code = pb.REPLY_CODE_TOO_LARGE
    status = 8


class Unauthenticated(Error):
    """No token, or not a valid one."""

    code = pb.REPLY_CODE_UNAUTHENTICATED
    status = 16


class PermissionDenied(Error):
    """The identity may not do this."""

    code = pb.REPLY_CODE_PERMISSION_DENIED
    status = 7


class Unimplemented(Error):
    """The server, or this environment, does not know how."""

    code = pb.REPLY_CODE_UNIMPLEMENTED
    status = 12


class SandboxUnavailable(Error):
    """A sandbox could not be had."""

    code = pb.REPLY_CODE_SANDBOX_UNAVAILABLE
    status = 14


class SandboxLost(SandboxUnavailable):
    """A sandbox is gone, or was given up because it did not answer; what was in it is lost."""


class ServerFault(Error):
    """A fault of the server itself."""

    code = pb.REPLY_CODE_SERVER_FAULT
    status = 13


class ServerUnavailable(Error):
    """The server is going away, has no worker, or can't be reached."""

    code = pb.REPLY_CODE_UNAVAILABLE
    status = 14


class ConnectionLost(ServerUnavailable):
    """The connection could not be restored in time; whether the command ran is unknown."""


# Where the trailing metadata of a failed unary call has the number of the code, and the serialized Error.
CODE_KEY, ERROR_KEY = "gymhost-code", "gymhost-error-bin"

# What `retry_after_ms` can hold.
_MOST_SECONDS = 4_000_000.0

# The one table: code -> the class that it arrives as. A subclass without a code of its own travels as its parent.
BY_CODE: dict[int, type[Error]] = {
    cls.code: cls
    for cls in (
        InvalidArgument,
        UnknownEnvironment,
        UnknownJob,
        UnknownSession,
        SessionClosed,
        SessionExpired,
        SessionLost,
        OutOfSequence,
        Detached,
        ResetNeeded,
        EnvironmentFault,
        CommandTimeout,
        Cancelled,
        CapacityExhausted,
        TooLarge,
        Unauthenticated,
        PermissionDenied,
        Unimplemented,
        ServerUnavailable,
        ServerFault,
        SandboxUnavailable,
    )
}


def to_wire(error: BaseException) -> tuple[int, pb.Error]:
    """Turns an exception into the code and the message that it travels as.

    Anything that is no `Error` is taken for a fault of the environment's own code, and its traceback goes along.
    """
    if isinstance(error, Error):
        return error.code, pb.Error(
            message=error.message,
            exception=error.exception,
            traceback=error.traceback,
            limit=error.limit,
            last_sequence=error.last_sequence,
            retry_after_ms=math.ceil(min(error.retry_after or 0.0, _MOST_SECONDS) * 1000),
        )
    name = type(error).__qualname__
    return EnvironmentFault.code, pb.Error(
        message=f"{name}: {error}",
        exception=name,
        traceback="".join(_traceback.format_exception(error)),
    )


def from_wire(code: int, message: pb.Error) -> Error:
    """Turns a code and its message into the exception to raise; a code that is not known becomes ServerFault."""
    return BY_CODE.get(code, ServerFault)(
        message.message,
        exception=message.exception,
        traceback=message.traceback,
        limit=message.limit,
        last_sequence=message.last_sequence,
        retry_after=message.retry_after_ms / 1000 if message.retry_after_ms else None,
    )
