"""OpenEnv's protocol: an environment server for OpenEnv's clients, at `/env/ID`, and of one environment at `/` too."""

import asyncio
import contextlib
import json
import logging
import uuid
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any, cast

from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from gymhost.server.gateways.answers import Json, failed, unreadable
from gymhost.server.gateways.callers import Caller, Callers
from gymhost.server.gateways.config import GatewayConfig
from gymhost.server.gateways.json_values import dumps
from gymhost.server.gateways.openenv_episodes import (
    Data,
    Episodes,
    action_schema,
    code_of,
    listed,
    observation_schema,
)
from gymhost.wire import errors

__all__ = ["application"]

log = logging.getLogger("gymhost.server")

# Requests of a socket that wait for their turn.
WAITING = 16
# Sessions that are held by no socket.
HELD = 4096
_STATE: Data = {
    "type": "object",
    "title": "State",
    "properties": {"episode_id": {"type": ["string", "null"]}, "step_count": {"type": "integer", "minimum": 0}},
}
# JSON-RPC's codes.
_INVALID_REQUEST, _NO_METHOD, _INVALID_PARAMS, _FAILED = -32600, -32601, -32602, -32000


@dataclass(slots=True)
class _Held:
    """A session that is held by no socket, but named by its id (`openenv/session/create`)."""

    token: str
    environment: str
    episodes: Episodes
    stack: contextlib.AsyncExitStack
    attached: bool = False
    closing: bool = field(default=False)


def application(config: GatewayConfig, callers: Callers) -> Starlette:
    """Makes the application.

    Args:
        config: The gateway's settings.
        callers: Its callers.
    """
    gateway = _Gateway(config, callers)
    routes: list[Route | WebSocketRoute] = [Route("/list_environments", gateway.environments)]
    bases = ["/env/{id:path}", *([""] if config.environment else [])]
    for base in bases:
        routes += [
            WebSocketRoute(f"{base}/ws", gateway.socket),
            Route(f"{base}/health", gateway.health),
            Route(f"{base}/metadata", gateway.metadata),
            Route(f"{base}/schema", gateway.schema),
            Route(f"{base}/state", gateway.state),
            Route(f"{base}/reset", gateway.reset, methods=["POST"]),
            Route(f"{base}/step", gateway.step, methods=["POST"]),
            Route(f"{base}/mcp", gateway.mcp, methods=["POST"]),
        ]

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None]:
        yield
        await gateway.aclose()

    handlers: dict[Any, Any] = {errors.Error: failed, ValueError: unreadable}
    return Starlette(routes=routes, exception_handlers=handlers, lifespan=lifespan)


