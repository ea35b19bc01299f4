"""Several servers as one source of sessions: the least laden is asked first, one that is gone is left for a while."""

import asyncio
import logging
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any, TypeVar

from gymhost.client import EnvironmentDescription, connect
from gymhost.client.tls import TlsLike
from gymhost.rollout.sessions import Session
from gymhost.wire import errors

__all__ = ["Servers"]

logger = logging.getLogger(__name__)

_CONNECT_SECONDS = 10.0
_RECONNECT_SECONDS = 10.0
"""Less than with one server: there are others to go to."""

T = TypeVar("T")


class Servers:
    """Opens sessions on whichever server has the fewest of ours.

    A server that can't be reached is left for `pause` seconds; a rollout that it took with it is begun again by the
    engine, on another one. After that one session at a time is tried there, until one goes well. A server that is full,
    or has said that it is going away, is passed over. May be used from several event loops.

    Args:
        addresses: The servers ("host:port").
        token: Their token.
        tls: How TLS is spoken with them, as for `gymhost.client.connect`.
        pause: Seconds for which one that is gone is left.

    Raises:
        InvalidArgument: An address is none.
        ValueError: There is no address, or one is there twice.
    """

    def __init__(
        self, addresses: Sequence[str], token: str | None = None, tls: TlsLike = None, *, pause: float = 30.0
    ) -> None:
        if not addresses or len(set(addresses)) < len(addresses):
            raise ValueError(f"the servers must be at least one, and each another one, not {list(addresses)}")
        self._servers = [_Server(address, token, tls, pause) for address in addresses]

    @property
    def sessions(self) -> dict[str, int]:
        """How many sessions are open on each server."""
        return {server.address: server.sessions for server in self._servers}

    @property
    def reachable(self) -> dict[str, bool]:
        """Whether each server could be reached when it was last needed."""
        return {server.address: not server.left for server in self._servers}

    @asynccontextmanager
    async def session(
        self, env_id: str, /, *, task: int | None = None, split: str | None = None, **kwargs: Any
    ) -> AsyncGenerator[Session]:
        """Opens a session, which is closed on leaving.

        Raises:
            ServerUnavailable: No server could be reached.
            CapacityExhausted: Those that could are full.
            Error: The server that was asked refused.
        """
        async with AsyncExitStack() as stack:

            async def begin(server: _Server) -> Session:
                async with AsyncExitStack() as opening:
                    opening.enter_context(server.counted())  # at once: others choose while this one is opened
                    await server.connect()
                    remote = server.remote.session(env_id, task=task, split=split, **kwargs)
                    session = _Watched(await opening.enter_async_context(remote), server)
                    await stack.enter_async_context(opening.pop_all())
                return session

            yield await self._first(begin)

    async def describe(self, env_id: str, /, **kwargs: Any) -> EnvironmentDescription:
        """Describes an environment as the first server that answers has it.

        Raises:
            ServerUnavailable: No server could be reached.
            Error: The server that was asked refused.
        """

        async def ask(server: _Server) -> EnvironmentDescription:
            await server.connect()
            return await server.remote.describe(env_id, **kwargs)

        return await self._first(ask)

    async def forward(self, method: str, request: bytes, *, timeout: float) -> bytes:
        """Makes a unary call of EnvironmentService with the first server that answers; bytes go as they are.

        Args:
            method: The RPC's name, such as "ListEnvironments".
            request: The request, serialized.
            timeout: Seconds that a server may take to answer.

        Raises:
            ServerUnavailable: No server could be reached.
            Error: The server that was asked refused.
        """

        async def ask(server: _Server) -> bytes:
            await server.connect()
            connection = server.remote.connection
            return await connection.thread.acall(connection.forward(method, request, timeout))

        return await self._first(ask)

    def close(self) -> None:
        """Closes the connections."""
        for server in self._servers:
            server.remote.close()

    async def _first(self, ask: Callable[["_Server"], Awaitable[T]]) -> T:
        refusals: list[errors.Error] = []
        for server in self._candidates():
            try:
                with server.watched():
                    server.tried()
                    return await ask(server)
            except (errors.ServerUnavailable, errors.CapacityExhausted) as error:
                refusals.append(error)
        message = "; ".join(error.message for error in refusals)
        if any(isinstance(error, errors.CapacityExhausted) for error in refusals):
            known = [error.retry_after for error in refusals if error.retry_after is not None]
            raise errors.CapacityExhausted(f"no server has a place: {message}", retry_after=min(known, default=None))
        raise errors.ServerUnavailable(f"no server can be reached: {message}")

    def _candidates(self) -> "list[_Server]":
        """Those to be asked, in this order: where all are left, there is nothing to lose by trying them."""
        usable = [server for server in self._servers if server.usable()]
        if not usable:
            return sorted(self._servers, key=lambda server: server.left_until)
        return sorted(usable, key=lambda server: server.sessions)


class _Server:
    """One of them, and what is known of it."""

    def __init__(self, address: str, token: str | None, tls: TlsLike, pause: float) -> None:
        self.address = address
        self.remote = connect(
            address,
            token=token,
            tls=tls,
            connect_timeout=_CONNECT_SECONDS,
            reconnect_timeout=_RECONNECT_SECONDS,
        )
        self.sessions = 0
        self.left_until = 0.0
        self.left = False
        self._pause = pause
        self._connected = False
        self._connecting = threading.Lock()

    def usable(self) -> bool:
        return not self.remote.draining and (not self.left or time.monotonic() >= self.left_until)

    @contextmanager
    def counted(self) -> Generator[None]:
        self.sessions += 1
        try:
            yield
        finally:
            self.sessions -= 1

    def tried(self) -> None:
        """Sees to it that nobody else tries a server that was left while one does."""
        if self.left:
            self.left_until = time.monotonic() + self._pause

    @contextmanager
    def watched(self) -> Generator[None]:
        """Takes note of whether the server can be reached."""
        try:
            yield
        except errors.ServerUnavailable as error:
            self.left_until = time.monotonic() + self._pause
            if not self.left:
                self.left = True
                logger.warning("%s is left for %g s at least: %s", self.address, self._pause, error.message)
            raise
        if self.left:
            self.left = False
            logger.warning("%s is used again", self.address)

    async def connect(self) -> None:
        """Connects, if that has not been done."""
        if not self._connected or self.remote.connection.dead is not None:
            await asyncio.to_thread(self._connect)

    def _connect(self) -> None:
        begun = time.monotonic()
        with self._connecting:
            if self._connected and self.remote.connection.dead is None:
                return
            if self.left_until > begun + self._pause:  # another one tried meanwhile, to no avail
                raise errors.ServerUnavailable(f"{self.address} could not be reached")
            try:
                self.remote.close()
                self._connected = False
                self.remote.open()
                self._connected = True
            except errors.ServerUnavailable:
                self.left_until = time.monotonic() + self._pause
                raise


class _Watched:
    """A session that tells when its server is gone."""

    def __init__(self, session: Session, server: _Server) -> None:
        self._session = session
        self._server = server

    @property
    def tools(self) -> list[dict[str, Any]]:
        return self._session.tools

    @property
    def evaluates(self) -> bool:
        return self._session.evaluates

    async def reset(self, **how: Any) -> tuple[Any, dict[str, Any]]:
        with self._server.watched():
            return await self._session.reset(**how)

    async def step(self, action: Any, **how: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        with self._server.watched():
            return await self._session.step(action, **how)

    async def evaluate(self, limit: str | None = None, **how: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        with self._server.watched():
            return await self._session.evaluate(limit, **how)
