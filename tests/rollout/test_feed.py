"""Batches for a trainer that trains while rollouts go on."""

import asyncio
import itertools
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from gymhost.rollout import RolloutRequest, Row, Trajectory
from gymhost.rollout.feed import stale_tokens
from gymhost.rollout.groups import Grouping
from support.local_source import LocalSource
from support.rollouts import ECHO, SAY, engine, requests
from support.talk import Answer, Talk, end, go_on, tool
from support.virtual_time import now, simulated

pytestmark = pytest.mark.heavy


class Paced(Talk):
    """Plays so many turns, each of a second."""

    def __init__(self, turns: Any) -> None:
        super().__init__(lambda _env, _message: end())
        self.turns = turns

    async def astep(self, action: Any) -> Answer:
        await asyncio.sleep(1)
        self.said.append(action)
        return end() if len(self.said) >= self.turns(self.options["task"]) else go_on(tool("on"))


def quick_and_slow() -> Iterator[RolloutRequest]:
    """Half of the tasks take a second, half twenty."""
    for task in itertools.count():
        yield RolloutRequest("Talk-v0", task=task, labels={"kind": "slow" if task % 2 else "quick"})


def paced() -> LocalSource:
    return LocalSource(lambda: Paced(lambda task: 20 if task % 2 else 1))


@pytest.mark.parametrize("updates", ["with each batch", "by the clock"])
@pytest.mark.parametrize("batch_size", [8, 16])
def test_slow_tasks_are_trained_on_as_much_as_quick_ones(batch_size: int, updates: str) -> None:
    """Case S38: a weight update each 4 seconds, and nothing may be more than 2 updates behind."""

    async def main() -> None:
        source = paced()
        async with engine(source, lambda *_: ECHO) as rollouts, feed_of(rollouts) as feed:
            clock = asyncio.create_task(tick(feed)) if updates == "by the clock" else None
            handed: list[Trajectory] = []
            while len(handed) < 400:
                version = feed.policy_version
                batch = await feed.batch()
                assert len(batch) == batch_size
                assert source.most <= 3 * batch_size
                handed += batch
                await asyncio.sleep(4)
                if clock is None:
                    feed.policy_version = version + 1
            if clock is not None:
                clock.cancel()
            assert 0.45 <= sum(each.labels["kind"] == "slow" for each in handed) / len(handed) <= 0.55
            assert feed.handed == Counter(f"Talk-v0 {each.labels['kind']}" for each in handed)
            assert feed.discarded.total() < 0.1 * len(handed)
            assert set(feed.discarded) <= {"Talk-v0 quick"}
            assert now() < 900
        assert source.open == 0

    def feed_of(rollouts: Any) -> Any:
        return rollouts.feed(quick_and_slow(), batch_size=batch_size, max_staleness=2)

    async def tick(feed: Any) -> None:
        while True:
            await asyncio.sleep(4)
            feed.policy_version += 1

    simulated(main())


def test_with_an_update_a_batch_no_work_is_thrown_away() -> None:
    async def main() -> None:
        async with (
            engine(LocalSource(lambda: Paced(lambda _task: 1)), lambda *_: ECHO) as rollouts,
            rollouts.feed(quick_and_slow(), batch_size=4, max_staleness=2) as feed,
        ):
            tasks: list[int | None] = []
            for version in range(20):
                tasks += [each.task for each in await feed.batch()]
                await asyncio.sleep(100)  # far more ends meanwhile than is wanted
                assert feed.ahead == feed.ready == 2 * 4
                feed.policy_version = version + 1
            assert not feed.discarded
            assert tasks == list(range(80))

    simulated(main())


def test_what_waited_too_long_is_played_again_before_all_others() -> None:
    async def main() -> None:
        async with engine(LocalSource(lambda: Paced(lambda _task: 1)), lambda *_: ECHO) as rollouts:
            feed = rollouts.feed(requests(50), batch_size=4, max_staleness=1)
            assert [each.task for each in await feed.batch()] == [0, 1, 2, 3]
            await asyncio.sleep(10)
            assert (feed.ready, feed.ahead) == (4, 4)
            feed.policy_version = 1
            await asyncio.sleep(10)
            assert (feed.ready, feed.discarded) == (8, {})
            feed.policy_version = 2
            await asyncio.sleep(0.5)
            assert (feed.ready, feed.ahead, feed.discarded) == (4, 8, {"Talk-v0": 4})
            assert [each.task for each in await feed.batch()] == [8, 9, 10, 11]
            assert [each.task for each in await feed.batch()] == [4, 5, 6, 7]
            assert (now(), feed.discarded) == (22, {"Talk-v0": 4})
            await feed.aclose()
            with pytest.raises(RuntimeError, match="closed"):
                await feed.batch()

    simulated(main())


