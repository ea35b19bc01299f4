"""The way past gRPC to a worker on the same host: frames on a Unix socket.

A socket belongs to the event loop that reads it: the user's own, where sessions are awaited, so that no other thread
has a hand in a step; or the connection's, for threads. What comes back counts as if it came on the stream.
"""

import asyncio
import itertools
import os
import socket
import threading
import weakref
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError as ProtobufDecodeError

from gymhost.v1 import environments_pb2 as pb
from gymhost.wire import errors
from gymhost.wire.frames import FrameReader, pack
from gymhost.wire.host import host_name
from gymhost.wire.limits import ENVELOPE, FRAME_ITEMS

if TYPE_CHECKING:
    from gymhost.client.connection import Connection
    from gymhost.client.pending import Lane, Pending

# How much is read from a socket at once.
READ_SIZE = 256 * 1024


class DirectLinks:
    """The sockets of one event loop, one a worker.

    Args:
        connection: The connection whose lanes they drive.
        loop: The loop that reads them.
    """

    def __init__(self, connection: "Connection", loop: asyncio.AbstractEventLoop) -> None:
        self._connection = connection
        self._loop = loop
        self._links: dict[int, DirectLink] = {}

    def of(self, lane: "Lane") -> "DirectLink | None":
        """The socket that a command of the lane is to go to; None sends it on the stream.

        Where there could be one, but is none yet, this asks the worker for the lane. On the loop only.
        """
        link = lane.direct
        if link is not None and link.links is self:
            return link
        folder = self._connection.folder
        if folder is not None and not lane.asking:
            worker = lane.number >> 32
            found = self._links.get(worker)
            if found is None:
                try:
                    found = self._links[worker] = DirectLink(self, self._connection, self._loop, f"{folder}/{worker}")
                except OSError:
                    return None  # the worker is on its way out
                self._connection.links.add(found)
            found.ask_for(lane)
        return None

    def forget(self, link: "DirectLink") -> None:
        """Drops a socket that is gone."""
        for worker, known in list(self._links.items()):
            if known is link:
                del self._links[worker]


