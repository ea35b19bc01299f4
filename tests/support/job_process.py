"""Jobs in a process that a test kills: `python -m support.job_process FILE NOTES`, one run for each line that it reads.

A run is a process of its own, forked so that nothing need be imported again. It submits what `REQUESTS` says, fetches
and acknowledges results until all jobs have ended, and notes what it was told in NOTES.
"""

import asyncio
import itertools
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path

from gymhost.rollout import Concurrency
from gymhost.v1 import rollouts_pb2 as pb
from gymhost.wire import errors
from support.jobs import Service, World, job

REQUESTS = (
    job("plain", range(60), samples=2),
    job("groups", range(100, 130), samples=3, grouping=pb.RolloutGrouping(extra=1, keep=pb.KEEP_GROUPS_WITH_VARIANCE)),
)


class Hasty(World):
    """Ends soon, and pays and fails at random."""

    def __init__(self) -> None:
        dice = random.Random(os.getpid())
        super().__init__(
            pay=lambda _task, _play: float(dice.randrange(3)),
            fault=lambda _task, _play: errors.ServerUnavailable("gone") if dice.random() < 0.02 else None,
        )
        self.dice = dice

    async def may_end(self, task: int, play: int) -> None:
        await asyncio.sleep(self.dice.random() * 0.01)


async def play(path: Path, note: Callable[..., None]) -> None:
    service = Service(path, Hasty(), concurrency=Concurrency(init=8, run=8, eval=8, ahead=8))
    await service.start()
    try:
        for request in REQUESTS:
            told, _ = await service.jobs.submit("me", request)
            note("submitted", told.key, told.id)
        jobs = service.jobs.list("me")
        for turn in itertools.count():
            for told in service.jobs.list("me"):
                ended = told.terminated + told.failed + told.dropped + told.cancelled
                note("counted", told.key, ended, told.queued + told.in_flight + ended, told.groups_kept)
            request = pb.FetchResultsRequest(job_ids=[told.id for told in jobs], limit=1 + turn % 16, wait=10)
            answer = await service.jobs.fetch("me", request)
            for result in answer.results:
                note("sent", result.cursor, result.rollout_id, hash(result.SerializeToString(deterministic=True)))
            cursors = [result.cursor for result in answer.results]
            assert await service.jobs.acknowledge("me", cursors) == len(cursors)
            for cursor in cursors:
                note("acknowledged", cursor)
            if answer.ended:
                break
        note("ended")
    finally:
        await service.stop()


def run(path: Path, notes: Path) -> None:
    with notes.open("a", buffering=1) as file:
        asyncio.run(play(path, lambda *what: print(*what, file=file)))


def main() -> None:
    path, notes = Path(sys.argv[1]), Path(sys.argv[2])
    for _ in sys.stdin:
        child = os.fork()
        if not child:
            run(path, notes)
            os._exit(0)
        print(child, flush=True)
        print(os.waitpid(child, 0)[1], flush=True)


if __name__ == "__main__":
    main()
