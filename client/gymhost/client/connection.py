"""One connection to one server, shared by all sessions of the process."""

import asyncio
import copy
import logging
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gymhost.client.direct import DirectLink, folder_of
from gymhost.client.grpc_core import grpc
from gymhost.client.in_flight import InFlight
from gymhost.client.loop import LoopThread, loop_thread, on_fork
from gymhost.client.pending import AsyncPending, Bridge, Lane, Pending, ThreadPending
from gymhost.client.recovery import Recovery
from gymhost.client.rpc_errors import from_rpc
from gymhost.client.stream import Stream
from gymhost.client.thread_link import ThreadLink
from gymhost.client.tls import Tls, open_channel
from gymhost.client.tls_probe import find_problem
from gymhost.v1 import environments_pb2 as pb
from gymhost.v1 import environments_pb2_grpc as rpc
from gymhost.wire import errors, limits
from gymhost.wire.host import is_loopback

log = logging.getLogger("gymhost.client")

# Seconds for a first connection, and for restoring a broken one.
CONNECT_TIMEOUT = 10.0
RECONNECT_TIMEOUT = 60.0
# Seconds for making a lost session again.
RECOVERY_TIMEOUT = 120.0
# Seconds beyond a call's own limit, for calls that the server bounds.
CALL_GRACE = 30.0

_SERVICE = pb.DESCRIPTOR.services_by_name["EnvironmentService"].full_name

# Where a token was sent unencrypted, and that was said.
_warned: set[str] = set()