class DirectLink:
    """A socket to one worker.

    Args:
        links: The sockets that it is one of.
        connection: The connection whose lanes it drives.
        loop: The loop that reads it.
        path: The worker's socket.

    Raises:
        OSError: The socket can't be opened.
    """

    def __init__(
        self, links: DirectLinks, connection: "Connection", loop: asyncio.AbstractEventLoop, path: str
    ) -> None:
        self.links = links
        self._connection = connection
        self._loop = loop
        # The lanes that it drives. Those of sessions that have ended drop out by themselves: the worker does not tell.
        self._lanes: weakref.WeakValueDictionary[int, Lane] = weakref.WeakValueDictionary()
        self._numbers = itertools.count(1)
        self._asked: dict[int, Lane] = {}
        self._reader = FrameReader(connection.welcome.max_payload_bytes + ENVELOPE)
        self._out: list[Pending] = []
        # Commands that were sent and are not answered yet, about.
        self._away = 0
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
        loop.add_reader(self._socket, self._read)

    # -- commands ------------------------------------------------------------------------------------------------------

    def submit(self, pending: "Pending") -> None:
        """Sends a command at the end of this turn of the loop; at once while it is the only one. On the loop only."""
        out = self._out
        out.append(pending)
        if not self._away:
            self._flush()
        elif len(out) == 1:
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        out, self._out = self._out, []
        self._away += len(out)
        for start in range(0, len(out), FRAME_ITEMS):
            self.send(out[start : start + FRAME_ITEMS])

    def send(self, batch: "list[Pending]") -> None:
        """Sends commands in one frame, from any thread; on the stream where the socket is gone."""
        on_lanes = self._connection.on_lanes
        frame = pb.InteractRequest()
        add = frame.commands.add
        gone: list[Pending] = []
        for pending in batch:
            lane = pending.lane
            if lane is not None and lane.ended is not None:
                # The number may be another session's by now. The stream is where it is refused.
                gone.append(pending)
                continue
            on_lanes[pending.number] = pending
            add(
                lane=pending.number,
                sequence=pending.sequence,
                kind=pending.kind,  # pyright: ignore[reportArgumentType]
                time_left_ms=pending.time_left_ms,
                payload=pending.payload,
            )
        if gone:
            batch = [pending for pending in batch if pending not in gone]
            self._connection.submit_all(gone)
        if batch and not self._write(frame):
            self._connection.submit_all(batch)

    def _write(self, frame: pb.InteractRequest) -> bool:
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

    # -- replies -------------------------------------------------------------------------------------------------------

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
        claim = self._connection.on_lanes.pop
        try:
            for _, message in self._reader.feed(data):
                replies = pb.InteractResponse.FromString(message).replies
                self._away -= len(replies)
                for reply in replies:
                    # Whoever takes a command out of the table answers it; a copy of the reply finds it gone.
                    pending = claim(reply.lane, None)
                    if pending is not None and pending.sequence == reply.sequence:
                        pending.settle(reply.code, reply.payload)
                    else:
                        self._control(reply, pending)
        except (errors.TooLarge, ProtobufDecodeError):
            self.close()
        self._away = max(self._away, 0)

    def _control(self, reply: pb.Reply, pending: "Pending | None") -> None:
        if pending is not None:
            self._connection.on_lanes[reply.lane] = pending
        if reply.lane == 0:
            lane = self._asked.pop(reply.sequence, None)
            if lane is not None:
                lane.asking = False
                if not reply.code and lane.ended is None:
                    self._lanes[lane.number] = lane
                    lane.direct = self
        elif reply.sequence == 0 and reply.code == pb.REPLY_CODE_DETACHED:
            lane = self._lanes.pop(reply.lane, None)
            if lane is not None:
                self._let_go(lane)

    # -- lanes ---------------------------------------------------------------------------------------------------------

    def ask_for(self, lane: "Lane") -> None:
        """Asks the worker for a lane; once it is given, the lane's commands go here."""
        lane.asking = True
        number = next(self._numbers)
        self._asked[number] = lane
        payload = pb.Attach(session_id=lane.token).SerializeToString()
        command = pb.Command(sequence=number, kind=pb.COMMAND_KIND_ATTACH, payload=payload)
        self._write(pb.InteractRequest(commands=[command]))

    def _let_go(self, lane: "Lane") -> None:
        """Has a lane driven on the stream again, the command that was not answered first."""
        if lane.direct is self:
            lane.direct = None
        if (pending := self._connection.on_lanes.get(lane.number)) is not None:
            self._connection.submit_all((pending,))

    # -- the end -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Closes the socket; what was not answered goes on the stream. On the loop only."""
        if not self._shut():
            return
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()

    def forked(self) -> None:
        """Called in a forked child: the socket is the parent's."""
        self._closed = True
        self._socket.close()

    def dispose(self) -> None:
        """Closes the socket, from any thread, whether its loop still runs or not."""
        try:
            self._loop.call_soon_threadsafe(self.close)
        except RuntimeError:
            if self._shut():
                self._socket.close()

    def _shut(self) -> bool:
        with self._writing:
            if self._closed:
                return False
            self._closed = True
        self.links.forget(self)
        self._connection.links.discard(self)
        for lane in (*self._lanes.values(), *self._asked.values()):
            lane.asking = False
            self._let_go(lane)
        return True


def folder_of(welcome: pb.Welcome) -> str | None:
    """The folder with the workers' sockets, if the server is this user's and on this host."""
    direct = welcome.direct
    if not direct.folder or not hasattr(os, "getuid"):
        return None
    same = direct.host == host_name() and direct.user_id == os.getuid()
    return direct.folder if same and os.access(direct.folder, os.X_OK) else None
