"""How much memory sessions and their workers use, for those who ask: nothing is looked at otherwise."""

import asyncio
import collections
import json
from collections.abc import Iterable

from gymhost.server import link
from gymhost.server.front.processes import Look, Used
from gymhost.server.front.sessions import Session
from gymhost.server.front.workers import Worker
from gymhost.v1 import environments_pb2 as pb
from gymhost.wire import errors

__all__ = ["Usage"]

# Seconds that a worker gets to answer: one that is busy with an inline step does so later.
ANSWER_LIMIT = link.MEMORY_LIMIT + 0.5


class Usage:
    """Looks at memory."""

    def __init__(self) -> None:
        self._look = Look()

    async def add(self, sessions: Iterable[tuple[Session, pb.SessionInfo]]) -> None:
        """Adds to what is said of sessions how much memory they use; bounded, and what is not known is left out.

        Args:
            sessions: Each with what is said of it.
        """
        of_worker: dict[Worker, list[tuple[Session, pb.SessionInfo]]] = collections.defaultdict(list)
        for session, info in sessions:
            of_worker[session.worker].append((session, info))
        if of_worker:
            asked = asyncio.gather(*(_of_sandboxes(worker, known) for worker, known in of_worker.items()))
            used, of_sandboxes = await asyncio.gather(self._look.used(), asked)
            for (worker, known), of_lane in zip(of_worker.items(), of_sandboxes, strict=True):
                for session, info in known:
                    _fill(info, worker, used.get(worker.pid, Used()).memory, of_lane.get(session.lane))


async def _of_sandboxes(worker: Worker, known: list[tuple[Session, pb.SessionInfo]]) -> dict[int, int]:
    """What the sandboxes of sessions use, by lane."""
    lanes = json.dumps([session.lane for session, _ in known]).encode()
    try:
        async with asyncio.timeout(ANSWER_LIMIT):
            answer: dict[str, int] = json.loads(await worker.request(link.MEMORY, 0, lanes))
    except (TimeoutError, errors.Error):
        return {}
    return {int(lane): size for lane, size in answer.items()}


def _fill(info: pb.SessionInfo, worker: Worker, used: int, of_sandboxes: int | None) -> None:
    info.worker_memory_bytes = used
    info.memory_limit_bytes = worker.memory_limit
    own = used if worker.isolates and used else None
    if own is not None or of_sandboxes is not None:
        info.memory_bytes = (own or 0) + (of_sandboxes or 0)
