"""The async session API, over a real server."""

import asyncio
import gc
import weakref

import pytest
from gymnasium.spaces import Discrete

from gymhost.client import (
    Cancelled,
    EncodeError,
    EnvironmentFault,
    InvalidArgument,
    RemoteServer,
    ResetNeeded,
    SessionClosed,
    Unimplemented,
    UnknownEnvironment,
    connect,
)
from support.server import ServerProcess, until_sessions

pytestmark = pytest.mark.usefixtures("path")


async def test_a_session_plays_an_episode(server: ServerProcess) -> None:
    async with connect(server.address) as remote, remote.session("test/Counter-v0") as session:
        observation, info = await session.reset(seed=3)
        assert (observation, info) == (0, {})
        for number in range(1, 6):
            assert await session.step(1) == (number, 1.0, False, False, {})
        assert (await session.reset())[0] == 0
        assert session.action_space == Discrete(2)
        assert not session.lost


async def test_sessions_step_at_the_same_time(server: ServerProcess) -> None:
    async with connect(server.address) as remote:

        async def play(length: int) -> list[int]:
            async with remote.session("test/Counter-v0") as session:
                await session.reset()
                return [(await session.step(0))[0] for _ in range(length)]

        played = await asyncio.gather(*(play(length) for length in range(1, 40)))
    assert played == [list(range(1, length + 1)) for length in range(1, 40)]


async def test_commands_of_one_session_take_turns(server: ServerProcess) -> None:
    async with connect(server.address) as remote, remote.session("test/Slow-v0") as session:
        await session.reset()
        steps = await asyncio.gather(*(session.step(0.01) for _ in range(10)))
    assert sorted(step[0] for step in steps) == list(range(1, 11))


async def test_an_episode_is_scored_apart_from_its_last_step_or_where_it_is_broken_off(server: ServerProcess) -> None:
    async with connect(server.address) as remote:
        async with remote.session("gymhost/GuessNumber-v0", low=1, high=1) as session:
            assert session.evaluates
            await session.reset(options={"evaluate_apart": True})
            *_, reward, terminated, _, info = await session.call_tool("guess", {"number": 1})
            assert (reward, terminated, info["evaluation_due"]) == (0.0, True, True)
            observation, reward, terminated, truncated, info = await session.evaluate()
            assert (observation, reward, terminated, truncated) == ([], sum(info["rewards"].values()), True, False)
            assert reward > 0
            with pytest.raises(ResetNeeded):
                await session.evaluate()
            await session.reset()
            _, _, terminated, truncated, info = await session.evaluate("turns")
            assert (terminated, truncated, info["limit"]) == (False, True, "turns")
        async with remote.session("test/Counter-v0") as session:
            await session.reset()
            assert not session.evaluates
            with pytest.raises(Unimplemented, match="Counter has no `evaluate`"):
                await session.evaluate()
            assert (await session.step(1))[0] == 1


async def test_a_server_lists_and_describes_what_it_hosts(server: ServerProcess) -> None:
    async with connect(server.address) as remote:
        listed = {each.id: each for each in await remote.environments("test/")}
        assert listed["test/Counter-v0"].mode == "inline"
        assert listed["test/Process-v0"].isolation == "process"
        assert listed["test/HangThread-v0"].step_timeout == 2.0
        described = await remote.describe("test/Counter-v0")
        assert described.action_space is not None
        assert described.action_space.n == 2  # pyright: ignore[reportAttributeAccessIssue]
        assert await remote.problems() == []


async def test_an_unknown_environment_is_named_with_what_may_have_been_meant(server: ServerProcess) -> None:
    async with connect(server.address) as remote:
        with pytest.raises(UnknownEnvironment, match=r"test/Conter-v0.*did you mean test/Counter-v0"):
            await remote.session("test/Conter-v0").open()
        with pytest.raises(UnknownEnvironment, match="test/Conter-v0"):
            await remote.describe("test/Conter-v0")


async def test_a_module_is_never_imported_for_a_client(server: ServerProcess) -> None:
    async with connect(server.address) as remote:
        with pytest.raises(UnknownEnvironment):
            await remote.session("this:CartPole-v1").open()


async def test_a_fault_arrives_with_its_remote_traceback_and_the_session_lives(server: ServerProcess) -> None:
    async with connect(server.address) as remote, remote.session("test/Raises-v0") as session:
        await session.reset()
        with pytest.raises(EnvironmentFault, match="ValueError: this step was told to raise") as raised:
            await session.step("raise")
        assert raised.value.exception == "ValueError"
        assert "environments.py" in raised.value.traceback
        with pytest.raises(EnvironmentFault, match="this reset was told to raise"):
            await session.reset(options={"raise": True})
        assert (await session.step("go on"))[0] == 1
        assert not session.lost


async def test_what_cannot_travel_is_refused_before_it_is_sent(server: ServerProcess) -> None:
    async with connect(server.address) as remote, remote.session("test/Counter-v0") as session:
        await session.reset()
        with pytest.raises(EncodeError):
            await session.step({1, 2})
        with pytest.raises(InvalidArgument, match="seed"):
            await session.reset(seed="now")  # pyright: ignore[reportArgumentType]
        with pytest.raises(InvalidArgument, match="seed"):
            await session.reset(seed=2**70)
        assert (await session.step(1))[0] == 1


