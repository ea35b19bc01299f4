"""Many rollouts at once, over environments in this process and scripted generators."""

import asyncio
import signal
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from gymhost.rollout import (
    Concurrency,
    Limits,
    RolloutEngine,
    RolloutRequest,
    Sampling,
    grouped,
)
from gymhost.wire import errors
from support.local_source import LocalSource
from support.rollouts import CHAT, SAY, engine, requests, turns_of
from support.talk import Answer, Talk, end, user
from support.virtual_time import simulated

pytestmark = pytest.mark.heavy


async def test_trajectories_come_as_they_finish_and_a_slow_one_holds_nobody() -> None:
    release = asyncio.Event()

    class Slow(Talk):
        async def astep(self, action: Any) -> Answer:
            if self.options["task"] == 0:
                await release.wait()
            return end()

    source = LocalSource(lambda: Slow(lambda _env, _message: end()))
    async with engine(source, lambda *_: SAY, concurrency=Concurrency(init=1, run=2, eval=1, ahead=1)) as rollouts:
        order: list[int | None] = []
        async for trajectory in rollouts.run(requests(20)):
            order.append(trajectory.task)
            if len(order) == 19:
                release.set()
    assert order[-1] == 0
    assert sorted(order, key=lambda task: task or 0) == list(range(20))


async def test_servers_know_an_episode_by_the_id_of_its_rollout() -> None:
    source = LocalSource(lambda: Talk(lambda _env, _message: end()))
    async with engine(source, lambda *_: SAY, concurrency=Concurrency(init=2, run=2, eval=2)) as rollouts:
        long = RolloutRequest("Talk-v0", task=6, id="x" * 300)
        trajectories = await rollouts.collect([*requests(6), long])
    assert sorted(source.labels) == sorted(each.id[:128] for each in trajectories)


async def test_no_more_are_in_a_stage_than_may_be() -> None:
    resetting, running, most = 0, 0, [0, 0]

    class Counted(Talk):
        async def areset(self, **kwargs: Any) -> Any:
            nonlocal resetting
            resetting += 1
            most[0] = max(most[0], resetting)
            await asyncio.sleep(0.001)
            resetting -= 1
            return self.reset(**kwargs)

    async def script(_prompt_ids: Sequence[int], _name: str) -> list[int]:
        nonlocal running
        running += 1
        most[1] = max(most[1], running)
        await asyncio.sleep(0.001)
        running -= 1
        return SAY

    source = LocalSource(lambda: Counted(lambda env, _message: turns_of(env, 2)))
    async with engine(source, script, concurrency=Concurrency(init=3, run=4, eval=2, ahead=2)) as rollouts:
        trajectories = await rollouts.collect(requests(40))
    assert most == [3, 4]
    assert source.most <= 8
    assert all(item.timings.queue > 0 for item in trajectories[8:])


async def test_sessions_are_reused_and_failed_ones_thrown_away() -> None:
    def answer(env: Talk, _message: Any) -> Answer:
        if env.options["task"] == 3:
            raise ValueError("boom")
        return end()

    source = LocalSource(lambda: Talk(answer))
    async with engine(source, lambda *_: SAY, concurrency=Concurrency(init=1, run=1, eval=1, ahead=1)) as rollouts:
        await rollouts.collect(requests(3))
        assert (source.opened, source.open) == (2, 2)
        await rollouts.collect([RolloutRequest("Talk-v0", task=3)])
        assert (source.opened, source.open) == (2, 1)
    assert source.open == 0


async def test_a_kept_session_that_was_lost_meanwhile_is_replaced_without_a_retry() -> None:
    lost = False

    def opening(env: Talk) -> Any:
        if lost and env in first:
            raise errors.SessionExpired("its lease ran out")
        first.append(env)
        return [user("Go.")]

    first: list[Talk] = []
    source = LocalSource(lambda: Talk(lambda env, _message: turns_of(env, 1), opening))
    async with engine(source, lambda *_: SAY, limits=Limits(retries=0)) as rollouts:
        await rollouts.collect(requests(4))
        lost = True
        trajectories = await rollouts.collect(requests(4))
    assert [item.outcome.kind for item in trajectories] == ["terminated"] * 4
    assert source.open == 0


