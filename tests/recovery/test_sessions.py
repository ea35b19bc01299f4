"""Sessions that go on when the worker dies that they are in."""

import asyncio
import contextlib
import gc
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gymhost.client import (
    CommandTimeout,
    EnvironmentFault,
    ReplayDiverged,
    Session,
    SessionClosed,
    SessionLost,
    connect,
)
from support.killing import Notes, kill
from support.replayable_environments import Tally
from support.server import ServerProcess, until_sessions

pytestmark = pytest.mark.usefixtures("path")

Start = Callable[..., ServerProcess]


def act(add: int, sleep: float = 0.0, **more: Any) -> dict[str, Any]:
    return {"add": add, "sleep": sleep, **more}


def same(one: Any, other: Any) -> bool:
    """Whether two results of a reset or a step are the same."""
    return bool(np.array_equal(one[0], other[0])) and tuple(one[1:]) == tuple(other[1:])


async def step_and_kill(session: Session, action: dict[str, Any], notes: Notes) -> Any:
    """Takes a step, and kills the worker once that has begun."""
    begun = len(notes.lines)
    stepping = asyncio.create_task(session.step({**action, "sleep": 0.3}))
    await asyncio.to_thread(notes.wait, begun + 1)
    await asyncio.to_thread(notes.kill)
    return await asyncio.wait_for(stepping, 20)


@pytest.mark.parametrize("kind", ["Tally", "TallyInline", "Awaiting"])
async def test_a_step_goes_on_when_its_worker_is_killed(server: ServerProcess, notes: Notes, kind: str) -> None:
    here = Tally()
    async with connect(server.address) as remote, remote.session(f"test/{kind}-v0", notes=str(notes)) as session:
        assert session.replayable
        assert same(await session.reset(seed=5), here.reset(seed=5))
        for number in range(3):
            assert same(await session.step(act(number)), here.step(act(number)))
        first = notes.process
        assert same(await step_and_kill(session, act(7), notes), here.step(act(7)))
        assert session.recoveries == 1
        assert not session.lost
        for number in range(3):
            assert same(await session.step(act(number)), here.step(act(number)))
        assert notes.process != first
        ran = [what for what in notes.of(notes.process) if what != "begin"]
        assert ran == ["reset"] + ["step"] * 7
        assert session.replayable
    async with connect(remote.address) as remote:
        assert await remote.sessions() == []


async def test_a_worker_that_is_killed_between_steps_is_noticed(server: ServerProcess, notes: Notes) -> None:
    here = Tally()
    async with connect(server.address) as remote, remote.session("test/Tally-v0", notes=str(notes)) as session:
        assert same(await session.reset(seed=1), here.reset(seed=1))
        for number in range(3):
            assert same(await session.step(act(number)), here.step(act(number)))
            notes.kill()
            if number:
                await until_sessions(remote, 0)  # the client has been told by then, or is about to be
            assert not session.lost
        assert session.recoveries == 2
        assert same(await session.step(act(5)), here.step(act(5)))
        assert session.recoveries == 3


async def test_a_worker_that_is_killed_in_a_reset_begins_no_episode_twice(server: ServerProcess, notes: Notes) -> None:
    here = Tally()
    async with connect(server.address) as remote, remote.session("test/Tally-v0", notes=str(notes)) as session:
        for seed in (3, None):
            resetting = asyncio.create_task(session.reset(seed=seed, options={"sleep": 0.3}))
            begun = len(notes.lines)
            await asyncio.to_thread(notes.wait, begun + 1)
            notes.kill()
            assert same(await resetting, here.reset(seed=seed))
            assert same(await session.step(act(4)), here.step(act(4)))
        assert session.recoveries == 2
        assert notes.of(notes.process) == ["reset", "step", "reset", "step"]


