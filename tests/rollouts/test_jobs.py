"""Jobs: what is submitted is played, once, and its results are kept until they are acknowledged."""

import asyncio
import dataclasses
import gc
import pkgutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gymhost.rollout.service.messages import from_result
from gymhost.rollout.trajectory import Trajectory
from gymhost.v1 import rollouts_pb2 as pb
from gymhost.wire import errors
from support.jobs import World, job, numbers, served, tasks

pytestmark = pytest.mark.heavy


def trajectories(results: list[pb.Result]) -> list[Trajectory]:
    return [from_result(result) for result in results]


def once_faulty(error: Callable[[], Exception], plays: int = 1) -> World:
    return World(fault=lambda _task, play: error() if play <= plays else None)


async def test_a_job_is_played_and_each_result_waits_until_it_is_acknowledged(tmp_path: Path) -> None:
    async with served(tmp_path, World(lambda task, _: float(task))) as service:
        told = await service.submit(job("first", range(5), samples=3, label="for people"))
        assert (told.state, told.samples, told.label) == (pb.JOB_STATE_QUEUED, 3, "for people")
        results = await service.results(told)
        assert sorted(numbers(results)) == list(range(15))
        for result, played in zip(results, trajectories(results), strict=True):
            task, index = divmod(numbers([result])[0], 3)
            assert (played.id, result.job_id, result.group_number) == (result.rollout_id, told.id, task)
            assert (played.task, played.seed, played.group, played.index) == (task, task, str(task), index)
            assert (played.reward, played.attempts, played.outcome.kind) == (float(task), 1, "terminated")
            assert len(played.rows()) == 1
        assert [result.cursor for result in results] == list(range(1, 16))
        # The last of each group says so.
        last = {result.group_number: result.cursor for result in results}
        assert {result.group_number: result.cursor for result in results if result.completes_group} == last
        now = service.look(told)
        assert (now.state, now.terminated, now.mean_reward, now.rewarded) == (pb.JOB_STATE_FINISHED, 15, 2.0, 15)
        assert (now.unacknowledged, now.last_cursor) == (15, 15)
        assert now.unacknowledged_bytes > 15 * 500
        assert now.sampled_tokens == sum(played.sampled_tokens for played in trajectories(results))
        assert now.begun >= now.created > 0
        assert now.ended >= now.begun

        # However often at once, each counts once.
        said = await asyncio.gather(*(service.jobs.acknowledge("me", [1, 2, 99]) for _ in range(5)))
        assert sum(said) == 2
        assert service.look(told).unacknowledged == 13
        assert await service.jobs.acknowledge("me", [1, 2]) == 0
        assert [result.cursor for result in await service.results(told)] == list(range(3, 16))
        assert [result.cursor for result in await service.results(told, after=10)] == list(range(11, 16))
        await service.restart()
        assert [result.cursor for result in await service.results(told)] == list(range(3, 16))
        assert await service.jobs.acknowledge("somebody else", [3]) == 0
        assert await service.jobs.acknowledge("me", range(3, 16)) == 13
        now = service.look(told)
        assert (now.unacknowledged, now.unacknowledged_bytes, now.terminated, now.last_cursor) == (0, 0, 15, 15)
        assert await service.results(told) == []
        # Cursors are never used again.
        again = await service.submit(job("again", [0]))
        assert [result.cursor for result in await service.results(again)] == [16]


