"""Results on their way to whoever fetches them: streams, single fetches, acknowledgements, and what nobody fetches."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence

from gymhost.server.rollouts.job import ENDED, Caller, Job
from gymhost.server.rollouts.store import JobStore
from gymhost.v1 import rollouts_pb2 as pb

__all__ = ["Deliveries"]

logger = logging.getLogger(__name__)

_BATCH, _BATCH_BYTES = 64, 2**20
_OLD_AT_ONCE = 1024


class Deliveries:
    """Sends results from the file, in the order of their cursors, until they are acknowledged.

    Args:
        store: Where they are.
        rows: All jobs, by their number in the file.
        released: Called with a caller of whom results wait no more.
    """

    def __init__(self, store: JobStore, rows: Mapping[int, Job], released: Callable[[Caller], None]) -> None:
        self._store = store
        self._rows = rows
        self._released = released
        self._going: set[int] = set()  # cursors of results that were acknowledged, and are still in the file

    async def stream(self, caller: Caller, jobs: Sequence[Job], after: int) -> AsyncGenerator[list[pb.Result]]:
        """Yields batches of results as they come, until all that is named has ended and was sent.

        Args:
            caller: Whose results, where no jobs are named: then it never ends.
            jobs: Which.
            after: The cursor after which it begins.
        """
        with _Watch(caller, jobs) as watch:
            while True:
                watch.news.clear()
                # Before results are read, so that none comes between.
                ended = watch.ended
                results, after = await self._read(watch, after, _BATCH)
                if results:
                    yield results
                elif ended:
                    return
                else:
                    await watch.news.wait()

    async def fetch(
        self, caller: Caller, jobs: Sequence[Job], after: int, limit: int, wait: float
    ) -> pb.FetchResultsResponse:
        """Returns results that are there, or the first that come within `wait` seconds."""
        deadline = time.monotonic() + wait
        with _Watch(caller, jobs) as watch:
            while True:
                watch.news.clear()
                ended = watch.ended
                results, upto = await self._read(watch, after, limit or _BATCH)
                left = deadline - time.monotonic()
                if results or ended or left <= 0:
                    ended = ended and all(job.view.last_cursor <= upto for job in jobs)
                    return pb.FetchResultsResponse(results=results, ended=ended)
                try:
                    async with asyncio.timeout(left):
                        await watch.news.wait()
                except TimeoutError:
                    continue

    async def acknowledge(self, cursors: Iterable[int], identity: str | None) -> int:
        """Lets results go; on disk when this returns.

        Args:
            cursors: Which.
            identity: Whose they must be; None for anybody's.

        Returns:
            How many were still kept.
        """
        gone, callers = set[int](), dict[str, Caller]()
        for cursor, row, number, size in await self._store.holders(cursors):
            if cursor in self._going:
                continue
            job = self._rows[row]
            if identity is None or job.info.identity == identity:
                gone.add(cursor)
                self._store.forget(row, number)
                job.acknowledged(size)
                self._store.touch(job)
                callers[job.info.identity] = job.caller
        if gone:
            # Whoever acknowledges may be cut off before they are gone from the file, and ask again.
            self._going |= gone
            self._store.once_written(lambda: self._going.difference_update(gone))
        for caller in callers.values():
            self._released(caller)
        await self._store.commit()
        return len(gone)

    async def expire(self, age: float) -> None:
        """Lets results go that nobody has acknowledged for so many seconds."""
        while cursors := await self._store.older(time.time() - age, _OLD_AT_ONCE):
            count = await self.acknowledge(cursors, None)
            logger.warning("%d results were never acknowledged, and are kept no longer (retention)", count)
            if not count:
                break

    async def _read(self, watch: "_Watch", after: int, most: int) -> tuple[list[pb.Result], int]:
        """Reads the next results.

        Returns:
            The results; and the cursor up to which there are no others.
        """
        having = [job for job in watch.jobs if job.view.last_cursor > after]
        if not having:
            return [], after
        # What is in the file by the time it is read may be more than that, and other jobs may have a part in it.
        end = max(job.view.last_cursor for job in having)
        kept = await self._store.results([job.row for job in having], after, end, most, _BATCH_BYTES)
        results: list[pb.Result] = []
        for each in kept:
            result = pb.Result.FromString(each.body)
            result.cursor, result.completes_group = each.cursor, each.last
            results.append(result)
        return results, kept[-1].cursor if kept else end


class _Watch:
    """Looks out for results of some jobs, or of all of a caller's."""

    def __init__(self, caller: Caller, jobs: Sequence[Job]) -> None:
        self.news = asyncio.Event()
        self._caller = caller
        self._named = jobs
        self._callers = [caller, *(job.caller for job in jobs)]

    @property
    def jobs(self) -> Collection[Job]:
        """The jobs, those that came to it too."""
        return self._named or self._caller.jobs.values()

    @property
    def ended(self) -> bool:
        """Whether nothing more can come."""
        return bool(self._named) and all(job.view.state in ENDED for job in self._named)

    def __enter__(self) -> "_Watch":
        for caller in self._callers:
            caller.watchers.add(self.news)
        return self

    def __exit__(self, *_: object) -> None:
        for caller in self._callers:
            caller.watchers.discard(self.news)