async def test_ten_kills_at_random_places_change_nothing(server: ServerProcess, notes: Notes) -> None:
    here, draw = Tally(), random.Random(8)
    kills = set(draw.sample(range(1, 60), 10))
    async with connect(server.address) as remote, remote.session("test/TallyInline-v0", notes=str(notes)) as session:
        assert same(await session.reset(seed=11), here.reset(seed=11))
        for number in range(1, 60):
            add = draw.randrange(99)
            if number in kills and draw.random() < 0.5:
                assert same(await step_and_kill(session, act(add), notes), here.step(act(add)))
                continue
            if number in kills:
                notes.kill()
            if draw.random() < 0.15:
                seed = draw.choice([None, None, 4])
                assert same(await session.reset(seed=seed), here.reset(seed=seed))
            else:
                assert same(await session.step(act(add)), here.step(act(add)))
        assert session.recoveries == 10


async def test_episodes_without_a_seed_go_on_with_the_same_random_numbers(server: ServerProcess, notes: Notes) -> None:
    async with connect(server.address) as remote, remote.session("test/Tally-v0", notes=str(notes)) as session:
        first, _ = await session.reset()
        stepped = await session.step(act(1))
        second, _ = await session.reset()
        # What has been answered is compared when it is repeated; so what follows is as it would have been.
        notes.kill()
        assert (await session.step(act(2)))[0][:2].tolist() == [1, 2]
        assert session.recoveries == 1
        assert session.replayable
        assert len({first[2], stepped[0][2], second[2]}) == 3


async def test_who_waits_for_a_turn_comes_after_who_was_lost(server: ServerProcess, notes: Notes) -> None:
    async with connect(server.address) as remote, remote.session("test/Tally-v0", notes=str(notes)) as session:
        await session.reset(seed=1)
        first = asyncio.create_task(session.step(act(1, sleep=0.3)))
        await asyncio.to_thread(notes.wait, 2)
        others = [asyncio.create_task(session.step(act(10 * number))) for number in (1, 2, 3)]
        await asyncio.sleep(0)
        notes.kill()
        assert [step[0][0] for step in await asyncio.gather(first, *others)] == [1, 2, 3, 4]
        assert (await session.step(act(0)))[0].tolist()[:2] == [5, 61]


async def test_errors_of_the_environment_are_part_of_what_is_repeated(server: ServerProcess, notes: Notes) -> None:
    async with connect(server.address) as remote, remote.session("test/Tally-v0", notes=str(notes)) as session:
        await session.reset(seed=1)
        await session.step(act(1))
        with pytest.raises(EnvironmentFault, match="this step was told to raise"):
            await session.step(act(1, **{"raise": 1}))
        notes.kill()
        assert (await session.step(act(2)))[0].tolist()[:2] == [2, 3]
        assert session.recoveries == 1


async def test_what_lasts_beyond_a_reset_is_told_again_before_it(server: ServerProcess, notes: Notes) -> None:
    async with connect(server.address) as remote, remote.session("test/Tally-v0", notes=str(notes)) as session:
        await session.reset(seed=1)
        await session.set_attr("gain", 7)
        await session.set_attr("gain", 2)
        assert await session.call("increase", 3) == 5
        await session.step(act(1))
        await session.reset(seed=2)
        await session.step(act(1))
        notes.kill()
        assert (await session.step(act(2)))[0].tolist()[:2] == [2, 15]
        assert notes.of(notes.process) == ["reset", "step", "step"]


async def test_a_seeded_reset_after_a_loss_repeats_nothing(server: ServerProcess, notes: Notes) -> None:
    here = Tally()
    async with connect(server.address) as remote, remote.session("test/Tally-v0", notes=str(notes)) as session:
        await session.reset(seed=1)
        for _ in range(3):
            await session.step(act(1))
        notes.kill()
        assert same(await session.reset(seed=2), here.reset(seed=2))
        assert same(await session.step(act(1)), here.step(act(1)))
        assert notes.of(notes.process) == ["reset", "step"]


