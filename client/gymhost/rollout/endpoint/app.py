"""What the HTTP server answers: OpenAI's chat completions and responses, for whoever has the key of a rollout."""

import asyncio
import dataclasses
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from gymhost.rollout.content import CannotRender
from gymhost.rollout.endpoint.server import Endpoint, Endpoints
from gymhost.rollout.faults import LimitReached, RolloutOver, StageTimeout
from gymhost.rollout.generators.base import GeneratorError
from gymhost.wire import openai_chat, openai_responses
from gymhost.wire.openai import Ask, Refused, Reply, error_body, models, sse
from gymhost.wire.openai_messages import with_names

__all__ = ["application"]

logger = logging.getLogger(__name__)

_BODY_SECONDS = 60.0
_EVENTS = "text/event-stream"
_UNBUFFERED = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
_GONE = 499  # nobody will read it
_ALIVE = ": waiting for the model\n\n"


def application(endpoints: Endpoints) -> Starlette:
    """The application that answers for all endpoints."""
    routes = [
        Route("/v1/chat/completions", _handler(endpoints, _Chat), methods=["POST"]),
        Route("/v1/responses", _handler(endpoints, _Responses), methods=["POST"]),
        Route("/v1/models", _models(endpoints), methods=["GET"]),
    ]
    return Starlette(routes=routes, exception_handlers={HTTPException: _not_here})


class _Chat:
    """Chat completions."""

    parse = staticmethod(openai_chat.parse)

    @staticmethod
    def body(reply: Reply, _ask: Ask) -> dict[str, Any]:
        return openai_chat.completion(reply)

    @staticmethod
    def stream(reply: Reply, ask: Ask) -> Iterator[str]:
        return openai_chat.chunks(reply, include_usage=ask.include_usage)

    @staticmethod
    def failure(refused: Refused) -> str:
        return sse(refused.body())


class _Responses:
    """Responses."""

    parse = staticmethod(openai_responses.parse)
    body = staticmethod(openai_responses.response)
    stream = staticmethod(openai_responses.events)

    @staticmethod
    def failure(refused: Refused) -> str:
        fields = {"code": refused.code, "message": refused.message, "param": refused.param}
        return sse({"type": "error", "sequence_number": 0, **fields}, "error")


Api = type[_Chat] | type[_Responses]


def _handler(endpoints: Endpoints, api: Api) -> Callable[[Request], Awaitable[Response]]:
    async def handle(request: Request) -> Response:
        try:
            endpoint = endpoints.endpoint(_key(request))
            ask = api.parse(await _json(request, endpoints.max_body))
            if ask.previous is not None:
                ask = _continued(endpoint, ask)
            return await _answer(request, endpoints.keep_alive, endpoint, api, ask)
        except Refused as refused:
            return _json_response(refused.body(), refused.status)
        except ClientDisconnect:
            return Response(status_code=_GONE)

    return handle


def _models(endpoints: Endpoints) -> Callable[[Request], Awaitable[Response]]:
    async def handle(request: Request) -> Response:
        try:
            endpoints.endpoint(_key(request))
        except Refused as refused:
            return _json_response(refused.body(), refused.status)
        return _json_response(models("policy"))

    return handle


async def _answer(request: Request, keep_alive: float, endpoint: Endpoint, api: Api, ask: Ask) -> Response:
    answering = asyncio.create_task(_told(endpoint, ask))
    gone = asyncio.create_task(_disconnected(request))
    try:
        patience = keep_alive if ask.stream else None
        await asyncio.wait([answering, gone], timeout=patience, return_when=asyncio.FIRST_COMPLETED)
    except BaseException:
        answering.cancel()
        raise
    finally:
        gone.cancel()
    if answering.done():
        # What fails at once fails with its status, though a stream was asked for.
        reply = _reply(answering)
        if not ask.stream:
            return _json_response(api.body(reply, ask))
        return StreamingResponse(api.stream(reply, ask), media_type=_EVENTS, headers=_UNBUFFERED)
    if gone.done() and not gone.cancelled():
        answering.cancel()
        await asyncio.wait([answering])
        return Response(status_code=_GONE)
    return _LateStream(answering, keep_alive, api, ask)