async def test_an_acknowledgement_that_is_cut_off_counts_once(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        told = await service.submit(job("a", [0]))
        [result] = await service.results(told)
        loop = asyncio.get_running_loop()
        # The file is held up: as whose result it is is read, and before the next transaction.
        held = [threading.Event(), threading.Event()]
        first = loop.create_task(service.store.read(lambda _: held[0].wait(20)))
        cut = loop.create_task(service.jobs.acknowledge("me", [result.cursor]))
        second = loop.create_task(service.store.read(lambda _: held[1].wait(20)))
        other = loop.create_task(service.store.remember("other", b""))
        await asyncio.sleep(0)
        held[0].set()
        await first
        await asyncio.sleep(0.05)  # it has no more to do than to wait until it is on disk
        cut.cancel()
        await asyncio.wait([cut])
        again = loop.create_task(service.jobs.acknowledge("me", [result.cursor]))
        await asyncio.sleep(0)
        held[1].set()
        await asyncio.gather(second, other)
        assert await again == 0
        assert service.look(told).unacknowledged == 0
        assert service.look(told).unacknowledged_bytes == 0


async def test_the_same_key_gives_the_same_job(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        asked = [service.jobs.submit("me", job("step 1", range(3))) for _ in range(5)]
        told = await asyncio.gather(*asked)
        assert len({each.id for each, _ in told}) == 1
        assert sorted(known for _, known in told) == [False, True, True, True, True]
        other, known = await service.jobs.submit("somebody else", job("step 1", [0]))
        assert (other.id != told[0][0].id, known) == (True, False)
        await service.restart()
        after, known = await service.jobs.submit("me", job("step 1", range(100)))
        assert (after.id, known) == (told[0][0].id, True)
        assert service.jobs.get("me", key="step 1").id == after.id
        with pytest.raises(errors.UnknownJob):
            service.jobs.get("me", other.id)
        assert service.jobs.get("me", other.id, admin=True).id == other.id
        assert [each.id for each in service.jobs.list("me")] == [after.id]
        assert [each.id for each in service.jobs.list(None)] == [other.id, after.id]
        assert service.jobs.list(None, [pb.JOB_STATE_CANCELLED]) == []


async def test_what_is_unfinished_when_the_service_stops_is_played_first_when_it_starts(tmp_path: Path) -> None:
    world = World()
    world.held = {2, 3}
    async with served(tmp_path, world) as service:
        told = await service.submit(job("a", range(12)))
        await service.until(told, lambda now: now.terminated == 10)
        await service.restart()
        assert (service.look(told).queued, service.look(told).terminated) == (2, 10)
        await service.jobs.cancel("me", pb.CancelRolloutsRequest(rollout_ids=[f"{told.id}/3"]))
        more = await service.submit(job("b", range(20, 24)))
        world.order.clear()
        world.release()
        results = await service.results(told)
        assert sorted(numbers(results)) == [0, 1, 2, *range(4, 12)]
        assert len(set(numbers(results))) == 11
        await service.results(more)
        assert service.look(told).cancelled == 1


@pytest.mark.parametrize("error", [errors.ServerUnavailable, ConnectionResetError], ids=lambda error: error.__name__)
async def test_a_fault_of_the_infrastructure_is_no_end(tmp_path: Path, error: Any, quick: None) -> None:
    world = once_faulty(lambda: error("gone"), plays=2)
    async with served(tmp_path, world) as service:
        told = await service.submit(job("a", range(3)))
        results = await service.results(told)
        assert [(each.outcome.kind, each.attempts) for each in trajectories(results)] == [("terminated", 3)] * 3
        now = service.look(told)
        assert (now.retries, now.terminated, now.failed) == (6, 3, 0)
        assert "gone" in now.last_fault
        assert service.jobs.counts().retries == 6


async def test_what_fails_again_and_again_is_given_up_without_a_reward(tmp_path: Path, quick: None) -> None:
    world = once_faulty(lambda: errors.ServerUnavailable("gone"), plays=99)
    async with served(tmp_path, world, attempts=3) as service:
        told = await service.submit(job("a", range(2), limits=pb.RolloutLimits(attempts=2)))
        more = await service.submit(job("b", [5]))
        for each in trajectories(await service.results(told)):
            assert (each.outcome.kind, each.outcome.fault, each.attempts, each.reward) == (
                "failed",
                "infrastructure",
                2,
                None,
            )
        assert [each.attempts for each in trajectories(await service.results(more))] == [3]
        assert world.plays == {0: 2, 1: 2, 5: 3}
        assert (service.look(told).failed, service.look(told).rewarded) == (2, 0)


@pytest.mark.parametrize("where", ["outcomes.to_result", "outcomes.Outcomes.take"])
async def test_one_whose_trajectory_can_not_be_taken_ends_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: None, where: str
) -> None:
    place = f"gymhost.server.rollouts.{where}"
    real: Callable[..., Any] = pkgutil.resolve_name(place.replace(".outcomes.", ".outcomes:"))

    def broken(*arguments: Any) -> Any:
        if arguments[-1].task == 1 and arguments[-1].turns:
            raise ZeroDivisionError("no such thing")
        return real(*arguments)

    monkeypatch.setattr(place, broken)
    world = World()
    world.held = {0, 2}
    async with served(tmp_path, world) as service:
        limits = pb.RolloutLimits(attempts=2)
        told = await service.submit(job("a", range(3), limits=limits, grouping=pb.RolloutGrouping(whole=True)))
        # It was played again where that may be of use, and then has failed; the others have not begun again.
        await service.until(told, lambda now: (now.failed, now.in_flight) == (1, 2))
        assert (world.plays[0], world.plays[2]) == (1, 1)
        world.release()
        ended = {each.task: each for each in trajectories(await service.results(told))}
        assert [ended[task].outcome.kind for task in range(3)] == ["terminated", "failed", "terminated"]
        outcome = ended[1].outcome
        assert (outcome.fault, outcome.cause, ended[1].reward) == ("infrastructure", "ZeroDivisionError", None)
        assert "no such thing" in outcome.message
        assert service.look(told).state == pb.JOB_STATE_FINISHED


async def test_a_job_waits_for_an_agent_that_the_service_was_started_without(tmp_path: Path) -> None:
    world = World()
    async with served(tmp_path, world) as service:
        told = await service.submit(job("a", range(3), agent="guess"))
        other = await service.submit(job("b", range(20, 24)))
        assert len(await service.results(other)) == 4
        await service.restart()
        now = service.look(told)
        assert (now.queued, now.failed, now.state) == (3, 0, pb.JOB_STATE_QUEUED)
        assert "--agent guess=MODULE:CLASS" in now.waits_for
        service.config = dataclasses.replace(service.config, agents={"guess": "support.rollouts_process:OneGuess"})
        await service.restart()
        kinds = {each.outcome.kind for each in trajectories(await service.results(told))}
        assert "failed" not in kinds
        assert service.look(told).waits_for == ""


async def test_a_fault_of_the_environment_is_final(tmp_path: Path) -> None:
    world = World(fault=lambda task, _: ValueError("boom") if task else errors.UnknownEnvironment("no such thing"))
    async with served(tmp_path, world) as service:
        told = await service.submit(job("a", range(2)))
        ended = sorted(trajectories(await service.results(told)), key=lambda each: each.task or 0)
        assert [(each.outcome.cause, each.attempts, each.reward) for each in ended] == [
            ("UnknownEnvironment", 1, None),
            ("ValueError", 1, None),
        ]


async def test_attempts_and_pauses_survive_a_restart(tmp_path: Path) -> None:
    world = once_faulty(lambda: errors.ServerUnavailable("gone"), plays=1)
    async with served(tmp_path, world) as service:
        told = await service.submit(job("a", [0]))
        now = await service.until(told, lambda now: now.retries == 1)
        assert (now.queued, now.in_flight, now.state) == (1, 0, pb.JOB_STATE_RUNNING)
        assert now.waits_for == f"another attempt after a fault: {now.last_fault}"
        [waiting] = service.jobs.rollouts("me", told.id)
        assert (waiting.stage, waiting.attempts) == (pb.ROLLOUT_STAGE_QUEUED, 1)
        await service.restart()
        [result] = trajectories(await service.results(told))
        assert result.attempts == 2


async def test_where_no_server_can_be_reached_most_of_a_job_waits(tmp_path: Path, quick: None) -> None:
    world = once_faulty(lambda: errors.ServerUnavailable("gone"), plays=10**6)
    async with served(tmp_path, world) as service:
        told = await service.submit(job("a", range(200), limits=pb.RolloutLimits(attempts=50)))
        now = await service.until(told, lambda now: now.retries >= 200)
        assert len(world.plays) < 30  # of 200: the others are not to fail for that
        assert "gone" in now.waits_for
        world.fault = lambda _task, _play: None
        results = await service.results(told)
        assert sorted(numbers(results)) == list(range(200))
        assert {each.outcome.kind for each in trajectories(results)} == {"terminated"}


async def test_a_job_that_is_cancelled_ends_with_what_there_is(tmp_path: Path) -> None:
    world = World()
    world.held = set(range(2, 100))
    async with served(tmp_path, world) as service:
        told = await service.submit(job("a", range(50)))
        in_flight = service.concurrency.in_flight
        await service.until(told, lambda now: (now.terminated, now.in_flight) == (2, in_flight))
        assert await service.cancel(told) == 48
        assert await service.cancel(told) == 0
        now = service.look(told)
        assert (now.state, now.cancelled, now.queued, now.in_flight) == (pb.JOB_STATE_CANCELLED, 48, 0, 0)
        kinds = [each.outcome.kind for each in trajectories(await service.results(told))]
        assert sorted(kinds) == ["cancelled"] * in_flight + ["terminated"] * 2
        # The places are free again.
        world.release()
        assert len(await service.results(await service.submit(job("b", range(10))))) == 10
        with pytest.raises(errors.UnknownJob):
            await service.jobs.cancel("somebody else", pb.CancelRolloutsRequest(job_ids=[told.id]))
        await service.restart()
        assert service.look(told).state == pb.JOB_STATE_CANCELLED
        assert len(await service.there(told)) == in_flight + 2


async def test_single_rollouts_are_cancelled(tmp_path: Path) -> None:
    world = World()
    world.held = set(range(100))
    async with served(tmp_path, world) as service:
        told = await service.submit(job("a", range(20), samples=2))
        await asyncio.wait_for(world.turned[0].wait(), 10)
        ids = [f"{told.id}/{number}" for number in (0, 30, 31, 39)]
        assert await service.jobs.cancel("me", pb.CancelRolloutsRequest(rollout_ids=ids)) == 4
        assert await service.jobs.cancel("me", pb.CancelRolloutsRequest(rollout_ids=ids)) == 0
        with pytest.raises(errors.UnknownJob, match="/40"):
            await service.jobs.cancel("me", pb.CancelRolloutsRequest(rollout_ids=[f"{told.id}/40"]))
        assert service.look(told).cancelled == 4
        [result] = await service.there(told)
        assert (numbers([result]), trajectories([result])[0].outcome.kind) == ([0], "cancelled")
        await service.restart()
        world.release()
        assert sorted(numbers(await service.results(told))) == [n for n in range(40) if n not in (30, 31, 39)]
        assert service.look(told).state == pb.JOB_STATE_FINISHED
        assert 15 not in world.plays  # task 15 are 30 and 31


async def test_what_is_cancelled_while_its_task_is_being_read_does_not_begin(tmp_path: Path) -> None:
    world = World()
    world.held = {0, 1, 2}
    async with served(tmp_path, world) as service:
        told = await service.submit(job("a", range(3)))
        await service.until(told, lambda now: now.in_flight == 3)
        await service.jobs.pause("me", told.id, False)
        await service.restart()
        world.plays.clear()
        going = threading.Event()
        reading = asyncio.create_task(service.store.read(lambda _: going.wait(10)))
        resuming = asyncio.create_task(service.jobs.resume("me", told.id))
        await asyncio.sleep(0.05)  # by now the first is chosen, and its task asked for
        cancelling = asyncio.create_task(service.cancel(told))
        await asyncio.sleep(0)
        going.set()
        await asyncio.gather(reading, resuming, cancelling)
        assert service.look(told).cancelled == 3
        assert await service.results(told) == []
        world.release()
        await service.results(await service.submit(job("b", [7])))
        assert list(world.plays) == [7]


async def test_everything_of_a_caller_is_cancelled(tmp_path: Path) -> None:
    world = World()
    world.held = set(range(10))
    async with served(tmp_path, world) as service:
        mine = [await service.submit(job(key, range(5))) for key in "ab"]
        other = await service.submit(job("a", range(5)), "somebody else")
        assert await service.jobs.cancel("me", pb.CancelRolloutsRequest(all=True)) == 10
        assert {service.look(each).state for each in mine} == {pb.JOB_STATE_CANCELLED}
        world.release()
        assert len(await service.results(other)) == 5


async def test_a_paused_job_begins_nothing_and_what_is_in_flight_may_stop_too(tmp_path: Path) -> None:
    world = World()
    world.held = set(range(100))
    async with served(tmp_path, world) as service:
        told = await service.submit(job("a", range(10)))
        await service.until(told, lambda now: now.in_flight >= 4)
        paused = await service.jobs.pause("me", told.id, False)
        assert paused.state == pb.JOB_STATE_PAUSED
        world.release()
        now = await service.until(told, lambda now: now.in_flight == 0)
        assert (now.queued + now.terminated, now.state) == (10, pb.JOB_STATE_PAUSED)
        # It holds up nobody else, and stays paused over a restart.
        assert len(await service.results(await service.submit(job("b", range(20, 25))))) == 5
        await service.restart()
        assert service.look(told).state == pb.JOB_STATE_PAUSED
        assert (await service.jobs.resume("me", told.id)).state == pb.JOB_STATE_RUNNING
        assert sorted(numbers(await service.results(told))) == list(range(10))


async def test_held_rollouts_keep_what_they_have_and_go_on(tmp_path: Path) -> None:
    world = World()
    async with served(tmp_path, world) as service:
        service.engine.pause()
        told = await service.submit(job("a", range(2)))
        await service.until(told, lambda now: now.in_flight == 2)
        await service.jobs.pause("me", told.id, True)
        service.engine.resume()
        assert len(await service.results(await service.submit(job("b", range(20, 25))))) == 5
        infos = service.jobs.rollouts("me", told.id)
        assert {(info.stage, info.turns) for info in infos} == {(pb.ROLLOUT_STAGE_RUN, 0)}
        opened = world.opened
        await service.jobs.resume("me", told.id)
        assert len(await service.results(told)) == 2
        assert world.opened == opened  # the same sessions


async def test_a_job_expires(tmp_path: Path) -> None:
    world = World()
    world.held = {1, 2}
    async with served(tmp_path, world) as service:
        told = await service.submit(job("a", range(3), time_limit=0.5))
        assert 0 < told.time_left <= 0.5
        later = await service.submit(job("b", range(3), time_limit=1.0))
        results = await service.results(told)
        assert sorted(each.outcome.kind for each in trajectories(results)) == ["cancelled", "cancelled", "terminated"]
        assert service.look(told).state == pb.JOB_STATE_EXPIRED
        await service.stop()
        await asyncio.sleep(0.6)
        await service.start()  # by now the other's time is up as well
        assert service.look(later).state == pb.JOB_STATE_EXPIRED


async def test_a_job_whose_results_nobody_fetches_begins_nothing_more(tmp_path: Path) -> None:
    async with served(tmp_path, max_unacknowledged=5) as service:
        told = await service.submit(job("a", range(40)))
        now = await service.until(told, lambda now: now.unacknowledged >= 5 and now.in_flight == 0)
        assert now.unacknowledged < 15  # what was in flight by then still ended
        assert "max_unacknowledged" in now.waits_for
        other = await service.submit(job("b", range(3)))
        assert len(await service.results(other)) == 3
        seen: list[int] = []
        async for batch in service.jobs.results("me", [told.id]):
            seen += numbers(batch)
            await service.jobs.acknowledge("me", [result.cursor for result in batch])
        assert sorted(seen) == list(range(40))


async def test_quotas_name_their_setting_and_say_when_to_ask_again(tmp_path: Path) -> None:
    world = World()
    world.held = set(range(100))
    quotas = {"small": {"bytes": 1}}
    async with served(tmp_path, world, quota_jobs=2, quota_rollouts=30, quotas=quotas) as service:
        a = await service.submit(job("a", range(20)))
        await service.submit(job("b", range(5)))
        with pytest.raises(errors.CapacityExhausted, match="quota_jobs") as full:
            await service.submit(job("c", range(1)))
        assert full.value.retry_after
        await service.jobs.cancel("me", pb.CancelRolloutsRequest(rollout_ids=[f"{a.id}/19"]))
        await service.cancel(service.jobs.get("me", key="b"))
        with pytest.raises(errors.CapacityExhausted, match="quota_rollouts"):
            await service.submit(job("c", range(25)))
        with pytest.raises(errors.InvalidArgument, match="quota_rollouts"):
            await service.submit(job("c", range(31)))
        await service.submit(job("c", range(30)), "somebody else")
        world.release()
        small = await service.submit(job("a", range(1)), "small")
        await service.results(small)
        with pytest.raises(errors.CapacityExhausted, match="quota_bytes"):
            await service.submit(job("b", range(1)), "small")
        await service.jobs.acknowledge("small", [result.cursor for result in await service.there(small)])
        await service.submit(job("b", range(1)), "small")


async def test_an_open_job_is_extended_each_time_once_and_ends_when_it_is_closed(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        told = await service.submit(job("a", [], open=True))
        assert told.state == pb.JOB_STATE_WAITING
        extension = pb.ExtendJobRequest(job_id=told.id, number=1, tasks=tasks(range(3)))
        for again in range(3):
            now = await service.jobs.extend("me", extension)
            assert (now.extensions, now.queued + now.in_flight + now.terminated) == (1, 3), again
        with pytest.raises(errors.InvalidArgument, match="extension 3"):
            await service.jobs.extend("me", pb.ExtendJobRequest(job_id=told.id, number=3))
        service._sizes[told.id] = 3
        now = await service.until(told, lambda now: now.state == pb.JOB_STATE_WAITING)
        assert now.environment_id == "Talk-v0"
        await service.restart()
        assert (await service.jobs.extend("me", extension)).extensions == 1
        await service.extend(told, range(3, 5), close=True)
        assert sorted(numbers(await service.results(told))) == list(range(5))
        [last] = [each for each in trajectories(await service.there(told)) if each.task == 4]
        assert (last.seed, last.group) == (4, "4")
        assert service.look(told).state == pb.JOB_STATE_FINISHED
        with pytest.raises(errors.InvalidArgument, match="ended"):
            await service.extend(told, range(3))


async def test_results_are_fetched_one_by_one_and_of_all_jobs(tmp_path: Path) -> None:
    world = World()
    async with served(tmp_path, world) as service:
        first = await service.submit(job("a", range(5)))
        await service.submit(job("a", range(3)), "somebody else")
        second = await service.submit(job("b", range(5)))
        await service.ended(first)
        await service.ended(second)
        fetched: list[pb.Result] = []
        while len(fetched) < 10:
            after = fetched[-1].cursor if fetched else 0
            answer = await service.jobs.fetch("me", pb.FetchResultsRequest(after=after, limit=3))
            assert (0 < len(answer.results) <= 3, answer.ended) == (True, False)
            fetched += answer.results
        assert {result.job_id for result in fetched} == {first.id, second.id}
        assert len({result.rollout_id for result in fetched}) == 10
        request = pb.FetchResultsRequest(job_ids=[first.id, second.id], limit=100)
        assert (await service.jobs.fetch("me", request)).ended
        # Whoever waits is told as soon as there is something.
        world.held = {7}
        third = await service.submit(job("c", [7]))
        request = pb.FetchResultsRequest(job_ids=[third.id], wait=20)
        asked = asyncio.create_task(service.jobs.fetch("me", request))
        await asyncio.wait_for(world.turned[7].wait(), 10)
        nothing = await service.jobs.fetch("me", pb.FetchResultsRequest(job_ids=[third.id], wait=0.05))
        assert (len(nothing.results), nothing.ended) == (0, False)
        world.release()
        assert (await asyncio.wait_for(asked, 10)).ended


async def test_what_is_written_while_results_are_being_read_comes_next(tmp_path: Path) -> None:
    world = World()
    world.held = {1, 2}
    async with served(tmp_path, world) as service:
        first = await service.submit(job("a", [0, 1]))
        await service.submit(job("b", [2]))
        await service.until(first, lambda now: now.last_cursor == 1)
        async with asyncio.timeout(20):
            await world.turned[1].wait()
            await world.turned[2].wait()
            loop = asyncio.get_running_loop()
            # The file is held up twice: so that both results are of one transaction, and until it is about to be made.
            held = [threading.Event(), threading.Event()]
            reading = [loop.create_task(service.store.read(lambda _: held[0].wait(20)))]
            other = loop.create_task(service.store.remember("other", b""))
            await asyncio.sleep(0.01)
            reading.append(loop.create_task(service.store.read(lambda _: held[1].wait(20))))
            for count, task in ((2, 2), (3, 1)):
                world.release(task)
                while service.jobs.counts().ended < count:  # noqa: ASYNC110 - nothing tells of it before it is on disk
                    await asyncio.sleep(0)
            held[0].set()
            await other
            fetching = loop.create_task(service.jobs.fetch("me", pb.FetchResultsRequest()))
            await asyncio.sleep(0)
            held[1].set()
            await asyncio.gather(*reading)
            seen = [result.cursor for result in (await fetching).results]
            request = pb.FetchResultsRequest(after=seen[-1], wait=5)
            seen += [result.cursor for result in (await service.jobs.fetch("me", request)).results]
        assert seen == [1, 2, 3]


async def test_a_stream_of_all_of_a_callers_goes_on_with_jobs_to_come(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        stream = service.jobs.results("me")
        seen: list[str] = []

        async def read() -> None:
            async for batch in stream:
                seen.extend(result.rollout_id for result in batch)
                if len(seen) == 6:
                    return

        reading = asyncio.create_task(read())
        jobs = [await service.submit(job(key, range(3))) for key in "ab"]
        await asyncio.wait_for(reading, 10)
        assert sorted(seen) == sorted(f"{each.id}/{number}" for each in jobs for number in range(3))
        await stream.aclose()


async def test_what_nobody_wants_is_not_kept_for_ever(tmp_path: Path) -> None:
    async with served(tmp_path, retention=0.6, keep_ended=0.4) as service:
        told = await service.submit(job("a", range(3)))
        assert len(await service.results(told)) == 3
        await service.until(told, lambda now: now.unacknowledged == 0)
        with pytest.raises(errors.UnknownJob):
            await service.until(told, lambda _now: False)
        await service.restart()
        assert service.jobs.list("me") == []
        assert not (await service.submit(job("a", range(3)))).ended


async def test_large_jobs_are_numbers_in_memory(tmp_path: Path) -> None:
    world = World()
    world.held = set(range(100))
    async with served(tmp_path, world) as service:
        gc.collect()
        before = len(gc.get_objects())
        told = await service.submit(job("a", range(20_000), samples=5))
        assert service.look(told).queued + service.look(told).in_flight == 100_000
        await service.restart()
        infos = service.jobs.rollouts("me", told.id, 20)
        assert (len(infos), infos[-1].stage) == (20, pb.ROLLOUT_STAGE_QUEUED)
        gc.collect()
        assert len(gc.get_objects()) - before < 10_000
        await service.cancel(told)
        assert service.look(told).cancelled == 100_000


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (job("", [0]), "key"),
        (job("k" * 257, [0]), "key"),
        (job("a", []), "open"),
        (pb.SubmitJobRequest(key="a", tasks=[pb.RolloutTask(task=3)]), "task 0 has no environment_id"),
        (job("a", [0], limits=pb.RolloutLimits(turns=0)), "turns"),
        (job("a", [0], sampling=pb.RolloutSampling(temperature=-1.0)), "temperature"),
        (job("a", [0], time_limit=-1.0), "time_limit"),
        (job("a", [0], grouping=pb.RolloutGrouping(patience=-1.0)), "patience"),
    ],
)
async def test_what_makes_no_sense_is_refused(tmp_path: Path, request_: pb.SubmitJobRequest, said: str) -> None:
    async with served(tmp_path) as service:
        with pytest.raises(errors.InvalidArgument, match=said):
            await service.jobs.submit("me", request_)
        assert service.jobs.list(None) == []


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses before another attempt that a test can wait for."""
    monkeypatch.setattr("gymhost.server.rollouts.flights._PAUSE", 0.01)
    monkeypatch.setattr("gymhost.server.rollouts.flights._PAUSE_MAX", 0.02)
