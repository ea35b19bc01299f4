"""Workers that are renewed before they do harm: by their age, their memory, and how many sessions they have had."""

import asyncio
import contextlib
import logging
import time

from gymhost.server.config import ServerConfig
from gymhost.server.front.pool import WorkerPool
from gymhost.server.front.processes import Used, used_by_group
from gymhost.server.front.workers import Worker
from gymhost.wire import errors
from gymhost.wire.words import counted

__all__ = ["HARD", "Rotation"]

log = logging.getLogger("gymhost.server")

# Seconds between two looks, and after a new worker that did not start.
PERIOD = 1.0
BACKOFF = 30.0
# The most that looking may take of a core.
SHARE = 0.02
# Beyond so many times its memory a worker is killed.
HARD = 1.5


class Rotation:
    """Renews workers one after the other, and kills those that go far beyond their memory.

    A new one is started first; then the old one gets no more sessions, and ends when its last one has left.

    Args:
        config: The server's settings.
        pool: The workers.
    """

    def __init__(self, config: ServerConfig, pool: WorkerPool) -> None:
        self._config = config
        self._pool = pool
        self._not_before = 0.0

    async def watch(self) -> None:
        """Looks after the workers, for ever."""
        async with asyncio.TaskGroup() as tasks:
            pause = PERIOD
            # A start may take long, and memory is looked at meanwhile.
            renewal: asyncio.Task[None] | None = None
            while True:
                await asyncio.sleep(pause)
                used: dict[int, Used] = {}
                if self._config.worker_max_memory or any(worker.memory_limit for worker in self._pool.workers.values()):
                    began = time.perf_counter()
                    with contextlib.suppress(OSError):  # the machine has no descriptor left: it is looked at again
                        used = await asyncio.to_thread(used_by_group)
                    pause = max(PERIOD, (time.perf_counter() - began) / SHARE)
                for worker in list(self._pool.workers.values()):
                    self._limit_memory(worker, used.get(worker.pid, Used()).memory)
                now = asyncio.get_running_loop().time()
                if (renewal is None or renewal.done()) and now >= self._not_before:
                    due = self._due(now, used)
                    renewal = tasks.create_task(self._renew(*due)) if due is not None else None

    async def _renew(self, worker: Worker, why: str) -> None:
        try:
            await self._pool.renew(worker, why)
        except errors.Error as error:
            log.error("worker %d goes on, though %s: %s", worker.number, why, error.message)
            self._not_before = asyncio.get_running_loop().time() + BACKOFF

    def _limit_memory(self, worker: Worker, used: int) -> None:
        most = self._config.worker_max_memory
        if worker.memory_limit and used > worker.memory_limit:
            what = f"the environment's memory_limit of {mib(worker.memory_limit)}"
        elif most and used > HARD * most:
            what = f"{HARD:g} times --worker-max-memory ({mib(most)})"
        else:
            return
        worker.hoards = True
        worker.kill(f"its memory was above {what}: {mib(used)}")

    def _due(self, now: float, used: dict[int, Used]) -> tuple[Worker, str] | None:
        """The worker that is to be renewed next, the oldest first, and why."""
        config = self._config
        for worker in self._pool.shared:
            age, memory = now - worker.started, used.get(worker.pid, Used()).memory
            if config.worker_max_age and age > config.worker_max_age:
                return worker, f"it was older than {config.worker_max_age:g} s (--worker-max-age)"
            if config.worker_max_sessions and worker.placed >= config.worker_max_sessions:
                return worker, f"it had had {counted(worker.placed, 'session')} (--worker-max-sessions)"
            # One that has had no session is no smaller when it is new.
            if config.worker_max_memory and memory > config.worker_max_memory and worker.placed:
                limit = mib(config.worker_max_memory)
                return worker, f"its memory of {mib(memory)} was above --worker-max-memory ({limit})"
        return None


def mib(size: int) -> str:
    """A number of bytes, for people."""
    return f"{size / 2**20:.0f} MiB"
