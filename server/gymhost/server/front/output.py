"""What a worker, and the environments in it, say on their standard output: it is logged, each line with whose it is."""

import asyncio
import collections
import logging
from collections.abc import Callable

from gymhost.server import link
from gymhost.server.front.lanes import name_of

__all__ = ["Output"]

log = logging.getLogger("gymhost.server")

# How many lines are kept, and how much of each.
KEPT = 50
MAX_LINE = 1000


class Output:
    """The output of one worker.

    Args:
        worker: The worker's number.
        owner_of: Says whose a lane is; None where nothing is on it.
    """

    def __init__(self, worker: int, owner_of: Callable[[int], str | None]) -> None:
        self._worker = worker
        self._owner_of = owner_of
        # The last lines, each with the lane of the session that printed it; 0 for the worker's own.
        self._lines: collections.deque[tuple[int, str]] = collections.deque(maxlen=KEPT)

    def last(self, lane: int | None = None) -> list[str]:
        """The last lines: the worker's own and those of one session; None for all."""
        return [line for said_on, line in self._lines if lane is None or said_on in (0, lane)]

    async def read(self, output: asyncio.StreamReader | None) -> None:
        """Logs each line, until there are no more."""
        assert output is not None
        while True:
            try:
                line = await output.readline()
            except ValueError:
                continue  # a line beyond the reader's limit, dropped
            if not line:
                return
            if text := line.decode(errors="replace").rstrip():
                self._take(text)

    def _take(self, text: str) -> None:
        about: dict[str, object] = {"worker": self._worker, "speaker": f"worker {self._worker}"}
        lane = 0
        if text.startswith(link.TAG) and text.count(link.TAG) > 3:  # else it is no line of gymhost's making
            _, environment, number, label, text = text.split(link.TAG, 4)
            lane = int(number) if number.isdecimal() and len(number) <= 20 else 0
            lane = lane if lane >> 32 == self._worker else 0
            name = name_of(lane) if lane else ""
            about |= {
                "environment": environment,
                "session": name,
                "rollout": label,
                "identity": self._owner_of(lane),
                "speaker": " ".join(part for part in (environment, name, label) if part),
            }
        self._lines.append((lane, text[:MAX_LINE]))
        log.info("%s", text, extra=about)
