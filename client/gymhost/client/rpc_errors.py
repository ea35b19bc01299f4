"""What a failed gRPC call stands for: `grpc.RpcError` never reaches a user."""

from typing import Any

from gymhost.client.grpc_core import grpc
from gymhost.client.pending import failure
from gymhost.wire import errors

# Statuses that a new attempt can't change.
FINAL = (
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.UNIMPLEMENTED,
)


def from_rpc(error: grpc.aio.AioRpcError, address: str) -> errors.Error:
    """The error of gymhost that a failed call stands for."""
    # Not dict(...): grpcio 1.71's metadata is no mapping for that.
    trailing: dict[str, Any] = {key: value for key, value in error.trailing_metadata() or ()}  # noqa: C416
    code = str(trailing.get(errors.CODE_KEY, ""))
    if errors.ERROR_KEY in trailing and code.isdecimal():
        return failure(int(code), trailing[errors.ERROR_KEY])
    by_status: dict[Any, type[errors.Error]] = {
        grpc.StatusCode.DEADLINE_EXCEEDED: errors.CommandTimeout,
        grpc.StatusCode.RESOURCE_EXHAUSTED: errors.TooLarge,
        grpc.StatusCode.UNIMPLEMENTED: errors.Unimplemented,
    }
    kind = by_status.get(error.code(), errors.ConnectionLost)
    return kind(f"{address}: {error.code().name}: {error.details()}")
