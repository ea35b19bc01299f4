"""Which results a client has handed out, and which of them the service is still to be told of."""

import asyncio
import itertools
import logging
import threading
from collections.abc import Iterable

from gymhost.rollout.service.link import Link
from gymhost.v1 import rollouts_pb2 as pb
from gymhost.wire import errors

__all__ = ["Receipts"]

log = logging.getLogger("gymhost.rollout.service")

# Results that are acknowledged in one call.
_TOGETHER = 4096
# Ids that are remembered after their results were acknowledged: another stream may have them still on its way.
_REMEMBERED = 65_536


class Receipts:
    """Sees to it that each result is handed out once, and acknowledged for certain.

    An id is held from when it is handed out until the service has answered an acknowledgement of it: whatever becomes
    of calls in between, a result that comes again is known. The service never sends it again after that answer. Many
    acknowledgements travel in one call, beside whoever makes them.

    Args:
        link: The connection.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._lock = threading.Lock()
        # Cursors by id: of what was handed out, and of what the service is to be told of.
        self._held: dict[str, int] = {}
        self._due: dict[str, int] = {}
        self._gone: dict[str, None] = {}
        # Ids that were handed out to somebody who left before asking for the next.
        self._left: set[str] = set()
        self._sending: asyncio.Task[None] | None = None

    def hand_out(self, result: pb.Result) -> bool:
        """Notes that a result is handed out.

        Returns:
            Whether it is; not so where it was before. If whoever got it then has left, it is now acknowledged.
        """
        with self._lock:
            if not self._known(result):
                self._held[result.rollout_id] = result.cursor
                return True
            left = result.rollout_id in self._left
        if left:
            self.acknowledge((result.rollout_id,))
        return False

    def leave(self, rollout_ids: Iterable[str]) -> None:
        """Notes that whoever got these left before asking for the next, so that they were not acknowledged."""
        with self._lock:
            self._left.update(rollout_ids)

    def known(self, result: pb.Result) -> bool:
        """Whether a result was handed out before."""
        with self._lock:
            return self._known(result)

    def acknowledge(self, rollout_ids: Iterable[str]) -> None:
        """Has the service told, soon, that results have arrived; those that were not handed out are left alone."""
        with self._lock:
            self._due.update({id: self._held[id] for id in rollout_ids if id in self._held})
        self._link.thread.loop.call_soon_threadsafe(self._begin)

    async def flush(self) -> None:
        """Waits until the service has been told of all that is due.

        Raises:
            ServerUnavailable: It was away for too long; it will be told with the next acknowledgement.
            Error: It refused.
        """
        if self._due:
            await self._link.thread.acall(self._flush())

    async def _flush(self) -> None:
        self._begin()
        if self._sending is not None:
            await asyncio.shield(self._sending)

    def _begin(self) -> None:
        if self._due and (self._sending is None or self._sending.done()):
            self._sending = self._link.spawn(self._send())
            self._sending.add_done_callback(_note)

    async def _send(self) -> None:
        while batch := self._batch():
            await self._link.answer("AcknowledgeResults", pb.AcknowledgeResultsRequest(cursors=batch.values()))
            with self._lock:
                for id in batch:
                    self._due.pop(id, None)
                    self._held.pop(id, None)
                    self._left.discard(id)
                    self._gone[id] = None
                for id in list(itertools.islice(self._gone, max(0, len(self._gone) - _REMEMBERED))):
                    del self._gone[id]

    def _known(self, result: pb.Result) -> bool:
        return result.rollout_id in self._held or result.rollout_id in self._gone

    def _batch(self) -> dict[str, int]:
        with self._lock:
            return dict(itertools.islice(self._due.items(), _TOGETHER))


def _note(task: asyncio.Task[None]) -> None:
    """Says why results could not be acknowledged, where nobody waits for that."""
    if not task.cancelled() and isinstance(error := task.exception(), errors.Error):
        log.warning("results could not be acknowledged yet: %s", error.message)
