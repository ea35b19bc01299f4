"""Figures of the rollout service: what it tells Prometheus and others is what its clients have counted themselves."""

import asyncio
import logging
import math
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gymhost.rollout import stages
from gymhost.rollout.generators import VllmServerGenerator
from gymhost.rollout.generators.base import PrefixCache
from gymhost.rollout.service import ServiceStatus
from gymhost.rollout.service.messages import from_result
from gymhost.rollout.trajectory import Outcome, Trajectory
from gymhost.server.operations import history
from gymhost.server.rollouts import telling
from gymhost.server.rollouts.tally import MOST_ENVIRONMENTS, MOST_OUTCOMES, Histogram, Tally
from gymhost.v1 import operations_pb2, operations_pb2_grpc
from gymhost.v1 import rollouts_pb2 as pb
from support.completions_server import CompletionsServer, choice
from support.raw import bearer, channel_to
from support.rollouts_process import guessing, rollouts_stub, service, submission
from support.server import ServerProcess, until

pytestmark = pytest.mark.heavy

GAME = "gymhost/GuessNumber-v0"


@pytest.fixture
async def vllm() -> AsyncIterator[CompletionsServer]:
    """A generator that guesses 4."""
    said = guessing(4)
    async with CompletionsServer(lambda _body: choice(said)) as running:
        running.max_model_len = 4096
        yield running


class Samples:
    """What was told in Prometheus' text format."""

    def __init__(self, text: str) -> None:
        self._values: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                place = sample.name, frozenset(sample.labels.items())
                assert place not in self._values, f"told twice: {sample}"
                self._values[place] = sample.value

    def __call__(self, name: str, **labels: str) -> float:
        return self._values[f"gymhost_{name}", frozenset(labels.items())]

    def all(self, name: str) -> dict[tuple[str, ...], float]:
        """All values of a name, by the values of their labels in the order of the labels' names."""
        found = {}
        for (told, labels), value in self._values.items():
            if told == f"gymhost_{name}":
                found[tuple(value for _, value in sorted(labels))] = value
        return found


async def ended(stub: Any, job: pb.Job) -> list[Trajectory]:
    """All that comes of a job."""
    call = stub.StreamResults(pb.StreamResultsRequest(job_ids=[job.id]))
    return [from_result(result) async for response in call for result in response.results]


