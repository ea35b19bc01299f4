"""Groups: more rollouts than are needed, and what becomes of the rest."""

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from gymhost.rollout import Concurrency, Limits, RolloutRequest, Trajectory
from gymhost.rollout.groups import Grouping, has_variance
from support.local_source import LocalSource
from support.rollouts import SAY, engine, requests
from support.talk import Answer, Talk, end
from support.virtual_time import now, simulated

pytestmark = pytest.mark.heavy


class Numbered(Talk):
    """Its only step takes as many seconds as it is the how-manieth of its task, and pays what the test says."""

    def __init__(self, world: "World") -> None:
        super().__init__(lambda _env, _message: end())
        self.world = world

    async def astep(self, action: Any) -> Answer:
        task = self.options["task"]
        number = next(self.world.numbers.setdefault(task, itertools.count(1)))
        await asyncio.sleep(number)
        self.said.append(action)
        return end(reward=self.world.pay(task, number))


class World(LocalSource):
    """Sessions whose rollouts end a second after another."""

    def __init__(self, pay: Any = lambda _task, number: float(number)) -> None:
        super().__init__(lambda: Numbered(self))
        self.numbers: dict[int, Iterator[int]] = {}
        self.pay = pay


def fail(_task: int, number: int) -> float:
    if number in (1, 3):
        raise ValueError("boom")
    return float(number)


def rewards(trajectories: Sequence[Trajectory]) -> list[float | None]:
    return sorted((trajectory.reward for trajectory in trajectories), key=lambda reward: reward or 0.0)


def kinds(trajectories: Sequence[Trajectory]) -> set[str]:
    return {trajectory.outcome.kind for trajectory in trajectories}


def test_a_group_shares_task_and_seed_and_has_exactly_its_size() -> None:
    async def main() -> None:
        async with engine(World(), lambda *_: SAY) as rollouts:
            groups = [group async for group in rollouts.groups(requests(3), Grouping(size=4))]
        assert {group.request.task for group in groups} == {0, 1, 2}
        for group in groups:
            place = group.request.task
            assert {(each.task, each.seed, each.group) for each in group.trajectories} == {(place, place, str(place))}
            assert [each.index for each in group.trajectories] == [0, 1, 2, 3]
            assert (group.spare, group.reason, rewards(group.trajectories)) == ([], "all", [1, 2, 3, 4])

    simulated(main())


def test_as_soon_as_enough_have_a_reward_the_rest_is_cancelled() -> None:
    async def main() -> None:
        source = World(fail)
        async with engine(source, lambda *_: SAY, limits=Limits(retries=0)) as rollouts:
            [group] = [group async for group in rollouts.groups(requests(1), Grouping(size=3, extra=4))]
            # Of seven, 1 and 3 failed, so 5 is the third with a reward; 6 and 7 were cut off.
            assert (now(), group.reason, rewards(group.trajectories)) == (5, "count", [2, 4, 5])
            assert [each.outcome.kind for each in group.spare].count("failed") == 2
            assert [each.outcome.kind for each in group.spare].count("cancelled") == 2
            indices = [each.index for each in group.trajectories]
            assert indices == sorted(indices)
            assert len({each.index for each in [*group.trajectories, *group.spare]}) == 7
        assert source.open == 0

    simulated(main())


def test_a_group_waits_for_its_slowest_only_so_long() -> None:
    async def main() -> None:
        async with engine(World(), lambda *_: SAY) as rollouts:
            [group] = [group async for group in rollouts.groups(requests(1), Grouping(size=6, patience=1.5))]
        assert (now(), group.reason) == (4.5, "time")  # half of them had ended after 3
        assert [each.reward for each in group.trajectories].count(None) == 2
        assert kinds(group.trajectories) == {"terminated", "cancelled"}

    simulated(main())