def test_a_kept_session_that_was_lost_is_closed_whatever_becomes_of_the_rollout() -> None:
    class Lost(Talk):
        resets = 0

        async def areset(self, **kwargs: Any) -> Any:
            self.resets += 1
            if self.resets == 2:
                raise errors.SessionLost("its worker died")
            return self.reset(**kwargs)

        async def aclose(self) -> None:
            await asyncio.sleep(10)

    async def main() -> None:
        source = LocalSource(lambda: Lost(lambda env, _message: turns_of(env, 1)))
        async with engine(source, script, concurrency=Concurrency(eval=1)) as rollouts:
            await rollouts.collect(requests(2))
            assert source.open == 2
            batch = asyncio.create_task(rollouts.collect(requests(2)))
            await asyncio.sleep(1)
            rollouts.cancel()
            assert [item.outcome.kind for item in await batch] == ["cancelled"] * 2
        assert (source.open, source.opened) == (0, 4)

    async def script(_prompt_ids: Sequence[int], _name: str) -> list[int]:
        await asyncio.sleep(5)
        return SAY

    simulated(main())


async def test_an_engine_that_was_closed_plays_nothing_more() -> None:
    source = LocalSource(lambda: Talk(lambda env, _message: turns_of(env, 1)))
    async with engine(source, lambda *_: SAY) as rollouts:
        await rollouts.collect(requests(1))
    with pytest.raises(RuntimeError, match="the engine was closed"):
        await rollouts.collect(requests(1))
    with pytest.raises(RuntimeError, match="the engine was closed"):
        await rollouts.feed(requests(1), batch_size=1).batch()
    assert source.open == 0


def test_an_engine_in_two_event_loops_says_so() -> None:
    source = LocalSource(lambda: Talk(lambda env, _message: turns_of(env, 1)))
    rollouts = engine(source, lambda *_: SAY)
    asyncio.run(rollouts.collect(requests(1)))
    with pytest.raises(RuntimeError, match="an engine works in one event loop"):
        rollouts.collect_sync(requests(1))
    rollouts.close_sync()


@pytest.mark.parametrize("generator", [None, object(), Sampling()])
def test_what_is_no_generator_is_refused(generator: Any) -> None:
    with pytest.raises(TypeError, match="this is no generator"):
        RolloutEngine(LocalSource(Talk), CHAT, generator)


async def test_without_reuse_each_rollout_has_a_session_of_its_own() -> None:
    source = LocalSource(lambda: Talk(lambda env, _message: turns_of(env, 1)))
    async with engine(source, lambda *_: SAY, reuse_sessions=False) as rollouts:
        await rollouts.collect(requests(5))
        assert (source.opened, source.open) == (5, 0)


async def test_cancelling_a_batch_leaves_no_session() -> None:
    begun = asyncio.Semaphore(0)

    async def script(_prompt_ids: Sequence[int], _name: str) -> list[int]:
        begun.release()
        await asyncio.Event().wait()
        return SAY

    source = LocalSource(lambda: Talk(lambda env, _message: turns_of(env, 1)))
    async with engine(source, script) as rollouts:
        batch = asyncio.create_task(rollouts.collect(requests(6)))
        for _ in range(6):
            await begun.acquire()
        batch.cancel()
        with pytest.raises(asyncio.CancelledError):
            await batch
        assert source.open == 0


async def test_leaving_the_iterator_cancels_the_rest() -> None:
    async def script(_prompt_ids: Sequence[int], name: str) -> list[int]:
        if not name.partition("/")[0].endswith("-0"):
            await asyncio.Event().wait()
        return SAY

    source = LocalSource(lambda: Talk(lambda env, _message: turns_of(env, 1)))
    async with engine(source, script, reuse_sessions=False) as rollouts:
        running = rollouts.run(requests(6))
        async for _ in running:
            break
        assert source.open == 5
        await running.aclose()
        assert source.open == 0


