"""Environments that kill their workers, and what their neighbours notice of it."""

import asyncio
import re
from collections.abc import Callable

import pytest

from gymhost.client import EnvironmentFault, RemoteServer, ServerUnavailable, Session, SessionLost, connect
from gymhost.server.config import ServerConfig
from gymhost.server.front import quarantine
from gymhost.server.front.quarantine import Quarantine
from support.server import ServerProcess

StartServer = Callable[..., ServerProcess]

MODULES = ["support.environments", "support.lifecycle_environments"]


async def opened(remote: RemoteServer, environment_id: str) -> Session:
    session = await remote.session(environment_id).open()
    await session.reset()
    return session


async def killed(session: Session) -> None:
    with pytest.raises(SessionLost, match="SIGKILL"):
        await asyncio.wait_for(session.step("kill"), 30)


def worker_of(session: Session) -> int:
    assert session._lane is not None
    return session._lane.number >> 32


async def test_an_environment_that_kills_workers_is_kept_apart_and_then_refused(start_server: StartServer) -> None:
    server = start_server(workers=1, modules=MODULES, quarantine_deaths=2)
    async with connect(server.address) as remote:
        for _ in range(2):
            neighbour = await opened(remote, "test/Counter-v0")
            await killed(await opened(remote, "test/Killer-v0"))
            with pytest.raises(SessionLost):
                await neighbour.step(1)
        [problem] = await remote.problems()
        assert problem == (
            "test/Killer-v0 is in quarantine: 2 workers ended under it within 600 s (the last: it was killed by "
            "SIGKILL); new sessions of it get workers of their own (--quarantine-deaths, --quarantine-window)"
        )
        assert f"WARNING {problem}" in server.log
        # From now on its neighbours notice nothing.
        neighbour = await opened(remote, "test/Counter-v0")
        apart = [await opened(remote, "test/Killer-v0") for _ in range(2)]
        assert len({worker_of(session) for session in (neighbour, *apart)}) == 3
        for session in apart:
            await killed(session)
        assert (await neighbour.step(1))[0] == 1
        refused = (
            r"test/Killer-v0 is in quarantine: 2 workers of its own ended under it, one after the other \(the last: it "
            r"was killed by SIGKILL\); new sessions of it are refused until \d\d:\d\d:\d\d UTC, for \d+ s "
        )
        with pytest.raises(EnvironmentFault, match=refused) as raised:
            await opened(remote, "test/Killer-v0")
        assert raised.value.retry_after is not None
        assert 0 < raised.value.retry_after <= 60
        [problem] = await remote.problems()
        assert re.match(refused, problem)
        await opened(remote, "test/Counter-v0")
        assert (await neighbour.step(1))[0] == 2


async def test_a_death_is_put_down_to_whom_it_is_due(start_server: StartServer) -> None:
    server = start_server(workers=1, modules=MODULES, quarantine_deaths=1)
    async with connect(server.address) as remote:
        # What overran is named, though another had code running too.
        slow, hanging = await opened(remote, "test/Slow-v0"), await opened(remote, "test/Hang-v0")
        stepping = asyncio.create_task(slow.step(60.0))
        await asyncio.sleep(0.5)  # nothing tells that it has begun
        for session in (hanging.step("hang"), stepping):
            with pytest.raises(SessionLost, match="step_timeout"):
                await session
        assert [problem.split()[0] for problem in await remote.problems()] == ["test/Hang-v0"]
        # So is a thread that overran, whose worker goes on for a while.
        with pytest.raises(SessionLost, match="step_timeout"):
            await (await opened(remote, "test/HangThread-v0")).step("hang")
        # And what was made, though there never was a session of it. It was tried twice, the second time apart.
        await remote.session("test/Slow-v0").open()
        with pytest.raises(ServerUnavailable, match=r"test/KillerWhenMade-v0 could not be made: .* SIGKILL"):
            await remote.session("test/KillerWhenMade-v0").open()
        with pytest.raises(EnvironmentFault, match="new sessions of it are refused until"):
            await remote.session("test/KillerWhenMade-v0").open()
        blamed = [problem.split()[0] for problem in await remote.problems()]
        assert blamed == ["test/Hang-v0", "test/HangThread-v0", "test/KillerWhenMade-v0"]


class Clock:
    """A clock that stands still but for what a test says."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(quarantine, "time", clock)
    return clock


def kept(deaths: int = 3, window: float = 600.0) -> Quarantine:
    return Quarantine(ServerConfig(quarantine_deaths=deaths, quarantine_window=window))


def test_deaths_count_for_as_long_as_the_window(clock: Clock) -> None:
    ward = kept()
    for _ in range(3):
        assert not ward.holds("a")
        ward.died(["a"], "why", apart=False)
        clock.now += 250
    assert not ward.holds("a")  # the first is 750 s ago
    ward.died(["a"], "why", apart=False)
    assert ward.holds("a")
    clock.now += 110
    assert not ward.holds("a")
    assert ward.problems == []


def test_an_innocent_one_is_cleared_when_the_guilty_one_is_known(clock: Clock) -> None:
    ward = kept()
    for _ in range(6):
        ward.died(["guilty", "innocent"], "why", apart=False)
    assert ward.holds("guilty")
    assert ward.holds("innocent")
    for _ in range(3):
        ward.died(["guilty"], "why", apart=True)
    assert ward.holds("guilty")
    assert not ward.holds("innocent")


def test_one_that_was_refused_is_tried_again(clock: Clock) -> None:
    ward = kept()
    for _ in range(3):
        ward.admit("a")
        ward.died(["a"], "why", apart=True)
    with pytest.raises(EnvironmentFault, match="for 60 s"):
        ward.admit("a")
    clock.now += 61
    ward.admit("a")
    ward.died(["a"], "why", apart=True)
    with pytest.raises(EnvironmentFault):
        ward.admit("a")
    clock.now += 61
    ward.admit("a")
    ward.ended_well("a")
    ward.died(["a"], "why", apart=True)
    ward.admit("a")


def test_a_callers_haste_gets_nobody_refused(clock: Clock) -> None:
    ward = kept()
    for _ in range(9):
        ward.died(["a"], "the caller's timeout", apart=True, hurried=True)
    assert ward.holds("a")
    ward.admit("a")


def test_it_can_be_switched_off() -> None:
    ward = kept(deaths=0)
    for _ in range(9):
        ward.died(["a"], "why", apart=True)
    assert not ward.holds("a")
    ward.admit("a")
