"""The sockets of a worker: the link to its front, and those of clients on the same host."""

import asyncio
import os
import socket
import struct
from typing import TYPE_CHECKING, cast

from google.protobuf.message import DecodeError as ProtobufDecodeError

from gymhost.server.worker.outlet import Outlet, Writer
from gymhost.server.worker.session import Session
from gymhost.server.worker.thread_session import ThreadSession
from gymhost.v1 import environments_pb2 as pb
from gymhost.wire import errors
from gymhost.wire.frames import FrameReader
from gymhost.wire.limits import ENVELOPE, MAX_QUEUED

if TYPE_CHECKING:
    from gymhost.server.worker.host import Host

_FIRST, _LAST = pb.COMMAND_KIND_RESET, pb.COMMAND_KIND_EVALUATE


class FrontLink(asyncio.Protocol):
    """The link to the front. Its frames carry the channel of the stream that the commands came from.

    Args:
        host: The worker.
    """

    def __init__(self, host: "Host") -> None:
        self._host = host
        self._reader = FrameReader(host.config.max_payload + ENVELOPE)
        self._outlets: dict[int, Outlet] = {}
        self._transport: asyncio.Transport
        self._writer: Writer
        self.closed: asyncio.Future[None] = host.loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Part of asyncio.Protocol."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(MAX_QUEUED)
        self._writer = Writer(self._transport)

    def pause_writing(self) -> None:
        """Part of asyncio.Protocol: no more commands while their replies pile up."""
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Part of asyncio.Protocol: the front has taken them."""
        self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Part of asyncio.Protocol."""
        self._writer.close()
        if not self.closed.done():
            self.closed.set_result(None)

    def outlet(self, channel: int) -> Outlet:
        """The outlet of a channel; 0 is the front itself."""
        outlet = self._outlets.get(channel)
        if outlet is None:
            outlet = self._outlets[channel] = Outlet(self._host, self._writer, channel)
        return outlet

    def forget(self, channel: int) -> None:
        """Drops the outlet of a stream that has ended."""
        self._outlets.pop(channel, None)

    def data_received(self, data: bytes) -> None:
        """Part of asyncio.Protocol: runs all commands of a frame, then sends their replies together."""
        host = self._host
        sessions = host.sessions
        try:
            with host.turn:
                for channel, message in self._reader.feed(data):
                    outlet = self.outlet(channel)
                    for command in pb.InteractRequest.FromString(message).commands:
                        session = sessions.get(command.lane)
                        if session is not None and _FIRST <= command.kind <= _LAST:
                            try:
                                session.submit(command, outlet)
                            except Exception as error:  # noqa: BLE001 - what a command does must not end the worker
                                outlet.send_error(command.lane, command.sequence, error)
                        else:
                            host.control(session, command, outlet)
        except (errors.TooLarge, ProtobufDecodeError) as error:
            print(f"the link to the front is closed: {error}", flush=True)
            self._transport.abort()


class DirectLink(asyncio.Protocol):
    """The socket of a client on the same host. It drives the sessions that it attached, and can do nothing else.

    Args:
        host: The worker.
    """

    def __init__(self, host: "Host") -> None:
        self._host = host
        self._reader = FrameReader(host.config.max_payload + ENVELOPE)
        self._sessions: dict[int, Session] = {}
        # For one session alone, whose client takes the end of the socket for the notice that it has to go on elsewhere.
        self._exclusive = False
        # Whether a session's thread serves the socket from now on.
        self._given = False
        self._outlet: Outlet
        self._writer: Writer
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Part of asyncio.Protocol: only the server's own user is let in."""
        self._transport = transport  # pyright: ignore[reportAttributeAccessIssue]
        self._writer = Writer(self._transport)
        self._outlet = Outlet(self._host, self._writer, 0)
        if peer_user(transport.get_extra_info("socket")) != os.getuid():
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Part of asyncio.Protocol: the sessions live on, to be driven on the stream."""
        self._writer.close()
        for session in self._sessions.values():
            if session.direct is self:
                session.direct = None
        self._sessions.clear()

    def data_received(self, data: bytes) -> None:
        """Part of asyncio.Protocol: runs all commands of a frame, then sends their replies together."""
        sessions, outlet = self._sessions, self._outlet
        if self._given:
            return
        try:
            with self._host.turn:
                for _, message in self._reader.feed(data):
                    for command in pb.InteractRequest.FromString(message).commands:
                        session = sessions.get(command.lane)
                        if session is not None and _FIRST <= command.kind <= _LAST:
                            session.submit(command, outlet)
                        elif not self._given:
                            self._control(session, command)
        except (errors.TooLarge, ProtobufDecodeError):
            self._transport.abort()
        if self._transport.get_write_buffer_size() > MAX_QUEUED:
            self._transport.abort()  # it reads too slowly; its replies are kept

    def detach(self, session: Session) -> None:
        """Tells the client that the session is driven on the stream again."""
        self._sessions.pop(session.lane, None)
        session.direct = None
        self._send_away(session.lane)

    def end(self, session: Session) -> None:
        """Forgets a session that has ended; its client learns of that on the stream."""
        self._sessions.pop(session.lane, None)
        session.direct = None
        if self._exclusive:
            self._transport.close()

    def _send_away(self, lane: int) -> None:
        if self._exclusive:
            self._transport.close()
        else:
            self._outlet.send_error(lane, 0, errors.Detached("the session is driven on the stream"))

    def _control(self, session: Session | None, command: pb.Command) -> None:
        kind, number = command.kind, command.sequence
        if kind == pb.COMMAND_KIND_ATTACH:
            try:
                attach = pb.Attach.FromString(command.payload)
                found = self._host.by_token.get(attach.session_id)
                if found is None:
                    raise errors.UnknownSession("no such session")
                if attach.exclusive and not self._sessions:
                    self._exclusive = True
                    if isinstance(found, ThreadSession):
                        self._give_to(found, number)
                        return
                if found.direct is not None and found.direct is not self:
                    found.direct.detach(found)
                found.direct = self
                self._sessions[found.lane] = found
                reply = pb.Attached(last_sequences=[found.last]).SerializeToString()
                self._outlet.send(0, number, 0, reply)
            except (errors.Error, ProtobufDecodeError) as error:
                self._outlet.send_error(0, number, error)
        elif kind == pb.COMMAND_KIND_CANCEL:
            if session is not None:
                session.cancel()
        else:
            # Not attached here, or no longer: on the stream its client is told what has become of it.
            self._send_away(command.lane)

    def _give_to(self, session: ThreadSession, number: int) -> None:
        """Leaves the socket to a session's own thread. Its client sends no more until the attach is answered."""
        self._given = True
        self._transport.pause_reading()
        end: socket.socket = self._transport.get_extra_info("socket")
        own = socket.socket(fileno=os.dup(end.fileno()))
        self._transport.abort()
        session.serve(own, number)


def peer_user(end: socket.socket) -> int:
    """The user id of the process at the other end of a Unix socket."""
    credentials = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return struct.unpack("3i", credentials)[1]
