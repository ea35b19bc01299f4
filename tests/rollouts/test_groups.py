"""Groups of a job: results by the group, which groups are wanted, and how many."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest

from gymhost.rollout import Concurrency
from gymhost.rollout.service.messages import from_result
from gymhost.v1 import rollouts_pb2 as pb
from gymhost.wire import errors
from support.jobs import World, job, numbers, served

pytestmark = pytest.mark.heavy

WITH_VARIANCE = pb.KEEP_GROUPS_WITH_VARIANCE
WIDE = Concurrency(init=8, run=16, eval=8, ahead=0)


def by_group(results: Sequence[pb.Result]) -> dict[int, list[int]]:
    """The rollouts of each group; each is whole where it ends, and nothing comes between."""
    found: defaultdict[int, list[int]] = defaultdict(list)
    before = None
    for result in results:
        assert before in (None, result.group_number)
        before = None if result.completes_group else result.group_number
        found[result.group_number] += numbers([result])
    assert before is None
    return dict(found)


def differing(task: int, play: int) -> float:
    """Rewards that differ in groups of even tasks alone."""
    return float(play % 2) if task % 2 == 0 else 1.0


def rewards(results: Sequence[pb.Result]) -> list[float | None]:
    return [from_result(result).reward for result in results]


async def test_the_results_of_a_group_are_there_all_at_once(tmp_path: Path) -> None:
    world = World(fault=lambda task, play: ValueError("boom") if (task, play) == (1, 2) else None)
    async with served(tmp_path, world) as service:
        told = await service.submit(job("a", range(6), samples=3, grouping=pb.RolloutGrouping(whole=True)))
        results = await service.results(told)
        assert by_group(results) == {group: [3 * group, 3 * group + 1, 3 * group + 2] for group in range(6)}
        assert sum(reward is None for reward in rewards(results)) == 1
        now = service.look(told)
        assert (now.groups_kept, now.groups_dropped, now.terminated, now.failed) == (6, 0, 17, 1)


async def test_no_group_waits_for_its_slowest(tmp_path: Path) -> None:
    world = World(fault=lambda task, play: ValueError("boom") if play == 1 else None)
    world.held = {0}
    async with served(tmp_path, world, concurrency=WIDE) as service:
        asked = job("a", [0, 1], samples=2, grouping=pb.RolloutGrouping(extra=2))
        told = await service.submit(asked)
        now = await service.until(told, lambda now: now.groups_kept == 1)
        # One has failed, two have a reward, and one was one too many.
        assert (now.terminated, now.dropped, now.in_flight, now.failed) == (2, 2, 3, 1)
        world.release()
        results = await service.results(told)
        assert {len(group) for group in by_group(results).values()} == {2}
        assert rewards(results) == [1.0] * 4
        now = service.look(told)
        assert (now.terminated, now.dropped, now.rewarded >= 4) == (4, 4, True)


async def test_patience_ends_with_those_that_are_left(tmp_path: Path) -> None:
    world = World()
    world.held = {(0, 2), (0, 3)}
    async with served(tmp_path, world, concurrency=WIDE) as service:
        told = await service.submit(job("a", [0], samples=4, grouping=pb.RolloutGrouping(patience=0.1)))
        results = await service.results(told)
        assert sorted(from_result(result).outcome.kind for result in results) == [
            "cancelled",
            "cancelled",
            "terminated",
            "terminated",
        ]
        assert by_group(results) == {0: [0, 1, 2, 3]}


async def test_groups_without_variance_are_dropped_and_the_next_task_is_begun_up_to_the_target(tmp_path: Path) -> None:
    world = World(differing)
    async with served(tmp_path, world, concurrency=WIDE) as service:
        grouping = pb.RolloutGrouping(keep=WITH_VARIANCE, target=3)
        told = await service.submit(job("a", [1, 3, 0, 5, 2, 4, 6, 7, 8, 9], samples=2, grouping=grouping))
        results = await service.results(told)
        assert by_group(results) == {2: [4, 5], 4: [8, 9], 5: [10, 11]}
        now = service.look(told)
        assert (now.state, now.groups_kept, now.groups_dropped) == (pb.JOB_STATE_FINISHED, 3, 3)
        assert (now.terminated, now.dropped, now.queued, now.unacknowledged) == (6, 14, 0, 6)
        assert sorted(world.plays) == [0, 1, 2, 3, 4, 5]  # and none for nothing
        assert (now.rewarded, now.mean_reward) == (12, 0.75)  # what was dropped counts here

        # Where tasks run out there are fewer.
        fewer = await service.submit(job("b", [11, 12, 13], samples=2, grouping=grouping))
        assert by_group(await service.results(fewer)) == {1: [2, 3]}
        assert service.look(fewer).state == pb.JOB_STATE_FINISHED


async def test_an_open_job_carries_over_what_is_in_flight_with_its_tokens(tmp_path: Path) -> None:
    world = World(differing)
    async with served(tmp_path, world, concurrency=WIDE) as service:
        world.held = {4, 6, 8}
        grouping = pb.RolloutGrouping(keep=WITH_VARIANCE, target=2)
        told = await service.submit(job("a", [0, 1, 4, 6, 2, 8], samples=2, grouping=grouping, open=True))
        now = await service.until(told, lambda now: now.groups_kept == 2 and now.in_flight == 6)
        assert (now.state, now.groups_dropped, now.unacknowledged) == (pb.JOB_STATE_RUNNING, 1, 4)
        first = await service.there(told)
        assert sorted(by_group(first)) == [0, 4]
        infos = service.jobs.rollouts("me", told.id)
        assert {(info.stage, info.turns, info.sampled_tokens) for info in infos} == {(pb.ROLLOUT_STAGE_RUN, 2, 6)}
        # A group that ends beyond the target waits, also over a restart, and the others go on.
        world.release(6)
        await service.until(told, lambda now: now.in_flight == 4)
        assert len(await service.there(told)) == 4
        await service.restart()
        plays = world.plays.copy()
        assert service.look(told).groups_kept == 2
        await service.extend(told, [10], more_groups=2)
        after = await service.until(told, lambda now: now.groups_kept == 4)
        second = await service.there(told, after=first[-1].cursor)
        assert sorted(by_group(second)) == [3, 6]
        assert by_group(second)[3] == [6, 7]
        assert numbers(second)[:2] == [6, 7]  # first what had waited
        assert world.plays[6] == plays[6]
        assert (after.in_flight, after.state) == (4, pb.JOB_STATE_RUNNING)
        # The rest is not wanted any more when the job is closed.
        await service.extend(told, close=True)
        now = service.look(told)
        assert (now.state, now.dropped, now.in_flight) == (pb.JOB_STATE_FINISHED, 14 - 8, 0)
        assert len(await service.results(told)) == 8


async def test_finished_members_of_a_group_are_not_played_again_after_a_restart(tmp_path: Path) -> None:
    world = World(lambda task, play: float(play))
    world.held = {(1, 3), (1, 4)}
    async with served(tmp_path, world, concurrency=WIDE) as service:
        told = await service.submit(job("a", [0, 1], samples=3, grouping=pb.RolloutGrouping(keep=WITH_VARIANCE)))
        await service.until(told, lambda now: (now.terminated, now.groups_kept, now.in_flight) == (5, 1, 1))
        assert len(await service.there(told)) == 3
        await service.restart()
        assert len(await service.there(told)) == 3
        world.release()
        results = await service.results(told)
        assert by_group(results) == {0: [0, 1, 2], 1: [3, 4, 5]}
        assert world.plays == {0: 3, 1: 4}
        assert (service.look(told).terminated, service.look(told).rewarded) == (6, 6)


async def test_what_is_too_old_is_played_again_before_all_others(tmp_path: Path) -> None:
    world = World()
    async with served(tmp_path, world, concurrency=WIDE) as service:
        world.held = {0}
        grouping = pb.RolloutGrouping(max_staleness=1)
        told = await service.submit(job("a", [0, 1], samples=2, grouping=grouping))
        await service.until(told, lambda now: now.groups_kept == 1 and now.in_flight == 2)
        service.announce(1)
        service.announce(2)
        world.release()
        results = await service.results(told)
        versions = {result.group_number: from_result(result).oldest_version for result in results}
        assert versions == {0: 2, 1: 0}
        assert len(set(numbers(results))) == 4
        assert world.plays == {0: 4, 1: 2}
        assert (service.look(told).terminated, service.look(told).rewarded) == (4, 4)


async def test_groups_that_wait_and_become_too_old_are_played_again(tmp_path: Path) -> None:
    world = World()
    async with served(tmp_path, world, concurrency=WIDE) as service:
        world.held = {1}
        grouping = pb.RolloutGrouping(max_staleness=1, target=1)
        told = await service.submit(job("a", [0, 1], samples=2, grouping=grouping, open=True))
        await service.until(told, lambda now: now.groups_kept == 1 and now.in_flight == 2)
        world.release()
        await service.until(told, lambda now: now.state == pb.JOB_STATE_WAITING)
        world.held = {1}
        service.announce(5)
        await service.until(told, lambda now: now.state == pb.JOB_STATE_RUNNING)
        world.release()
        await service.until(told, lambda now: now.state == pb.JOB_STATE_WAITING)
        assert world.plays == {0: 2, 1: 4}
        await service.extend(told, more_groups=1, close=True)
        results = await service.results(told)
        assert [from_result(result).oldest_version for result in results] == [0, 0, 5, 5]


async def test_what_is_too_old_each_time_is_dropped(tmp_path: Path) -> None:
    world = World()
    async with served(tmp_path, world, concurrency=WIDE) as service:

        async def may_end(task: int, play: int) -> None:
            """The policy changes twice while it is played."""
            service.announce(service.version + 2)

        world.may_end = may_end
        limits, grouping = pb.RolloutLimits(attempts=3), pb.RolloutGrouping(max_staleness=1)
        told = await service.submit(job("a", [0], samples=2, limits=limits, grouping=grouping))
        assert await service.results(told) == []
        now = service.look(told)
        assert (now.state, now.dropped, now.groups_dropped) == (pb.JOB_STATE_FINISHED, 2, 1)
        assert "max_staleness" in now.last_fault
        assert world.plays == {0: 6}


async def test_a_job_that_is_cancelled_gives_what_there_is_of_its_groups(tmp_path: Path) -> None:
    world = World(lambda task, play: float(play))
    async with served(tmp_path, world, concurrency=WIDE) as service:
        world.held = {1, 8}
        told = await service.submit(job("a", range(10), samples=4, grouping=pb.RolloutGrouping(whole=True)))
        await service.until(told, lambda now: now.groups_kept == 8 and now.in_flight == 8)
        await service.jobs.cancel("me", pb.CancelRolloutsRequest(rollout_ids=[f"{told.id}/4", f"{told.id}/35"]))
        assert {4, 35}.isdisjoint(numbers(await service.there(told)))
        assert await service.cancel(told) == 6
        groups = by_group(await service.results(told))
        assert (groups[1], groups[8]) == ([4, 5, 6, 7], [32, 33, 34, 35])
        now = service.look(told)
        assert (now.state, now.cancelled, now.dropped) == (pb.JOB_STATE_CANCELLED, 8, 0)


async def test_groups_that_wait_beyond_the_target_come_when_the_job_is_cancelled(tmp_path: Path) -> None:
    world = World()
    async with served(tmp_path, world, concurrency=WIDE) as service:
        world.held = {1, (2, 2)}
        grouping = pb.RolloutGrouping(target=1)
        told = await service.submit(job("a", range(3), samples=2, grouping=grouping, open=True))
        await service.until(told, lambda now: now.groups_kept == 1 and now.in_flight == 3)
        world.release(1)
        await service.until(told, lambda now: now.terminated == 5)
        assert sorted(by_group(await service.there(told))) == [0]
        assert await service.cancel(told) == 1
        assert by_group(await service.results(told)) == {0: [0, 1], 1: [2, 3], 2: [4, 5]}
        now = service.look(told)
        assert (now.state, now.groups_kept) == (pb.JOB_STATE_CANCELLED, 2)
        assert (now.terminated, now.cancelled, now.dropped) == (5, 1, 0)
        await service.restart()
        assert len(await service.there(told)) == 6


async def test_a_group_of_which_rollouts_are_cancelled_goes_on_without_them(tmp_path: Path) -> None:
    world = World()
    async with served(tmp_path, world) as service:
        service.world.held = {0}
        told = await service.submit(job("a", [0, 1, 2], samples=4, grouping=pb.RolloutGrouping(whole=True)))
        await asyncio.wait_for(world.turned[0].wait(), 10)
        ids = [f"{told.id}/{number}" for number in (4, 5, 6, 7, 8, 11)]
        # Some have begun by now, and have results.
        begun = {info.id for info in service.jobs.rollouts("me", told.id) if info.stage != pb.ROLLOUT_STAGE_QUEUED}
        assert await service.jobs.cancel("me", pb.CancelRolloutsRequest(rollout_ids=ids)) == 6
        world.release()
        groups = by_group(await service.results(told))
        kept = [int(id.partition("/")[2]) for id in ids if id in begun]
        assert groups[0] == [0, 1, 2, 3]
        assert groups[2] == [9, 10]
        assert groups.get(1, []) == kept
        assert service.look(told).state == pb.JOB_STATE_FINISHED


async def test_more_groups_are_for_jobs_with_a_target(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        told = await service.submit(job("a", [], open=True))
        with pytest.raises(errors.InvalidArgument, match="target"):
            await service.extend(told, [1], more_groups=1)
        assert service.look(told).extensions == 0
