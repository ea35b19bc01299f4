"""The way past gRPC for threads: a socket for one session alone, at which the thread itself waits for the reply.

No event loop has a part in such a step, on either side: the socket is served by the thread that runs the environment.
"""

import copy
import mmap
import os
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from google.protobuf.message import DecodeError as ProtobufDecodeError

from gymhost.client.forks import Forked, ThreadFork
from gymhost.client.pending import Lane, Pending, ThreadPending
from gymhost.v1 import environments_pb2 as pb
from gymhost.wire import errors
from gymhost.wire.frames import FrameReader, SocketFrames
from gymhost.wire.limits import ENVELOPE

if TYPE_CHECKING:
    from gymhost.client.connection import Connection

P = TypeVar("P", bound=ThreadPending)

# Seconds for a worker to take the socket.
ATTACH_LIMIT = 10.0


class ThreadLink:
    """A socket to the worker of one session.

    Args:
        connection: The connection that holds the session.
        lane: The session's lane.

    Attributes:
        memory: The memory that the worker shares, where results of a vector session are left; None where there is none.

    Raises:
        OSError: There is no such way.
    """

    def __init__(self, connection: "Connection", lane: Lane) -> None:
        self._lane = lane.number
        self._links = connection.links
        end = socket.socket(socket.AF_UNIX)
        self._frames = SocketFrames(end, connection.welcome.max_payload_bytes + ENVELOPE)
        try:
            end.settimeout(ATTACH_LIMIT)
            end.connect(f"{connection.folder}/{lane.number >> 32}")
            attach = pb.Attach(session_id=lane.token, exclusive=True).SerializeToString()
            self._write(0, 1, pb.COMMAND_KIND_ATTACH, 0, attach)
            self.memory = self._attached()
            end.settimeout(None)
        except BaseException:
            end.close()
            raise
        self._links.add(self)

    def _attached(self) -> mmap.mmap | None:
        """Takes the reply to the attach, and the memory that comes with it."""
        data, descriptors, _, _ = socket.recv_fds(self._frames.end, 4096, 1)
        try:
            # One small frame on a fresh socket: it comes as a whole, or not at all.
            for _, message in FrameReader(4096).feed(data):
                reply = pb.InteractResponse.FromString(message).replies[0]
                if not reply.code:
                    size = pb.Attached.FromString(reply.payload).shared_bytes
                    if size and not descriptors:
                        raise OSError("this process may have no more descriptors")
                    return mmap.mmap(descriptors[0], size, prot=mmap.PROT_READ) if size else None
            raise OSError("the worker does not know the session")
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    @property
    def fileno(self) -> int:
        """The socket's descriptor, to wait for several."""
        return self._frames.end.fileno()

    def send(self, pending: Pending) -> bool:
        """Sends a command; False where the socket is gone."""
        try:
            self._write(pending.number, pending.sequence, pending.kind, pending.time_left_ms, pending.payload)
        except OSError:
            return False
        return True

    def receive(self, pending: Pending) -> bool:
        """Waits for the reply to a command that was sent; False where the socket is gone."""
        try:
            while (reply := self._read()) is not None:
                if reply.lane == self._lane and reply.sequence == pending.sequence:
                    pending.resolve(reply.code, reply.payload)
                    return True
        except (OSError, errors.TooLarge, ProtobufDecodeError):
            pass
        return False

    def forked(self) -> None:
        """Called in a forked child: the socket is the parent's."""
        self._frames.end.close()

    def dispose(self) -> None:
        """Ends the socket, from any thread; whoever waits at it goes on with the stream."""
        try:
            self._frames.end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it has ended already

    def close(self) -> None:
        """Closes the socket. By the thread that uses it."""
        self._links.discard(self)
        self._frames.end.close()

    def _write(self, lane: int, sequence: int, kind: int, time_left_ms: int, payload: bytes) -> None:
        request = pb.InteractRequest()
        request.commands.add(
            lane=lane,
            sequence=sequence,
            kind=kind,  # pyright: ignore[reportArgumentType]
            time_left_ms=time_left_ms,
            payload=payload,
        )
        self._frames.write(request.SerializeToString())

    def _read(self) -> pb.Reply | None:
        message = self._frames.read()
        return None if message is None else pb.InteractResponse.FromString(message).replies[0]


