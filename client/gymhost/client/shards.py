"""The sessions that a vector environment consists of: creating them, and one command to all of them at once."""

import contextlib
import logging
import mmap
import queue
import select
import socket
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

from gymnasium.vector import AutoresetMode

from gymhost.client.connection import Connection
from gymhost.client.pending import ThreadPending
from gymhost.client.session import Made, SessionOptions, release
from gymhost.client.thread_link import ThreadLane
from gymhost.v1 import environments_pb2 as pb
from gymhost.wire import errors
from gymhost.wire.layout import Batch
from gymhost.wire.tensors import Array

__all__ = ["Replied", "Shard", "Shards"]

log = logging.getLogger("gymhost.client")

# How often a shard that is lost is made again before it has taken a step.
MOST_LOSSES = 3

_RESET, _STEP = pb.COMMAND_KIND_RESET, pb.COMMAND_KIND_STEP


class Shard:
    """One session of a vector environment.

    Attributes:
        first: The first of its copies, as the vector environment numbers them.
        size: How many copies it has.
        lane: What drives it.
        pending: The command that it was sent and that nobody has taken the reply of yet.
        memory: The memory that its worker shares, once it was needed; or the words that were sent in its place.
        batch: The arrays there.
        kept: The number of the command whose batch came on the stream and is in `memory`; 0 for none.
        seen: The last observation of its copies, where lost shards are replaced.
        losses: How often it was lost since it last took a step.
        is_new: Whether it was made in place of one that was lost, and is to be reset at the next step.
    """

    __slots__ = ("batch", "first", "is_new", "kept", "lane", "losses", "memory", "pending", "seen", "size")

    def __init__(self, first: int, size: int, lane: ThreadLane) -> None:
        self.first = first
        self.size = size
        self.lane = lane
        self.pending: ThreadPending | None = None
        self.memory: mmap.mmap | Array | None = None
        self.batch: Batch | None = None
        self.kept = 0
        self.seen: Any = None
        self.losses = 0
        self.is_new = False

    def __str__(self) -> str:
        last = self.first + self.size - 1
        return f"copy {last}" if self.size == 1 else f"one of the copies {self.first} to {last}"


class Replied(NamedTuple):
    """The reply of a shard to a command.

    Attributes:
        shard: The shard.
        kind: The kind of command.
        payload: The reply's payload.
        lost: Whether the shard was lost, so that the episodes of its copies are cut off. A step has no reply then, and
            a reset is that of the shard in its place.
    """

    shard: Shard
    kind: int
    payload: bytes
    lost: bool = False


class _Last:
    """Wakes a thread once, when the last of several commands has its reply."""

    def __init__(self, commands: Sequence[ThreadPending]) -> None:
        self._left = len(commands)
        self._lock = threading.Lock()
        self._lock.acquire()
        for command in commands:
            command.told = self._count

    def _count(self) -> None:
        # On the connection's loop, or before the commands are sent: never on two threads at once.
        self._left -= 1
        if not self._left:
            self._lock.release()

    def wait(self) -> None:
        """Blocks until then."""
        self._lock.acquire()