async def test_a_reset_that_fails_after_a_loss_leaves_the_episode(server: ServerProcess, notes: Notes) -> None:
    here = Tally()
    async with connect(server.address) as remote, remote.session("test/Tally-v0", notes=str(notes)) as session:
        assert same(await session.reset(seed=1), here.reset(seed=1))
        assert same(await session.step(act(1)), here.step(act(1)))
        notes.kill()
        with pytest.raises(EnvironmentFault, match="this reset was told to raise"):
            await session.reset(seed=2, options={"raise": True})
        assert same(await session.step(act(2)), here.step(act(2)))
        await until_sessions(remote, 1)


# -- what can't be recovered -------------------------------------------------------------------------------------------


async def test_a_session_that_is_not_replayable_is_lost_at_once(server: ServerProcess, notes: Notes) -> None:
    """S14."""
    async with connect(server.address) as remote, remote.session("test/TallyLost-v0", notes=str(notes)) as session:
        assert not session.replayable
        assert "replayable=True" in (session.not_replayable or "")
        await session.reset(seed=1)
        started = time.monotonic()
        with pytest.raises(SessionLost, match="it was killed by SIGKILL") as lost:
            await step_and_kill(session, act(1), notes)
        assert time.monotonic() - started < 3
        assert type(lost.value) is SessionLost
        assert session.lost
        assert session.recoveries == 0


async def test_recovery_can_be_turned_off(server: ServerProcess, notes: Notes) -> None:
    async with (
        connect(server.address, recovery_timeout=0) as remote,
        remote.session("test/Tally-v0", notes=str(notes)) as session,
    ):
        assert session.not_replayable == "it was asked not to be (recovery_timeout=0)"
        await session.reset(seed=1)
        with pytest.raises(SessionLost, match="killed by SIGKILL"):
            await step_and_kill(session, act(1), notes)


async def test_a_replay_that_differs_is_reported_and_nothing_is_left(server: ServerProcess, notes: Notes) -> None:
    async with connect(server.address) as remote, remote.session("test/Fickle-v0", notes=str(notes)) as session:
        await session.reset(seed=1)
        for _ in range(3):
            await session.step(act(1))
        with pytest.raises(
            ReplayDiverged,
            match=r"command 4 of 4 \(STEP\) was answered in another way.*test/Fickle-v0 is not replayable",
        ):
            await step_and_kill(session, act(1), notes)
        assert session.lost
        assert not session.replayable
        with pytest.raises(ReplayDiverged):
            await session.step(act(1))
        await until_sessions(remote, 0)


async def test_what_depends_on_the_time_before_a_seeded_reset_is_found_out(server: ServerProcess, notes: Notes) -> None:
    async with connect(server.address) as remote, remote.session("test/Lasting-v0", notes=str(notes)) as session:
        for seed in (1, 2):
            await session.reset(seed=seed)
            await session.step(act(1))
        with pytest.raises(ReplayDiverged, match=r"command 2 of 2 \(STEP\)"):
            await step_and_kill(session, act(1), notes)


async def test_a_command_that_kills_every_worker_is_given_up_after_four_recoveries(start: Start, notes: Notes) -> None:
    server = start()
    async with connect(server.address) as remote, remote.session("test/Deadly-v0", notes=str(notes)) as session:
        await session.reset(seed=1)
        await session.step(act(1))
        with pytest.raises(SessionLost, match="it was recovered 4 times, and lost each time"):
            await asyncio.wait_for(session.step(act(99)), 30)
        assert [what for what, _ in notes.lines].count("die") == 5
        assert session.lost
        with pytest.raises(SessionLost, match="recovered 4 times"):
            await session.step(act(1))
        await until_sessions(remote, 0)


async def test_a_step_beyond_its_limit_is_not_run_again(server: ServerProcess, notes: Notes) -> None:
    async with connect(server.address) as remote, remote.session("test/TallyLimited-v0", notes=str(notes)) as session:
        await session.reset(seed=1)
        with pytest.raises(SessionLost, match=r"step_timeout=0.5 s"):
            await session.step(act(1, sleep=30.0))
        assert session.recoveries == 0
        assert [what for what, _ in notes.lines] == ["reset", "step"]


