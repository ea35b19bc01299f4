"""A TCP proxy that does to connections what networks do."""

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Proxy:
    """Stands between a client and a server, on an event loop of its own. A context manager.

    Attributes:
        address: Where it listens.
        accepted: How many connections there were.

    Args:
        target: The server's address.
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._ends: set[_End] = set()
        self._holding: set[bool] = set()
        self._refusing = False
        self._server: asyncio.Server
        self.address = ""
        self.accepted = 0

    def __enter__(self) -> "Proxy":
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(
            self._loop.create_server(lambda: _End(self, to_server=True), "127.0.0.1", 0), self._loop
        ).result()
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    def __exit__(self, *exc: object) -> None:
        self.cut()
        self._call(self._server.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def cut(self) -> None:
        """Breaks all connections, with whatever was on its way."""
        self._call(self._cut)

    def refuse(self, refusing: bool) -> None:
        """Breaks new connections at once, or no longer does so."""
        self._call(lambda: setattr(self, "_refusing", refusing))

    def hold(self, *, to_server: bool) -> None:
        """Lets nothing more through in one direction."""
        self._call(lambda: self._holding.add(to_server))

    def release(self, *, to_server: bool) -> None:
        """Lets through what was held, and what comes."""
        self._call(lambda: self._release(to_server))

    @property
    def open(self) -> int:
        """How many connections there are."""
        return self._call(lambda: sum(end.to_server for end in self._ends))

    # -- on the loop ---------------------------------------------------------------------------------------------------

    def _cut(self) -> None:
        for end in list(self._ends):
            end.transport.abort()
        self._ends.clear()

    def _release(self, to_server: bool) -> None:
        self._holding.discard(to_server)
        for end in self._ends:
            if end.to_server == to_server:
                end.pass_on()

    def _call(self, what: Callable[[], T]) -> T:
        async def run() -> T:
            return what()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result()

    def begin(self, client: "_End") -> None:
        """Connects to the server for a connection that was accepted."""
        self.accepted += 1
        self._ends.add(client)
        if self._refusing:
            client.transport.abort()
        else:
            client.task = self._loop.create_task(self._connect(client))

    async def _connect(self, client: "_End") -> None:
        try:
            _, server = await self._loop.create_connection(lambda: _End(self, to_server=False), *self._target)
        except OSError:
            client.transport.abort()
            return
        if client not in self._ends:
            server.transport.abort()
            return
        client.peer, server.peer = server, client
        self._ends.add(server)
        client.pass_on()

    def holds(self, to_server: bool) -> bool:
        """Whether a direction is held."""
        return to_server in self._holding

    def ended(self, end: "_End") -> None:
        """Forgets an end."""
        self._ends.discard(end)


class _End(asyncio.Protocol):
    """One end of a connection; `to_server` tells where what it receives goes."""

    def __init__(self, proxy: Proxy, *, to_server: bool) -> None:
        self.to_server = to_server
        self.peer: _End | None = None
        self.transport: asyncio.Transport
        self.task: asyncio.Task[None] | None = None
        self._proxy = proxy
        self._waiting = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        if self.to_server:
            self._proxy.begin(self)

    def data_received(self, data: bytes) -> None:
        self._waiting += data
        self.pass_on()

    def pass_on(self) -> None:
        if self.peer is not None and self._waiting and not self._proxy.holds(self.to_server):
            self.peer.transport.write(bytes(self._waiting))
            self._waiting.clear()

    def connection_lost(self, exc: Exception | None) -> None:
        self._proxy.ended(self)
        if self.peer is not None:
            self.peer.transport.close()
