"""Whatever is asked of jobs, in any order, and with restarts: each rollout has one result, and counts add up."""

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule

from gymhost.v1 import rollouts_pb2 as pb
from gymhost.wire import errors
from support.jobs import Service, World, job, total

pytestmark = pytest.mark.heavy

T = TypeVar("T")


class AnyOrder(RuleBasedStateMachine):
    """A model of what callers know: which rollouts they have asked for, and which results they have seen."""

    jobs: Bundle[pb.Job] = Bundle("jobs")

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = tempfile.TemporaryDirectory()
        self.world = World(
            pay=lambda task, play: float((task + play) % 2),
            fault=lambda task, play: ValueError("boom") if (task * 7 + play) % 11 == 0 else None,
        )
        self.service = Service(Path(self.folder.name) / "jobs.sqlite", self.world)
        self.keys = 0
        self.seen: dict[str, int] = {}
        self.acknowledged: set[int] = set()
        self.last: dict[str, pb.Job] = {}
        self.ended: dict[str, pb.Job] = {}

    def run(self, call: Callable[[], Awaitable[T]]) -> T:
        async def within() -> T:
            async with asyncio.timeout(30):
                return await call()

        return self.runner.run(within())

    @initialize()
    def begin(self) -> None:
        self.run(self.service.start)

    def teardown(self) -> None:
        try:
            if hasattr(self.service, "jobs"):
                self.finish()
        finally:
            self.run(self.service.stop)
            self.runner.close()
            self.folder.cleanup()

    @rule(
        target=jobs,
        count=st.integers(0, 5),
        samples=st.integers(1, 3),
        open_=st.booleans(),
        grouped=st.booleans(),
        extra=st.integers(0, 1),
        target_=st.integers(0, 3),
        keep=st.sampled_from([pb.KEEP_GROUPS_ALL, pb.KEEP_GROUPS_WITH_VARIANCE]),
        priority=st.integers(0, 1),
    )
    def submit(
        self, count: int, samples: int, open_: bool, grouped: bool, extra: int, target_: int, keep: Any, priority: int
    ) -> Any:
        if not count and not open_:
            return multiple()
        self.keys += 1
        grouping = pb.RolloutGrouping(extra=extra, target=target_, keep=keep) if grouped else None
        request = job(
            f"job {self.keys}", range(count), samples=samples, open=open_, grouping=grouping, priority=priority
        )
        told = self.run(lambda: self.service.submit(request))
        again, known = self.run(lambda: self.service.jobs.submit("me", request))
        assert (known, again.id) == (True, told.id)
        self.last[told.id] = told
        return told

    @rule(told=jobs, count=st.integers(0, 3), more=st.integers(0, 2), close=st.booleans())
    def extend(self, told: pb.Job, count: int, more: int, close: bool) -> None:
        now = self.service.look(told)
        if not now.open or now.ended:
            return
        self.run(lambda: self.service.extend(told, range(count), more_groups=more if now.target else 0, close=close))

    @rule(told=jobs)
    def cancel(self, told: pb.Job) -> None:
        self.run(lambda: self.service.cancel(told))
        assert self.service.look(told).ended

    @rule(told=jobs, number=st.integers(0, 12))
    def cancel_one(self, told: pb.Job, number: int) -> None:
        request = pb.CancelRolloutsRequest(rollout_ids=[f"{told.id}/{number}"])
        if number < total(self.service.look(told)):
            self.run(lambda: self.service.jobs.cancel("me", request))
            assert self.run(lambda: self.service.jobs.cancel("me", request)) == 0
        else:
            with pytest.raises(errors.UnknownJob):
                self.run(lambda: self.service.jobs.cancel("me", request))

    @rule(told=jobs, in_flight=st.booleans())
    def pause(self, told: pb.Job, in_flight: bool) -> None:
        self.run(lambda: self.service.jobs.pause("me", told.id, in_flight))

    @rule(told=jobs)
    def resume(self, told: pb.Job) -> None:
        self.run(lambda: self.service.jobs.resume("me", told.id))

    @rule(tasks=st.sets(st.integers(0, 4)))
    def hold(self, tasks: set[int]) -> None:
        self.world.release()
        self.world.held = {*tasks}

    @rule(seconds=st.sampled_from([0.0, 0.005, 0.02]))
    def play(self, seconds: float) -> None:
        self.run(lambda: asyncio.sleep(seconds))

    @rule(limit=st.integers(1, 9), acknowledge=st.booleans())
    def fetch(self, limit: int, acknowledge: bool) -> None:
        self.run(lambda: self.fetched(limit, acknowledge))

    @rule()
    def restart(self) -> None:
        self.run(self.service.restart)

    @invariant()
    def what_was_told_stays_true(self) -> None:
        for id_, before in self.last.items():
            now = self.service.look(before)
            assert now.groups_kept >= before.groups_kept
            assert now.last_cursor >= before.last_cursor
            if before.ended:
                assert (now.state, now.ended) == (before.state, before.ended)
            self.last[id_] = now

    async def fetched(self, limit: int, acknowledge: bool) -> int:
        answer = await self.service.jobs.fetch("me", pb.FetchResultsRequest(limit=limit))
        for result in answer.results:
            assert self.seen.setdefault(result.rollout_id, result.cursor) == result.cursor
            assert result.cursor not in self.acknowledged
        cursors = [result.cursor for result in answer.results]
        assert cursors == sorted(set(cursors))
        if acknowledge:
            assert await self.service.jobs.acknowledge("me", cursors) == len(cursors)
            self.acknowledged.update(cursors)
        return len(cursors)

    def finish(self) -> None:
        """All that is left is played, and then everybody has seen everything, once."""
        self.world.release()
        for told in self.service.jobs.list("me"):
            self.resume(told)
            if self.service.look(told).open:
                self.extend(told, 0, 0, True)
        for told in self.service.jobs.list("me"):
            self.run(lambda told=told: self.service.ended(told))
        while self.run(lambda: self.fetched(50, True)):
            pass
        assert len(set(self.seen.values())) == len(self.seen)
        for told in self.service.jobs.list("me"):
            now = self.service.look(told)
            results = sum(rollout.startswith(told.id) for rollout in self.seen)
            ended = now.terminated + now.truncated + now.failed
            assert ended <= results <= ended + now.cancelled
            assert (now.queued, now.in_flight, now.unacknowledged, now.unacknowledged_bytes) == (0, 0, 0, 0)
            if now.target and now.state == pb.JOB_STATE_FINISHED:
                assert now.groups_kept <= now.target
        assert self.service.jobs.counts().unacknowledged == 0


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=12, stateful_step_count=25)