async def test_a_step_that_was_stopped_half_way_can_not_be_repeated(server: ServerProcess, notes: Notes) -> None:
    async with connect(server.address) as remote, remote.session("test/Awaiting-v0", notes=str(notes)) as session:
        await session.reset(seed=1)
        with pytest.raises(CommandTimeout):
            await session.step(act(1, sleep=30.0), timeout=0.2)
        await session.step(act(1))
        assert (
            session.not_replayable == "a STEP ended in CommandTimeout, and what it had done by then can't be repeated"
        )
        notes.kill()
        with pytest.raises(SessionLost, match="it was not recovered, since a STEP ended in CommandTimeout"):
            await session.step(act(1))


async def test_a_seeded_reset_mends_what_could_not_be_repeated(server: ServerProcess, notes: Notes) -> None:
    here = Tally()
    async with connect(server.address) as remote, remote.session("test/Awaiting-v0", notes=str(notes)) as session:
        await session.reset(seed=1)
        stepping = asyncio.create_task(session.step(act(1, sleep=30.0)))
        await asyncio.to_thread(notes.wait, 2)
        stepping.cancel()
        await session.step(act(1))
        assert not session.replayable
        notes.kill()
        assert same(await session.reset(seed=2), here.reset(seed=2))
        assert same(await session.step(act(1)), here.step(act(1)))
        assert session.replayable
        notes.kill()
        assert same(await session.step(act(1)), here.step(act(1)))


async def test_the_journal_is_bounded(start: Start) -> None:
    server = start()
    async with connect(server.address) as remote, remote.session("test/Says-v0") as session:
        await session.reset(seed=1)
        text = "x" * 100_000
        for _ in range(12):
            await session.step(text)
        assert session.not_replayable == "the commands since its last seeded reset have more than 1 MiB"
        await session.reset(seed=1)
        await session.step("")
        assert session.replayable
        for _ in range(10_001):
            await session.step("")
        assert session.not_replayable == "it was told more than 10,000 commands since its last seeded reset"
        kill(server.workers[0])
        with pytest.raises(SessionLost, match="it was not recovered, since it was told more than 10,000 commands"):
            await session.step("")


async def test_wrappers_that_tell_the_time_or_keep_something_are_not_replayable(server: ServerProcess) -> None:
    async with connect(server.address) as remote:
        for wrapper, replayable in (
            (("TimeLimit", {"max_episode_steps": 5}), True),
            ("RecordEpisodeStatistics", False),
            ("NormalizeReward", False),
        ):
            async with remote.session("test/Tally-v0", wrappers=[wrapper]) as session:
                assert session.replayable == replayable


# -- meanwhile ---------------------------------------------------------------------------------------------------------


async def in_recovery(session: Session, notes: Notes) -> asyncio.Task[Any]:
    """A step whose session is being recovered, and made again very slowly."""
    await session.reset(seed=1)
    await session.step(act(1))
    stepping = asyncio.create_task(session.step(act(2, sleep=0.3)))
    await asyncio.to_thread(notes.wait, 3)
    notes.kill()
    await asyncio.to_thread(notes.wait, 4)
    return stepping


async def test_a_recovery_has_a_limit(server: ServerProcess, notes: Notes) -> None:
    async with (
        connect(server.address, recovery_timeout=1.0) as remote,
        remote.session("test/Tally-v0", notes=str(notes), slow_again=2.0) as session,
    ):
        stepping = await in_recovery(session, notes)
        started = time.monotonic()
        with pytest.raises(SessionLost, match=r"it could not be recovered within 1 s \(recovery_timeout\)"):
            await stepping
        assert time.monotonic() - started < 2
        assert session.lost
        await asyncio.to_thread(notes.wait, 5)  # until what was being made is made, and nobody's
        await until_sessions(remote, 0)