def test_callers_without_an_event_loop() -> None:
    source = LocalSource(lambda: Talk(lambda env, _message: turns_of(env, 2)))
    rollouts = engine(source, lambda *_: SAY)
    assert [item.task for item in rollouts.collect_sync(requests(5))] == list(range(5))
    assert sorted(item.task or 0 for item in rollouts.run_sync(requests(5))) == list(range(5))
    first = next(iter(rollouts.run_sync(requests(5))))
    assert first.outcome.kind == "terminated"
    rollouts.call_sync(rollouts.generator.aclose())
    rollouts.close_sync()
    assert source.open == 0
    assert not [thread for thread in threading.enumerate() if thread.name == "gymhost-rollout"]


def test_ctrl_c_in_a_caller_without_an_event_loop_cancels_the_rollouts() -> None:
    """Case S07: a keyboard interrupt passes through."""

    async def script(_prompt_ids: Sequence[int], _name: str) -> list[int]:
        if not begun.is_set():
            begun.set()
            signal.pthread_kill(main, signal.SIGINT)
        await asyncio.Event().wait()
        return SAY

    begun = threading.Event()
    main = threading.get_ident()
    source = LocalSource(lambda: Talk(lambda env, _message: turns_of(env, 1)))
    rollouts = engine(source, script)
    with pytest.raises(KeyboardInterrupt):
        rollouts.collect_sync(requests(3))
    assert source.open == 0
    rollouts.close_sync()


def test_groups_share_task_and_seed() -> None:
    made = grouped([RolloutRequest("Talk-v0", task=7), RolloutRequest("Talk-v0", task=8, seed=40, group="x")], 3)
    assert [(item.task, item.seed, item.group, item.index) for item in made] == [
        (7, 0, "0", 0),
        (7, 0, "0", 1),
        (7, 0, "0", 2),
        (8, 40, "x", 0),
        (8, 40, "x", 1),
        (8, 40, "x", 2),
    ]


async def test_all_sampled_tokens_together_may_be_limited() -> None:
    source = LocalSource(lambda: Talk(lambda env, _message: turns_of(env, 9)))
    async with engine(source, lambda *_: SAY, limits=Limits(sampled_tokens=2 * len(SAY) + 1)) as rollouts:
        [trajectory] = await rollouts.collect(requests(1))
    assert (trajectory.outcome.kind, trajectory.outcome.limit) == ("truncated", "sampled_tokens")
    assert [turn.tokens for turn in trajectory.turns] == [len(SAY), len(SAY), 1]


@pytest.mark.parametrize("name", ["turn_tokens", "sampled_tokens", "init_seconds"])
def test_limits_that_make_no_sense_are_refused(name: str) -> None:
    settings: dict[str, Any] = {name: 0}
    with pytest.raises(ValueError, match=f"the limit {name} must be above 0, not 0"):
        Limits(**settings)


def test_no_retries_are_a_limit_too() -> None:
    assert Limits(retries=0).retries == 0
    with pytest.raises(ValueError, match="retries must be 0 or more"):
        Limits(retries=-1)


@pytest.mark.parametrize(
    ("field", "value"),
    [("task", 1.5), ("seed", "7"), ("index", "0"), ("group", 7), ("split", 1), ("env_id", None), ("labels", {1: 2})],
)
def test_requests_with_a_wrong_field_are_refused(field: str, value: Any) -> None:
    fields: dict[str, Any] = {"env_id": "Talk-v0", field: value}
    with pytest.raises(TypeError, match=f"the {field} of a request"):
        RolloutRequest(**fields)


def test_numbers_of_numpy_are_plain_ones_in_requests() -> None:
    request = RolloutRequest("Talk-v0", task=np.int64(3))  # pyright: ignore[reportArgumentType]
    assert type(request.task) is int


def test_stages_need_a_place() -> None:
    with pytest.raises(ValueError, match=r"Concurrency\.run must be 1 or more, not 0"):
        Concurrency(run=0)


def test_requests_that_end_the_program_end_the_call() -> None:
    def until_told_to_exit() -> Iterator[RolloutRequest]:
        yield from requests(3)
        raise SystemExit(3)

    rollouts = engine(LocalSource(lambda: Talk(lambda *_: end())), lambda *_: SAY)
    try:
        with pytest.raises(SystemExit, match="3"):
            rollouts.collect_sync(until_told_to_exit())
    finally:
        rollouts.close_sync()
