"""The client of the rollout service: nothing lost and nothing twice, whatever becomes of its calls."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gymhost.client import CapacityExhausted, ConnectionLost, InvalidArgument, ServerUnavailable, Unimplemented
from gymhost.rollout import Limits, RolloutRequest, Sampling, Trajectory
from gymhost.rollout.service import GroupRules, Job, RolloutClient
from gymhost.v1 import rollouts_pb2 as pb
from support.certificates import Authority
from support.scripted_rollouts import ScriptedService
from support.server import ServerProcess

REQUESTS = [RolloutRequest("Guess-v0", task=task, labels={"place": task}) for task in range(3)]


@pytest.fixture
async def service() -> AsyncIterator[ScriptedService]:
    made = ScriptedService()  # pyright: ignore[reportAbstractUsage] - what it lacks is not called
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def rollouts(service: ScriptedService) -> AsyncIterator[RolloutClient]:
    async with RolloutClient(service.address) as client:
        yield client


def places(trajectories: list[Trajectory]) -> list[tuple[int | None, int]]:
    return [(each.task, each.index) for each in trajectories]


@asynccontextmanager
async def playing(service: ScriptedService, *, backwards: bool = False) -> AsyncGenerator[None]:
    """Plays the first job that is submitted."""

    async def play() -> None:
        await service.until(lambda: service.jobs)
        await service.play_all("job-0", backwards=backwards)

    task = asyncio.create_task(play())
    try:
        yield
    finally:
        await task


async def take(job: Job, number: int, **how: Any) -> list[Trajectory]:
    """The first trajectories of a job; then its iterator is closed."""
    taken: list[Trajectory] = []
    async with aclosing(job.results(**how)) as results:
        async for trajectory in results:
            taken.append(trajectory)
            if len(taken) == number:
                break
    return taken


ALL = [(task, index) for task in range(3) for index in range(2)]


async def test_a_job_says_all_that_it_was_told(service: ScriptedService, rollouts: RolloutClient):
    job = await rollouts.submit(
        [RolloutRequest("Guess-v0", seed=7, split="test", kwargs={"size": (3, 4)}, options={"easy": True}, group="g")],
        samples=8,
        sampling={"temperature": 0.5},
        limits=Limits(turns=4, retries=1),
        grouping=GroupRules(extra=2, patience=1.5, keep="variance", target=1, max_staleness=2),
        priority=-3,
        time_limit=60.0,
        agent="mini",
        agent_options={"steps": 9},
        open=True,
        key="run 1",
        label="first",
    )
    [sent] = service.asked["SubmitJob"]
    assert (sent.key, sent.samples, sent.priority, sent.time_limit, sent.agent, sent.open, sent.label) == (
        *("run 1", 8, -3, 60.0, "mini", True, "first"),
    )
    assert [(field.name, value) for field, value in sent.sampling.ListFields()] == [("temperature", 0.5)]
    assert (sent.limits.turns, sent.limits.attempts, sent.limits.HasField("step_seconds")) == (4, 2, False)
    assert sent.grouping == pb.RolloutGrouping(
        extra=2, patience=1.5, keep=pb.KEEP_GROUPS_WITH_VARIANCE, target=1, max_staleness=2, whole=True
    )
    again = await rollouts.submit(REQUESTS, key="run 1")
    assert (again.id, (await rollouts.job(key="run 1")).id) == (job.id, job.id)
    status = await job.status()
    assert (status.state, status.label, status.mean_reward, status.target) == ("running", "first", None, None)


@pytest.mark.parametrize(
    ("requests", "settings", "word"),
    [
        ([RolloutRequest("Guess-v0", sampling=Sampling())], {}, "sampling is the same for all"),
        ([RolloutRequest("Guess-v0", index=1)], {}, "samples="),
        ([RolloutRequest("Guess-v0", id="x")], {}, "ids of rollouts"),
        ([RolloutRequest("Guess-v0", task=-1)], {}, "can't travel"),
        ([RolloutRequest("Guess-v0", kwargs={"x": object()})], {}, "kwargs"),
        (REQUESTS, {"samples": 0}, "samples"),
        (REQUESTS, {"sample": 8}, "no sample, but samples"),
        (REQUESTS, {"sampling": {"heat": 1}}, "has no heat"),
        (REQUESTS, {"limits": {"turns": -1}}, "limits"),
        (REQUESTS, {"priority": 2**40}, "can't travel"),
        (REQUESTS, {"open": True}, "open job"),
    ],
)
async def test_what_makes_no_sense_is_refused_here(
    service: ScriptedService, rollouts: RolloutClient, requests: list[RolloutRequest], settings: Any, word: str
):
    with pytest.raises(InvalidArgument, match=word):
        await rollouts.collect(requests, **settings)
    assert not service.asked["SubmitJob"]


async def test_a_state_that_no_job_has_is_refused_here(service: ScriptedService, rollouts: RolloutClient):
    states: Any = ["ended"]
    with pytest.raises(InvalidArgument, match="finished, cancelled, expired, not 'ended'"):
        await rollouts.jobs(states=states)
    assert not service.asked["ListJobs"]


async def test_all_come_as_they_end_and_are_acknowledged(service: ScriptedService, rollouts: RolloutClient):
    found: list[Trajectory] = []
    async with playing(service, backwards=True):
        async for trajectory in rollouts.run(REQUESTS, samples=2):
            found.append(trajectory)
            if len(found) == 1:
                assert not service.acknowledged  # it has not asked for the next one
    assert places(found) == ALL[::-1]
    assert service.acknowledged == [1, 2, 3, 4, 5, 6]
    assert [each.labels for each in found if each.task == 2] == [{"place": 2}] * 2


async def test_they_are_collected_in_order_and_acknowledged_when_all_are_there(
    service: ScriptedService, rollouts: RolloutClient
):
    job = await rollouts.submit(REQUESTS, samples=2)
    collecting = asyncio.create_task(job.collect())
    await service.play(job.id, [(number, service.trajectory(job.id, number, index)) for number, index in ALL[:0:-1]])
    await service.until(lambda: service.streams)
    collecting.cancel()
    await asyncio.wait([collecting])
    assert not service.acknowledged  # so that whoever collects again misses none
    await service.play(job.id, [(0, service.trajectory(job.id, 0, 0))], end=True)
    assert places(await job.collect()) == ALL
    [acknowledged] = service.asked["AcknowledgeResults"]
    assert sorted(acknowledged.cursors) == [1, 2, 3, 4, 5, 6]
    assert await job.collect() == []


async def test_a_key_of_which_nothing_is_left_is_warned_of(
    service: ScriptedService, rollouts: RolloutClient, caplog: pytest.LogCaptureFixture
):
    job = await rollouts.submit(REQUESTS[:1], key="step 1")
    await service.play(job.id, [(0, service.trajectory(job.id, 0, 0))], end=True)
    assert places(await job.collect()) == [(0, 0)]
    assert not caplog.messages
    service.jobs[job.id].ended = 1.0
    assert await rollouts.collect(REQUESTS[:1], key="step 1") == []
    assert "'step 1' was there already" in caplog.text


async def test_a_job_that_waits_for_acknowledgements_is_not_held_up_by_one_who_collects(
    service: ScriptedService, rollouts: RolloutClient, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("gymhost.rollout.service.job._QUIET", 0.1)
    job = await rollouts.submit(REQUESTS[:2])
    collecting = asyncio.create_task(job.collect())
    await service.play(job.id, [(0, service.trajectory(job.id, 0, 0))])
    service.jobs[job.id].MergeFrom(pb.Job(queued=1, unacknowledged=1, in_flight=1))
    await service.until(lambda: len(service.asked["GetJob"]) == 2)
    assert not service.acknowledged  # one is in flight yet
    service.jobs[job.id].in_flight = 0
    await service.until(lambda: service.acknowledged)
    await service.play(job.id, [(1, service.trajectory(job.id, 1, 0))], end=True)
    assert places(await collecting) == [(0, 0), (1, 0)]


async def test_groups_come_whole_and_are_acknowledged_whole(service: ScriptedService, rollouts: RolloutClient):
    job = await rollouts.submit(REQUESTS[:2], samples=2)
    played = [(number, service.trajectory(job.id, number, index)) for index in (1, 0) for number in (0, 1)]
    await service.play(job.id, played, end=True)
    acknowledged: list[int] = []
    async for group in job.groups():
        assert [(each.group, each.index) for each in group.trajectories] == [
            (group.request.group, 0),
            (group.request.group, 1),
        ]
        assert (group.request.task, group.request.labels) == (group.trajectories[0].task, {"place": group.request.task})
        acknowledged.append(len(service.acknowledged))
    assert acknowledged == [0, 0]
    assert sorted(service.acknowledged) == [1, 2, 3, 4]


async def test_a_service_that_is_killed_and_restarted_loses_and_repeats_nothing(
    service: ScriptedService, rollouts: RolloutClient
):
    service.unanswered["SubmitJob"] = 1  # it has arrived, which nobody was told
    job = await rollouts.submit(REQUESTS, samples=2)
    assert len(service.asked["SubmitJob"]) == 2
    assert len(service.jobs) == 1
    found: list[Trajectory] = []
    service.unanswered["AcknowledgeResults"] = 1
    async with aclosing(job.results()) as results:
        for number, index in ALL:
            await service.stop()
            await service.play(
                job.id, [(number, service.trajectory(job.id, number, index))], end=(number, index) == ALL[-1]
            )
            waiting = asyncio.ensure_future(anext(results))
            await service.start()
            found.append(await waiting)
        assert [each async for each in results] == []
    assert places(found) == ALL
    assert sorted(service.acknowledged) == [1, 2, 3, 4, 5, 6]
    assert service.asked["StreamResults"][-1].after == 5  # nothing was sent again


async def test_two_who_take_results_at_once_have_each_of_them_once(service: ScriptedService, rollouts: RolloutClient):
    job = await rollouts.submit(REQUESTS, samples=2)
    await service.play_all(job.id)
    async with aclosing(job.results()) as slow:
        found = [await anext(slow)]  # and others are on their way
        found += [each async for each in job.results()]
        assert sorted(service.acknowledged) == [2, 3, 4, 5, 6]  # the first is with who has not asked for the next
        found += [each async for each in slow]
    assert sorted(places(found)) == ALL
    assert len(service.acknowledged) == 6


async def test_leaving_early_leaves_the_job_and_what_was_handed_out_does_not_come_again(
    service: ScriptedService, rollouts: RolloutClient
):
    job = await rollouts.submit(REQUESTS, samples=2, key="k")
    await service.play(job.id, [(number, service.trajectory(job.id, number, index)) for number, index in ALL])
    first = await take(job, 2)
    second = await take(job, 2)
    assert places(first + second) == ALL[:4]
    await service.until(lambda: not service.streams)
    assert (await job.status()).state == "running"
    await service.until(
        lambda: len(service.acknowledged) == 3
    )  # but for the last one, after which no other was asked for
    async with RolloutClient(service.address) as another:
        again = await another.job(key="k")
        assert places(await take(again, 2)) == ALL[3:5]
        await take(again, 1, cancel_on_exit=True)
        assert (await again.status()).state == "cancelled"


async def test_whoever_stores_first_acknowledges_afterwards(service: ScriptedService, rollouts: RolloutClient):
    job = await rollouts.submit(REQUESTS, samples=2)
    await service.play_all(job.id)
    stored = [each async for each in job.results(acknowledge=False)]
    assert len(stored) == 6
    assert not service.acknowledged
    service.unanswered["AcknowledgeResults"] = 1
    await job.acknowledge(stored[:4])
    await job.acknowledge(stored[:5])
    assert service.acknowledged == [1, 2, 3, 4, 5]
    assert [each async for each in job.results(acknowledge=False)] == []  # handed out it was, acknowledged not


async def test_a_wait_that_is_cancelled_leaves_nothing_behind(service: ScriptedService, rollouts: RolloutClient):
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await rollouts.collect(REQUESTS)
    await service.until(lambda: not service.streams)
    assert service.jobs["job-0"].state == pb.JOB_STATE_CANCELLED
    service.refusals["SubmitJob"] = [CapacityExhausted("full", retry_after=60.0)]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await rollouts.submit(REQUESTS)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await rollouts.collect(REQUESTS, key="found again")
    assert service.jobs["job-1"].state == pb.JOB_STATE_RUNNING


async def test_closing_the_client_ends_what_waits(service: ScriptedService):
    rollouts = RolloutClient(service.address)
    job = await rollouts.submit(REQUESTS)
    waiting = [asyncio.ensure_future(each) for each in (job.collect(), anext(job.results()), anext(job.groups()))]
    await service.until(lambda: service.streams == 3)
    await rollouts.aclose()
    await asyncio.wait(waiting)
    assert all(isinstance(each.exception(), ConnectionLost) for each in waiting)
    with pytest.raises(ConnectionLost, match="was closed"):
        await job.status()


async def test_a_service_that_stays_away(service: ScriptedService):
    async with RolloutClient(service.address, reconnect_timeout=0.3, connect_timeout=0.2) as rollouts:
        job = await rollouts.submit(REQUESTS)
        await service.stop()
        for work in (job.status(), job.collect(), anext(job.results())):
            with pytest.raises(
                ServerUnavailable, match=rf"at {service.address} was away for 0\.3 s \(reconnect_timeout\)"
            ):
                await work
    async with RolloutClient(service.address, connect_timeout=0.2) as rollouts:
        with pytest.raises(
            ServerUnavailable, match=r"within 0\.2 s \(connect_timeout\): is `gymhost serve --rollouts` running"
        ):
            await rollouts.status()


async def test_a_quota_holds_the_submitter_back(service: ScriptedService, rollouts: RolloutClient):
    service.refusals["SubmitJob"] = [CapacityExhausted("100 rollouts wait", retry_after=0.05) for _ in range(3)]
    began = time.monotonic()
    job = await rollouts.submit(REQUESTS, open=True)
    assert time.monotonic() - began >= 0.15
    service.refusals["ExtendJob"] = [CapacityExhausted("100 rollouts wait", retry_after=5.0)]
    with pytest.raises(CapacityExhausted, match="100 rollouts wait"):
        await job.extend(REQUESTS, timeout=1.0)


async def test_an_open_job_takes_each_extension_once(service: ScriptedService, rollouts: RolloutClient):
    job = await rollouts.submit(REQUESTS[:1], open=True, key="k")
    service.unanswered["ExtendJob"] = 1
    status = await job.extend(REQUESTS[1:2], more_groups=2)
    assert (status.extensions, status.target) == (1, 2)
    found_again = await rollouts.job(key="k")
    await found_again.extend(REQUESTS[2:])
    closed = await found_again.close()
    assert (closed.extensions, closed.open, closed.target) == (3, False, 2)
    assert [task.task for task in service.tasks[job.id]] == [0, 1, 2]


async def test_a_job_larger_than_a_message_is_one_job_all_the_same(service: ScriptedService, rollouts: RolloutClient):
    requests = [RolloutRequest("Guess-v0", task=task) for task in range(20_000)]
    service.refusals["ExtendJob"] = [CapacityExhausted("full", retry_after=5.0)]
    with pytest.raises(CapacityExhausted):
        await rollouts.submit(requests, key="large", timeout=0.0)
    assert service.jobs["job-0"].open
    service.unanswered["ExtendJob"] = 1
    job = await rollouts.submit(requests, key="large")  # as a trainer that was restarted does
    await rollouts.submit(requests, key="large")
    assert [task.task for task in service.tasks[job.id]] == list(range(20_000))
    assert not (await job.status()).open
    service.refusals["ExtendJob"] = [CapacityExhausted("full", retry_after=5.0)]
    with pytest.raises(CapacityExhausted):
        await rollouts.submit(requests, timeout=0.0)
    assert service.jobs["job-1"].state == pb.JOB_STATE_CANCELLED  # nobody could find it


async def test_an_environment_server_is_told_from_a_rollout_service(server: ServerProcess):
    async with RolloutClient(server.address) as rollouts:
        with pytest.raises(Unimplemented, match="gymhost serve --rollouts"):
            await rollouts.status()


async def test_over_tls(tmp_path: Path):
    authority, other = Authority(tmp_path / "own"), Authority(tmp_path / "other")
    service = ScriptedService()  # pyright: ignore[reportAbstractUsage] - what it lacks is not called
    service.tls = authority.server()
    await service.start()
    async with RolloutClient(service.address, "secret", authority.trusted) as rollouts:
        assert await rollouts.jobs() == []
    for tls, words in ((other.trusted, "certificate"), (False, "TLS")):
        async with RolloutClient(service.address, tls=tls, connect_timeout=0.1) as rollouts:
            with pytest.raises(ServerUnavailable, match=words):
                await rollouts.jobs()
    await service.stop()


async def test_without_an_event_loop(service: ScriptedService):
    def use() -> None:
        with RolloutClient(service.address) as rollouts:
            found = list(rollouts.run_sync(REQUESTS, samples=2))
            assert places(found) == ALL
            job = rollouts.call_sync(rollouts.job(id="job-0"))
            assert list(rollouts.iterate_sync(job.results())) == []

    async with playing(service):
        await asyncio.to_thread(use)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"address": "cpu7"}, "no address"),
        ({"address": "cpu7:1", "token": "a\n"}, "token"),
        ({"address": "unix:/x", "tls": True}, "tls"),
        ({"address": "cpu7:1", "reconnect_timeout": -1.0}, "reconnect_timeout"),
    ],
)
def test_a_client_of_nothing(arguments: dict[str, Any], word: str):
    with pytest.raises(InvalidArgument, match=word):
        RolloutClient(**arguments)