async def test_figures_are_what_the_client_has_counted(
    tmp_path: Path, server: ServerProcess, vllm: CompletionsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "INTERVAL", 0.1)
    settings: dict[str, Any] = {"generators": [vllm.url]}
    async with (
        service(tmp_path, server.address, **settings) as serving,
        rollouts_stub(serving.address) as stub,
        channel_to(serving.address) as channel,
    ):
        operations: Any = operations_pb2_grpc.OperationsServiceStub(channel)

        async def samples() -> Samples:
            return Samples((await operations.GetMetrics(operations_pb2.GetMetricsRequest())).text)

        jobs = [
            submission("wins and losses", 6, samples=2),
            submission("cut short", 2, limits=pb.RolloutLimits(turns=1)),
            submission("nowhere", 1, env_id="test/Nothing-v0"),
        ]
        played = [one for job in jobs for one in await ended(stub, (await stub.SubmitJob(job)).job)]
        vllm.hold.clear()
        held = (await stub.SubmitJob(submission("held"))).job
        asked = len(vllm.bodies)
        await until(lambda: len(vllm.bodies) > asked)
        status = ServiceStatus.from_message(await stub.GetStatus(pb.GetStatusRequest()))
        assert (status.run, status.generating, status.generators[0].requests) == (1, 1, 1)
        told = await samples()
        assert told("rollouts", stage="run") == told("rollouts_generating") == 1
        assert told("generator_requests", generator=vllm.url) == 1
        assert told("generator_load_tokens", generator=vllm.url) == status.generators[0].load > 0
        assert told.all("jobs") == {
            ("queued",): 0, ("running",): 1, ("paused",): 0, ("waiting",): 0,
            ("finished",): 3, ("cancelled",): 0, ("expired",): 0,
        }  # fmt: skip
        await stub.CancelRollouts(pb.CancelRolloutsRequest(job_ids=[held.id]))
        vllm.hold.set()
        played += await ended(stub, held)
        vllm.cached = 17

        # -- outcomes, rewards, tokens ---------------------------------------------------------------------------------
        told = await samples()
        ways = Counter(
            (one.env_id, one.outcome.fault or "", one.outcome.limit or "", one.outcome.kind) for one in played
        )
        assert {way[3] for way in ways} == {"terminated", "truncated", "failed", "cancelled"}
        assert told.all("rollouts_ended_total") == ways
        assert ways[GAME, "", "turns", "truncated"] > 0
        by_environment: defaultdict[str, list[Trajectory]] = defaultdict(list)
        for one in played:
            by_environment[one.env_id].append(one)
        status = ServiceStatus.from_message(await stub.GetStatus(pb.GetStatusRequest()))
        assert {each.env_id for each in status.environments} == set(by_environment)
        for each in status.environments:
            own = by_environment[each.env_id]
            rewards = [one.reward for one in own if one.reward is not None]
            labels = {"environment": each.env_id}
            assert each.ended == len(own)
            assert each.rewarded == told("rollout_reward_count", **labels) == len(rewards)
            assert each.rewards == told("rollout_reward_sum", **labels) == pytest.approx(sum(rewards))
            at_most_half = sum(reward <= 0.5 for reward in rewards)
            assert told("rollout_reward_bucket", **labels, le="0.5") == at_most_half
            assert each.turns == told("rollout_turns_sum", **labels) == sum(len(one.turns) for one in own)
            sampled = sum(one.sampled_tokens for one in own)
            assert each.sampled_tokens == told("rollout_sampled_tokens_total", **labels) == sampled
            for stage in ("queue", "init", "run", "eval", "generation", "environment"):
                spent = [seconds for one in own if (seconds := getattr(one.timings, stage))]
                assert told("rollout_seconds_count", **labels, stage=stage) == len(spent)
                assert told("rollout_seconds_sum", **labels, stage=stage) == pytest.approx(sum(spent))
                if spent:
                    durations = each.stages[stage]
                    assert (durations.count, durations.sum) == (len(spent), pytest.approx(sum(spent)))
                    assert 0 < durations.p50 <= durations.p99
        game = next(each for each in status.environments if each.env_id == GAME)
        rewards = [one.reward for one in by_environment[GAME] if one.reward is not None]
        assert len(set(rewards)) > 1
        mean = sum(rewards) / len(rewards)
        assert game.mean_reward == pytest.approx(mean)
        spread = math.sqrt(sum((reward - mean) ** 2 for reward in rewards) / len(rewards))
        assert game.reward_spread == pytest.approx(spread)

        # -- generators and servers ------------------------------------------------------------------------------------
        prompts = sum(len(body["prompt"]) for body in vllm.bodies)
        async with asyncio.timeout(10):
            # What the server tells of itself comes a little later.
            while (told := await samples())("generator_cached_prompt_tokens_total", generator=vllm.url) != 17:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        sampled = sum(one.sampled_tokens for one in played)
        status = ServiceStatus.from_message(await stub.GetStatus(pb.GetStatusRequest()))
        [at] = status.generators
        assert at.sampled_tokens == told("generator_sampled_tokens_total", generator=vllm.url) == sampled
        turns = sum(len(one.turns) for one in played if one.outcome.kind != "cancelled")
        assert at.generations == told("generator_generations_total", generator=vllm.url) == turns
        assert at.prompt_tokens == told("generator_prompt_tokens_total", generator=vllm.url) == prompts
        assert at.cached_prompt_tokens == 17
        assert told("generator_up", generator=vllm.url) == 1
        assert told("generator_draining", generator=vllm.url) == 0
        assert told("environment_server_up", address=server.address) == 1
        assert (status.dropped, status.waits_for, status.role) == (0, "", "admin")
        assert status.unacknowledged == told("results_unacknowledged") == len(played)
        assert status.unacknowledged_bytes == told("results_unacknowledged_bytes") > 0
        assert told("rollouts_process_cpu_seconds_total") > 0

        # -- history ---------------------------------------------------------------------------------------------------
        got = await operations.GetHistory(operations_pb2.GetHistoryRequest())
        place = {name: number for number, name in enumerate(got.series)}
        assert set(place) == {
            "queued", "init", "run", "eval", "ended_per_second", "failed_per_second", "tokens_per_second", "reward",
            "prefix_hits",
        }  # fmt: skip
        assert got.interval == pytest.approx(0.1)
        points = got.points
        assert sum(point.values[place["ended_per_second"]] for point in points) > 0
        assert sum(point.values[place["tokens_per_second"]] for point in points) > 0
        means = [mean for point in points if not math.isnan(mean := point.values[place["reward"]])]
        assert means
        assert all(min(rewards) <= mean <= max(rewards) for mean in means)
        later = await operations.GetHistory(operations_pb2.GetHistoryRequest(after=points[-2].time))
        assert later.points[0].time == points[-1].time

        with pytest.raises(grpc.aio.AioRpcError, match="hosts no sessions") as raised:
            await operations.GetOverview(operations_pb2.GetOverviewRequest())
        assert raised.value.code() == grpc.StatusCode.UNIMPLEMENTED
        with pytest.raises(grpc.aio.AioRpcError, match="hosts no sessions"):
            await operations.FollowSession(operations_pb2.FollowSessionRequest(name="1-1")).read()


