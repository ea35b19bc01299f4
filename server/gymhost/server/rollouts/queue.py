"""Whose turn it is: the highest priority, then callers in turn, then the jobs of a caller in turn."""

import asyncio
from collections import OrderedDict, deque

from gymhost.server.rollouts.job import Job

__all__ = ["FairQueue"]


class FairQueue:
    """Jobs that may begin a rollout now.

    Whoever takes a job from it looks whether it still may, begins one rollout, and offers it again.
    """

    def __init__(self) -> None:
        self._levels: dict[int, OrderedDict[str, deque[Job]]] = {}
        self._inside: set[int] = set()
        self._offered = asyncio.Event()

    def offer(self, job: Job) -> None:
        """Puts a job at the end of its caller's, unless it is there already."""
        if job.row in self._inside:
            return
        self._inside.add(job.row)
        callers = self._levels.setdefault(job.info.priority, OrderedDict())
        callers.setdefault(job.info.identity, deque()).append(job)
        self._offered.set()

    def take(self) -> Job | None:
        """Takes the job out whose turn it is."""
        if not self._levels:
            return None
        priority = max(self._levels)
        callers = self._levels[priority]
        identity, jobs = next(iter(callers.items()))
        job = jobs.popleft()
        self._inside.discard(job.row)
        if jobs:
            callers.move_to_end(identity)
        else:
            del callers[identity]
            if not callers:
                del self._levels[priority]
        return job

    async def offered(self) -> None:
        """Waits, where there is none, until there is one."""
        if not self._levels:
            self._offered.clear()
            await self._offered.wait()

    def wake(self) -> None:
        """Has whoever waits look again, though there may be none."""
        self._offered.set()
