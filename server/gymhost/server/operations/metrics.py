"""What an environment server counts: for the overview and the history, and for Prometheus."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    SummaryMetricFamily,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gymhost.server.meter import BOUNDS, STAGES, Figures, Spell
from gymhost.v1 import environments_pb2
from gymhost.v1 import operations_pb2 as pb

__all__ = ["Metrics", "Speed", "environment_overview", "sandboxes_overview"]

_STATES = ("making", "running", "waiting", "closing")
_SANDBOX_STATES = ("live", "spare", "making")
_BOUNDS = [*(f"{bound:g}" for bound in BOUNDS), "+Inf"]


def environment_overview(
    environment_id: str, figures: Figures | None, states: Mapping[str, int]
) -> pb.EnvironmentOverview:
    """What there is of an environment.

    Args:
        environment_id: Its id.
        figures: What was counted of it; None where nothing was.
        states: How many of its sessions are in each state.
    """
    overview = pb.EnvironmentOverview(environment_id=environment_id)
    for state in _STATES:
        setattr(overview, state, states.get(state, 0))
    if figures is None:
        return overview
    for name in ("created", "closed", "expired", "lost", "steps", "resets", "terminated", "truncated", "rewarded"):
        setattr(overview, name, figures.count(name))
    overview.rewards, overview.rewards_squared = figures.sum("rewards"), figures.sum("rewards_squared")
    overview.received_bytes, overview.sent_bytes = figures.received, figures.sent
    for code, number in figures.failures().items():
        overview.failures[_code(code)] = number
    for stage in STAGES:
        if (spell := figures.spell(stage)).count:
            overview.stages[stage].CopyFrom(_durations(spell))
    return overview


def sandboxes_overview(backend: str, figures: Figures) -> pb.SandboxesOverview:
    """What there is of a backend's sandboxes in a worker."""
    spell = figures.spell("making")
    counts = {name: figures.count(name) for name in ("live", "spare", "making", "made", "failed")}
    return pb.SandboxesOverview(backend=backend, **counts, making_time=_durations(spell) if spell.count else None)


def _code(code: int) -> str:
    if code not in environments_pb2.ReplyCode.values():
        return str(code)
    return environments_pb2.ReplyCode.Name(code).removeprefix("REPLY_CODE_")  # pyright: ignore[reportArgumentType]


def _durations(spell: Spell) -> pb.Durations:
    return pb.Durations(count=spell.count, sum=spell.sum, p50=spell.quantile(0.5), p99=spell.quantile(0.99))


class Speed:
    """How fast it goes, over all environments, since this was last asked."""

    def __init__(self) -> None:
        self._before = Figures()
        self._looked = time.monotonic()

    def look(self, environments: Mapping[str, Figures]) -> dict[str, float]:
        """Figures of the history, by name; NaN for the latency of no steps."""
        total = Figures()
        for figures in environments.values():
            total.add(figures)
        before, self._before = self._before, total
        looked, self._looked = self._looked, time.monotonic()
        new, seconds = total.since(before), max(1e-3, self._looked - looked)
        steps = new.spell("step")
        return {
            "steps_per_second": new.count("steps") / seconds,
            "step_p50_seconds": steps.quantile(0.5),
            "step_p99_seconds": steps.quantile(0.99),
            "failures_per_second": sum(new.failures().values()) / seconds,
        }