async def test_who_is_cancelled_during_a_recovery_ends_at_once_and_the_session_goes_on(
    server: ServerProcess, notes: Notes
) -> None:
    async with (
        connect(server.address) as remote,
        remote.session("test/Tally-v0", notes=str(notes), slow_again=1.0) as session,
    ):
        stepping = await in_recovery(session, notes)
        stepping.cancel()
        started = time.monotonic()
        with pytest.raises(asyncio.CancelledError):
            await stepping
        assert time.monotonic() - started < 0.5
        # It was never answered, and is not run again.
        assert (await session.step(act(5)))[0].tolist()[:2] == [2, 6]
        assert session.recoveries == 1
        assert len(await remote.sessions()) == 1


async def test_a_cancelled_command_is_lost_with_its_session(server: ServerProcess, notes: Notes) -> None:
    here = Tally()
    async with connect(server.address) as remote, remote.session("test/Tally-v0", notes=str(notes)) as session:
        assert same(await session.reset(seed=1), here.reset(seed=1))
        assert same(await session.step(act(1)), here.step(act(1)))
        stepping = asyncio.create_task(session.step(act(7, sleep=30.0)))
        await asyncio.to_thread(notes.wait, 3)
        stepping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stepping
        notes.kill()
        await until_sessions(remote, 0)
        # Nobody waits for anything, so nothing is made again; and what nobody waited for is no part of the episode.
        await asyncio.sleep(0.3)
        assert session.recoveries == 0
        assert same(await session.step(act(2)), here.step(act(2)))
        assert session.recoveries == 1
        assert [what for what in notes.of(notes.process) if what != "begin"] == ["reset", "step", "step"]


@pytest.mark.parametrize("how", ["close", "collect"])
async def test_a_session_closed_during_its_recovery_is_gone(server: ServerProcess, notes: Notes, how: str) -> None:
    async with connect(server.address) as remote:
        session = await remote.session("test/Tally-v0", notes=str(notes), slow_again=1.0).open()
        stepping = await in_recovery(session, notes)
        started = time.monotonic()
        if how == "close":
            await session.close()
            with pytest.raises(SessionClosed):
                await stepping
            assert time.monotonic() - started < 0.5
            with pytest.raises(SessionClosed):
                await session.step(act(1))
            assert session.recoveries == 0
        else:
            stepping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await stepping
            del session, stepping
            gc.collect()
        await asyncio.to_thread(notes.wait, 5)  # until what was being made is made, and nobody's
        await until_sessions(remote, 0)


async def test_a_recovered_session_is_closed_with_its_owner(server: ServerProcess, notes: Notes) -> None:
    async with connect(server.address) as remote:
        session = await remote.session("test/Tally-v0", notes=str(notes)).open()
        await session.reset(seed=1)
        await step_and_kill(session, act(1), notes)
        assert len(await remote.sessions()) == 1
        del session
        gc.collect()
        await until_sessions(remote, 0)


async def test_a_session_that_was_lost_and_not_used_again_is_just_closed(server: ServerProcess, notes: Notes) -> None:
    async with connect(server.address) as remote:
        async with remote.session("test/Tally-v0", notes=str(notes)) as session:
            await session.reset(seed=1)
            notes.kill()
            await until_sessions(remote, 0)
        with pytest.raises(SessionClosed):
            await session.step(act(1))
        assert session.recoveries == 0
        assert await remote.sessions() == []


async def test_a_full_server_makes_a_lost_session_again_in_its_own_place(start: Start, notes: Notes) -> None:
    server = start(capacity=2)
    async with (
        connect(server.address) as remote,
        remote.session("test/Tally-v0") as other,
        remote.session("test/Tally-v0", notes=str(notes)) as session,
    ):
        await asyncio.gather(session.reset(seed=1), other.reset(seed=1))
        assert (await step_and_kill(session, act(3), notes))[0].tolist()[:2] == [1, 3]
        assert (await other.step(act(4)))[0].tolist()[:2] == [1, 4]
        assert len(await remote.sessions()) == 2
