"""The stream of rollouts: how far it runs ahead, and how it is paused, cancelled and closed."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gymhost.client import connect
from gymhost.rollout import Concurrency, Limits, RolloutEngine, RolloutRequest
from gymhost.wire import errors
from support.local_source import LocalSource
from support.rollouts import CHAT, ECHO, SAY, engine, requests, turns_of, whole
from support.server import ServerProcess, until, until_sessions
from support.talk import Answer, Talk, end
from support.virtual_time import now, simulated

pytestmark = pytest.mark.heavy

SMALL = Concurrency(init=2, run=3, eval=1, ahead=2)


class Endless:
    """Requests without end; counts those that were drawn."""

    def __init__(self) -> None:
        self.drawn = 0

    def __iter__(self) -> Iterator[RolloutRequest]:
        for task in itertools.count():
            self.drawn += 1
            yield RolloutRequest("Talk-v0", task=task)


class Timed(Talk):
    """One step, that takes as long as the test says for its task."""

    def __init__(self, seconds: Any) -> None:
        super().__init__(lambda _env, _message: end())
        self.seconds = seconds

    async def astep(self, action: Any) -> Answer:
        await asyncio.sleep(self.seconds(self.options["task"]))
        return self.step(action)


def one_turn() -> LocalSource:
    return LocalSource(lambda: Talk(lambda env, _message: turns_of(env, 1)))


class Held:
    """A script whose generations wait until they are let go."""

    def __init__(self) -> None:
        self.begun = asyncio.Semaphore(0)
        self.go = asyncio.Event()

    async def __call__(self, _prompt_ids: Sequence[int], _name: str) -> list[int]:
        self.begun.release()
        await self.go.wait()
        return SAY

    async def begin(self, count: int) -> None:
        for _ in range(count):
            await self.begun.acquire()


# -- how far it runs ahead ---------------------------------------------------------------------------------------------


async def test_endless_requests_are_drawn_as_places_come_free() -> None:
    asked = Endless()
    source = one_turn()
    async with engine(source, lambda *_: SAY, concurrency=SMALL) as rollouts:
        running = rollouts.run(asked)
        for taken in range(1, 40):
            await anext(running)
            assert asked.drawn <= taken + 2 * SMALL.in_flight
        await running.aclose()
    assert source.open == 0


def test_rollouts_go_on_while_nobody_takes_them_but_not_for_ever() -> None:
    async def main() -> None:
        asked = Endless()
        async with engine(LocalSource(lambda: Timed(lambda _task: 1)), lambda *_: SAY, concurrency=SMALL) as rollouts:
            running = rollouts.run(asked)
            await anext(running)
            await asyncio.sleep(1000)
            assert asked.drawn == 1 + 2 * SMALL.in_flight
            before = now()
            for _ in range(2 * SMALL.in_flight):
                await anext(running)
            assert now() == before  # all had ended
            await running.aclose()

    simulated(main())


def test_in_order_a_slow_one_does_not_let_those_behind_it_pile_up() -> None:
    async def main() -> None:
        asked = Endless()
        source = LocalSource(lambda: Timed(lambda task: 1000 if task == 0 else 1))
        async with engine(source, lambda *_: SAY, concurrency=SMALL) as rollouts:
            running = rollouts.run(asked, ordered=True)
            first = await anext(running)
            assert (first.task, now()) == (0, 1000)
            assert asked.drawn == 2 * SMALL.in_flight
            assert [(await anext(running)).task for _ in range(30)] == list(range(1, 31))
            await running.aclose()
        assert source.open == 0

    simulated(main())


async def test_requests_may_come_as_they_are_thought_of() -> None:
    next_ones: asyncio.Queue[RolloutRequest | None] = asyncio.Queue()

    async def asked() -> AsyncIterator[RolloutRequest]:
        while (request := await next_ones.get()) is not None:
            yield request

    async with engine(one_turn(), lambda *_: SAY) as rollouts:
        running = rollouts.run(asked())
        for task in range(5):
            next_ones.put_nowait(RolloutRequest("Talk-v0", task=task))
            assert (await anext(running)).task == task
        next_ones.put_nowait(None)
        assert await anext(running, None) is None


async def test_requests_that_fail_to_come_are_an_error_and_leave_no_session() -> None:
    def asked() -> Iterator[RolloutRequest]:
        yield from requests(3)
        raise LookupError("the data set is broken")

    source, script = one_turn(), Held()
    async with engine(source, script) as rollouts:
        with pytest.raises(LookupError, match="broken"):
            await rollouts.collect(asked())
        assert source.open == 0


@pytest.mark.parametrize("what", [None, "Talk-v0"])
async def test_what_is_no_request_is_an_error_and_no_end(what: Any) -> None:
    async with engine(one_turn(), lambda *_: SAY) as rollouts:
        with pytest.raises(TypeError, match=f"what is played is a RolloutRequest, not {what!r}"):
            await rollouts.collect([*requests(1), what, *requests(1)])


async def test_requests_that_wait_for_what_is_cancelled_are_an_error() -> None:
    async def drawn() -> AsyncIterator[RolloutRequest]:
        yield RolloutRequest("Talk-v0")
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.cancel()
        await waiting

    source = one_turn()
    async with engine(source, lambda *_: SAY) as rollouts:
        with pytest.raises(RuntimeError, match="what the requests waited for was cancelled"):
            await asyncio.wait_for(rollouts.collect(drawn()), 5)
    assert source.open == 0


async def test_init_works_ahead_of_run_only_so_far() -> None:
    source, script = one_turn(), Held()
    async with engine(source, script, concurrency=Concurrency(init=8, run=2, eval=8, ahead=3)) as rollouts:
        batch = asyncio.create_task(rollouts.collect(requests(12)))
        await script.begin(2)
        await until(lambda: rollouts.status().ready == 3)
        for _ in range(50):
            await asyncio.sleep(0)
        status = rollouts.status()
        assert (status.waiting, status.init, status.ready, status.run, source.opened) == (7, 0, 3, 2, 5)
        script.go.set()
        assert len(await batch) == 12


def test_waiting_for_a_place_is_no_part_of_the_time_that_init_has() -> None:
    class Slow(Talk):
        async def areset(self, **kwargs: Any) -> Any:
            await asyncio.sleep(6)
            return self.reset(**kwargs)

    async def main() -> None:
        source = LocalSource(lambda: Slow(lambda *_: end()))
        limits, places = Limits(init_seconds=10, retries=0), Concurrency(init=1, run=4, eval=1, ahead=4)
        async with engine(source, lambda *_: SAY, limits=limits, concurrency=places) as rollouts:
            trajectories = await rollouts.collect(requests(5))
        assert [trajectory.outcome.kind for trajectory in trajectories] == ["terminated"] * 5

    simulated(main())


async def test_evaluation_holds_no_place_of_a_rollout_that_generates() -> None:
    scored = asyncio.Event()

    class Judged(Talk):
        async def aevaluate(self, _limit: str | None) -> Answer:
            await scored.wait()
            return [], 5.0, True, False, {}

    source = LocalSource(lambda: Judged(lambda env, _message: turns_of(env, 1, last=end(evaluation_due=True))))
    async with engine(source, lambda *_: SAY, concurrency=Concurrency(init=1, run=1, eval=8, ahead=1)) as rollouts:
        batch = asyncio.create_task(rollouts.collect(requests(8)))
        await until(lambda: rollouts.status().eval == 8)  # all have been played, in one place, though none is scored
        assert rollouts.status().run == 0
        scored.set()
        assert all(trajectory.valid for trajectory in await batch)


# -- pause -------------------------------------------------------------------------------------------------------------


async def test_paused_no_turn_begins_and_those_that_have_begun_end() -> None:
    script = Held()
    source = LocalSource(lambda: Talk(lambda env, _message: turns_of(env, 2)))
    async with engine(source, script) as rollouts:
        batch = asyncio.create_task(rollouts.collect(requests(4)))
        await script.begin(4)
        rollouts.pause()
        script.go.set()
        await until(lambda: not rollouts.status().generating)
        for _ in range(50):
            await asyncio.sleep(0)
        status = rollouts.status()
        assert (status.paused, status.run, status.generating, status.tokens) == (True, 4, 0, 4 * len(SAY))
        assert (script.begun.locked(), source.open) == (True, 4)
        rollouts.resume()
        assert [trajectory.outcome.turn for trajectory in await batch] == [2] * 4
        assert not rollouts.status().paused


def test_a_pause_is_no_part_of_the_time_that_an_episode_has() -> None:
    async def main() -> None:
        source = LocalSource(lambda: Timed(lambda _task: 6))
        async with engine(source, lambda *_: SAY, limits=Limits(episode_seconds=10, generation_seconds=5)) as rollouts:
            rollouts.pause()
            batch = asyncio.create_task(rollouts.collect(requests(3)))
            await asyncio.sleep(1000)
            assert rollouts.status().run == 3
            rollouts.resume()
            assert [trajectory.outcome.kind for trajectory in await batch] == ["terminated"] * 3
            assert now() == 1006

    simulated(main())


# -- cancel ------------------------------------------------------------------------------------------------------------


async def test_cancelled_rollouts_keep_what_they_sampled_and_leave_no_session() -> None:
    stuck = asyncio.Event()

    async def script(_prompt_ids: Sequence[int], name: str) -> list[int]:
        if name.endswith("/2"):
            stuck.set()
            await asyncio.Event().wait()
        return ECHO

    source = LocalSource(lambda: Talk(lambda env, _message: turns_of(env, 3)))
    async with engine(source, script) as rollouts:
        batch = asyncio.create_task(rollouts.collect(requests(2)))
        await stuck.wait()
        await until(lambda: rollouts.status().generating == 2)
        assert rollouts.cancel() == 2
        assert rollouts.cancel() == 0
        trajectories = await batch
        assert source.open == 0
        for trajectory in trajectories:
            assert (trajectory.outcome.kind, trajectory.outcome.turn, trajectory.reward) == ("cancelled", 2, None)
            [row] = trajectory.rows()
            assert sum(row.mask) == len(ECHO)
            whole(trajectory)
        status = rollouts.status()
        assert (status.in_flight, status.closing, status.generating, status.outcomes) == (0, 0, 0, {"cancelled": 2})


async def test_an_evaluation_is_cancelled_like_a_turn() -> None:
    class Judged(Talk):
        async def aevaluate(self, _limit: str | None) -> Answer:
            return await asyncio.Future()

    source = LocalSource(lambda: Judged(lambda env, _message: turns_of(env, 1, last=end(evaluation_due=True))))
    async with engine(source, lambda *_: SAY) as rollouts:
        batch = asyncio.create_task(rollouts.collect(requests(3)))
        await until(lambda: rollouts.status().eval == 3)
        rollouts.cancel()
        assert {(trajectory.outcome.kind, trajectory.reward) for trajectory in await batch} == {("cancelled", None)}
        assert source.open == 0


async def test_some_are_cancelled_and_the_others_go_on() -> None:
    script = Held()
    async with engine(one_turn(), script) as rollouts:
        batch = asyncio.create_task(rollouts.collect(requests(6)))
        await script.begin(6)
        assert rollouts.cancel(lambda trajectory: trajectory.task in (1, 4)) == 2
        script.go.set()
        kinds = [trajectory.outcome.kind for trajectory in await batch]
    assert kinds == ["terminated", "cancelled", "terminated", "terminated", "cancelled", "terminated"]


def test_nobody_waits_for_the_session_of_a_cancelled_rollout_to_close() -> None:
    class Stuck(Timed):
        async def aclose(self) -> None:
            await asyncio.sleep(30)
            self.close()

    envs: list[Stuck] = []

    def make() -> Stuck:
        envs.append(Stuck(lambda task: 1000 if task else 1))
        return envs[-1]

    async def main() -> None:
        async with engine(LocalSource(make), lambda *_: SAY) as rollouts:
            running = rollouts.run(requests(3))
            assert (await anext(running)).task == 0
            assert rollouts.cancel() == 2
            assert {(await anext(running)).outcome.kind for _ in range(2)} == {"cancelled"}
            assert (now(), rollouts.status().closing) == (1, 2)
            # The end of the iterator is the end of everything that it began, and no cancellation cut the closing short.
            assert await anext(running, None) is None
            assert now() == 31
            assert [env.closed for env in envs] == [False, True, True]
        assert all(env.closed for env in envs)

    simulated(main())


def test_a_rollout_that_waits_to_be_tried_again_can_be_cancelled() -> None:
    async def main() -> None:
        def opening(_env: Talk) -> Any:
            raise ConnectionError("down")

        source = LocalSource(lambda: Talk(lambda _env, _message: end(), opening))
        async with engine(source, lambda *_: SAY, limits=Limits(retries=10**6)) as rollouts:
            batch = asyncio.create_task(rollouts.collect(requests(3)))
            await asyncio.sleep(1000)
            assert rollouts.status().retries > 3 * 100
            rollouts.cancel()
            assert [trajectory.outcome.kind for trajectory in await batch] == ["cancelled"] * 3
            assert now() == 1000
        assert source.open == 0

    simulated(main())


async def test_closing_the_engine_ends_what_is_in_flight() -> None:
    source, script = one_turn(), Held()
    rollouts = engine(source, script)
    batch = asyncio.create_task(rollouts.collect(requests(3)))
    await script.begin(3)
    await rollouts.aclose()
    assert source.open == 0
    with pytest.raises(RuntimeError, match="closed before they had ended"):
        await batch


async def test_cancellation_reaches_the_sessions_of_a_server(server: ServerProcess) -> None:
    script = Held()
    async with (
        connect(server.address) as remote,
        RolloutEngine(remote, CHAT, engine(one_turn(), script).generator) as rollouts,
    ):
        batch = asyncio.create_task(rollouts.collect([RolloutRequest("test/Parrot-v0", task=0)] * 4))
        await script.begin(4)
        await until_sessions(remote, 4)
        assert rollouts.cancel() == 4
        assert [trajectory.outcome.kind for trajectory in await batch] == ["cancelled"] * 4
        await until_sessions(remote, 0)


# -- all of it at once -------------------------------------------------------------------------------------------------

# What a rollout meets, and when: it goes well, or its environment or its session fails, at once or after a while.
FATES = st.tuples(st.sampled_from(["well", "raises", "is lost", "is stuck", "never opens"]), st.integers(0, 3))
ACTS = st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["pause", "resume", "cancel", "cancel all"])), max_size=6)
PLACES = st.builds(Concurrency, *[st.integers(1, 3)] * 3, st.integers(0, 2))


class Fated(Talk):
    """Meets its fate in a step that takes so many seconds."""

    def __init__(self, fates: list[tuple[str, int]]) -> None:
        super().__init__(lambda env, _message: turns_of(env, 2))
        self.fates = fates

    async def areset(self, **kwargs: Any) -> Any:
        opening = self.reset(**kwargs)
        self.fate, self.seconds = self.fates[self.options["task"]]
        await asyncio.sleep(1000 if self.fate == "never opens" else self.seconds)
        return opening

    async def astep(self, action: Any) -> Answer:
        await asyncio.sleep(1000 if self.fate == "is stuck" else self.seconds)
        if self.fate == "raises":
            raise ValueError("boom")
        if self.fate == "is lost":
            raise errors.SessionLost("its worker died")
        return self.step(action)

    async def aclose(self) -> None:
        await asyncio.sleep(self.seconds)
        self.close()


@settings(max_examples=60)
@given(fates=st.lists(FATES, min_size=1, max_size=10), acts=ACTS, places=PLACES, reuse=st.booleans())
def test_whatever_happens_every_batch_is_whole_and_nothing_is_left(
    fates: list[tuple[str, int]], acts: list[tuple[int, str]], places: Concurrency, reuse: bool
) -> None:
    envs: list[Fated] = []

    def make() -> Fated:
        envs.append(Fated(fates))
        return envs[-1]

    async def main() -> None:
        source = LocalSource(make)
        limits = Limits(episode_seconds=20, init_seconds=10, retries=1)
        async with engine(source, lambda *_: ECHO, limits=limits, concurrency=places, reuse_sessions=reuse) as rollouts:
            batch = asyncio.create_task(rollouts.collect(requests(len(fates))))
            for seconds, act in acts:
                await asyncio.sleep(seconds)
                match act:
                    case "pause":
                        rollouts.pause()
                    case "resume":
                        rollouts.resume()
                    case "cancel":
                        rollouts.cancel(lambda trajectory: (trajectory.task or 0) % 2 == 1)
                    case _:
                        rollouts.cancel()
            rollouts.resume()
            trajectories = await batch
            status = rollouts.status()
            assert source.most <= places.in_flight
        assert [trajectory.task for trajectory in trajectories] == list(range(len(fates)))
        for trajectory, (fate, _) in zip(trajectories, fates, strict=True):
            whole(trajectory)
            outcome = trajectory.outcome
            well = outcome.kind == "terminated"
            assert trajectory.valid == well  # what a step would have paid that time has interrupted is not known
            assert well == (fate == "well") or outcome.kind == "cancelled"
        assert (status.in_flight, status.closing, status.generating, status.done) == (0, 0, 0, len(fates))
        assert source.open == 0
        assert all(env.closed for env in envs)

    simulated(main())


# -- status ------------------------------------------------------------------------------------------------------------


async def test_the_status_tells_what_became_of_all_rollouts() -> None:
    def answer(env: Talk, _message: Any) -> Answer:
        if env.options["task"] == 1:
            raise ZeroDivisionError("oops")
        return end(reward=float(env.options["task"]))

    async with engine(LocalSource(lambda: Talk(answer)), lambda *_: SAY) as rollouts:
        assert rollouts.status().reward is None
        await rollouts.collect(requests(4))
        status = rollouts.status()
    assert (status.in_flight, status.done, status.valid, status.reward) == (0, 4, 3, pytest.approx(5 / 3))
    assert (status.outcomes, status.faults) == ({"terminated": 3, "failed": 1}, {"environment": 1})
    assert (status.tokens, status.retries) == (4 * len(SAY), 0)


# -- without an event loop ---------------------------------------------------------------------------------------------


def test_callers_without_an_event_loop_can_pause_cancel_and_look() -> None:
    go = asyncio.Event()

    async def script(_prompt_ids: Sequence[int], name: str) -> list[int]:
        if not name.endswith("-0/1"):
            await go.wait()
        return SAY

    async def let_go() -> None:
        go.set()

    asked = Endless()
    source = one_turn()
    rollouts = engine(source, script, concurrency=SMALL)
    running = rollouts.run_sync(asked)
    assert next(running).outcome.kind == "terminated"
    rollouts.pause()
    assert rollouts.status().paused
    while not (cancelled := rollouts.cancel()):  # the next ones may not have begun yet
        pass
    rollouts.call_sync(let_go())
    rollouts.resume()
    ended = [next(running).outcome.kind for _ in range(100)]
    assert (ended.count("cancelled"), ended.count("terminated")) == (cancelled, 100 - cancelled)
    assert asked.drawn <= 101 + 2 * SMALL.in_flight
    with contextlib.closing(cast(Generator[Any], running)):
        pass
    assert rollouts.status().in_flight == 0
    rollouts.close_sync()
    assert source.open == 0
