"""What operators are told of a worker's sessions: what they do, what fails, and all that those do that are followed."""

import functools
from typing import TYPE_CHECKING

from gymhost.server import link
from gymhost.server.worker import live
from gymhost.server.worker.failure import failure
from gymhost.server.worker.failures import Failures
from gymhost.server.worker.follow import Following, command_name
from gymhost.v1 import environments_pb2 as pb
from gymhost.v1 import operations_pb2 as operations
from gymhost.wire import errors

if TYPE_CHECKING:
    from gymhost.server.worker.host import Host
    from gymhost.server.worker.outlet import Outlet
    from gymhost.server.worker.session import Session

__all__ = ["KINDS", "Watching"]

# The commands of the front that are for this.
KINDS = (link.LIVE, link.FOLLOW, link.UNFOLLOW)
# Seconds for which those who follow a session get its last turns once it has ended.
LAST_TURNS = 5.0


class Watching:
    """What is told. On the event loop only.

    Args:
        host: The worker.
    """

    def __init__(self, host: "Host") -> None:
        self._host = host
        self._failures = Failures(self._tell)
        # Those who followed sessions that have just ended, by their lanes.
        self._ended: dict[int, Following] = {}

    def control(self, session: "Session | None", command: pb.Command, outlet: "Outlet") -> None:
        """Takes a command of one of the `KINDS`.

        Raises:
            SessionLost: The session to follow has ended.
        """
        number, payload = command.sequence, command.payload
        if command.kind == link.LIVE:
            outlet.send(0, number, 0, live.told(self._host.sessions, payload))
        elif command.kind == link.UNFOLLOW:
            if session is not None:
                session.unfollow(int(payload))
        else:
            answer = functools.partial(outlet.send, 0, number, 0)
            if session is not None:
                session.follow(int(payload), answer)
            elif (followed := self._ended.get(command.lane)) is not None:
                followed.ask(int(payload), answer)
            else:
                raise errors.SessionLost("the session has ended")

    def failed(self, session: "Session", kind: int, code: int, payload: bytes) -> None:
        """Takes note of a command that failed.

        Args:
            session: Whose it was.
            kind: Its kind.
            code: What came of it.
            payload: The `Error` that tells of it.
        """
        # What a client asks of attributes that there are not is none of the environment's failures.
        if kind != pb.COMMAND_KIND_GET_ATTR:
            self._note(session, command_name(kind), code, payload)

    def raised(self, session: "Session", command: str, error: BaseException) -> None:
        """Takes note of what else failed, such as a `make`."""
        code, payload = failure(error)
        if session.tally is not None:
            session.tally.failed(code)
        self._note(session, command, code, payload)

    def ended(self, session: "Session") -> None:
        """Tells those who follow a session what there is still to tell."""
        if session.following is not None:
            session.following.end()
            self._ended[session.lane] = session.following
            self._host.loop.call_later(LAST_TURNS, self._ended.pop, session.lane, None)

    def sweep(self) -> None:
        """Tells of failures that were held back. For every second or so."""
        self._failures.sweep()

    def _note(self, session: "Session", command: str, code: int, payload: bytes) -> None:
        self._failures.add(session.lane, session.environment_id, session.terms.label, command, code, payload)

    def _tell(self, lane: int, told: operations.Failure) -> None:
        self._host.outlet.send(lane, 0, link.FAILED, told.SerializeToString())
