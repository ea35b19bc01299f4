"""Callers of a gateway, by the tokens that they show."""

import asyncio
import contextlib
import hashlib
from collections import OrderedDict
from collections.abc import AsyncGenerator
from typing import NamedTuple

from starlette.requests import HTTPConnection

from gymhost.client import EnvironmentDescription, RemoteServer, Session, connect
from gymhost.server.dashboard.logins import Throttle
from gymhost.server.gateways.config import GatewayConfig
from gymhost.wire import errors

__all__ = ["Caller", "Callers"]

# Callers whose connections are kept when they have no session.
KEPT = 32
# Environments whose descriptions are kept.
DESCRIPTIONS = 1024
# Seconds to reach the server.
CONNECT_LIMIT = 10.0


class Caller(NamedTuple):
    """Who calls.

    Attributes:
        token: What is shown; empty for nothing.
        host: Where from.
    """

    token: str
    host: str

    @classmethod
    def of(cls, request: HTTPConnection) -> "Caller":
        """Reads a request: the token is in the header `Authorization`, or, where none can be set, in `?token=`."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        shown = token.strip() if scheme.lower() == "bearer" else request.query_params.get("token", "")
        return cls(shown, request.client.host if request.client is not None else "")


class Callers:
    """The server's side of a gateway: connections by token, and what is known of environments.

    Args:
        config: The gateway's settings.
    """

    def __init__(self, config: GatewayConfig) -> None:
        self._config = config
        self._kept: OrderedDict[str, RemoteServer] = OrderedDict()
        self._throttle = Throttle()
        self._descriptions: OrderedDict[str, EnvironmentDescription] = OrderedDict()

    @contextlib.asynccontextmanager
    async def server(self, caller: Caller) -> AsyncGenerator[RemoteServer]:
        """Yields the server as a caller sees it.

        Raises:
            Unauthenticated: The server does not take the token.
            CapacityExhausted: The caller has tried too many that it did not take.
            ServerUnavailable: It is not there.
        """
        if self._config.wants_token:
            if not caller.token:
                raise errors.Unauthenticated("show a token of the server: `Authorization: Bearer TOKEN`, or ?token=")
            # Others on the same machine as one who tries tokens have theirs already.
            if _key(caller.token) not in self._kept and (wait := self._throttle.wait(caller.host)):
                raise errors.CapacityExhausted(
                    f"too many tokens from here were none: try again in {wait:.0f} s", retry_after=wait
                )
        # A connection is shared by all who hold it, and closed by the last.
        server = self._connect(caller.token)
        try:
            await server.__aenter__()
        except errors.Unauthenticated:
            self._throttle.wrong(caller.host)
            raise
        try:
            self._throttle.right(caller.host)
            await self._keep(caller.token)
            yield server
        finally:
            await server.__aexit__()

    async def describe(self, caller: Caller, environment: str) -> EnvironmentDescription:
        """Describes an environment, which is asked for once.

        Raises:
            UnknownEnvironment: There is none.
            EnvironmentFault: It could not be made.
        """
        async with self.server(caller) as server:
            known = self._descriptions.get(environment)
            if known is None:
                known = self._descriptions[environment] = await server.describe(environment)
                while len(self._descriptions) > DESCRIPTIONS:
                    self._descriptions.popitem(last=False)
            return known

    @contextlib.asynccontextmanager
    async def session(self, caller: Caller, environment: str, *, idle: bool = False) -> AsyncGenerator[Session]:
        """Yields a new session, which is closed in the end.

        Args:
            caller: Who wants it.
            environment: The environment.
            idle: Whether the session is to end when it has had no command for long.

        Raises:
            CapacityExhausted: The server is full.
            UnknownEnvironment: There is no such environment.
            EnvironmentFault: It could not be made.
        """
        async with self.server(caller) as server:
            limit = self._config.idle_timeout if idle else None
            wait = self._config.create_timeout
            async with server.session(environment, idle_timeout=limit, create_timeout=wait) as session:
                yield session

    async def aclose(self) -> None:
        """Lets go of all."""
        kept, self._kept = self._kept, OrderedDict()
        await asyncio.gather(*(server.__aexit__() for server in kept.values()))

    def _connect(self, token: str) -> RemoteServer:
        try:
            return connect(
                self._config.environments, token=token, tls=False, connect_timeout=CONNECT_LIMIT, reconnect_timeout=30.0
            )
        except errors.InvalidArgument as error:
            raise errors.Unauthenticated(f"this is no token: {error.message}") from None

    async def _keep(self, token: str) -> None:
        """Has the connection of a caller outlive its sessions, so that its next one has it already."""
        key = _key(token)
        server = self._kept.pop(key, None)
        if server is not None and server.connection.dead is not None:
            await server.__aexit__()
            server = None
        if server is None:
            server = await self._connect(token).__aenter__()
        self._kept[key] = server
        while len(self._kept) > KEPT:
            await self._kept.popitem(last=False)[1].__aexit__()


def _key(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
