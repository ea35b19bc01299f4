"""The Model Context Protocol: any of its clients plays, at `/env/ID/mcp`, and one environment at `/mcp` too.

A session of the protocol is a session of the server. So its versions are spoken that have sessions, 2025-11-25 and
before; who asks for another is told these.
"""

import asyncio
import contextlib
import hashlib
import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from gymhost.client import Session
from gymhost.server.gateways.answers import failed
from gymhost.server.gateways.callers import Caller, Callers
from gymhost.server.gateways.config import GatewayConfig
from gymhost.wire import errors

try:
    import mcp_types as types
    from mcp.server import Server
    from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
    from mcp.server.auth.provider import AccessToken
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
    from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

    from gymhost.server.gateways.mcp_tools import Tools
except ImportError as error:
    raise ImportError("the gateway for MCP needs the extra 'mcp': pip install 'gymhost[server,mcp]'") from error

__all__ = ["application"]

SESSION_ID = "mcp-session-id"
VERSION = "mcp-protocol-version"
# The code of MCP for a version that is not spoken.
UNSUPPORTED_VERSION = -32022


@dataclass(slots=True)
class _Player:
    """A session of the protocol that has played."""

    environment: str
    session: Session
    stack: contextlib.AsyncExitStack


def application(config: GatewayConfig, callers: Callers) -> Starlette:
    """Makes the application.

    Args:
        config: The gateway's settings.
        callers: Its callers.
    """
    gateway = _Gateway(config, callers)
    paths = ["/env/{id:path}/mcp", *(["/mcp"] if config.environment else [])]

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None]:
        async with gateway.manager.run():
            yield
        await gateway.aclose()

    return Starlette(routes=[Route(path, gateway) for path in paths], lifespan=lifespan)


class _Gateway:
    """An ASGI application in front of the SDK's: who calls, and which environment is meant."""

    def __init__(self, config: GatewayConfig, callers: Callers) -> None:
        self._config = config
        self._callers = callers
        self._players: dict[str, _Player] = {}
        self._making = asyncio.Lock()
        server: Any = Server("gymhost", on_list_tools=self._list, on_call_tool=self._call)
        self.manager = StreamableHTTPSessionManager(
            server, session_idle_timeout=config.idle_timeout, max_request_body_size=config.max_payload
        )

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answers a request."""
        request = Request(scope, receive)
        headers = Headers(scope=scope)
        if headers.get(VERSION, HANDSHAKE_PROTOCOL_VERSIONS[-1]) not in HANDSHAKE_PROTOCOL_VERSIONS:
            await (await _other_version(request, headers[VERSION]))(scope, receive, send)
            return
        caller = Caller.of(request)
        if SESSION_ID not in headers:
            try:
                await self._callers.describe(caller, self._environment(request))
            except errors.Error as error:
                await failed(request, error)(scope, receive, send)
                return
        # The SDK answers others than the one who began a session as if there were none.
        principal = hashlib.sha256(caller.token.encode()).hexdigest()
        access = AccessToken(token=caller.token, client_id=f"{principal}/{self._environment(request)}", scopes=[])
        scope = {**scope, "user": AuthenticatedUser(access)}
        await self.manager.handle_request(scope, receive, send)
        if request.method == "DELETE":
            await self._end(headers.get(SESSION_ID, ""))

    async def aclose(self) -> None:
        """Ends all sessions."""
        await asyncio.gather(*(self._end(id) for id in list(self._players)))

    async def _list(self, context: Any, params: Any) -> Any:
        described = await self._callers.describe(Caller.of(context.request), self._environment(context.request))
        return types.ListToolsResult(tools=Tools(described).listed)

    async def _call(self, context: Any, params: Any) -> Any:
        request: Request = context.request
        caller, environment = Caller.of(request), self._environment(request)
        try:
            tools = Tools(await self._callers.describe(caller, environment))
            session = await self._session(request.headers[SESSION_ID], caller, environment)
            return await tools.call(session, params.name, params.arguments or {})
        except errors.Error as error:
            if isinstance(error, errors.SessionError):
                await self._end(request.headers[SESSION_ID])  # the next call has another one
            return types.CallToolResult(content=[types.TextContent(text=f"Error: {error.message}")], is_error=True)

    async def _session(self, id: str, caller: Caller, environment: str) -> Session:
        async with self._making:
            player = self._players.get(id)
            if player is not None and not player.session.lost:
                return player.session
            for other in [other for other, each in self._players.items() if each.session.lost]:
                await self._end(other)
            async with contextlib.AsyncExitStack() as stack:
                session = await stack.enter_async_context(self._callers.session(caller, environment, idle=True))
                self._players[id] = _Player(environment, session, stack.pop_all())
                return session

    async def _end(self, id: str) -> None:
        player = self._players.pop(id, None)
        if player is not None:
            await player.stack.aclose()

    def _environment(self, request: Request) -> str:
        return request.path_params.get("id") or self._config.environment


async def _other_version(request: Request, asked: str) -> JSONResponse:
    try:
        id: Any = json.loads(await request.body()).get("id")
    except (AttributeError, ValueError):
        id = None
    data = {"supported": list(HANDSHAKE_PROTOCOL_VERSIONS), "requested": asked}
    told = {"code": UNSUPPORTED_VERSION, "message": "Unsupported protocol version", "data": data}
    return JSONResponse({"jsonrpc": "2.0", "id": id, "error": told}, 400)
