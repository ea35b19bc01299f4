"""Calls: who is let in, what is refused before it is served, and how failures are told."""

import asyncio
import contextlib
import logging
import sys
from collections.abc import AsyncGenerator
from typing import Any, cast

import grpc.aio

from gymhost.server.identity import Caller, Identities
from gymhost.wire import errors, fields

__all__ = ["Context", "Guard", "abort", "admitted", "as_error", "handlers_of"]

log = logging.getLogger("gymhost.server")

# The most unary calls at once, of all clients together.
MAX_CALLS = 8192

Context = grpc.aio.ServicerContext[Any, Any]
_STATUS = {code.value[0]: code for code in grpc.StatusCode}  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


@contextlib.asynccontextmanager
async def admitted(identities: Identities, context: Context, rpc: str) -> AsyncGenerator[Caller, None]:
    """Yields who calls an RPC, if that one may; an exception within ends the call with its status."""
    try:
        yield identities.admit(context, rpc)
    except (asyncio.CancelledError, grpc.aio.AbortError):
        raise
    except Exception as raised:  # noqa: BLE001 - whatever it was, the caller is told in gymhost's way
        await abort(context, as_error(raised))


async def abort(context: Context, error: errors.Error) -> None:
    """Ends a call with what went wrong."""
    code, message = errors.to_wire(error)
    # Metadata has a limit of its own, and the traceback is the long part.
    message.traceback = message.traceback[-3000:]
    message.message = message.message[:1000]
    message.exception = message.exception[:200]
    trailing = ((errors.CODE_KEY, str(code)), (errors.ERROR_KEY, message.SerializeToString()))
    await context.abort(_STATUS[error.status], error.message[:1000], trailing)


def as_error(error: Exception) -> errors.Error:
    """What an exception in the server is told as; a fault of the server's own goes to the log."""
    if isinstance(error, errors.Error):
        return error
    if type(error).__name__ == "DecodeError":
        return errors.DecodeError(f"the payload is no message of its kind: {error}")
    log.exception("a fault of the server", exc_info=error)
    return errors.ServerFault(f"{type(error).__name__}: {error}")


class Guard:
    """Lets no more calls in than there may be, and no requests that are malformed or have too much in a field.

    Args:
        large: Requests of more bytes are read on a thread, where these are of many parts: the event loop has others to
            serve meanwhile.
    """

    def __init__(self, large: int = sys.maxsize) -> None:
        self._calls = 0
        self._large = large

    def around(self, handler: Any) -> Any:
        """A handler of a call with one request, guarded."""
        read = handler.request_deserializer

        def taken(data: bytes) -> Any:
            request = read(data)
            fields.check(request)
            return request

        async def request_of(data: bytes, context: Context) -> Any:
            """The request; where it is none the call is ended, which raises."""
            if self._calls > MAX_CALLS:
                await abort(
                    context,
                    errors.CapacityExhausted(
                        f"{MAX_CALLS} calls are running, which is the most; retry after about 1 s", retry_after=1.0
                    ),
                )
            try:
                return taken(data) if len(data) <= self._large else await asyncio.to_thread(taken, data)
            except Exception as error:  # noqa: BLE001 - what the bytes are is up to the caller
                await abort(context, as_error(error))

        async def unary(data: bytes, context: Context) -> Any:
            self._calls += 1
            try:
                return await handler.unary_unary(await request_of(data, context), context)
            finally:
                self._calls -= 1

        async def stream(data: bytes, context: Context) -> None:
            self._calls += 1
            try:
                await handler.unary_stream(await request_of(data, context), context)
            finally:
                self._calls -= 1

        made = cast(Any, grpc)
        if handler.response_streaming:
            return made.unary_stream_rpc_method_handler(stream, response_serializer=handler.response_serializer)
        return made.unary_unary_rpc_method_handler(unary, response_serializer=handler.response_serializer)


def handlers_of(add: Any, service: Any) -> dict[str, Any]:
    """The handlers of a service by the names of its RPCs, as the generated code makes them.

    Args:
        add: The generated function that adds such a service to a server.
        service: The service.
    """
    collected: dict[str, Any] = {}

    class Collector:
        def add_generic_rpc_handlers(self, handlers: Any) -> None:
            """The generated code offers its handlers here too."""

        def add_registered_method_handlers(self, name: str, methods: dict[str, Any]) -> None:
            collected.update(methods)

    add(service, Collector())
    return collected
