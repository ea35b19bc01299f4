"""The last failures of environments, for those who run the server."""

import time
from collections.abc import Iterable

from gymhost.server.front.lanes import name_of
from gymhost.server.front.sessions import MAX_REASON, SessionTable
from gymhost.server.front.workers import Worker
from gymhost.v1 import operations_pb2 as pb

__all__ = ["Failures"]

# How many are kept: of one environment, and of all together. Those that are alike are one.
OF_EACH, IN_ALL = 20, 200
# The most characters of each part, whatever a worker says.
NAME, TRACEBACK = 256, 16 * 1024

# Whose it is, and what is alike: environment, command, exception or code, last line of the traceback.
_Key = tuple[str, str, str, str, str]


class Failures:
    """What failed, each with what is like it folded into it.

    Args:
        table: The sessions.
    """

    def __init__(self, table: SessionTable) -> None:
        self._table = table
        # The oldest first.
        self._kept: dict[_Key, pb.Failure] = {}

    def add(self, lane: int, failure: pb.Failure) -> None:
        """Takes what a worker tells of a lane, whose session may have ended since.

        Args:
            lane: The lane.
            failure: What went wrong on it.
        """
        identity = self._table.last_owner_of(lane)
        if identity is None:
            return  # it is nobody's, so that there is nobody to tell
        failure.session = name_of(lane)
        for field in ("environment_id", "label", "command", "code", "exception"):
            setattr(failure, field, getattr(failure, field)[:NAME])
        failure.message = failure.message[:MAX_REASON]
        failure.traceback = failure.traceback[-TRACEBACK:]
        self._keep(identity, failure)

    def lost(self, worker: Worker) -> None:
        """Takes the sessions of a worker that has died: before they are ended."""
        for session in list(self._table.by_id.values()):
            if session.worker is worker:
                failure = pb.Failure(
                    time=time.time(),
                    environment_id=session.environment_id,
                    session=session.name,
                    code="SESSION_LOST",
                    message=f"worker {worker.number} is gone: {worker.reason}"[:MAX_REASON],
                    traceback="\n".join(worker.last_words(session.lane))[-TRACEBACK:],
                )
                self._keep(session.identity, failure)

    def told(self, environment_id: str, identity: str | None) -> Iterable[pb.Failure]:
        """The failures, the newest first.

        Args:
            environment_id: Only those of this environment; empty for all.
            identity: Only those of this identity; None for everybody's.
        """
        for key, failure in reversed(self._kept.items()):
            if identity in (None, key[0]) and environment_id in ("", failure.environment_id):
                yield failure

    def _keep(self, identity: str, failure: pb.Failure) -> None:
        last_line = failure.traceback.rstrip().rpartition("\n")[2]
        key = (identity, failure.environment_id, failure.command, failure.exception or failure.code, last_line)
        if (alike := self._kept.pop(key, None)) is not None:
            failure.repeated += alike.repeated + 1
        self._kept[key] = failure
        same = [other for other in self._kept if other[1] == failure.environment_id]
        if len(same) > OF_EACH:
            del self._kept[same[0]]
        elif len(self._kept) > IN_ALL:
            del self._kept[next(iter(self._kept))]
