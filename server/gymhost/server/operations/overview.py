"""What there is at this moment, and the figures that a history is made of."""

import asyncio
import time
from collections.abc import Mapping
from importlib import metadata

from gymhost.server.front.pool import WorkerPool
from gymhost.server.front.processes import Look, Used, own_memory
from gymhost.server.front.sessions import SessionTable
from gymhost.server.front.stream import Streams
from gymhost.server.front.workers import Worker
from gymhost.server.operations.live import Live
from gymhost.server.operations.metrics import Metrics, Speed, environment_overview, sandboxes_overview
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
        self._processes = Look()
        self._speed = Speed()
        # The CPU time of all, and when it was that.
        self._cpu = (self._began, time.process_time())

    async def look(self) -> pb.GetOverviewResponse:
        """What there is."""
        used = await self._processes.used()
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
            workers=self._workers(used),
            worker_deaths=self._pool.deaths,
            problems=[*self._pool.problems, *self._pool.quarantine.problems],
            memory_bytes=own_memory(),
            cpu_seconds=time.process_time(),
        )

    async def metrics(self) -> str:
        """All that the server counts, in Prometheus' text format.

        Raises:
            Unimplemented: It counts nothing.
        """
        if not self._pool.counts:
            raise errors.Unimplemented("the server counts nothing (gymhost serve --no-metrics)")
        overview = await self.look()
        return Metrics(overview, self._pool.count(), self._pool.count_sandboxes()).text()

    def _environments(self) -> list[pb.EnvironmentOverview]:
        states, counted = self._live.states(), self._pool.count()
        return [
            environment_overview(environment_id, counted.get(environment_id), states.get(environment_id, {}))
            for environment_id in sorted({*states, *counted})
        ]

    def _workers(self, used: Mapping[int, Used]) -> list[pb.WorkerOverview]:
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
                memory_bytes=used.get(worker.pid, Used()).memory,
                cpu_seconds=used.get(worker.pid, Used()).cpu,
                sandboxes=_sandboxes(worker),
            )
            for worker in self._pool.workers.values()
        ]

    async def figures(self) -> Mapping[str, float]:
        """A point of the history."""
        states = self._live.states()
        processes = await self._processes.used()
        used = [processes.get(worker.pid, Used()) for worker in self._pool.workers.values()]
        counted = self._speed.look(self._pool.count()) if self._pool.counts else {}
        sandboxes = sum(figures.count("live") for figures in self._pool.count_sandboxes().values())
        return {
            **counted,
            "sandboxes": float(sandboxes),
            "sessions": float(len(self._table.by_id)),
            "running": float(sum(counts["running"] for counts in states.values())),
            "queued": float(self._table.admission.waiting),
            "cpu": self._cores(sum(each.cpu for each in used)),
            "memory_bytes": float(own_memory() + sum(each.memory for each in used)),
        }

    def _cores(self, of_workers: float) -> float:
        """How many cores were in use since this was last asked."""
        before, cpu_before = self._cpu
        now, cpu = time.monotonic(), time.process_time() + of_workers
        self._cpu = now, cpu
        # Less where a worker has ended, whose time is no longer seen.
        return max(0.0, cpu - cpu_before) / max(now - before, 1e-3)


def _sandboxes(worker: Worker) -> list[pb.SandboxesOverview]:
    counted = worker.meter.read_backends() if worker.meter is not None else {}
    return [sandboxes_overview(backend, figures) for backend, figures in counted.items()]
