"""What the rollout service counts, for Prometheus and whoever watches it: OperationsService, as far as it applies."""

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import grpc
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gymhost.rollout.engine import RolloutEngine
from gymhost.rollout.servers import Servers
from gymhost.server.calls import Context, Guard, abort, admitted
from gymhost.server.identity import Identities
from gymhost.server.operations.history import History
from gymhost.server.rollouts.generators import Generators
from gymhost.server.rollouts.jobs import Jobs
from gymhost.v1 import operations_pb2 as pb
from gymhost.wire import errors

__all__ = ["OPERATIONS", "Figures", "RolloutOperations", "operations_handlers"]

OPERATIONS = pb.DESCRIPTOR.services_by_name["OperationsService"].full_name

SERIES = (
    "queued",
    "init",
    "run",
    "eval",
    "ended_per_second",
    "failed_per_second",
    "tokens_per_second",
    "reward",
    "prefix_hits",
)


class Figures(Collector):
    """The figures of a rollout service.

    Args:
        jobs: The jobs.
        engine: What plays.
        generators: The generators.
        source: The environment servers.

    Attributes:
        history: How it went over the last hour.
    """

    def __init__(self, jobs: Jobs, engine: RolloutEngine, generators: Generators, source: Servers) -> None:
        self._jobs = jobs
        self._engine = engine
        self._generators = generators
        self._source = source
        self._registry = CollectorRegistry()
        self._registry.register(self)
        # Under a name of its own: an environment server beside it tells of itself at the same place.
        ProcessCollector("gymhost_rollouts", registry=self._registry)
        self.history = History(SERIES, self._look)
        self._last = self._totals()
        self._looked = time.monotonic()

    def text(self) -> str:
        """All that is counted, in Prometheus' text format."""
        return generate_latest(self._registry).decode()

    # -- history -------------------------------------------------------------------------------------------------------

    async def _look(self) -> Mapping[str, float]:
        looked, self._looked = self._looked, time.monotonic()
        seconds = max(1e-3, self._looked - looked)
        await self._generators.read(seconds)
        status = self._engine.status()
        before, now = self._last, self._totals()
        self._last = now
        rewarded = now["rewarded"] - before["rewarded"]
        return {
            "queued": self._jobs.counts().queued,
            "init": status.waiting + status.init,
            "run": status.ready + status.run,
            "eval": status.eval,
            **{f"{name}_per_second": (now[name] - before[name]) / seconds for name in ("ended", "failed", "tokens")},
            "reward": (now["rewards"] - before["rewards"]) / rewarded if rewarded else math.nan,
            "prefix_hits": self._generators.prefix_hits,
        }

    def _totals(self) -> dict[str, float]:
        tally = self._jobs.tally
        rewarded, rewards = tally.rewards
        return {
            "ended": tally.ended,
            "failed": tally.failed,
            "tokens": self._engine.status().tokens,
            "rewarded": rewarded,
            "rewards": rewards,
        }

    # -- Prometheus ----------------------------------------------------------------------------------------------------

    def collect(self) -> Iterator[Metric]:
        """Yields what there is now; for Prometheus' library."""
        yield from self._of_rollouts()
        yield from self._of_environments()
        yield from self._of_jobs()
        yield from self._of_generators()
        yield from self._of_servers()

    def _of_rollouts(self) -> Iterator[Metric]:
        status, counts, tally = self._engine.status(), self._jobs.counts(), self._jobs.tally
        stages = {
            "queued": counts.queued,
            "init": status.waiting + status.init,
            "ready": status.ready,
            "run": status.run,
            "eval": status.eval,
        }
        yield _gauge("rollouts", "Rollouts that have not ended, by stage.", stages.items(), "stage")
        yield _gauge("rollouts_generating", "Rollouts whose model is sampling.", [((), status.generating)])
        yield _counter("rollout_retries", "Rollouts that were begun again after a fault.", [((), counts.retries)])
        yield _counter(
            "rollouts_dropped", "Rollouts that had ended and were not wanted afterwards.", [((), tally.dropped)]
        )
        yield _counter(
            "rollout_tokens",
            "Tokens that were sampled, also in rollouts that have not ended, or are begun again.",
            [((), status.tokens)],
        )

    def _of_environments(self) -> Iterator[Metric]:
        environments = self._jobs.tally.environments
        outcomes = (
            ((environment, *how), count)
            for environment, ended in environments.items()
            for how, count in ended.outcomes.items()
        )
        yield _counter(
            "rollouts_ended",
            "Rollouts that have ended, by outcome, the limit that ended them, and whose fault it was.",
            outcomes,
            "environment",
            "outcome",
            "limit",
            "fault",
        )
        yield _counter(
            "rollout_sampled_tokens",
            "Tokens that were sampled in rollouts that have ended.",
            ((environment, ended.tokens) for environment, ended in environments.items()),
            "environment",
        )
        rewards = HistogramMetricFamily(
            "gymhost_rollout_reward", "Rewards of rollouts that have one.", labels=["environment"]
        )
        turns = HistogramMetricFamily(
            "gymhost_rollout_turns", "Turns of rollouts that have ended.", labels=["environment"]
        )
        seconds = HistogramMetricFamily(
            "gymhost_rollout_seconds",
            "Where the time of rollouts that have ended went, of those that got so far.",
            labels=["environment", "stage"],
        )
        for environment, ended in environments.items():
            rewards.add_metric([environment], ended.rewards.buckets(), ended.rewards.sum)
            turns.add_metric([environment], ended.turns.buckets(), ended.turns.sum)
            for stage, taken in ended.stages.items():
                seconds.add_metric([environment, stage], taken.buckets(), taken.sum)
        yield from (rewards, turns, seconds)

    def _of_jobs(self) -> Iterator[Metric]:
        counts = self._jobs.counts()
        yield _gauge("jobs", "Jobs that are kept, by state.", counts.states.items(), "state")
        yield _gauge("results_unacknowledged", "Results that wait to be acknowledged.", [((), counts.unacknowledged)])
        yield _gauge("results_unacknowledged_bytes", "The bytes that these take.", [((), counts.unacknowledged_bytes)])
        version = self._generators.pool.policy_version
        yield _gauge("policy_version", "The version of the weights that rollouts are sampled with.", [((), version)])

    def _of_generators(self) -> Iterator[Metric]:
        each = self._generators.infos()
        for name, what, value in (
            ("up", "Whether a generator answers and has the weights of the policy version.", "up"),
            ("draining", "Whether a generator is sent nothing more.", "draining"),
            ("load_tokens", "Tokens in flight at a generator: prompts, and what may still be sampled.", "load"),
            ("requests", "Generations in flight at a generator.", "requests"),
            ("policy_version", "The version of a generator's weights.", "policy_version"),
        ):
            values = ((one.name, one.healthy and one.current if value == "up" else getattr(one, value)) for one in each)
            yield _gauge(f"generator_{name}", what, values, "generator")
        for name, what, value in (
            ("generations", "Generations that a generator has ended.", "generations"),
            ("sampled_tokens", "Tokens that a generator has sampled for the service.", "sampled_tokens"),
            ("prompt_tokens", "Tokens of prompts of all clients of a generator, as it tells itself.", "prompt_tokens"),
            (
                "cached_prompt_tokens",
                "Those of them that it had in its prefix cache, as it tells itself.",
                "cached_prompt_tokens",
            ),
        ):
            yield _counter(f"generator_{name}", what, ((one.name, getattr(one, value)) for one in each), "generator")

    def _of_servers(self) -> Iterator[Metric]:
        yield _gauge(
            "environment_server_up",
            "Whether an environment server could be reached when it was last needed.",
            self._source.reachable.items(),
            "address",
        )
        yield _gauge(
            "environment_server_sessions",
            "Sessions that the service has open at an environment server.",
            self._source.sessions.items(),
            "address",
        )


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


