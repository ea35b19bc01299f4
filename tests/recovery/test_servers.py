"""Sessions that go on when their server dies and another one comes in its place."""

import asyncio
import signal
from collections.abc import Callable

import gymnasium
import numpy as np
import pytest

from gymhost.client import ConnectionLost, Session, SessionLost, connect
from support.killing import Notes, kill
from support.replayable_environments import Tally
from support.server import ServerProcess

pytestmark = pytest.mark.usefixtures("path")

Start = Callable[..., ServerProcess]


async def restart(server: ServerProcess) -> None:
    """Kills the server, and starts it again on the same port."""
    server.signal(signal.SIGKILL)
    await asyncio.to_thread(server.wait)
    await asyncio.to_thread(server.start)


async def step_for_ever(session: Session) -> None:
    while True:
        await session.step({"add": 1, "sleep": 0.0})


async def test_a_step_outlives_more_restarts_than_a_command_may_end_workers(start: Start, notes: Notes) -> None:
    server, here, restarts = start(), Tally(), 6
    async with connect(server.address) as remote, remote.session("test/Tally-v0", notes=str(notes)) as session:
        await session.reset(seed=3)
        here.reset(seed=3)
        step = asyncio.create_task(session.step({"add": 1, "sleep": 1.0}))
        for number in range(restarts):
            await asyncio.to_thread(notes.wait, 2 * (number + 1))  # a reset and the step, each time
            await restart(server)
        observation = (await asyncio.wait_for(step, 30))[0]
        assert np.array_equal(observation, here.step({"add": 1})[0])
        assert session.recoveries == restarts


async def test_replayable_sessions_outlive_their_server(start: Start, notes: Notes) -> None:
    server, here = start(), Tally()
    async with connect(server.address) as remote:
        # Their numbers are given again by the new server, in whatever order they come back.
        sessions = [await remote.session("test/Tally-v0").open() for _ in range(4)]
        stepping = await remote.session("test/Tally-v0", notes=str(notes)).open()
        lost = await remote.session("test/TallyLost-v0").open()
        observations = [(await session.reset(seed=seed))[0] for seed, session in enumerate(sessions)]
        for number, session in enumerate(sessions):
            for _ in range(number):
                await session.step({"add": number, "sleep": 0.0})
        await lost.reset(seed=1)
        await stepping.reset(seed=9)
        here.reset(seed=9)
        step = asyncio.create_task(stepping.step({"add": 3, "sleep": 0.5}))
        await asyncio.to_thread(notes.wait, 2)
        await restart(server)
        assert np.array_equal((await asyncio.wait_for(step, 20))[0], here.step({"add": 3})[0])
        fresh = await remote.session("test/Tally-v0").open()
        await fresh.reset(seed=1)
        for number, session in reversed(list(enumerate(sessions))):
            observation = (await session.step({"add": 1, "sleep": 0.0}))[0]
            assert observation[:2].tolist() == [number + 1, number * number + 1]
            assert session.recoveries == 1
        assert len({observation[2] for observation in observations}) == 4
        with pytest.raises(SessionLost, match="was restarted"):
            await lost.step({"add": 1, "sleep": 0.0})
        assert (await fresh.step({"add": 5, "sleep": 0.0}))[0][:2].tolist() == [1, 5]
        assert len(await remote.sessions()) == 6
        for session in (*sessions, stepping, fresh, lost):
            await session.close()
        assert await remote.sessions() == []


async def test_a_server_that_is_stopped_in_good_order_is_waited_for(start: Start) -> None:
    server = start(drain=0.0)
    async with connect(server.address) as remote, remote.session("test/Tally-v0") as session:
        await session.reset(seed=1)
        await session.step({"add": 2, "sleep": 0.0})
        server.signal(signal.SIGTERM)
        await asyncio.to_thread(server.wait)
        step = asyncio.create_task(session.step({"add": 3, "sleep": 0.0}))
        await asyncio.to_thread(server.start)
        assert (await asyncio.wait_for(step, 20))[0][:2].tolist() == [2, 5]


async def test_a_server_that_does_not_come_back_is_told_as_before(start: Start) -> None:
    server = start()
    async with (
        connect(server.address, reconnect_timeout=1.0) as remote,
        remote.session("test/Tally-v0") as session,
    ):
        await session.reset(seed=1)
        kill(server.pid)
        with pytest.raises(ConnectionLost, match="could not be restored within 1 s"):
            await asyncio.wait_for(step_for_ever(session), 20)  # its workers go on for a moment
        assert session.lost


async def test_a_server_may_say_what_an_environment_does_not_say_itself(start: Start) -> None:
    server = start(replayable=["CartPole-*"])
    here = gymnasium.make("CartPole-v1")
    async with connect(server.address) as remote:
        described = {one.id: one.replayable for one in await remote.environments()}
        assert described["CartPole-v1"]
        assert described["test/Tally-v0"]
        assert not described["Acrobot-v1"]
        session: Session
        async with remote.session("CartPole-v1") as session:
            assert (await session.reset(seed=4))[0].tolist() == here.reset(seed=4)[0].tolist()
            for number in range(6):
                if number == 3:
                    kill(server.workers[0])
                action = number % 2
                assert (await session.step(action))[0].tolist() == here.step(action)[0].tolist()
            assert session.recoveries == 1
    here.close()
