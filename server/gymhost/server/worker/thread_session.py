"""Sessions whose code runs on a thread of their own; the thread may serve a client on the same host all by itself."""

import concurrent.futures
import contextlib
import queue
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from google.protobuf.message import DecodeError as ProtobufDecodeError

from gymhost.envs.registration import Hosting
from gymhost.server.board import RUNNING
from gymhost.server.worker.calls import Call
from gymhost.server.worker.failure import failure, fault
from gymhost.server.worker.output import current_session
from gymhost.server.worker.packing import Packing, packed
from gymhost.server.worker.session import CANCEL_GRACE, CLOSE_LIMIT, Done, Session
from gymhost.server.worker.shared_memory import SharedMemory
from gymhost.server.worker.tally import ThreadTally
from gymhost.v1 import environments_pb2 as pb
from gymhost.wire import errors
from gymhost.wire.frames import SocketFrames, pack
from gymhost.wire.limits import ENVELOPE

if TYPE_CHECKING:
    from gymhost.server.worker.host import Host
    from gymhost.server.worker.outlet import Outlet


T = TypeVar("T")


class ThreadSession(Session):
    """On a thread of its own, from the making of the environment to its close.

    A client on the same host may give it a socket for this session alone. Then the thread waits at the socket in place
    of its queue, and nothing stands between the client and the environment. Whatever else comes for the session,
    a command on the stream for one, ends that: the socket is shut, and the client goes on with the stream.
    """

    TALLY = ThreadTally

    __slots__ = (
        "_changes",
        "_done",
        "_end",
        "_in_memory",
        "_lock",
        "_packing",
        "_queue",
        "_seen",
        "_stopped_by",
        "_waiting",
    )

    def __init__(self, host: "Host", lane: int, request: pb.CreateSessionRequest, hosting: Hosting) -> None:
        super().__init__(host, lane, request, hosting)
        # Commands to execute, calls to make, sockets to serve, and None at the end.
        self._queue: queue.SimpleQueue[tuple[Call, bytes] | Callable[[], None] | socket.socket | None]
        self._queue = queue.SimpleQueue()
        self._done: Done | None = None
        # The socket that is served or is about to be, and the one that the thread has not come to yet; and what guards
        # them and the numbering of the lane, which the session's thread and the event loop both have a hand in then.
        self._end: socket.socket | None = None
        self._waiting: socket.socket | None = None
        self._lock = threading.RLock()
        # Whether the arrays of the last reply are not in it, but in the memory that is shared with the client.
        self._in_memory = False
        self._changes = request.changes
        # The command and the copy at which a vector session was found when its limit had passed.
        self._seen = (0, 0)
        self._packing: Packing | None = None
        # Why the sandboxes were taken from under the running code, which is to end by that.
        self._stopped_by: errors.Error | None = None

    # -- on the event loop ---------------------------------------------------------------------------------------------

    def submit(self, command: pb.Command, outlet: "Outlet") -> None:
        with self._lock:
            self._shut()
            if command.sequence == self.last:
                self._make_whole()
            super().submit(command, outlet)

    def finish(self, code: int, reply: bytes) -> None:
        with self._lock:
            self._in_memory = False
            super().finish(code, reply)

    def run(self, call: Call, payload: bytes, time_left_ms: int) -> None:
        self.set_limit(call, time_left_ms)
        self.host.watch(self)
        self._queue.put((call, payload))

    def start(self, request: pb.CreateSessionRequest, done: Done) -> None:
        self._start_thread()
        self._call("reset", self.hosting.reset_timeout, lambda: self.make(request), done)

    def close(self, done: Done) -> None:
        self.leave(tell=False)
        if self.busy or self._done is not None:
            # The close waits behind a command or the make, whose result nobody will see.
            self.sandboxes.kill()
        self._call("close", CLOSE_LIMIT, lambda: None if self.env is None else self.env.close(), done)
        self._queue.put(None)

    def expire(self) -> None:
        if self.is_vector and self.limit in ("reset", "step") and self.env is not None:
            # These limits are a copy's: while one copy after the other comes to its end there is as much time again.
            at = self.last, self.env.progress
            if len(self.env) > 1 and at != self._seen:
                self._seen = at
                self.deadline = time.monotonic() + (self.seconds(self.limit) or 0.0)
                return
        if self._stopped_by is None and self._stop():
            return
        if self.host.give_up(self, self.overrun()) and self._done is not None:
            self._done(errors.SessionLost(self.overrun(), limit=self.limit))

    def _stop(self) -> bool:
        """Kills the sandboxes that code beyond its limit may wait for, so that it ends; False where there are none."""
        with self._lock:
            if not self.unwatch():
                return True  # it came to its end meanwhile
            stopped = self.sandboxes.kill()
            if stopped:
                self._stopped_by = errors.CommandTimeout(
                    f"{self.overrun()}: its sandboxes were destroyed", limit=self.limit
                )
                self.deadline = time.monotonic() + CANCEL_GRACE
            self.watch()
            return stopped

    def leave(self, *, tell: bool = True) -> None:
        super().leave(tell=tell)
        with self._lock:
            self._shut()

    def serve(self, end: socket.socket, number: int) -> None:
        """Has the thread serve a socket that is for this session alone.

        Args:
            end: The socket; the session closes it.
            number: The number of the ATTACH, which is answered here.
        """
        self.leave()
        memory: SharedMemory | None = getattr(self.env, "memory", None)
        attached = pb.Attached(last_sequences=[self.last])
        descriptors: list[int] = []
        if memory is not None:
            attached.shared_bytes = memory.size
            descriptors.append(memory.descriptor)
        try:
            # It is still one that does not block: whoever has filled it before it is served is not waited for.
            socket.send_fds(end, [pack(_response(0, number, 0, attached.SerializeToString()))], descriptors)
            end.setblocking(True)
        except OSError:
            end.close()
            return
        with self._lock:
            if self._waiting is not None:
                self._waiting.close()  # the thread is busy, and has not come to it
            self._waiting = self._end = end
        self._queue.put(end)

    def _start_thread(self) -> None:
        # A daemon, since one that is stuck in the environment's code must not keep the worker from ending.
        threading.Thread(target=self._work, name=f"session-{self.lane}", daemon=True).start()

    def _shut(self) -> None:
        """Ends the service of the socket; its thread and its client both see it end. The lock is held."""
        end, self._end = self._end, None
        if end is not None:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _call(self, limit: str, seconds: float | None, call: Callable[[], None], done: Done) -> None:
        with self._lock:
            self.limit = limit
            self.deadline = time.monotonic() + seconds if seconds else 0.0
            self._done = done
            self.watch()
        self._queue.put(call)

    def _finished(self, result: tuple[int, bytes]) -> None:
        with self._lock:
            if self._unwatch_command():
                self._count(on_loop=True)
                self.finish(*(result if self._stopped_by is None else self._stopped()))

    def _called(self, error: BaseException | None) -> None:
        if self.host.unwatch(self) and self._done is not None:
            done, self._done = self._done, None
            stopped_by, self._stopped_by = self._stopped_by, None
            done(stopped_by or error)

    # -- on the session's own thread -----------------------------------------------------------------------------------

    def twin(self, lane: int, token: bytes) -> Self:
        twin = super().twin(lane, token)
        twin._start_thread()
        return twin

    def abandon(self) -> None:
        super().abandon()
        self._queue.put(None)

    def outcome(self, error: BaseException) -> tuple[int, bytes]:
        stopped_by = self._stopped_by
        return fault(error) if stopped_by is None else failure(stopped_by)

    def on_loop(self, act: Callable[[], T]) -> T:
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        self.host.post(_act, (future, act))
        try:
            # The watchdog ends a worker whose loop stands still for longer.
            return future.result(self.host.config.loop_limit)
        except TimeoutError:
            if future.cancel():
                raise errors.ServerFault("the worker's event loop stands still") from None
            return future.result()

    def _work(self) -> None:
        current_session.set(self)
        post, take = self.host.post, self._queue.get
        while (item := take()) is not None:
            if isinstance(item, socket.socket):
                self._serve(item)
            elif not isinstance(item, tuple):
                error: BaseException | None = None
                try:
                    item()
                except BaseException as raised:  # noqa: BLE001 - SystemExit too
                    error = raised
                post(self._called, error)
            else:
                call, payload = cast("tuple[Call, bytes]", item)
                code, reply = self.execute(call, payload)
                if call.kept is not None and not code:
                    code, reply = self._whole(reply, call.kept(payload))
                if not self._finish_here(code, reply):
                    post(self._finished, (code, reply))

    def _finish_here(self, code: int, reply: bytes) -> bool:
        """Answers a command of the stream from this thread; False where that is for the event loop.

        Where other sessions have commands running too, the loop sends replies together, which takes less in all.
        """
        if self.host.running > 1:
            return False
        with self._lock:
            outlet = self.outlet
            if self._end_command(code, reply) and outlet is not None:
                if not outlet.send_now(self.lane, self.last, self.code, self.reply):
                    self.host.post(self._answer_on_stream, None)
        return True

    def _end_command(self, code: int, reply: bytes) -> bool:
        """Keeps the reply of the running command; False where the session was given up. The lock is held."""
        if not self._unwatch_command():
            return False
        if self._stopped_by is not None:
            code, reply = self._stopped()
        self._count(on_loop=False)
        self.code = code
        self.reply = reply
        self.end_command()
        self._in_memory = False
        if code:
            self.host.post(self._failed, (self.kind, code, reply))
        return True

    def _count(self, *, on_loop: bool) -> None:
        """Counts the command that has run."""
        if isinstance(self.tally, ThreadTally):
            self.tally.settle(on_loop=on_loop)

    def _failed(self, failed: tuple[int, int, bytes]) -> None:
        self.host.watching.failed(self, *failed)

    def _stopped(self) -> tuple[int, bytes]:
        """What to answer to a command that was stopped. The lock is held."""
        stopped_by, self._stopped_by = self._stopped_by, None
        assert stopped_by is not None
        return failure(stopped_by)

    def _unwatch_command(self) -> bool:
        """Ends the watch over a command; False where the session was given up. The lock is held."""
        if not self.unwatch():
            return False
        if self._done is not None:
            self.watch()  # the close that waits behind the command has a limit too
        return True

    def _serve(self, end: socket.socket) -> None:
        frames = SocketFrames(end, self.host.max_payload + ENVELOPE)
        with self._lock:
            if self._waiting is end:
                self._waiting = None
        try:
            while (message := frames.read()) is not None:
                for command in pb.InteractRequest.FromString(message).commands:
                    if not self._answer(command, frames):
                        return
        except (OSError, errors.TooLarge, ProtobufDecodeError):
            pass  # the client goes on with the stream
        finally:
            with self._lock:
                if self._end is end:
                    self._end = None
            end.close()

    def _answer(self, command: pb.Command, frames: SocketFrames) -> bool:
        """Runs a command of the socket and answers it; False when the socket is to be served no longer."""
        lane, sequence = self.lane, command.sequence
        call = self.calls.get(command.kind)
        if call is None:
            return False  # the stream is where other things are done
        with self._lock:
            if self._end is not frames.end or self.busy or command.lane != lane:
                return False
            if sequence != self.last + 1:
                # Repeated, or out of sequence: the stream is where such things are answered.
                return False
            self.last = sequence
            self.busy = True
            self.since = time.monotonic()
            self.kind = command.kind
            self.board[self.place] = RUNNING
            self.outlet = None
        self.set_limit(call, command.time_left_ms)
        self.watch()
        code, reply = self.execute(call, command.payload)
        with self._lock:
            if not self._end_command(code, reply):
                return False
            code, reply = self.code, self.reply
            self._in_memory = call.kept is not None and not code
            here = self._end is frames.end
            if not here and self.outlet is not None:
                # Its client has asked on the stream meanwhile.
                self.host.post(self._answer_on_stream, None)
        if here:
            frames.write(_response(lane, sequence, code, reply))
        return here

    def _answer_on_stream(self, _: None) -> None:
        with self._lock:
            if self.outlet is not None and not self.busy:
                self._make_whole()
                self.outlet.send(self.lane, self.last, self.code, self.reply)

    def _make_whole(self) -> None:
        """Puts what is in the memory into the last reply, for a client that does not share it. The lock is held."""
        if self._in_memory and not self.busy:
            self._in_memory = False
            memory: SharedMemory | None = self.env.memory
            if memory is not None:
                self.code, self.reply = self._checked(self.reply + packed(memory))

    def _whole(self, reply: bytes, kept: int) -> tuple[int, bytes]:
        """The reply to the running command, with what is in the memory, as far as the client does not have that."""
        memory: SharedMemory | None = self.env.memory
        if memory is None:
            return 0, reply
        if self._packing is None:
            self._packing = Packing(memory, changes=self._changes)
        return self._checked(reply + self._packing.pack(self.last, kept))

    def _checked(self, reply: bytes) -> tuple[int, bytes]:
        return (0, reply) if len(reply) <= self.host.max_payload else failure(self.host.too_large(reply))


def _act(asked: tuple[concurrent.futures.Future[Any], Callable[[], Any]]) -> None:
    future, act = asked
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(act())
        except BaseException as error:  # noqa: BLE001 - it is for the thread that asked
            future.set_exception(error)


def _response(lane: int, sequence: int, code: int, payload: bytes) -> bytes:
    response = pb.InteractResponse()
    response.replies.add(lane=lane, sequence=sequence, code=code, payload=payload)  # pyright: ignore[reportArgumentType]
    return response.SerializeToString()