class RolloutOperations:
    """What the service answers of OperationsService.

    Args:
        identities: Who is let in.
        figures: The figures.
    """

    def __init__(self, identities: Identities, figures: Figures) -> None:
        self._identities = identities
        self._figures = figures

    async def GetMetrics(self, request: pb.GetMetricsRequest, context: Context) -> pb.GetMetricsResponse:  # noqa: N802
        """Tells all that is counted."""
        async with admitted(self._identities, context, "GetMetrics"):
            return pb.GetMetricsResponse(text=self._figures.text())
        raise AssertionError("unreachable")

    async def GetHistory(self, request: pb.GetHistoryRequest, context: Context) -> pb.GetHistoryResponse:  # noqa: N802
        """Tells how it went."""
        async with admitted(self._identities, context, "GetHistory"):
            return self._figures.history.since(request.after)
        raise AssertionError("unreachable")


def operations_handlers(service: RolloutOperations) -> grpc.GenericRpcHandler:
    """How it is served: what is of sessions alone has nothing to tell here."""
    guard = Guard()
    made: dict[str, Any] = {}
    grpc_: Any = grpc
    for method in pb.DESCRIPTOR.services_by_name["OperationsService"].methods:
        if (serve := getattr(service, method.name, None)) is not None:
            read = getattr(pb, method.input_type.name).FromString
            write = getattr(pb, method.output_type.name).SerializeToString
            made[method.name] = guard.around(grpc_.unary_unary_rpc_method_handler(serve, read, write))
        elif method.server_streaming:
            made[method.name] = grpc_.unary_stream_rpc_method_handler(_no_sessions)
        else:
            made[method.name] = grpc_.unary_unary_rpc_method_handler(_no_sessions)
    return grpc.method_handlers_generic_handler(OPERATIONS, made)


async def _no_sessions(_request: Any, context: Context) -> None:
    await abort(
        context,
        errors.Unimplemented(
            "this is a rollout service, which hosts no sessions: GetMetrics and GetHistory are what it has to tell "
            "here, GetStatus and ListJobs of RolloutService the rest"
        ),
    )
