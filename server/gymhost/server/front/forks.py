"""Forks of sessions, as far as the front has to do with them: places, and names for what their worker makes."""

import asyncio
import dataclasses
import secrets

from google.protobuf.message import DecodeError as ProtobufDecodeError

from gymhost.server import link
from gymhost.server.front.sessions import Session, SessionTable
from gymhost.v1 import environments_pb2 as pb
from gymhost.wire import errors, fields


@dataclasses.dataclass(frozen=True, slots=True)
class Fork:
    """The last FORK of a session.

    Attributes:
        sequence: Its number.
        making: What takes the places; then the sessions that are to be forked, and the ForkResult that names them.
    """

    sequence: int
    making: asyncio.Task[tuple[list[Session], bytes]]


class Forks:
    """Turns FORKs of clients into what workers are told.

    The sessions that a fork is to make are in the table from the moment in which there are places for them, since only
    the worker knows when they are there: it answers the client, and tells the front of those that it could not make.

    Args:
        table: The sessions.
        queue_timeout: Seconds that a fork waits for places where its caller names no limit.
    """

    def __init__(self, table: SessionTable, queue_timeout: float) -> None:
        self._table = table
        self._queue_timeout = queue_timeout

    def begin(self, session: Session, command: pb.Command) -> Fork:
        """Takes a FORK; from now on it can be cancelled. Of one that is repeated this finds what it began.

        Args:
            session: The session that is forked.
            command: Its client's command.
        """
        fork = session.fork
        if fork is None or fork.sequence != command.sequence:
            if fork is not None:
                fork.making.cancel()
            limit = command.time_left_ms / 1000 or self._queue_timeout
            # A task of its own: a caller that goes away and repeats the command finds it still running.
            making = asyncio.get_running_loop().create_task(self._make(session, command.payload, limit))
            fork = session.fork = Fork(command.sequence, making)
        return fork

    async def prepare(self, session: Session, command: pb.Command, fork: Fork) -> tuple[pb.Command, list[Session]]:
        """Waits for places for the sessions of a fork.

        Args:
            session: The session that is forked.
            command: Its client's command.
            fork: What `begin` returned.

        Returns:
            What the worker is to be sent, also where there are no places: it is the worker who counts. And the sessions
            that are to be forked, of whom some may have ended.

        Raises:
            SessionError: The session ended meanwhile.
        """
        loop = asyncio.get_running_loop()
        asked = loop.time()
        session.calls += 1
        try:
            twins, names = await asyncio.shield(fork.making)
        except asyncio.CancelledError:
            if not fork.making.cancelled():
                raise
            return self._refusal(session, command, errors.Cancelled("the command was cancelled")), []
        except errors.Error as error:
            return self._refusal(session, command, error), []
        finally:
            session.calls -= 1
        if any(twin.id not in self._table.by_id for twin in twins):
            # The worker has answered before, and answers the same now; else there is nothing left to make.
            # Not SessionLost, which would say that the session itself has ended.
            return self._refusal(
                session, command, errors.ServerUnavailable("the sessions of the fork have ended")
            ), twins
        left = command.time_left_ms and max(1, command.time_left_ms - round((loop.time() - asked) * 1000))
        return _forwarded(command, pb.COMMAND_KIND_FORK, names, left), twins

    def cancel(self, lane: int) -> bool:
        """Breaks off the wait of a fork for places, which is answered then; False where none waits."""
        session = self._table.on_lane(lane)
        return session is not None and session.fork is not None and session.fork.making.cancel()

    def _refusal(self, session: Session, command: pb.Command, error: errors.Error) -> pb.Command:
        """What has the worker answer with an error.

        Raises:
            SessionError: The session has ended.
        """
        if session.id not in self._table.by_id:
            raise self._table.end_of(session.lane, session.identity) or errors.SessionLost("the session has ended")
        code, message = errors.to_wire(error)
        reply = pb.Reply(code=code, payload=message.SerializeToString())  # pyright: ignore[reportArgumentType]
        return _forwarded(command, link.REPLY, reply.SerializeToString())

    async def _make(self, session: Session, payload: bytes, limit: float) -> tuple[list[Session], bytes]:
        """Takes places, and puts sessions into the table that their worker is yet to make.

        Raises:
            Error: There are no places, or what is asked for makes no sense.
        """
        try:
            command = pb.ForkCommand.FromString(payload)
        except ProtobufDecodeError as error:
            raise errors.DecodeError(f"the payload is no ForkCommand: {error}") from None
        fields.check(command)
        if not command.copies:
            raise errors.InvalidArgument("copies is how many sessions to make, and must not be 0")
        table = self._table
        if not table.accepting:
            raise errors.ServerUnavailable(table.refusal)
        places = command.copies * session.places
        asked = asyncio.get_running_loop().time()
        await table.admission.take(session.identity, places, limit)
        queued = round((asyncio.get_running_loop().time() - asked) * 1000)
        if session.id not in table.by_id:
            table.admission.free(session.identity, places)
            raise errors.SessionLost("the session has ended")
        twins = [table.add_twin(session) for _ in range(command.copies)]
        names = pb.ForkResult()
        for twin in twins:
            token = secrets.token_hex(16)
            names.sessions.add(session_id=twin.id, lanes=[twin.lane], direct_token=token, queued_ms=queued)
        return twins, names.SerializeToString()


def _forwarded(command: pb.Command, kind: int, payload: bytes, time_left_ms: int = 0) -> pb.Command:
    return pb.Command(
        lane=command.lane,
        sequence=command.sequence,
        kind=kind,  # pyright: ignore[reportArgumentType]
        payload=payload,
        time_left_ms=time_left_ms,
    )
