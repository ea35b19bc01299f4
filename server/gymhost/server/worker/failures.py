"""Failures of environments, as the front is told of them: one that fails in every step costs little."""

import dataclasses
import time
from collections.abc import Callable

from gymhost.server.worker.failure import code_name
from gymhost.v1 import environments_pb2 as pb
from gymhost.v1 import operations_pb2 as operations

__all__ = ["Failures"]

# The codes that are told, which say something of the environment; those of other failures are of its client's making.
TOLD = {
    pb.REPLY_CODE_ENVIRONMENT_FAULT,
    pb.REPLY_CODE_TIMEOUT,
    pb.REPLY_CODE_TOO_LARGE,
    pb.REPLY_CODE_SERVER_FAULT,
    pb.REPLY_CODE_SESSION_LOST,
    pb.REPLY_CODE_SANDBOX_UNAVAILABLE,
}
# The most characters of each part; of a traceback the end is the best.
MESSAGE, EXCEPTION, TRACEBACK = 1000, 200, 16 * 1024
# Seconds between two that are alike, and the most others in that time. What is more is counted alone.
PAUSE = 1.0
MOST = 50


@dataclasses.dataclass(slots=True)
class _Like:
    """Failures that are alike: when the last one was told, and those since."""

    told: float
    more: int = 0
    last: operations.Failure | None = None


class Failures:
    """The failures of one worker. On its event loop only.

    Args:
        tell: Tells the front of one on a lane.
    """

    def __init__(self, tell: Callable[[int, operations.Failure], None]) -> None:
        self._tell = tell
        self._likes: dict[tuple[int, str, str, str], _Like] = {}

    def add(self, lane: int, environment_id: str, label: str, command: str, code: int, payload: bytes) -> None:
        """Takes a failure.

        Args:
            lane: The lane of the session.
            environment_id: Its environment.
            label: What its client calls the episode.
            command: What ran.
            code: What came of it.
            payload: The `Error` that tells of it.
        """
        if code not in TOLD:
            return
        error = pb.Error.FromString(payload)
        if error.limit == "command":
            return  # its caller's own
        last = error.traceback.rstrip().rpartition("\n")[2][:MESSAGE]
        key = lane, command, (error.exception or str(code))[:EXCEPTION], last
        like = self._likes.get(key)
        if like is None and len(self._likes) >= MOST:
            return
        failure = operations.Failure(
            time=time.time(),
            environment_id=environment_id,
            label=label,
            command=command,
            code=code_name(code),
            message=error.message[:MESSAGE],
            exception=error.exception[:EXCEPTION],
            traceback=error.traceback[-TRACEBACK:],
        )
        if like is None:
            self._likes[key] = _Like(time.monotonic())
            self._tell(lane, failure)
        else:
            like.more += 1
            like.last = failure

    def sweep(self) -> None:
        """Tells of those that were held back. For every second or so."""
        now = time.monotonic()
        for key, like in list(self._likes.items()):
            if now < like.told + PAUSE:
                continue
            if like.last is None:
                del self._likes[key]
                continue
            like.last.repeated = like.more - 1
            self._tell(key[0], like.last)
            like.told, like.more, like.last = now, 0, None