def test_a_rollout_in_flight_goes_on_under_new_weights_and_each_token_tells_its_version() -> None:
    async def main() -> None:
        async with engine(LocalSource(lambda: Paced(lambda _task: 3)), lambda *_: ECHO) as rollouts:
            feed = rollouts.feed(requests(1), batch_size=1, max_staleness=1)
            batch = asyncio.create_task(feed.batch())
            for seconds in (0.5, 1):
                await asyncio.sleep(seconds)
                rollouts.generator.policy_version += 5  # type: ignore[misc]
            [trajectory] = await batch
            assert feed.policy_version == 10
            assert (trajectory.valid, feed.discarded) == (True, {})
            [row] = trajectory.rows()
            versions = [version for version in row.policy_versions if version >= 0]
            assert versions == [0] * len(ECHO) + [5] * len(ECHO) + [10] * len(ECHO)
            assert sum(stale_tokens(row, 10, 5)) == len(ECHO)
            assert await feed.batch() == []
            await feed.aclose()

    simulated(main())


def test_only_sampled_tokens_can_be_too_old() -> None:
    row = Row(prompt_ids=[1])
    row.append_sampled([2, 3], [-1.0, -1.0], [0, 1])
    row.append_environment([4])
    row.append_sampled([5], [-1.0], [2])
    assert stale_tokens(row, 3, 2) == [1, 0, 0, 0]
    assert stale_tokens(row, 3, 1) == [1, 1, 0, 0]


async def test_the_last_batch_is_what_is_left() -> None:
    async with (
        engine(LocalSource(lambda: Talk(lambda _env, _message: end())), lambda *_: SAY) as rollouts,
        rollouts.feed(requests(10), batch_size=4) as feed,
    ):
        assert [len(batch) async for batch in feed] == [4, 4, 2]


async def test_batches_of_groups() -> None:
    async with (
        engine(LocalSource(lambda: Talk(lambda _env, _message: end())), lambda *_: SAY) as rollouts,
        rollouts.feed(requests(6), batch_size=2, grouping=Grouping(size=3, extra=1)) as feed,
    ):
        batches = [batch async for batch in feed]
    assert [group.request.task for batch in batches for group in batch] == [0, 1, 2, 3, 4, 5]
    assert all(len(group.trajectories) == 3 for batch in batches for group in batch)


def test_a_trainer_without_an_event_loop() -> None:
    source = LocalSource(lambda: Talk(lambda _env, _message: end()))
    rollouts = engine(source, lambda *_: SAY)
    with rollouts.feed(quick_and_slow(), batch_size=4) as feed:
        for version, batch in enumerate(feed):
            assert len(batch) == 4
            feed.policy_version = version
            if version == 10:
                break
    rollouts.close_sync()
    assert (source.open, feed.handed.total()) == (0, 44)


def test_a_feed_ends_with_its_engine() -> None:
    source = LocalSource(lambda: Talk(lambda _env, _message: end()))
    rollouts = engine(source, lambda *_: SAY)
    with rollouts.feed(itertools.repeat(RolloutRequest("Talk-v0")), batch_size=2) as feed:
        assert len(feed.batch_sync()) == 2
        rollouts.close_sync()
        with pytest.raises(RuntimeError, match="was closed"):
            feed.batch_sync()
    assert source.open == 0
    assert not any(thread.name == "gymhost-rollout" for thread in threading.enumerate())


def test_feeds_that_make_no_sense_are_refused() -> None:
    rollouts = engine(LocalSource(lambda: Talk(lambda _env, _message: end())), lambda *_: SAY)
    with pytest.raises(ValueError, match="batch_size must be 1 or more"):
        rollouts.feed(requests(1), batch_size=0)