async def test_keyword_arguments_reach_the_environment(server: ServerProcess) -> None:
    async with connect(server.address) as remote:
        with pytest.raises(EnvironmentFault, match="colour"):
            await remote.session("test/Counter-v0", colour="red").open()
        await until_sessions(remote, 0)


async def test_a_session_is_used_only_while_it_is_open(server: ServerProcess) -> None:
    async with connect(server.address) as remote:
        session = remote.session("test/Counter-v0")
        with pytest.raises(InvalidArgument, match="not open"):
            await session.reset()
        with pytest.raises(InvalidArgument, match="not open"):
            _ = session.tools
        await session.close()
        async with session:
            await session.reset()
        await session.close()
        with pytest.raises(SessionClosed):
            await session.step(0)
        assert not session.lost
        assert len(await remote.sessions()) == 0


async def test_closing_a_session_ends_the_step_that_is_running(server: ServerProcess) -> None:
    async with connect(server.address) as remote:
        async with remote.session("test/Async-v0") as session:
            await session.reset()
            stepping = asyncio.create_task(session.step(600.0))
            await until_busy(remote)
        with pytest.raises((SessionClosed, Cancelled)):
            await asyncio.wait_for(stepping, 10)
        assert len(await remote.sessions()) == 0


async def until_busy(remote: RemoteServer) -> None:
    """A command to the same worker that is answered after what was submitted before."""
    async with remote.session("test/Async-v0") as other:
        await other.reset()


async def test_a_session_that_is_garbage_collected_is_closed(server: ServerProcess) -> None:
    async with connect(server.address) as remote:
        session = await remote.session("test/Counter-v0").open()
        await session.reset()
        assert len(await remote.sessions()) == 1
        del session
        gc.collect()
        await until_sessions(remote, 0)


async def test_nothing_is_kept_of_a_session_that_was_closed(server: ServerProcess) -> None:
    async with connect(server.address) as remote:
        async with remote.session("test/Counter-v0") as session:
            await session.reset()
            for _ in range(3):
                await session.step(1)
            assert session._lane is not None
            lane = weakref.ref(session._lane)
        del session
        gc.collect()
        assert lane() is None


async def test_a_session_that_the_environment_has_lost_itself_is_a_fault_of_the_environment(
    server: ServerProcess,
) -> None:
    async with connect(server.address) as remote, remote.session("test/Raises-v0") as session:
        await session.reset()
        with pytest.raises(EnvironmentFault, match="SessionLost: a session elsewhere is lost"):
            await session.step("lose")
        assert not session.lost
        assert (await session.step("on"))[0] == 1
    async with connect(server.address) as remote:
        await until_sessions(remote, 0)


async def test_a_create_that_is_cancelled_leaves_no_session(server: ServerProcess) -> None:
    async with connect(server.address) as remote:
        # Cancelled in every phase: before it was sent, and on its way.
        for turns in range(6):
            opening = asyncio.create_task(remote.session("test/Counter-v0").open())
            for _ in range(turns):
                await asyncio.sleep(0)
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening
        async with remote.session("test/Counter-v0") as last:
            await last.reset()
        await until_sessions(remote, 0)


async def test_cancelling_an_await_stops_the_coroutine_and_frees_the_lane(server: ServerProcess) -> None:
    async with connect(server.address) as remote, remote.session("test/Async-v0") as session:
        await session.reset()
        stepping = asyncio.create_task(session.step(600.0))
        await until_busy(remote)
        stepping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stepping
        async with asyncio.timeout(10):
            assert (await session.step(0.0))[0] == 1  # the cancelled step never counted


async def test_after_a_cancelled_await_the_lane_is_busy_until_the_thread_is_done(server: ServerProcess) -> None:
    async with connect(server.address) as remote, remote.session("test/Slow-v0") as session:
        await session.reset()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(session.step(0.5), 0.1)
        assert (await session.step(0.0))[0] == 2  # the first went on to its end, and was counted


async def test_a_waiter_that_is_cancelled_takes_no_other_with_it(server: ServerProcess) -> None:
    async with connect(server.address) as remote, remote.session("test/Slow-v0") as session:
        await session.reset()
        running = asyncio.create_task(session.step(0.5))
        await asyncio.sleep(0)
        waiters = [asyncio.create_task(session.step(0.0)) for _ in range(3)]
        await asyncio.sleep(0)
        waiters[0].cancel()
        ended = await asyncio.gather(running, *waiters, return_exceptions=True)
        assert isinstance(ended[1], asyncio.CancelledError)
        assert sorted(each[0] for each in ended if not isinstance(each, BaseException)) == [1, 2, 3]


async def test_steps_after_the_end_of_the_server_object_say_so(server: ServerProcess) -> None:
    remote = await connect(server.address)
    session = await remote.session("test/Counter-v0").open()
    await session.reset()
    await asyncio.to_thread(remote.close)
    remote.close()
    with pytest.raises(Exception, match="closed"):
        await session.step(0)
    await session.close()
