"""Rollouts on a server that is full: INIT waits as long as the server says, and as its own limit allows."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from gymhost.rollout import Limits
from gymhost.wire import errors
from support.local_source import LocalSession, LocalSource
from support.rollouts import SAY, engine, requests, turns_of
from support.talk import Talk
from support.virtual_time import now, simulated

pytestmark = pytest.mark.heavy


class FullSource(LocalSource):
    """Refuses at first."""

    def __init__(self, refusals: int, retry_after: float | None = 20.0) -> None:
        super().__init__(lambda: Talk(lambda env, _: turns_of(env, 2)))
        self.refusals = refusals
        self._retry_after = retry_after

    @asynccontextmanager
    async def session(
        self, env_id: str, /, *, task: int | None = None, split: str | None = None, **kwargs: Any
    ) -> AsyncGenerator[LocalSession]:
        if self.refusals:
            self.refusals -= 1
            raise errors.CapacityExhausted("the server is full", retry_after=self._retry_after)
        async with super().session(env_id, task=task, split=split, **kwargs) as session:
            yield session


def test_a_full_server_is_asked_again_when_it_said_so() -> None:
    async def main() -> None:
        source = FullSource(refusals=5)
        async with engine(source, lambda *_: SAY, limits=Limits(retries=0)) as rollouts:
            (played,) = await rollouts.collect(requests(1))
        assert played.outcome.kind == "terminated"
        assert played.attempts == 1
        # Five times 20 s, and up to half as long again.
        assert 100.0 <= now() <= 150.0

    simulated(main())


class SmallSource(LocalSource):
    """Has room for some sessions, whatever is played in them."""

    def __init__(self, places: int) -> None:
        super().__init__(lambda **_: Talk(lambda env, _: turns_of(env, 2)))
        self._places = places

    @asynccontextmanager
    async def session(
        self, env_id: str, /, *, task: int | None = None, split: str | None = None, **kwargs: Any
    ) -> AsyncGenerator[LocalSession]:
        if self.open == self._places:
            raise errors.CapacityExhausted("the server is full", retry_after=1.0)
        async with super().session(env_id, task=task, split=split, **kwargs) as session:
            yield session


def test_sessions_that_are_kept_make_room_for_those_of_other_environments() -> None:
    async def main() -> None:
        source = SmallSource(places=4)
        async with engine(source, lambda *_: SAY, limits=Limits(retries=0)) as rollouts:
            for env_id in ("One-v0", "Other-v0", "One-v0"):
                asked = [replace(request, env_id=env_id) for request in requests(4)]
                played = await rollouts.collect(asked)
                assert [each.outcome.kind for each in played] == ["terminated"] * 4
            assert source.opened == 12
            assert source.open == 4

    simulated(main())


def test_sessions_that_nobody_wants_for_a_while_are_closed() -> None:
    async def main() -> None:
        source = SmallSource(places=4)
        async with engine(source, lambda *_: SAY) as rollouts:
            await rollouts.collect(requests(4))
            await asyncio.sleep(599)
            await rollouts.collect(requests(1))
            assert (source.open, source.opened) == (4, 4)
            await asyncio.sleep(2)
            assert source.open == 1
            await asyncio.sleep(600)
            assert source.open == 0

    simulated(main())


def test_a_server_that_stays_full_is_waited_for_as_long_as_init_may_take() -> None:
    async def main() -> None:
        source = FullSource(refusals=10**6)
        async with engine(source, lambda *_: SAY, limits=Limits(retries=0, init_seconds=100.0)) as rollouts:
            (failed,) = await rollouts.collect(requests(1))
        assert (failed.outcome.kind, failed.outcome.fault) == ("failed", "infrastructure")
        assert failed.outcome.limit == "init_seconds"
        assert "the server is full" in failed.outcome.message
        assert failed.reward is None
        assert 100.0 <= now() < 110.0
        assert source.refusals > 10**6 - 10

    simulated(main())


def test_what_is_full_without_saying_for_how_long_is_a_fault_like_others() -> None:
    async def main() -> None:
        source = FullSource(refusals=10, retry_after=None)
        async with engine(source, lambda *_: SAY, limits=Limits(retries=2)) as rollouts:
            (failed,) = await rollouts.collect(requests(1))
        assert failed.outcome.cause == "CapacityExhausted"
        assert source.refusals == 7

    simulated(main())