def test_patience_ends_a_group_for_whose_rest_there_is_no_place() -> None:
    async def main() -> None:
        async with engine(World(), lambda *_: SAY, concurrency=Concurrency(init=1, run=1, eval=1, ahead=0)) as rollouts:
            asked = [RolloutRequest("Talk-v0", task=0), RolloutRequest("Talk-v0", task=1)]
            first, second = [g async for g in rollouts.groups(asked, Grouping(size=4, extra=20, patience=0.5))]
            for group in (first, second):
                assert (group.reason, len(group.trajectories), len(group.spare)) == ("time", 4, 0)
                assert rewards(group.trajectories) == [None, None, 1, 2]

    simulated(main())


def test_a_predicate_may_say_when_there_is_enough() -> None:
    def two_rewards(ended: Sequence[Trajectory]) -> bool:
        return len({each.reward for each in ended}) == 2

    async def main() -> None:
        source = World(lambda _task, number: float(number > 3))
        async with engine(source, lambda *_: SAY) as rollouts:
            [group] = [g async for g in rollouts.groups(requests(1), Grouping(size=5, extra=3, enough=two_rewards))]
        assert (now(), group.reason, rewards(group.trajectories)) == (4, "enough", [0, 0, 0, None, 1])
        assert kinds(group.spare) == {"cancelled"}

    simulated(main())


def test_a_group_with_nothing_to_learn_from_gives_its_place_to_the_next() -> None:
    asked = 0

    def endless() -> Iterator[RolloutRequest]:
        nonlocal asked
        for task in itertools.count():
            asked += 1
            yield RolloutRequest("Talk-v0", task=task)

    async def main() -> None:
        source = World(lambda task, number: float(task % 3 == 2 and number == 1))
        async with engine(source, lambda *_: SAY) as rollouts:
            learning = Grouping(size=3, keep=has_variance)
            groups = [group async for group in rollouts.groups(endless(), learning, target=5)]
        assert sorted(group.request.task or 0 for group in groups) == [2, 5, 8, 11, 14]
        assert asked == 15  # none was begun in vain
        assert source.open == 0

    simulated(main())


def test_requests_that_end_before_the_target_end_the_groups() -> None:
    async def main() -> None:
        async with engine(World(), lambda *_: SAY) as rollouts:
            refused = Grouping(size=1, keep=lambda group: group.request.task == 1)
            groups = [group async for group in rollouts.groups(requests(2), refused, target=2)]
        assert [group.request.task for group in groups] == [1]

    simulated(main())


@pytest.mark.parametrize("setting", ["keep", "enough"])
def test_a_predicate_that_fails_is_an_error(setting: str) -> None:
    async def main() -> None:
        source = World()
        settings: dict[str, Any] = {setting: lambda _: 1 / 0}
        grouping = Grouping(size=3, **settings)
        async with engine(source, lambda *_: SAY, reuse_sessions=False) as rollouts:
            running = rollouts.groups(requests(4), grouping)
            with pytest.raises(ZeroDivisionError):
                await anext(running)
            assert source.open == 0

    simulated(main())


def test_leaving_in_the_middle_leaves_no_session() -> None:
    async def main() -> None:
        source = World()
        async with engine(source, lambda *_: SAY, reuse_sessions=False) as rollouts:
            running = rollouts.groups(requests(4), Grouping(size=3, extra=1))
            assert len((await anext(running)).trajectories) == 3
            await running.aclose()
            assert source.open == 0
            assert rollouts.status().in_flight == 0

    simulated(main())


def test_groups_without_an_event_loop() -> None:
    def answer(env: Talk, _message: Any) -> Answer:
        return end(reward=float(env.options["task"]))

    source = LocalSource(lambda: Talk(answer))
    rollouts = engine(source, lambda *_: SAY)
    groups = list(rollouts.groups_sync(requests(3), Grouping(size=2, extra=1)))
    assert sorted(rewards(group.trajectories) for group in groups) == [[0, 0], [1, 1], [2, 2]]
    rollouts.close_sync()
    assert source.open == 0


def test_groupings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="size of 1 or more"):
        Grouping(size=0)
