"""FORK commands: the sessions that one makes are taken over before anything else is heard of them."""

import asyncio

from google.protobuf.message import DecodeError as ProtobufDecodeError

from gymhost.client.pending import AsyncPending, Bridge, Lane, ThreadPending
from gymhost.v1 import environments_pb2 as pb
from gymhost.wire import errors

__all__ = ["AsyncFork", "Forked", "ThreadFork", "encode_fork"]


def encode_fork(number: int) -> bytes:
    """The payload of a FORK.

    Raises:
        InvalidArgument: There can't be so many sessions.
    """
    try:
        command = pb.ForkCommand(copies=number)
    except (TypeError, ValueError):
        command = pb.ForkCommand()
    if not command.copies:
        raise errors.InvalidArgument(f"the number of forks must be a whole number above 0, not {number!r}")
    return command.SerializeToString()


class Forked:
    """The sessions that a FORK made.

    Args:
        parent: The lane of the session that was forked.

    Attributes:
        lanes: Their lanes, once they are there, and how many seconds each waited for its place.
    """

    def __init__(self, parent: Lane) -> None:
        self.lanes: list[tuple[Lane, float]] = []
        self._parent = parent
        self._unwanted = False

    def take(self, reply: bytes) -> None:
        """Takes them over as a reply names them. On the connection's loop, while the lane of the parent is not free.

        Raises:
            DecodeError: It is no ForkResult.
        """
        parent = self._parent
        try:
            sessions = pb.ForkResult.FromString(reply).sessions
        except ProtobufDecodeError as error:
            raise errors.DecodeError(f"the server's reply is no ForkResult: {error}") from None
        for made in sessions:
            lane = Lane(parent.connection, made.lanes[0], made.session_id, made.direct_token)
            if parent.recovery is not None:
                lane.recovery = parent.recovery.forked(lane)
            parent.connection.in_flight.lanes[lane.number] = lane
            self.lanes.append((lane, made.queued_ms / 1000))
        if self._unwanted:
            self._close()

    def leave(self) -> None:
        """Closes them, also when they are yet to come, since nobody waits for them. From any thread."""
        self._parent.connection.thread.loop.call_soon_threadsafe(self._close)

    def _close(self) -> None:
        self._unwanted = True
        for lane, _ in self.lanes:
            if lane.close("the session was let go of"):
                lane.connection.forget(pb.COMMAND_KIND_CLOSE, lane.number)


class AsyncFork(AsyncPending):
    """A FORK that a coroutine waits for."""

    __slots__ = ("_forked",)

    def __init__(self, bridge: Bridge, lane: Lane, payload: bytes, time_left_ms: int) -> None:
        super().__init__(bridge, lane, lane.number, pb.COMMAND_KIND_FORK, payload, time_left_ms)
        self._forked = Forked(lane)

    def resolve(self, code: int, reply: bytes) -> None:
        """Takes the reply. On the connection's loop only."""
        if not code:
            try:
                self._forked.take(reply)
            except errors.Error as error:
                self.fail(error)
                return
        super().resolve(code, reply)

    async def wait(self) -> Forked:
        """Waits for the reply; where the waiting is cancelled, what is made is closed.

        Raises:
            Error: The command failed.
        """
        try:
            await self.future
        except asyncio.CancelledError:
            self._forked.leave()
            raise
        self.result()
        return self._forked


class ThreadFork(ThreadPending):
    """A FORK that a thread waits for.

    Attributes:
        forked: What it made, once it is answered.
    """

    __slots__ = ("forked",)

    def __init__(self, lane: Lane, number: int, kind: int, payload: bytes) -> None:
        super().__init__(lane, number, kind, payload)
        self.forked = Forked(lane)

    def resolve(self, code: int, reply: bytes) -> None:
        """Takes the reply. On the connection's loop only."""
        if not code and not self.answered:
            try:
                self.forked.take(reply)
            except errors.Error as error:
                self.fail(error)
                return
        super().resolve(code, reply)