class Metrics(Collector):
    """What is counted, in Prometheus' text format. Made for each time that it is asked for.

    Args:
        overview: What there is.
        environments: What was counted of each environment.
        backends: What was counted of each backend of sandboxes, workers that have ended included.
    """

    def __init__(
        self, overview: pb.GetOverviewResponse, environments: Mapping[str, Figures], backends: Mapping[str, Figures]
    ) -> None:
        self._overview = overview
        self._environments = environments
        self._backends = backends

    def text(self) -> str:
        """The text."""
        registry = CollectorRegistry()
        registry.register(self)
        ProcessCollector(registry=registry)
        return generate_latest(registry).decode()

    def collect(self) -> Iterator[Metric]:
        """Yields what there is; for Prometheus' library."""
        yield from self._of_server()
        yield from self._of_sessions()
        yield from self._of_commands()
        yield from self._of_workers()
        yield from self._of_sandboxes()

    def _of_server(self) -> Iterator[Metric]:
        now = self._overview
        yield _gauge("queue_sessions", "Sessions that are asked for while all places are taken.", [((), now.queued)])
        yield _gauge("capacity_sessions", "Places for sessions.", [((), now.capacity)])
        yield _gauge("places_taken", "Places for sessions that are taken.", [((), now.taken)])
        yield _gauge("streams", "Streams of clients, on which sessions run.", [((), now.streams)])
        yield _gauge("draining", "Whether the server takes no new sessions.", [((), now.draining)])

    def _of_sessions(self) -> Iterator[Metric]:
        states = (
            ((each.environment_id, state), getattr(each, state))
            for each in self._overview.environments
            for state in _STATES
        )
        yield _gauge("sessions", "Sessions, by what they do.", states, "environment", "state")
        counted = self._environments.items()
        yield _counter(
            "sessions_created",
            "Sessions that were made; each copy of a vector session is one.",
            ((name, figures.count("created")) for name, figures in counted),
            "environment",
        )
        yield _counter(
            "sessions_ended",
            "Sessions that ended: closed by their client or an operator, expired, lost with their worker.",
            (
                ((name, reason), figures.count(reason))
                for name, figures in counted
                for reason in ("closed", "expired", "lost")
            ),
            "environment",
            "reason",
        )

    def _of_commands(self) -> Iterator[Metric]:
        counted = self._environments.items()
        for counter, what, name in (
            ("steps", "Steps, those that failed included; each copy of a vector session steps.", "steps"),
            ("resets", "Resets, those that failed included, and those of the copies of vector sessions.", "resets"),
        ):
            yield _counter(counter, what, ((each, figures.count(name)) for each, figures in counted), "environment")
        yield _counter(
            "failures",
            "Commands, makings and closes that failed, by the code of their replies.",
            (((name, _code(code)), number) for name, figures in counted for code, number in figures.failures().items()),
            "environment",
            "code",
        )
        yield _counter(
            "episodes",
            "Episodes that ended, and how.",
            (((name, end), figures.count(end)) for name, figures in counted for end in ("terminated", "truncated")),
            "environment",
            "end",
        )
        rewards = SummaryMetricFamily(
            "gymhost_episode_reward", "Rewards of episodes that ended and have one.", labels=["environment"]
        )
        for name, figures in counted:
            rewards.add_metric([name], figures.count("rewarded"), figures.sum("rewards"))
        yield rewards
        yield _counter(
            "payload_bytes",
            "Bytes of the payloads of commands and of their replies.",
            (
                ((name, way), bytes_of)
                for name, figures in counted
                for way, bytes_of in (("received", figures.received), ("sent", figures.sent))
            ),
            "environment",
            "direction",
        )
        stages = HistogramMetricFamily(
            "gymhost_stage_seconds",
            "How long the stages of sessions took; a command of a vector session is one.",
            labels=["environment", "stage"],
        )
        for name, figures in counted:
            for stage in STAGES:
                if (spell := figures.spell(stage)).count:
                    stages.add_metric([name, stage], _buckets(spell), spell.sum)
        yield stages

    def _of_workers(self) -> Iterator[Metric]:
        workers = self._overview.workers
        states = {state: sum(worker.state == state for worker in workers) for state in ("starting", "ready", "closing")}
        yield _gauge("workers", "Worker processes, by state.", states.items(), "state")
        deaths = [((), self._overview.worker_deaths)]
        yield _counter("worker_deaths", "Workers that ended without having been asked to.", deaths)
        memory = ((str(worker.number), worker.memory_bytes) for worker in workers)
        yield _gauge("worker_memory_bytes", "Resident memory of a worker and what it has started.", memory, "worker")
        cpu = ((str(worker.number), worker.cpu_seconds) for worker in workers)
        yield _counter("worker_cpu_seconds", "CPU time of a worker and what it has started.", cpu, "worker")

    def _of_sandboxes(self) -> Iterator[Metric]:
        backends = self._backends.items()
        states = (((name, state), figures.count(state)) for name, figures in backends for state in _SANDBOX_STATES)
        yield _gauge("sandboxes", "Sandboxes: in use, kept ready, being made.", states, "backend", "state")
        made = ((name, figures.count("made")) for name, figures in backends)
        yield _counter("sandboxes_made", "Sandboxes that were made.", made, "backend")
        failed = ((name, figures.count("failed")) for name, figures in backends)
        yield _counter("sandbox_failures", "Sandboxes that could not be made.", failed, "backend")
        took = HistogramMetricFamily(
            "gymhost_sandbox_making_seconds", "How long it took to make a sandbox.", labels=["backend"]
        )
        for name, figures in backends:
            spell = figures.spell("making")
            took.add_metric([name], _buckets(spell), spell.sum)
        yield took


_Values = Iterable[tuple[str | Sequence[str], float]]
"""Values with their labels: one alone is not in a sequence."""


def _gauge(name: str, what: str, values: _Values, *labels: str) -> Metric:
    return _filled(GaugeMetricFamily(f"gymhost_{name}", what, labels=labels), values)


def _counter(name: str, what: str, values: _Values, *labels: str) -> Metric:
    return _filled(CounterMetricFamily(f"gymhost_{name}", what, labels=labels), values)


def _filled(family: Any, values: _Values) -> Metric:
    for labels, value in values:
        family.add_metric([labels] if isinstance(labels, str) else labels, value)
    return family


def _buckets(spell: Spell) -> list[tuple[str, float]]:
    """Prometheus' buckets, each of which has those below it too."""
    total, buckets = 0.0, list[tuple[str, float]]()
    for bound, number in zip(_BOUNDS, spell.buckets, strict=True):
        total += number
        buckets.append((bound, total))
    return buckets