class Shards:
    """The shards of one vector environment. For one thread at a time.

    Args:
        connection: The connection to the server.
        options: What to make.
        vector: How: autoreset mode and the like; the number of copies is filled in for each shard.
        sizes: How many copies each shard gets.
        create_timeout: Seconds to wait for places on a full server; None for the server's default.

    Attributes:
        replacing: The autoreset mode, where shards that are lost are to be replaced; else None.

    Raises:
        Error: One could not be made; the others are closed then.
    """

    def __init__(
        self,
        connection: Connection,
        options: SessionOptions,
        vector: dict[str, Any],
        sizes: Sequence[int],
        *,
        create_timeout: float | None = None,
    ) -> None:
        self.replacing: AutoresetMode | None = None
        self._connection = connection
        self._options = options
        self._vector = vector
        self._create_timeout = create_timeout
        # What has finished, and whoever waits for the first has not taken.
        self._finished: list[Replied] = []
        # Shards that have their replies on the stream; and what rings then where sockets are watched.
        self._told: queue.SimpleQueue[Shard] = queue.SimpleQueue()
        # The last reply of commands that went on the stream together.
        self._last: _Last | None = None
        self._bell = socket.socketpair()
        for end in self._bell:
            end.setblocking(False)
        self.all: list[Shard] = []
        creates: list[ThreadPending] = []
        failed: BaseException | None = None
        try:
            for size in sizes:
                request = self._request(size)
                creates.append(connection.begin_call(pb.COMMAND_KIND_CREATE, request, timeout=create_timeout))
            first = 0
            for create, size in zip(creates, sizes, strict=True):
                try:
                    response = pb.CreateSessionResponse.FromString(create.wait())
                    lane = ThreadLane(connection, connection.lane(response.lanes[0]))
                    if not self.all:
                        self.response = response
                        self.made = Made(response)
                    self.all.append(Shard(first, size, lane))
                except errors.Error as error:
                    failed = failed or error
                first += size
            if failed is not None:
                raise failed
        except BaseException:
            for create in creates:
                connection.abandon(create)
            for end in self._bell:
                end.close()
            raise
        self.sizes = tuple(sizes)
        self._by_first = {shard.first: shard for shard in self.all}

    def _request(self, size: int) -> pb.CreateSessionRequest:
        request = self._options.request()
        request.MergeFrom(pb.CreateSessionRequest(num_envs=size, changes=True, **self._vector))
        return request

    # -- one command to several shards ---------------------------------------------------------------------------------

    def begin(
        self,
        kind: int,
        payloads: Sequence[bytes],
        shards: Sequence[Shard] | None = None,
        *,
        together: bool = True,
    ) -> None:
        """Sends a command to each shard.

        Args:
            kind: The kind of command.
            payloads: The payload for each.
            shards: The shards; all by default.
            together: Whether all replies will be waited for, and not the first to come.

        Raises:
            Error: One could not be sent; those that were are waited for.
        """
        on_stream: list[ThreadPending] = []
        try:
            for shard, payload in zip(self.all if shards is None else shards, payloads, strict=True):
                due = shard.is_new and kind == _STEP
                pending = self._prepare(shard, _RESET, b"") if due else self._prepare(shard, kind, payload)
                shard.pending = pending
                if pending.answered:
                    continue
                if not shard.lane.send(pending):
                    on_stream.append(pending)
        except errors.Error:
            self._connection.submit_together(on_stream)
            self.drain()
            raise
        except BaseException:  # such as KeyboardInterrupt
            self.cancel()
            raise
        if together and len(on_stream) > 1:
            self._last = _Last(on_stream)
        # In one frame, so that they arrive together.
        self._connection.submit_together(on_stream)

    def _prepare(self, shard: Shard, kind: int, payload: bytes) -> ThreadPending:
        try:
            return shard.lane.prepare(kind, payload)
        except errors.SessionLost as error:
            if not self._may_replace(kind, payload):
                raise
            # It was lost while nobody looked: as if that had come to pass in this command.
            shard.lane.close()
            pending = ThreadPending(None, 0, kind, payload)
            pending.fail(error)
            return pending

    def finish(self) -> list[Replied]:
        """Waits for the replies of all shards.

        Raises:
            Error: A command failed; the others' replies have been waited for.
        """
        failed: errors.Error | None = None
        replies: list[Replied] = []
        try:
            if self._last is not None:
                self._last.wait()
                self._last = None
            for shard in self.all:
                pending = shard.pending
                if pending is None:
                    continue
                try:
                    replies.append(self._replied(shard, pending))
                except errors.Error as error:
                    error.add_note(f"This was {shard}.")
                    failed = failed or error
                shard.pending = None
        except BaseException:
            self.cancel()
            raise
        if failed is not None:
            raise failed
        return replies

    def command(self, kind: int, payloads: Sequence[bytes]) -> list[bytes]:
        """Sends a command to each shard and waits for their replies.

        Raises:
            Error: It failed.
        """
        self.begin(kind, payloads)
        return [reply.payload for reply in self.finish()]

    def drain(self) -> None:
        """Waits for the replies that are under way, and drops them."""
        self._finished = []
        with contextlib.suppress(errors.Error):
            self.finish()

    def cancel(self) -> None:
        """Asks for the end of what is under way; nobody waits for it any more."""
        self._last = None
        self._finished = []
        for shard in self.all:
            shard.pending = None
            shard.lane.cancel()

    # -- shards that are lost ------------------------------------------------------------------------------------------

    def _may_replace(self, kind: int, payload: bytes) -> bool:
        """Whether a shard that is lost with a command is replaced.

        A reset of some copies can't tell that the others' episodes were cut off: it fails, and the next step tells.
        """
        if self.replacing is None or kind not in (_RESET, _STEP):
            return False
        return kind == _STEP or b"\0" not in pb.ResetCommand.FromString(payload).mask

    def _replied(self, shard: Shard, pending: ThreadPending) -> Replied:
        """Waits for the reply to a command; takes what comes in the place of a shard that is lost.

        Raises:
            Error: The command failed.
        """
        kind = pending.kind
        try:
            reply = Replied(shard, kind, shard.lane.finish(pending))
        except errors.SessionLost as error:
            shard.losses += 1
            if not self._may_replace(kind, pending.payload) or shard.losses > MOST_LOSSES:
                raise
            self._renew(shard)
            shard.is_new = self.replacing is AutoresetMode.NEXT_STEP and kind == _STEP
            log.warning("%s was lost and replaced, its episodes cut off: %s", shard, error.message)
            if kind == _RESET:
                return Replied(shard, kind, shard.lane.command(kind, pending.payload))
            if self.replacing is AutoresetMode.SAME_STEP:
                return Replied(shard, _RESET, shard.lane.command(_RESET, b""), lost=True)
            return Replied(shard, kind, b"", lost=True)
        shard.is_new = False
        if kind == _STEP:
            shard.losses = 0
        return reply

    def _renew(self, shard: Shard) -> None:
        """Makes another session for a shard."""
        create = self._connection.call(pb.COMMAND_KIND_CREATE, self._request(shard.size), timeout=self._create_timeout)
        number = pb.CreateSessionResponse.FromString(create).lanes[0]
        shard.lane.close()
        shard.lane = ThreadLane(self._connection, self._connection.lane(number))
        shard.memory = shard.batch = None
        shard.kept = 0

    # -- the first to finish -------------------------------------------------------------------------------------------

    @property
    def under_way(self) -> int:
        """How many copies have something to do, or have finished it and were not taken yet."""
        waiting = sum([shard.size for shard in self.all if shard.pending is not None])
        return waiting + sum([reply.shard.size for reply in self._finished])

    def is_free(self, shard: Shard) -> bool:
        """Whether the result of its last command was taken, so that it may get another."""
        return shard.pending is None and all(shard is not reply.shard for reply in self._finished)

    def of(self, copy: int) -> Shard | None:
        """The shard whose first copy this is."""
        return self._by_first.get(copy)

    def first_finished(self, count: int) -> list[Replied]:
        """Waits for the replies of the first shards to finish.

        Args:
            count: How many copies they have to have together.

        Returns:
            Their replies, in the order in which they finished.

        Raises:
            Error: A command failed. What finished before it is there for the next call.
        """
        try:
            return self._first_finished(count)
        except errors.Error:
            raise
        except BaseException:  # such as KeyboardInterrupt
            self.cancel()
            raise

    def _first_finished(self, count: int) -> list[Replied]:
        sockets = self._watch()
        finished = self._finished
        while sum([reply.shard.size for reply in finished]) < count:
            for shard in self._next_ready(sockets):
                pending, link = shard.pending, shard.lane.link
                if pending is None or (link is None and not pending.answered):
                    continue  # told twice
                if link is not None and not link.receive(pending):
                    # The socket is gone: the command goes on, on the stream, and is waited for there.
                    shard.lane.to_stream(pending)
                    self._listen(shard, pending)
                    continue
                shard.pending = None
                try:
                    finished.append(self._replied(shard, pending))
                except errors.Error as error:
                    error.add_note(f"This was {shard}.")
                    raise
        have = 0
        for position, reply in enumerate(finished):
            have += reply.shard.size
            if have >= count:
                self._finished = finished[position + 1 :]
                return finished[: position + 1]
        return finished

    def _watch(self) -> dict[int, Shard]:
        """The shards whose replies come on sockets of their own; has the others tell."""
        sockets: dict[int, Shard] = {}
        for shard in self.all:
            pending = shard.pending
            if pending is not None:
                link = shard.lane.link
                if link is not None:
                    sockets[link.fileno] = shard
                elif pending.told is None or pending.answered:
                    self._listen(shard, pending)  # again, where an error of another has kept it from being taken
        return sockets

    def _next_ready(self, sockets: dict[int, Shard]) -> list[Shard]:
        """Waits until there are shards that may have a reply; takes those from the sockets that are watched."""
        ready: list[Shard] = []
        if not sockets:
            ready.append(self._told.get())
        while not self._told.empty():
            ready.append(self._told.get())
        if not ready:
            bell = self._bell[0].fileno()
            watched = select.poll()
            for fileno in (bell, *sockets):
                watched.register(fileno, select.POLLIN)
            for fileno, _ in watched.poll():
                if fileno == bell:
                    self._bell[0].recv(4096)
                else:
                    ready.append(sockets.pop(fileno))
        return ready

    def _listen(self, shard: Shard, pending: ThreadPending) -> None:
        """Has a command on the stream tell when its reply is there."""

        def tell() -> None:
            self._told.put(shard)
            with contextlib.suppress(OSError):  # it rings already, or nobody listens any more
                self._bell[1].send(b".")

        pending.told = tell
        if pending.answered:
            tell()

    # -- the end -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Closes all sessions, and waits until that is done.

        Raises:
            EnvironmentFault: The close of an environment raised. All are closed all the same.
        """
        connection = self._connection
        closes: list[ThreadPending] = []
        try:
            with contextlib.suppress(errors.ServerUnavailable):
                for shard in self.all:
                    lane = shard.lane.lane
                    if lane.close("the environment was closed"):
                        closes.append(connection.begin_call(pb.COMMAND_KIND_CLOSE, None, lane=lane.number))
            failed: errors.Error | None = None
            for close in closes:
                try:
                    close.wait()
                except errors.ServerUnavailable:
                    pass
                except errors.Error as error:
                    failed = failed or error
            if failed is not None:
                raise failed
        finally:
            self.release()

    def release(self) -> None:
        """Lets go of the sessions without waiting: those that are not closed are closed by and by."""
        for shard in self.all:
            release(shard.lane.lane)
            shard.lane.close()
        for end in self._bell:
            end.close()