class _Gateway:
    def __init__(self, config: GatewayConfig, callers: Callers) -> None:
        self._config = config
        self._callers = callers
        self._held: dict[str, _Held] = {}

    async def aclose(self) -> None:
        """Ends what is held."""
        held, self._held = self._held, {}
        await asyncio.gather(*(each.stack.aclose() for each in held.values()))

    # -- HTTP ----------------------------------------------------------------------------------------------------------

    async def health(self, request: Request) -> Response:
        """Says that the gateway answers, to whoever asks."""
        return JSONResponse({"status": "healthy"})

    async def environments(self, request: Request) -> Response:
        """Lists the environments."""
        async with self._callers.server(Caller.of(request)) as server:
            return JSONResponse([one.id for one in await server.environments()])

    async def metadata(self, request: Request) -> Response:
        """Says what the environment is."""
        described = await self._describe(request)
        version = described.source.rpartition(" ")[2]
        return JSONResponse({"name": described.id, "description": described.description, "version": version})

    async def schema(self, request: Request) -> Response:
        """Tells the schemas of actions, observations and states."""
        described = await self._describe(request)
        talks = described.conversational
        observation = observation_schema(described.observation_space, conversational=talks)
        action = action_schema(described.action_space, conversational=talks)
        return Json({"action": action, "observation": observation, "state": _STATE})

    async def state(self, request: Request) -> Response:
        """Tells the state of an environment that has just been made, as OpenEnv does: sessions are for sockets."""
        await self._describe(request)
        return JSONResponse({"episode_id": None, "step_count": 0})

    async def reset(self, request: Request) -> Response:
        """Resets an environment that nobody sees again, as OpenEnv does."""
        data = await _body(request)
        async with self._callers.session(Caller.of(request), self._id(request)) as session:
            return Json(await Episodes(session).reset(data))

    async def step(self, request: Request) -> Response:
        """Takes the first step in an environment that nobody sees again."""
        data = (await _body(request)).get("action")
        if not isinstance(data, dict):
            raise errors.InvalidArgument("a step is {'action': {...}}")
        async with self._callers.session(Caller.of(request), self._id(request)) as session:
            return Json(await Episodes(session).step(cast(Data, data)))

    async def mcp(self, request: Request) -> Response:
        """Answers JSON-RPC: tools, and sessions that are held by no socket."""
        asked = await _body(request)
        return Json(await self._rpc(Caller.of(request), self._id(request), asked, None))

    # -- JSON-RPC ------------------------------------------------------------------------------------------------------

    async def _rpc(self, caller: Caller, environment: str, asked: Data, mine: Episodes | None) -> Data:
        """Answers a request of JSON-RPC, of a socket with its session, or of HTTP."""
        params: Any = asked.get("params") or {}
        answer: Data = {"jsonrpc": "2.0", "id": asked.get("id")}

        def refused(code: int, message: str) -> Data:
            return {**answer, "error": {"code": code, "message": message, "data": None}}

        if asked.get("jsonrpc") != "2.0" or not isinstance(params, dict):
            return refused(_INVALID_REQUEST, "this is no request of JSON-RPC 2.0")
        given = cast(Data, params)
        try:
            match asked.get("method"):
                case "openenv/session/create":
                    return {**answer, "result": {"session_id": await self._hold(caller, environment)}}
                case "openenv/session/close":
                    held = self._find(caller, environment, given.get("session_id"))
                    return {**answer, "result": await self._let_go(str(given["session_id"]), held)}
                case "tools/list":
                    tools = await self._tools(caller, environment, given, mine)
                    return (
                        {**answer, "result": {"tools": listed(tools)}}
                        if tools
                        else refused(_FAILED, f"{environment} has no tools")
                    )
                case "tools/call":
                    name, arguments = given.get("name"), cast(Any, given.get("arguments") or {})
                    if not isinstance(name, str) or not isinstance(arguments, dict):
                        return refused(_INVALID_PARAMS, "name a tool and its arguments")
                    called = await self._call(caller, environment, given, mine, name, cast(Data, arguments))
                    ends = {key: called.get(key) for key in ("reward", "done", "metadata")}
                    return {**answer, "result": called["observation"]["result"] | {"meta": ends}}
                case method:
                    return refused(_NO_METHOD, f"there is no method {method!r}")
        except errors.Error as error:
            invalid = isinstance(error, errors.InvalidArgument | errors.UnknownSession)
            return refused(_INVALID_PARAMS if invalid else _FAILED, error.message)

    async def _tools(self, caller: Caller, environment: str, given: Data, mine: Episodes | None) -> Any:
        if mine is None and "session_id" in given:
            mine = self._find(caller, environment, given["session_id"]).episodes
        return mine.session.tools if mine is not None else (await self._callers.describe(caller, environment)).tools

    async def _call(
        self, caller: Caller, environment: str, given: Data, mine: Episodes | None, name: str, arguments: Data
    ) -> Data:
        if mine is None and "session_id" in given:
            mine = self._find(caller, environment, given["session_id"]).episodes
        if mine is not None:
            return await mine.call_tool(name, arguments)
        async with self._callers.session(caller, environment) as session:
            return await Episodes(session).call_tool(name, arguments)

    async def _hold(self, caller: Caller, environment: str) -> str:
        for id, held in list(self._held.items()):
            if held.episodes.session.lost and self._held.pop(id, None) is not None:
                await held.stack.aclose()
        if len(self._held) >= HELD:
            raise errors.CapacityExhausted(f"{HELD} sessions are held here, which is the most")
        async with contextlib.AsyncExitStack() as stack:
            session = await stack.enter_async_context(self._callers.session(caller, environment, idle=True))
            id = str(uuid.uuid4())
            self._held[id] = _Held(caller.token, environment, Episodes(session), stack.pop_all())
            return id

    def _find(self, caller: Caller, environment: str, id: Any) -> _Held:
        held = self._held.get(id) if isinstance(id, str) else None
        if held is None or held.token != caller.token or held.environment != environment:
            raise errors.UnknownSession(f"there is no session {id!r}")
        return held

    async def _let_go(self, id: str, held: _Held) -> Data:
        if held.attached:
            held.closing = True
            return {"session_id": id, "closed": False, "closing": True}
        if self._held.pop(id, None) is not None:
            await held.stack.aclose()
        return {"session_id": id, "closed": True}

    # -- sockets -------------------------------------------------------------------------------------------------------

    async def socket(self, websocket: WebSocket) -> None:
        """Has a socket be a session, which ends with it."""
        await websocket.accept()
        inbox: asyncio.Queue[str] = asyncio.Queue(WAITING)
        playing = asyncio.create_task(self._play(websocket, inbox))
        hearing = asyncio.create_task(_hear(websocket, inbox))
        try:
            await asyncio.wait([playing, hearing], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (playing, hearing):
                task.cancel()
            ended = await asyncio.gather(playing, hearing, return_exceptions=True)
        for end in ended:
            if isinstance(end, Exception) and not isinstance(end, WebSocketDisconnect):
                log.error("a socket of OpenEnv's protocol failed", exc_info=end)
        with contextlib.suppress(RuntimeError, WebSocketDisconnect):
            await websocket.close()

    async def _play(self, websocket: WebSocket, inbox: asyncio.Queue[str]) -> None:
        caller, environment = Caller.of(websocket), self._id(websocket)
        async with contextlib.AsyncExitStack() as stack:
            try:
                episodes = await self._enter(stack, caller, environment, websocket.query_params.get("session_id"))
            except errors.Error as error:
                kinds = {errors.CapacityExhausted: "CAPACITY_REACHED", errors.EnvironmentFault: "FACTORY_ERROR"}
                code = next((code for kind, code in kinds.items() if isinstance(error, kind)), "SESSION_ERROR")
                await websocket.send_text(_error(error.message, code))
                return
            while True:
                answer = await self._answer(caller, environment, episodes, await inbox.get())
                if answer is None:
                    return
                await websocket.send_text(answer)
                if episodes.session.lost:
                    return

    async def _enter(
        self, stack: contextlib.AsyncExitStack, caller: Caller, environment: str, id: str | None
    ) -> Episodes:
        if id is None:
            return Episodes(await stack.enter_async_context(self._callers.session(caller, environment)))
        held = self._find(caller, environment, id)
        if held.attached:
            raise errors.InvalidArgument(f"another socket has the session {id}")
        held.attached = True

        async def leave() -> None:
            held.attached = False
            if held.closing:
                await self._let_go(id, held)

        stack.push_async_callback(leave)
        return held.episodes

    async def _answer(self, caller: Caller, environment: str, episodes: Episodes, text: str) -> str | None:
        """Answers a message; None where it ends the session."""
        try:
            asked: Any = json.loads(text)
        except ValueError as error:
            return _error(f"Invalid JSON: {error}", "INVALID_JSON")
        told = cast(Data, asked) if isinstance(asked, dict) else {}
        data: Any = told.get("data") if told.get("data") is not None else {}
        try:
            if not isinstance(data, dict) or told.keys() - {"type", "data"}:
                raise errors.InvalidArgument("a message is {'type': ..., 'data': {...}}")
            match told.get("type"):
                case "reset":
                    return dumps({"type": "observation", "data": await episodes.reset(cast(Data, data))})
                case "step":
                    return dumps({"type": "observation", "data": await episodes.step(cast(Data, data))})
                case "state":
                    return dumps({"type": "state", "data": await episodes.state()})
                case "mcp":
                    answered = await self._rpc(caller, environment, cast(Data, data), episodes)
                    return dumps({"type": "mcp", "data": answered})
                case "close":
                    return None
                case kind:
                    return _error(f"Unknown message type: {kind}", "UNKNOWN_TYPE")
        except errors.Error as error:
            code = code_of(error)
            return _error(error.message, code, **({"errors": [error.message]} if code == "VALIDATION_ERROR" else {}))

    def _id(self, request: HTTPConnection) -> str:
        return request.path_params.get("id") or self._config.environment

    async def _describe(self, request: Request) -> Any:
        return await self._callers.describe(Caller.of(request), self._id(request))


async def _hear(websocket: WebSocket, inbox: asyncio.Queue[str]) -> None:
    """Hears a socket, also while it is answered: its end ends what is being done for it."""
    while True:
        await inbox.put(await websocket.receive_text())


async def _body(request: Request) -> Data:
    text = await request.body()
    told: Any = json.loads(text) if text else {}
    if not isinstance(told, dict):
        raise errors.InvalidArgument("a request is an object")
    return cast(Data, told)


def _error(message: str, code: str, **more: Any) -> str:
    return dumps({"type": "error", "data": {"message": message, "code": code, **more}})