async def _told(endpoint: Endpoint, ask: Ask) -> Reply:
    reply = await endpoint.answers(ask)
    # Instructions are those of one request, and no part of what is continued.
    endpoint.told[f"resp_{reply.id}"] = [*ask.messages[bool(ask.echoed.get("instructions")) :], reply.message]
    return reply


def _continued(endpoint: Endpoint, ask: Ask) -> Ask:
    """What a request asks for, with the conversation that it continues in it."""
    known = endpoint.told.get(ask.previous or "")
    if known is None:
        raise Refused(
            f"no response of this rollout has the id {ask.previous!r}",
            "previous_response_id",
            "previous_response_not_found",
        )
    own = bool(ask.echoed.get("instructions"))
    messages = [*ask.messages[:own], *known, *ask.messages[own:]]
    return dataclasses.replace(ask, messages=with_names(messages))


def _reply(answering: asyncio.Task[Reply]) -> Reply:
    """What was answered.

    Raises:
        Refused: Nothing was, for a reason that a harness can tell from others.
    """
    try:
        return answering.result()
    except Refused:
        raise
    except (asyncio.CancelledError, RolloutOver, TimeoutError):
        raise Refused("the rollout has ended", code="rollout_ended", status=401) from None
    except LimitReached as reached:
        if reached.limit in ("context_tokens", "completion_tokens"):
            text = f"the maximum context length of this model is reached: {reached}"  # what clients look for
            raise Refused(text, "messages", "context_length_exceeded") from reached
        raise Refused(str(reached), code="rollout_limit_reached", status=403, kind="permission_error") from reached
    except (GeneratorError, StageTimeout) as error:
        raise Refused(str(error), code="generator_failed", status=503, kind="server_error") from error
    except (CannotRender, ValueError) as error:
        raise Refused(str(error), "messages") from error
    except Exception as error:
        logger.exception("a request of a harness could not be answered")
        raise Refused(f"{type(error).__name__}: {error}", status=500, kind="server_error") from error


class _LateStream(StreamingResponse):
    """A stream that is begun before there is anything to tell, and ends the generation if nobody listens any more."""

    def __init__(self, answering: asyncio.Task[Reply], keep_alive: float, api: Api, ask: Ask) -> None:
        self._answering = answering
        self._keep_alive = keep_alive
        self._api = api
        self._ask = ask
        super().__init__(self._events(), media_type=_EVENTS, headers=_UNBUFFERED)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._answering.cancel()

    async def _events(self) -> AsyncGenerator[str]:
        while not self._answering.done():
            yield _ALIVE
            await asyncio.wait([self._answering], timeout=self._keep_alive)
        try:
            reply = _reply(self._answering)
        except Refused as refused:
            yield self._api.failure(refused)
            return
        for event in self._api.stream(reply, self._ask):
            yield event


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _key(request: Request) -> str:
    scheme, _, key = request.headers.get("Authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


async def _json(request: Request, most: int) -> Any:
    """The body of a request, as what JSON says it is."""
    body = bytearray()
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > most:
                    raise Refused(f"the body is larger than {most} bytes", code="request_too_large", status=413)
    except TimeoutError:
        raise Refused("the body did not come in time", code="request_timeout", status=408) from None
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refused(f"the body is no JSON: {error}", code="invalid_json") from None


def _json_response(body: dict[str, Any], status: int = 200) -> Response:
    return Response(json.dumps(body), status, media_type="application/json")


async def _not_here(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = f"{error.detail}: there are /v1/chat/completions, /v1/responses and /v1/models"
    return _json_response(error_body(text, "invalid_request_error"), error.status_code)
