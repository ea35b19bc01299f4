"""The way past gRPC to a worker on the same host: frames on a Unix socket, written by whichever thread has a command."""

import itertools
import os
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError as ProtobufDecodeError

from gymhost.v1 import environments_pb2 as pb
from gymhost.wire import errors
from gymhost.wire.frames import FrameReader, host_name, pack
from gymhost.wire.limits import ENVELOPE

if TYPE_CHECKING:
    from gymhost.client.connection import Connection
    from gymhost.client.pending import Lane

# How much is read from the socket at once.
READ_SIZE = 256 * 1024


class DirectLink:
    """A socket to one worker, shared by all lanes of it. What comes back counts as if it came on the stream.

    Args:
        connection: The connection whose lanes it drives.
        path: The worker's socket.
        on_lost: Called, on the connection's loop, when the socket is gone.

    Raises:
        OSError: The socket can't be opened.
    """

    def __init__(self, connection: "Connection", path: str, on_lost: Callable[["DirectLink"], None]) -> None:
        self.lanes: dict[int, Lane] = {}
        self._connection = connection
        self._on_lost = on_lost
        self._loop = connection.thread.loop
        self._numbers = itertools.count(1)
        self._attaching: dict[int, Lane] = {}
        self._reader = FrameReader(connection.welcome.max_payload_bytes + ENVELOPE)
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.setblocking(False)
        try:
            self._socket.connect(path)
        except OSError:
            self._socket.close()
            raise
        # Held while a frame is written, so that none is cut by another; and what the socket did not take yet.
        self._writing = threading.Lock()
        self._backlog = bytearray()
        self._closed = False
        self._loop.add_reader(self._socket, self._read)

    def send(self, frame: pb.InteractRequest) -> bool:
        """Sends a frame of commands, from any thread.

        Returns:
            Whether it was taken; else the commands are to go on the stream.
        """
        data = pack(frame.SerializeToString())
        with self._writing:
            if self._closed:
                return False
            if self._backlog:
                self._backlog += data
                return True
            try:
                sent = self._socket.send(data)
            except BlockingIOError:
                sent = 0
            except OSError:
                self._loop.call_soon_threadsafe(self.close)
                return False
            if sent < len(data):
                self._backlog += memoryview(data)[sent:]
                self._loop.call_soon_threadsafe(self._write_on)
            return True

    def attach(self, lane: "Lane", token: str) -> None:
        """Asks the worker for a lane; once it is given, the lane's commands go here."""
        number = next(self._numbers)
        self._attaching[number] = lane
        payload = pb.Attach(session_id=token).SerializeToString()
        command = pb.Command(sequence=number, kind=pb.COMMAND_KIND_ATTACH, payload=payload)
        self.send(pb.InteractRequest(commands=[command]))

    def detach(self, lane: "Lane") -> None:
        """Has the commands of a lane go on the stream again."""
        lane.direct = None
        self.lanes.pop(lane.number, None)

    def close(self) -> None:
        """Closes the socket. On the connection's loop only."""
        with self._writing:
            if self._closed:
                return
            self._closed = True
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()
        self._on_lost(self)

    def _read(self) -> None:
        try:
            data = self._socket.recv(READ_SIZE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        try:
            for _, message in self._reader.feed(data):
                self._connection.take(pb.InteractResponse.FromString(message), self._control)
        except (errors.TooLarge, ProtobufDecodeError):
            self.close()

    def _control(self, reply: pb.Reply) -> None:
        if reply.lane == 0:
            lane = self._attaching.pop(reply.sequence, None)
            if lane is not None and not reply.code and lane.ended is None:
                self.lanes[lane.number] = lane
                lane.direct = self
        elif reply.sequence == 0 and reply.code == pb.REPLY_CODE_DETACHED:
            self._connection.redirect(reply.lane)

    def _write_on(self) -> None:
        if not self._closed:
            self._loop.add_writer(self._socket, self._write_backlog)

    def _write_backlog(self) -> None:
        with self._writing:
            try:
                del self._backlog[: self._socket.send(self._backlog)]
            except BlockingIOError:
                return
            except OSError:
                self._backlog.clear()  # the reader sees the end of the socket
            if not self._backlog:
                self._loop.remove_writer(self._socket)


def folder_of(welcome: pb.Welcome) -> str | None:
    """The folder with the workers' sockets, if the server is this user's and on this host."""
    direct = welcome.direct
    if not direct.folder or not hasattr(os, "getuid"):
        return None
    same = direct.host == host_name() and direct.user_id == os.getuid()
    return direct.folder if same and os.access(direct.folder, os.X_OK) else None