class Connection:
    """A connection that is kept up: when it breaks it is made anew, its lanes attached, unanswered commands repeated.

    Args:
        address: `HOST:PORT` or `unix:PATH`.
        token: The bearer token, if the server wants one.
        tls: How TLS is spoken with it; None for no TLS.
        connect_timeout: Seconds for the first connection.
        reconnect_timeout: Seconds for restoring it, after which all that waits fails with ConnectionLost.
        recovery_timeout: Seconds for making a lost session again; 0 for never doing so.
        direct: Whether to go past gRPC to the workers of a server on the same host.
    """

    def __init__(
        self,
        address: str,
        token: str | None = None,
        *,
        tls: Tls | None = None,
        connect_timeout: float = CONNECT_TIMEOUT,
        reconnect_timeout: float = RECONNECT_TIMEOUT,
        recovery_timeout: float = RECOVERY_TIMEOUT,
        direct: bool = True,
    ) -> None:
        self.address = address
        self._tls = tls
        self.welcome = pb.Welcome(max_payload_bytes=limits.MAX_PAYLOAD)
        self.max_payload = limits.MAX_PAYLOAD
        self.thread: LoopThread = loop_thread()
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()
        self._connect_timeout = connect_timeout
        self._reconnect_timeout = reconnect_timeout
        self.recovery_timeout = recovery_timeout
        # The ways past gRPC: the folder with the workers' sockets, and all that are open.
        self._may_go_direct = direct
        self.folder: str | None = None
        self.links: set[DirectLink | ThreadLink] = set()
        # What is under way; and what of it the way of a step needs, without a look-up more.
        self.in_flight = InFlight(self)
        self._outbox = self.in_flight.outbox
        self._to_send = self.in_flight.to_send
        self._woken = False
        self.on_lanes = self.in_flight.on_lanes
        self.laden_bridges = self.in_flight.laden_bridges
        self._bridges: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Bridge] = weakref.WeakKeyDictionary()
        self._channel: grpc.aio.Channel | None = None
        self._stub: Any = None
        self._stream: Stream | None = None
        # The lanes whose sessions are being made again.
        self.recovering: dict[Lane, Recovery] = {}
        # Whether the server can't come back: an embedded one whose process has ended.
        self.is_gone: Callable[[], bool] = bool
        # Why nothing is taken any more.
        self.dead: errors.Error | None = None
        # Whether the server has said that it takes no new sessions.
        self.draining = False
        # How often another server was found in its place.
        self.restarts = 0
        on_fork(self)

    # -- from any thread -----------------------------------------------------------------------------------------------

    def submit(self, pending: Pending) -> None:
        """Sends a command; its reply, or an error, is certain to come.

        Raises:
            Error: The connection is closed.
        """
        if self.dead is not None:
            raise copy.copy(self.dead)
        self.submit_all((pending,))

    def submit_together(self, batch: Sequence[Pending]) -> None:
        """Sends commands that threads wait for; where the connection is closed, or a session has ended, they fail."""
        going: list[Pending] = []
        for pending in batch:
            ended = self.dead or (pending.lane.ended if pending.lane is not None else None)
            if ended is None:
                going.append(pending)
            else:
                pending.fail(ended)
        if going:
            self.submit_all(going)

    def submit_all(self, batch: Iterable[Pending]) -> None:
        """Sends commands on the stream."""
        self._outbox.extend(batch)
        if not self._woken:
            try:
                self._woken = True
                self.thread.loop.call_soon_threadsafe(self._wake)
            except BaseException:  # such as KeyboardInterrupt: the next one wakes it
                self._woken = False
                raise

    def bridge(self) -> Bridge:
        """The bridge to the event loop that runs here."""
        loop = asyncio.get_running_loop()
        bridge = self._bridges.get(loop)
        if bridge is None:
            bridge = self._bridges[loop] = Bridge(loop, self)
        return bridge

    async def acall(self, kind: int, message: Any, *, lane: int = 0, timeout: float | None = None) -> bytes:
        """Makes a command to the server itself, from any event loop."""
        if self.dead is not None:
            raise copy.copy(self.dead)
        bridge = self.bridge()
        payload = message.SerializeToString() if message is not None else b""
        pending = AsyncPending(bridge, None, lane, kind, payload, _milliseconds(timeout))
        pending.sequence = next(self.in_flight.numbers)
        bridge.submit(pending)
        try:
            await pending.future
        except asyncio.CancelledError:
            self.thread.loop.call_soon_threadsafe(self.in_flight.abandon, pending)
            raise
        return pending.result()

    def call(self, kind: int, message: Any, *, lane: int = 0, timeout: float | None = None) -> bytes:
        """Makes a command to the server itself, from any thread."""
        pending = self.begin_call(kind, message, lane=lane, timeout=timeout)
        try:
            return pending.wait()
        except KeyboardInterrupt:
            self.abandon(pending)
            raise

    def begin_call(self, kind: int, message: Any, *, lane: int = 0, timeout: float | None = None) -> ThreadPending:
        """Begins a command to the server itself, from any thread: several may wait for their replies at once."""
        payload = message.SerializeToString() if message is not None else b""
        pending = ThreadPending(None, lane, kind, payload, _milliseconds(timeout))
        pending.sequence = next(self.in_flight.numbers)
        self.submit(pending)
        return pending

    def abandon(self, pending: Pending) -> None:
        """Gives up a command that `begin_call` began: what a create makes is closed again."""
        self.thread.loop.call_soon_threadsafe(self.in_flight.abandon, pending)

    def forget(self, kind: int, lane: int) -> None:
        """Makes a command whose reply nobody waits for: CLOSE or CANCEL.

        It may come from anywhere, the garbage collector included.
        """
        if self.dead is None:
            pending = Pending(None, lane, kind, b"")
            pending.sequence = next(self.in_flight.numbers)
            self.submit(pending)

    def lane(self, number: int) -> Lane:
        """The lane of a session that was created just now.

        Raises:
            SessionLost: It has ended already.
        """
        lane = self.in_flight.lanes.get(number)
        if lane is None:
            raise errors.SessionLost("the session ended as soon as it was made")
        return lane

    def forked(self) -> None:
        """Called in a forked child, where gRPC no longer works."""
        self.dead = errors.ConnectionLost("this connection was made before a fork: connect after the fork, or spawn")
        for lane in (*self.in_flight.lanes.values(), *self.recovering):
            lane.ended = self.dead
            lane.pending = None
        # The sockets are the parent's, which is to get the replies.
        for link in list(self.links):
            link.forked()

    def too_large(self, payload: bytes) -> errors.TooLarge:
        """The error for a payload that is above the server's limit."""
        return errors.TooLarge(
            f"a command of {len(payload)} bytes is above the server's limit of {self.max_payload} bytes "
            "(gymhost serve --max-payload)"
        )

    # -- on the connection's loop --------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connects.

        Raises:
            Unauthenticated: The server did not take the token, or the certificate.
            ServerUnavailable: It could not be reached in time, or its certificate is not to be trusted.
            InvalidArgument: A file of TLS can't be read.
        """
        if self._metadata and self._tls is None:
            warn_of_plain_token(self.address, "connect")
        self._channel = self.new_channel()
        self._stub = rpc.EnvironmentServiceStub(self._channel)
        self._stream = Stream(
            self,
            self.in_flight,
            self._stub,
            self._metadata,
            connect_timeout=self._connect_timeout,
            reconnect_timeout=self._reconnect_timeout,
        )
        self.thread.at_exit(self, self.close)
        try:
            await asyncio.shield(self._stream.opened)
        except BaseException:
            await self.close()
            raise

    def new_channel(self) -> grpc.aio.Channel:
        """Another channel to the server."""
        return open_channel(self.address, self._tls, self.welcome.max_payload_bytes)

    async def tls_problem(self) -> errors.Error | None:
        """What is wrong with TLS, where that is why no connection comes about."""
        return await asyncio.to_thread(find_problem, self.address, self._tls)

    def adopt(self, welcome: pb.Welcome) -> None:
        """Takes the Welcome of a new stream; if the server is another one by now, the sessions are gone."""
        before = self.welcome.server_instance
        self.welcome = welcome
        self.max_payload = welcome.max_payload_bytes
        self.folder = folder_of(welcome) if self._may_go_direct else None
        if before and before != welcome.server_instance:
            self.restarts += 1
            for link in list(self.links):
                link.dispose()  # its numbers may be those of other sessions now
            self.draining = False
            self.in_flight.forget_numbers()
            self.in_flight.end_lanes(
                errors.SessionLost(f"the session is lost: the server at {self.address} was restarted")
            )

    def _wake(self) -> None:
        self._woken = False
        if self.dead is not None and (self._stream is None or self._stream.ended):
            self.in_flight.fail_all(self.dead)  # submitted while the connection was being given up
        self._to_send.set()

    async def close(self) -> None:
        """Closes the connection, and the sessions that nobody closed."""
        self.thread.at_exit(self, None)
        for lane in list(self.in_flight.lanes.values()):
            if lane.ended is None:
                self.forget(pb.COMMAND_KIND_CLOSE, lane.number)
        if self.dead is None:
            self.dead = errors.ConnectionLost("the connection was closed")
        for recovery in list(self.recovering.values()):
            await recovery.stopped()
        if self._stream is not None:
            # What was submitted before the close still leaves, CLOSE commands above all.
            await self._drain()
            await self._stream.end()
            self._stream = None
        self.in_flight.fail_all(self.dead)
        if self._channel is not None:
            await self._channel.close()
            self._channel = None
            self._stub = None  # which holds the channel: gRPC's own thread ends with the last one

    async def _drain(self) -> None:
        try:
            async with asyncio.timeout(2.0):
                # Replies set no event of their own, since each step would pay for it.
                while self.in_flight.still_leaving:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
        except TimeoutError:
            pass

    async def unary(self, method: str, request: Any, timeout: float) -> Any:
        """Makes a unary call.

        Raises:
            Error: It failed.
        """
        if self.dead is not None:
            raise copy.copy(self.dead)
        return await self._made(getattr(self._stub, method), request, timeout)

    async def forward(self, method: str, request: bytes, timeout: float) -> bytes:
        """Makes a unary call whose request and response stay the bytes that they are.

        Raises:
            Error: It failed.
        """
        if self.dead is not None:
            raise copy.copy(self.dead)
        assert self._channel is not None  # until the connection is dead
        return await self._made(self._channel.unary_unary(f"/{_SERVICE}/{method}"), request, timeout)

    async def _made(self, call: Any, request: Any, timeout: float) -> Any:
        try:
            return await call(request, metadata=self._metadata, timeout=timeout)
        except grpc.aio.AioRpcError as error:
            raise from_rpc(error, self.address) from None


def warn_of_plain_token(address: str, caller: str) -> None:
    """Says, once an address, that a token leaves this host unencrypted, if it does."""
    if not is_loopback(address) and address not in _warned:
        _warned.add(address)
        log.warning("the token goes to %s unencrypted: %s(..., tls=...), or GYMHOST_TLS_CA", address, caller)


def _milliseconds(timeout: float | None) -> int:
    return 0 if timeout is None else max(1, round(timeout * 1000))
