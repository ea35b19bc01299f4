"""How much memory the sandboxes of each identity may have together, and who waits for some."""

import asyncio
import collections
from collections.abc import Callable
from typing import cast

from gymhost.server import link
from gymhost.server.config import ServerConfig
from gymhost.server.front.rotation import mib
from gymhost.v1 import environments_pb2 as pb
from gymhost.wire import errors
from gymhost.wire.frames import pack

__all__ = ["SandboxMemory"]

# Connections that may wait to be taken: sandboxes are asked for in storms.
BACKLOG = 4096


class SandboxMemory:
    """The memory that was given to each identity for its sandboxes, of its quota.

    Workers ask for it at a socket, on a connection for each sandbox, before they make it. The connection is all that is
    known of a sandbox here: when it ends, since the sandbox was destroyed or the worker has died, its memory is free.
    Those of one identity who wait have their turn in the order in which they came.

    Args:
        config: The server's settings.
        owner_of: Whose a lane is; None where nothing is on it any more.
    """

    def __init__(self, config: ServerConfig, owner_of: Callable[[int], str | None]) -> None:
        self._config = config
        self._owner_of = owner_of
        self._used: collections.Counter[str] = collections.Counter()
        self._waiting: dict[str, collections.OrderedDict[Claim, None]] = {}
        self._claims: set[Claim] = set()
        self._server: asyncio.AbstractServer | None = None

    async def listen(self, path: str) -> None:
        """Listens for workers, where there is a quota.

        Raises:
            OSError: The socket can't be made.
        """
        if self._config.bounds_sandbox_memory:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_unix_server(lambda: Claim(self), path, backlog=BACKLOG)

    def close(self) -> None:
        """Takes no more; whoever waits is told that the server is going away."""
        if self._server is not None:
            self._server.close()
        for claim in list(self._claims):
            claim.end()

    # -- of claims -----------------------------------------------------------------------------------------------------

    def begin(self, claim: "Claim") -> None:
        """Takes a connection."""
        self._claims.add(claim)

    def ask(self, claim: "Claim", lane: int) -> None:
        """Gives memory to a sandbox, or lets it wait, or refuses it."""
        identity = self._owner_of(lane)
        if identity is None:
            claim.answer(errors.SandboxLost("the session that the sandbox was made for has ended"))
            return
        claim.identity = identity
        quota = self._config.quota("sandbox_memory", identity)
        if 0 < quota < claim.size:
            claim.answer(
                errors.CapacityExhausted(
                    f"a sandbox with {mib(claim.size)} of memory is above the quota of {identity!r}, which is "
                    f"{mib(quota)} (--quota-sandbox-memory)"
                )
            )
            return
        line = self._waiting.setdefault(identity, collections.OrderedDict())
        line[claim] = None
        self._hand_on(identity)
        if not claim.held:
            claim.answer(
                errors.CapacityExhausted(
                    f"the sandboxes of {identity!r} have {mib(self._used[identity])} of its quota of {mib(quota)} of "
                    f"memory, with {len(line) - 1} waiting before this one of {mib(claim.size)} "
                    "(--quota-sandbox-memory)"
                ),
                waits=True,
            )

    def end(self, claim: "Claim") -> None:
        """Frees what a connection had, or its turn."""
        self._claims.discard(claim)
        identity = claim.identity
        line = self._waiting.get(identity)
        if claim.held:
            claim.held = False
            self._used[identity] -= claim.size
            if not self._used[identity]:
                del self._used[identity]
        elif line is not None and claim in line:
            del line[claim]
        else:
            return
        self._hand_on(identity)

    def _hand_on(self, identity: str) -> None:
        quota = self._config.quota("sandbox_memory", identity)
        line = self._waiting.get(identity)
        while line:
            claim = next(iter(line))
            if 0 < quota < self._used[identity] + claim.size:
                return  # it is the first when there is room: else many small ones would keep a large one out for ever
            del line[claim]
            self._used[identity] += claim.size
            claim.held = True
            claim.answer()
        self._waiting.pop(identity, None)


class Claim(asyncio.Protocol):
    """The connection that stands for a sandbox, or for one that is to be made.

    Args:
        memory: What it is a part of.

    Attributes:
        identity: Whose the sandbox is, once that is known.
        size: How much it is to have, in bytes.
        held: It has that.
    """

    def __init__(self, memory: SandboxMemory) -> None:
        self.identity = ""
        self.size = 0
        self.held = False
        self._memory = memory
        self._received = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Part of asyncio.Protocol. The socket is in a folder that the server's user alone can open."""
        self._transport = cast(asyncio.Transport, transport)
        self._memory.begin(self)

    def data_received(self, data: bytes) -> None:
        """Part of asyncio.Protocol: takes the one message that comes."""
        self._received += data
        if len(self._received) > link.CLAIM.size:
            self.end()
        elif len(self._received) == link.CLAIM.size:
            lane, self.size = link.CLAIM.unpack(self._received)
            self._memory.ask(self, lane)

    def connection_lost(self, exc: Exception | None) -> None:
        """Part of asyncio.Protocol: the sandbox is gone, or nobody waits for it any more."""
        self._memory.end(self)

    def answer(self, error: errors.Error | None = None, *, waits: bool = False) -> None:
        """Says that the memory is given, or why not, or why not yet."""
        reply = pb.Reply(sequence=0 if waits else 1)
        if error is not None:
            code, message = errors.to_wire(error)
            reply.code = code  # pyright: ignore[reportAttributeAccessIssue]
            reply.payload = message.SerializeToString()
        self._transport.write(pack(reply.SerializeToString()))

    def end(self) -> None:
        """Ends the connection."""
        self._transport.abort()
