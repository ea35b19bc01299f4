"""What there is at this moment, and the figures that a history is made of."""

import asyncio
import os
import time
from collections.abc import Mapping
from importlib import metadata

from gymhost.server.front.pool import WorkerPool
from gymhost.server.front.processes import memory_by_group
from gymhost.server.front.sessions import SessionTable
from gymhost.server.front.stream import Streams
from gymhost.server.operations.live import Live
from gymhost.v1 import operations_pb2 as pb
from gymhost.wire import errors

__all__ = ["SERIES", "Overview"]

SERIES = (
    "sessions",
    "running",
    "queued",
    "steps_per_second",
    "step_p50_seconds",
    "step_p99_seconds",
    "failures_per_second",
    "sandboxes",
    "cpu",
    "memory_bytes",
)


class Overview:
    """Looks at the server as a whole.

    Args:
        table: The sessions.
        pool: The workers.
        streams: The streams.
        live: Looks at single sessions.
        capacity: The most sessions at once.
    """

    def __init__(self, table: SessionTable, pool: WorkerPool, streams: Streams, live: Live, capacity: int) -> None:
        self._table = table
        self._pool = pool
        self._streams = streams
        self._live = live
        self._capacity = capacity
        self._began = time.monotonic()

    async def look(self) -> pb.GetOverviewResponse:
        """What there is."""
        memory = await _memory()
        admission = self._table.admission
        return pb.GetOverviewResponse(
            server_instance=self._streams.instance,
            version=metadata.version("gymhost"),
            uptime_seconds=time.monotonic() - self._began,
            draining=not self._table.accepting,
            capacity=self._capacity,
            taken=admission.taken,
            queued=admission.waiting,
            streams=self._streams.count,
            environments=self._environments(),
            workers=self._workers(memory),
            worker_deaths=self._pool.deaths,
            problems=[*self._pool.problems, *self._pool.quarantine.problems],
            memory_bytes=memory.get(os.getpgrp(), 0),
            cpu_seconds=time.process_time(),
        )

    def metrics(self) -> str:
        """All that the server counts, in Prometheus' text format.

        Raises:
            Unimplemented: It counts nothing.
        """
        raise errors.Unimplemented("the server counts nothing (gymhost serve --metrics)")

    def _environments(self) -> list[pb.EnvironmentOverview]:
        return [
            pb.EnvironmentOverview(
                environment_id=environment_id,
                making=counts["making"],
                running=counts["running"],
                waiting=counts["waiting"],
                closing=counts["closing"],
            )
            for environment_id, counts in sorted(self._live.states().items())
        ]

    def _workers(self, memory: Mapping[int, int]) -> list[pb.WorkerOverview]:
        now = asyncio.get_running_loop().time()
        return [
            pb.WorkerOverview(
                number=worker.number,
                process_id=worker.pid,
                state="starting" if not worker.ready else "closing" if worker.closing else "ready",
                reason=worker.retired or worker.reason,
                environment_id=worker.environment_id,
                sessions=worker.sessions,
                age_seconds=now - worker.started if worker.ready else 0.0,
                memory_bytes=memory.get(worker.pid, 0),
            )
            for worker in self._pool.workers.values()
        ]

    async def figures(self) -> Mapping[str, float]:
        """A point of the history."""
        states = self._live.states()
        memory = await _memory()
        return {
            "sessions": float(len(self._table.by_id)),
            "running": float(sum(counts["running"] for counts in states.values())),
            "queued": float(self._table.admission.waiting),
            "memory_bytes": float(sum(memory.get(worker.pid, 0) for worker in self._pool.workers.values())),
        }


async def _memory() -> dict[int, int]:
    try:
        return await asyncio.to_thread(memory_by_group)
    except OSError:
        return {}  # the machine has no descriptor left
