"""The commands of one connection that are under way, and the lanes that they are on: nothing here knows of gRPC."""

import asyncio
import collections
import itertools
from collections.abc import Iterable
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError as ProtobufDecodeError

from gymhost.client.pending import Bridge, Lane, Pending, failure
from gymhost.v1 import environments_pb2 as pb
from gymhost.wire import errors, limits

if TYPE_CHECKING:
    from gymhost.client.connection import Connection

# Sent once a stream, and not again on the next.
_NOT_REPEATED = (pb.COMMAND_KIND_HEARTBEAT, pb.COMMAND_KIND_ATTACH)
# Not numbered on a lane, and yet of a lane's session.
_NAMING = (pb.COMMAND_KIND_CLOSE, pb.COMMAND_KIND_CANCEL)


class InFlight:
    """Which commands wait to be sent, and which for a reply. On the connection's loop, unless something else is said.

    Args:
        connection: The connection whose commands they are.

    Attributes:
        outbox: Commands that wait to be sent; filled from any thread.
        to_send: Set when there is something in the outbox.
        bulk_outbox: Commands for the bulk stream, since they are too large for the main one.
        bulk_wanted: Set when there is something for the bulk stream, or the server wants one.
        on_lanes: By lane, the command that waits for its reply. Any thread takes and puts single ones.
        lanes: The lanes that are attached again whenever the connection is restored.
        numbers: Numbers for what is not numbered on a lane; any thread takes some.
        laden_bridges: Bridges that have replies to carry over at the end of the frame.
    """

    def __init__(self, connection: "Connection") -> None:
        self.outbox: collections.deque[Pending] = collections.deque()
        self.to_send = asyncio.Event()
        self.bulk_outbox: collections.deque[pb.Command] = collections.deque()
        self.bulk_wanted = asyncio.Event()
        self.on_lanes: dict[int, Pending] = {}
        self.lanes: dict[int, Lane] = {}
        self.numbers = itertools.count(1)
        self.laden_bridges: list[Bridge] = []
        self._connection = connection
        # By number, the commands that wait for a reply and are not numbered on a lane.
        self._calls: dict[int, Pending] = {}
        # Creates whose callers went away, by number: what they make is closed again.
        self._abandoned: set[int] = set()

    # -- sending -------------------------------------------------------------------------------------------------------

    def next_frame(self) -> pb.InteractRequest:
        """Takes as much out of the outbox as there is in a frame; what is too large goes to the bulk stream."""
        outbox, on_lanes = self.outbox, self.on_lanes
        frame = pb.InteractRequest()
        add = frame.commands.add
        items = size = 0
        while outbox and items < limits.FRAME_ITEMS and size < limits.FRAME_BYTES:
            pending = outbox.popleft()
            payload, lane = pending.payload, pending.lane
            if lane is not None and lane.pending is not pending:
                continue  # it went two ways, since one was given up, and was answered on the other
            if lane is not None and lane.ended is not None:
                self._refuse(pending, lane.ended)
                continue
            if len(payload) > limits.FRAME_BYTES:
                self._send_large(pending)
                continue
            size += len(payload)
            if size > limits.FRAME_BYTES and items:
                outbox.appendleft(pending)
                break
            items += 1
            if lane is not None:
                on_lanes[lane.number] = pending
            elif pending.kind != pb.COMMAND_KIND_CANCEL:
                self._calls[pending.sequence] = pending
            add(
                lane=pending.number,
                sequence=pending.sequence,
                kind=pending.kind,  # pyright: ignore[reportArgumentType]
                time_left_ms=pending.time_left_ms,
                payload=payload,
            )
        return frame

    def _refuse(self, pending: Pending, error: errors.Error) -> None:
        """Fails a command whose session has ended since it was made: the number may be another session's by now."""
        if self.on_lanes.get(pending.number) is pending:
            del self.on_lanes[pending.number]
        pending.fail(error)
        self.wake_bridges()

    def _send_large(self, pending: Pending) -> None:
        if pending.lane is not None:
            self.on_lanes[pending.lane.number] = pending
        else:
            self._calls[pending.sequence] = pending
        self.bulk_outbox.append(_command(pending))
        self.bulk_wanted.set()

    def resume(self) -> list[pb.Command]:
        """What to send first on a new stream: an attach for each lane, then what was not answered."""
        for number in [n for n, p in self._calls.items() if p.kind in _NOT_REPEATED]:
            del self._calls[number]
        calls = list(self._calls.values())
        commands: list[pb.Command] = []
        # Attaches come first, for the sake of a CLOSE that is repeated.
        for lane in list(self.lanes.values()):
            attach = _Attach(lane, next(self.numbers), self)
            self._calls[attach.sequence] = attach
            commands.append(_command(attach))
        self.bulk_outbox.clear()
        for pending in (*calls, *self.on_lanes.values()):
            large = len(pending.payload) > limits.FRAME_BYTES
            (self.bulk_outbox if large else commands).append(_command(pending))
        if self.bulk_outbox:
            self.bulk_wanted.set()
        return commands

    @property
    def still_leaving(self) -> bool:
        """Whether something waits to be sent, or a CLOSE for its reply."""
        return bool(self.outbox) or any(p.kind == pb.COMMAND_KIND_CLOSE for p in self._calls.values())

    # -- replies -------------------------------------------------------------------------------------------------------

    def take(self, replies: Iterable[pb.Reply]) -> None:
        """Hands the replies of a frame to whoever waits for them."""
        claim = self.on_lanes.pop
        for reply in replies:
            # Whoever takes a command out of the table answers it; a copy of the reply finds it gone.
            pending = claim(reply.lane, None)
            if pending is not None and pending.sequence == reply.sequence:
                pending.resolve(reply.code, reply.payload)
            else:
                if pending is not None:
                    self.on_lanes[reply.lane] = pending
                self._control(reply)
        self.wake_bridges()

    def wake_bridges(self) -> None:
        """Has the replies carried over that have gathered."""
        for bridge in self.laden_bridges:
            bridge.wake()
        self.laden_bridges.clear()

    def _control(self, reply: pb.Reply) -> None:
        if reply.lane == 0 and reply.sequence:
            pending = self._calls.pop(reply.sequence, None)
            if pending is not None:
                self._answered(pending, reply)
        elif reply.code == pb.REPLY_CODE_WANT_BULK:
            self.bulk_wanted.set()
        elif reply.lane == 0 and reply.code == pb.REPLY_CODE_UNAVAILABLE:
            self._connection.draining = True
        elif reply.lane == 0 and not reply.code:
            self._connection.draining = False
        elif reply.sequence == 0 and (lane := self.lanes.get(reply.lane)) is not None:
            self.end_lane(lane, failure(reply.code, reply.payload))

    def _answered(self, pending: Pending, reply: pb.Reply) -> None:
        """Takes the reply to a command that is not numbered on a lane."""
        if pending.kind == pb.COMMAND_KIND_CREATE and not reply.code:
            try:
                made = pb.CreateSessionResponse.FromString(reply.payload)
            except ProtobufDecodeError as error:
                pending.fail(errors.DecodeError(f"the server's reply is no CreateSessionResponse: {error}"))
                return
            for number in made.lanes:
                self.lanes[number] = Lane(self._connection, number, made.session_id, made.direct_token)
        elif pending.kind == pb.COMMAND_KIND_CLOSE and (lane := self.lanes.get(pending.number)) is not None:
            # The server drops the reply of a command that a close overtakes.
            self.end_lane(lane, errors.SessionClosed("the session was closed"))
        pending.resolve(reply.code, reply.payload)
        if pending.sequence in self._abandoned:
            self._abandoned.discard(pending.sequence)
            self.abandon(pending)

    def abandon(self, pending: Pending) -> None:
        """Closes what a create made, or will have made, since its caller is gone."""
        if pending.kind != pb.COMMAND_KIND_CREATE:
            return
        if not pending.reply:
            self._abandoned.add(pending.sequence)
        elif not pending.code:
            for number in pb.CreateSessionResponse.FromString(pending.reply).lanes:
                self._connection.forget(pb.COMMAND_KIND_CLOSE, number)

    # -- the end -------------------------------------------------------------------------------------------------------

    def end_lane(self, lane: Lane, error: errors.Error) -> None:
        """Takes no more commands on a lane, and fails the one that waits."""
        if lane.ended is None:
            lane.ended = error
        self.lanes.pop(lane.number, None)
        pending = self.on_lanes.pop(lane.number, None)
        if pending is not None:
            pending.fail(error)

    def let_go(self, lane: Lane) -> None:
        """Forgets a lane that has ended, but not the command on it, whose answer is still to come."""
        if self.lanes.get(lane.number) is lane:
            del self.lanes[lane.number]
        if self.on_lanes.get(lane.number) is lane.pending:
            self.on_lanes.pop(lane.number, None)

    def end_lanes(self, error: errors.Error) -> None:
        """Ends every lane."""
        for lane in list(self.lanes.values()):
            self.end_lane(lane, error)

    def forget_numbers(self) -> None:
        """Drops what names a session of a server that is gone by its number, which may be another one's on the next."""
        outbox = self.outbox
        calls = [pending for pending in self._calls.values() if pending.kind in _NAMING]
        for pending in calls:
            del self._calls[pending.sequence]
        for _ in range(len(outbox)):
            pending = outbox.popleft()
            if pending.lane is None and pending.kind in _NAMING:
                calls.append(pending)
            else:
                outbox.append(pending)
        for pending in calls:
            pending.resolve(0, b"")
        self.wake_bridges()

    def fail_all(self, error: errors.Error) -> None:
        """Fails everything that waits. What a command did is then unknown, so its session is given up too."""
        while self.outbox:
            self.outbox.popleft().fail(error)
        self.end_lanes(error)
        for pending in list(self.on_lanes.values()) + list(self._calls.values()):
            pending.fail(error)
        self.on_lanes.clear()
        self._calls.clear()
        self._abandoned.clear()
        self.wake_bridges()
        for link in list(self._connection.links):
            link.dispose()


class _Attach(Pending):
    """An attach after a reconnect; where it fails the lane has ended."""

    __slots__ = ("_attached", "_in_flight")

    def __init__(self, lane: Lane, sequence: int, in_flight: InFlight) -> None:
        super().__init__(None, 0, pb.COMMAND_KIND_ATTACH, pb.Attach(session_id=lane.session_id).SerializeToString())
        self.sequence = sequence
        self._attached = lane
        self._in_flight = in_flight

    def wake(self) -> None:
        """Ends the lane if it could not be attached."""
        if self.code:
            self._in_flight.end_lane(self._attached, failure(self.code, self.reply))


def _command(pending: Pending) -> pb.Command:
    return pb.Command(
        lane=pending.number,
        sequence=pending.sequence,
        kind=pending.kind,  # pyright: ignore[reportArgumentType]
        time_left_ms=pending.time_left_ms,
        payload=pending.payload,
    )
