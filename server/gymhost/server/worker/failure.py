"""What exceptions in a worker travel as."""

import traceback

import gymnasium.error
from google.protobuf.message import DecodeError as ProtobufDecodeError

from gymhost.v1 import environments_pb2 as pb
from gymhost.wire import errors

# What operators call the code of a reply that tells of no failure.
OK = "OK"


def failure(error: BaseException) -> tuple[int, bytes]:
    """The code and payload that an exception travels as."""
    if isinstance(error, ProtobufDecodeError):
        error = errors.DecodeError(f"the payload is no message of its kind: {error}")
    elif isinstance(error, gymnasium.error.ResetNeeded) and not isinstance(error, errors.Error):
        error = errors.ResetNeeded(str(error))
    try:
        code, message = errors.to_wire(error)
    except Exception:  # noqa: BLE001 - its __str__ raised, or made what is no Unicode
        words = f"{type(error).__qualname__}, which can't be put into words"
        code, message = errors.to_wire(errors.EnvironmentFault(words, exception=type(error).__qualname__))
    return code, message.SerializeToString()


def fault(error: BaseException) -> tuple[int, bytes]:
    """The same for what an environment's code raised."""
    if isinstance(error, errors.SessionError | errors.ConnectionLost):
        # It speaks of a session or a connection that the environment has itself. As it is, the client would take it for
        # the end of its own, and never close that.
        name = type(error).__qualname__
        told = "".join(traceback.format_exception(error))
        error = errors.EnvironmentFault(f"{name}: {error.message}", exception=name, traceback=told)
    return failure(error)


def unimplemented(kind: int) -> errors.Unimplemented:
    """The error for a kind of command that this worker does not know."""
    return errors.Unimplemented(f"this server does not know commands of kind {kind}")


def code_name(code: int) -> str:
    """What operators call the code of a reply: its name in ReplyCode, such as `ENVIRONMENT_FAULT`."""
    if not code:
        return OK
    if code not in pb.ReplyCode.values():
        return str(code)
    return pb.ReplyCode.Name(code).removeprefix("REPLY_CODE_")  # pyright: ignore[reportArgumentType]
