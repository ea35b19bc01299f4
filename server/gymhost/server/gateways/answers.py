"""Answers over HTTP."""

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gymhost.server.gateways.json_values import dumps
from gymhost.wire import errors

__all__ = ["Json", "failed", "unreadable"]

_STATUS: tuple[tuple[type[errors.Error], int], ...] = (
    (errors.Unauthenticated, 401),
    (errors.PermissionDenied, 403),
    (errors.UnknownEnvironment, 404),
    (errors.InvalidArgument, 422),
    (errors.CapacityExhausted, 503),
    (errors.ServerUnavailable, 503),
)


class Json(JSONResponse):
    """A value in JSON, with arrays as lists."""

    def render(self, content: Any) -> bytes:
        """Returns the bytes."""
        return dumps(content).encode()


def failed(request: Request, error: Exception) -> Response:
    """Tells of one of gymhost's errors."""
    assert isinstance(error, errors.Error)
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
    headers = {"Retry-After": str(max(1, round(error.retry_after)))} if error.retry_after else {}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse({"detail": error.message}, status, headers)


def unreadable(request: Request, error: Exception) -> Response:
    """Tells of a request that is no JSON."""
    return JSONResponse({"detail": f"what was sent can't be read: {error}"}, 422)