class ThreadLane:
    """Drives one session from threads: over a socket of its own where there can be one, else on the stream.

    Args:
        connection: The connection.
        lane: The session's lane.
    """

    def __init__(self, connection: "Connection", lane: Lane) -> None:
        self.lane = lane
        self.link: ThreadLink | None = None
        self._connection = connection
        # Whether a socket is worth another try.
        self._may_link = bool(lane.token)
        self._turn = threading.Lock()

    def command(self, kind: int, payload: bytes) -> bytes:
        """Makes a command and waits for its reply. Calls from several threads take turns.

        Raises:
            Error: It failed.
        """
        if self.lane.ended is not None and (self.lane.recovery is None or self._connection.dead is not None):
            raise copy.copy(self.lane.ended)  # in a forked child another thread's turn may never end
        with self._turn:
            try:
                pending = self.prepare(kind, payload)
                if not self.send(pending):
                    self.to_stream(pending)
                return self.finish(pending)
            except errors.Error:
                raise
            except BaseException:  # such as KeyboardInterrupt
                self.cancel()
                raise

    def fork(self, payload: bytes) -> Forked:
        """Makes a FORK, on the stream, and waits for its reply.

        Raises:
            Error: It failed.
        """
        with self._turn:
            pending: ThreadFork | None = None
            try:
                pending = self._prepare(ThreadFork, pb.COMMAND_KIND_FORK, payload)
                self.to_stream(pending)
                pending.wait()
            except errors.Error:
                raise
            except BaseException:  # such as KeyboardInterrupt
                if pending is not None:
                    pending.forked.leave()
                self.cancel()
                raise
            return pending.forked

    def prepare(self, kind: int, payload: bytes) -> ThreadPending:
        """Makes a command the session's next, once the one before it has its reply. It is to be sent then.

        Raises:
            Error: The session has ended, or the payload is too large.
        """
        return self._prepare(ThreadPending, kind, payload)

    def _prepare(self, of: Callable[[Lane, int, int, bytes], P], kind: int, payload: bytes) -> P:
        lane, connection = self.lane, self._connection
        if len(payload) > connection.max_payload:
            raise connection.too_large(payload)
        before = lane.pending
        if before is not None:
            # Nobody waits for it any more, and an interrupt may have left it anywhere.
            self.to_stream(before)
            lane.until_free().result()
        pending = of(lane, lane.number, kind, payload)
        lane.begin(pending)
        return pending

    def send(self, pending: ThreadPending) -> bool:
        """Sends a command over the session's own socket; False where it has to go on the stream."""
        if pending.lane is not None and pending.lane.ended is not None:
            # The session is being recovered, and the command goes on the stream then; or it was closed meanwhile.
            return False
        link = self.link
        if link is None and self._may_link and self._connection.folder is not None:
            link = self._open()
        if link is None or link.send(pending):
            return link is not None
        self.close()
        return False

    def finish(self, pending: ThreadPending) -> bytes:
        """Waits for the reply to a command.

        Raises:
            Error: The command failed.
        """
        link = self.link
        if link is not None:
            if not (pending.answered or link.receive(pending)):
                self.to_stream(pending)
            elif pending.answered:
                return pending.result()
            else:
                self.close()  # the session is lost, and being recovered
        return pending.wait()

    def cancel(self) -> None:
        """Asks for the end of the command that is under way, if there is one, wherever an interrupt has left it.

        Nobody waits for it any more; its reply frees the lane.
        """
        pending = self.lane.pending
        if pending is not None:
            # Again perhaps, and past a socket that may be in the middle of a frame: it never runs twice.
            self.to_stream(pending)
            self.lane.cancel()

    def close(self) -> None:
        """Closes the socket."""
        link, self.link = self.link, None
        if link is not None:
            link.close()

    def _open(self) -> ThreadLink | None:
        try:
            self.link = ThreadLink(self._connection, self.lane)
        except (OSError, errors.Error, ProtobufDecodeError):
            self._may_link = False
        return self.link

    def to_stream(self, pending: Pending) -> None:
        """Has a command go on the stream, whether it was sent elsewhere before or not: it never runs twice."""
        self.close()
        self._connection.submit_together((pending,))