async def test_who_may_look(tmp_path: Path, server: ServerProcess, vllm: CompletionsServer) -> None:
    tokens = {"look": "dan read-only"}
    async with (
        service(tmp_path, server.address, generators=[vllm.url], tokens=tokens) as serving,
        channel_to(serving.address) as channel,
    ):
        operations: Any = operations_pb2_grpc.OperationsServiceStub(channel)
        for ask, request in (
            (operations.GetMetrics, operations_pb2.GetMetricsRequest()),
            (operations.GetHistory, operations_pb2.GetHistoryRequest()),
        ):
            assert (await ask(request, metadata=bearer("look"))).ByteSize()
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await ask(request, metadata=bearer("guessed"))
            assert raised.value.code() == grpc.StatusCode.UNAUTHENTICATED


async def test_a_generator_that_does_not_tell_of_its_cache(vllm: CompletionsServer) -> None:
    generator = VllmServerGenerator(vllm.url)
    assert await generator.prefix_cache() == PrefixCache(0, 0)
    vllm.metrics = False  # as with --disable-log-stats
    assert await generator.prefix_cache() is None
    await vllm.stop()
    assert await generator.prefix_cache() is None
    await generator.aclose()
    assert await generator.prefix_cache() is None


# -- counting ----------------------------------------------------------------------------------------------------------


def test_what_others_name_is_bounded() -> None:
    tally = Tally()
    for number in range(MOST_ENVIRONMENTS + 7):
        tally.count(Trajectory(env_id=f"test/Env-v{number}", reward=1.0))
    for number in range(MOST_OUTCOMES + 7):
        outcome = Outcome(kind="truncated", limit=f"limit {number}")
        tally.count(Trajectory(env_id="test/Env-v0", outcome=outcome, reward=math.inf))
    assert len(tally.environments) == MOST_ENVIRONMENTS + 1
    assert tally.environments["(others)"].outcomes.total() == 7
    outcomes = tally.environments["test/Env-v0"].outcomes
    assert len(outcomes) == MOST_OUTCOMES + 1
    assert outcomes["truncated", "(others)", ""] == 8
    assert tally.ended == 2 * 7 + MOST_ENVIRONMENTS + MOST_OUTCOMES
    assert tally.rewards == (MOST_ENVIRONMENTS + 7, MOST_ENVIRONMENTS + 7.0)


def test_quantiles_of_a_histogram() -> None:
    histogram = Histogram((1.0, 2.0, 4.0))
    assert histogram.quantile(0.5) == 0.0
    for value in (0.5, 1.0, 1.5, 3.0, 3.0, 3.0, 4.0, 4.0):
        histogram.observe(value)
    assert histogram.buckets() == [("1", 2), ("2", 3), ("4", 8), ("+Inf", 8)]
    assert histogram.quantile(0.25) == 1.0
    assert histogram.quantile(0.5) == pytest.approx(2.4)
    assert histogram.quantile(1.0) == 4.0
    histogram.observe(100.0)
    assert histogram.quantile(1.0) == 4.0  # nothing is known of what is above the last bound


def test_a_line_of_the_engine_names_job_and_rollout(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger(stages.__name__)
    logger.addFilter(telling.named)
    try:
        logger.warning("a rollout failed", extra={"rollout": "abc/17.3"})
        logger.warning("another line")
    finally:
        logger.removeFilter(telling.named)
    one, other = caplog.records
    assert (getattr(one, "job"), getattr(one, "rollout")) == ("abc", "abc/17")  # noqa: B009 - logging declares none
    assert not hasattr(other, "job")
