"""Many sandboxes at once: a limit on creations, refusals that are tried again, spares."""

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from gymhost.client import connect
from gymhost.envs.sandbox import Pool, SandboxSpec, backend, pool, spares
from gymhost.wire.errors import CapacityExhausted, InvalidArgument, SandboxUnavailable
from support.crowded_sandboxes import Crowded, peak, refusals
from support.server import PATIENCE, TESTS, ServerProcess, running, until

EPISODES = 128

MakePool = Callable[..., Pool]


@pytest.fixture
async def make_pool(tmp_path: Path) -> AsyncGenerator[MakePool]:
    """Makes pools of crowded sandboxes that are closed at the end; `crowd` says what the backend is like."""
    made: list[Pool] = []

    def make(crowd: dict[str, str] | None = None, **how: Any) -> Pool:
        folder = tmp_path / "account"
        folder.mkdir(exist_ok=True)
        made.append(Pool(Crowded(str(folder), **(crowd or {})), **how))
        return made[-1]

    yield make
    for each in made:
        await each.close()


def crowded(pool: Pool) -> Crowded:
    assert isinstance(pool.backend, Crowded)
    return pool.backend


# -- the rush ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["test/Rush-v0", "test/RushThread-v0"])
@pytest.mark.parametrize("creations", [8, 32])
async def test_episodes_that_begin_at_once_all_get_their_sandbox(creations: int, mode: str, tmp_path: Path) -> None:
    """S31: the workers keep to one limit together; a backend with less room than that refuses, and is asked again."""
    with ServerProcess(
        modules=["support.crowded_sandboxes"],
        workers=2,
        sandbox="support.crowded_sandboxes:Crowded",
        sandbox_options={"folder": str(tmp_path)},
        sandbox_creations=creations,
    ) as server:
        async with connect(server.address) as remote, contextlib.AsyncExitStack() as stack:
            sessions = await asyncio.gather(*(stack.enter_async_context(remote.session(mode)) for _ in range(EPISODES)))
            infos = [info for _, info in await asyncio.gather(*(session.reset() for session in sessions))]
            [message], *_ = await sessions[-1].call_tool("run", {"command": "echo there"})
            assert message["content"] == "there\n"
    assert peak(tmp_path) <= creations
    assert (refusals(tmp_path) > 0) == (creations > 8)
    # Who waited is told so, apart from what the making took.
    assert max(info["queued"] for info in infos) > 2 * max(info["created"] for info in infos) > 0
    for info in infos:
        assert info["queued"] + info["created"] <= info["seconds"]


async def test_a_process_without_a_server_keeps_to_the_limit_too(make_pool: MakePool, tmp_path: Path) -> None:
    """S31."""
    many = make_pool()
    made = await asyncio.gather(*(many.create() for _ in range(EPISODES)))
    assert peak(tmp_path / "account") == 8
    assert refusals(tmp_path / "account") == 0
    assert len({sandbox.id for sandbox in made}) == EPISODES


async def test_first_come_first_served(make_pool: MakePool) -> None:
    one_by_one = make_pool({"seconds": "0"}, creations=1)
    made = await asyncio.gather(*(one_by_one.create() for _ in range(20)))
    assert [sandbox.id for sandbox in made] == [shells.id for shells in crowded(one_by_one).made]


async def test_threads_with_loops_of_their_own_share_the_limit(make_pool: MakePool, tmp_path: Path) -> None:
    many = make_pool()
    made: list[str] = []

    async def one() -> None:
        sandbox = await many.create()
        made.append((await sandbox.run("echo $PPID")).stdout)
        await sandbox.destroy()

    threads = [threading.Thread(target=lambda: asyncio.run(one())) for _ in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        await asyncio.to_thread(thread.join, PATIENCE)
    assert len(made) == 24
    assert peak(tmp_path / "account") <= 8


# -- waiting -----------------------------------------------------------------------------------------------------------


async def test_a_backend_that_stays_full_is_given_up_in_time(make_pool: MakePool, tmp_path: Path) -> None:
    full = make_pool({"room": "0"})
    with pytest.raises(
        CapacityExhausted, match=r"not made in 1\.\d s and \d attempts; the last refusal: 1 creations in"
    ):
        await full.create(timeout=1.0)
    # The waits grow.
    assert 2 <= refusals(tmp_path / "account") <= 6


async def test_whose_turn_does_not_come_is_told_the_setting(make_pool: MakePool) -> None:
    slow = make_pool({"seconds": "600"}, creations=1)
    first = asyncio.create_task(slow.create())
    await until(lambda: peak_of(slow))
    with pytest.raises(
        CapacityExhausted, match=r"all that time it waited .* at most 1 being made .*--sandbox-creations"
    ):
        await slow.create(timeout=0.2)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_a_creation_that_takes_too_long_is_stopped(make_pool: MakePool, tmp_path: Path) -> None:
    slow = make_pool({"seconds": "600"})
    with pytest.raises(SandboxUnavailable, match=r"not made in 0\.\d s and 1 attempts"):
        await slow.create(timeout=0.3)
    assert list((tmp_path / "account").glob("flying-*")) == []


async def test_what_is_no_refusal_is_not_tried_again(make_pool: MakePool) -> None:
    broken = make_pool()
    crowded(broken).failure = SandboxUnavailable("there is no bwrap")
    began = time.monotonic()
    with pytest.raises(SandboxUnavailable, match="there is no bwrap"):
        await broken.create()
    assert time.monotonic() - began < 5


async def test_who_is_cancelled_holds_nobody_up(make_pool: MakePool, tmp_path: Path) -> None:
    slow = make_pool({"seconds": "600"}, creations=1)
    making, next_one, waiting, last = (asyncio.create_task(slow.create()) for _ in range(4))
    await until(lambda: peak_of(slow))
    # The one is cancelled while it is the next, the other just as it has become the next.
    next_one.add_done_callback(lambda _: waiting.cancel())
    next_one.cancel()
    await asyncio.gather(next_one, waiting, return_exceptions=True)
    crowded(slow)._seconds = 0.0
    making.cancel()
    async with asyncio.timeout(PATIENCE):
        assert (await last).alive
    assert next_one.cancelled()
    assert waiting.cancelled()
    assert making.cancelled()
    assert list((tmp_path / "account").glob("flying-*")) == []
    assert len(crowded(slow).made) == 1


async def test_a_loop_that_stands_still_holds_nobody_up(make_pool: MakePool) -> None:
    slow = make_pool({"seconds": "600"}, creations=1)
    making, ready = (asyncio.create_task(slow.create()) for _ in range(2))
    await until(lambda: peak_of(slow))
    # The next one waits on a loop that is broken off, and may never go on.
    loop = asyncio.new_event_loop()
    waiting = loop.create_task(slow.create())
    await asyncio.to_thread(loop.run_until_complete, asyncio.sleep(0.1))
    last = asyncio.create_task(slow.create())
    crowded(slow)._seconds = 0.0
    making.cancel()
    async with asyncio.timeout(PATIENCE):
        for task in (ready, last):
            assert (await task).alive
    # It goes on after all.
    assert (await asyncio.to_thread(loop.run_until_complete, waiting)).alive
    loop.close()


HOLD = """
import asyncio, sys
from pathlib import Path
from gymhost.envs.sandbox import Pool
from support.crowded_sandboxes import Crowded

asyncio.run(Pool(Crowded(sys.argv[1], seconds="600"), creations=1, folder=Path(sys.argv[2])).create())
"""


async def test_a_process_that_was_killed_has_no_slot_any_more(make_pool: MakePool, tmp_path: Path) -> None:
    mine = make_pool(creations=1, folder=tmp_path / "slots")
    with running([sys.executable, "-c", HOLD, str(tmp_path / "account"), str(tmp_path / "slots")], cwd=TESTS) as holder:
        await until(lambda: peak_of(mine))
        with pytest.raises(CapacityExhausted, match="waited for its turn"):
            await mine.create(timeout=0.3)
        os.kill(holder.pid, signal.SIGKILL)
        async with asyncio.timeout(PATIENCE):
            assert (await mine.create()).alive


# -- spares ------------------------------------------------------------------------------------------------------------


async def test_a_spare_is_taken_at_once_and_replaced(make_pool: MakePool) -> None:
    ready, spec = make_pool(), SandboxSpec(env={"WHICH": "spare"})
    made = crowded(ready).made
    ready.keep_spares(spec, 2)
    await until(lambda: len(made) == 2)
    await until(lambda: ready._spares._kinds[spec].ready)
    sandbox = await ready.create(SandboxSpec(env={"WHICH": "spare"}))
    assert sandbox.id in [shells.id for shells in made[:2]]
    assert sandbox.queued_seconds == 0.0
    assert (await sandbox.run("echo ready")).stdout == "ready\n"
    await until(lambda: len(made) == 3)
    # Another kind is another matter.
    other = await ready.create(SandboxSpec())
    assert other.id not in [shells.id for shells in made[:3]]
    await ready.close()
    assert all(shells.killed for shells in made)
    with pytest.raises(SandboxUnavailable, match="the pool of sandboxes is closed"):
        await ready.create(spec)


async def test_a_spare_that_died_is_not_handed_out(make_pool: MakePool) -> None:
    ready, spec = make_pool(), SandboxSpec()
    ready.keep_spares(spec, 1)
    await until(lambda: ready._spares._kinds[spec].ready)
    [dead] = crowded(ready).made
    dead.kill()
    sandbox = await ready.create(spec)
    assert sandbox.alive
    assert sandbox.id != dead.id


async def test_spares_of_what_was_asked_for_are_kept_where_the_pool_says_so(make_pool: MakePool) -> None:
    ready = make_pool(spares=2)
    sandbox = await ready.create()
    await until(lambda: len(crowded(ready).made) == 3)
    ready.keep_spares(None, 0)
    await until(lambda: sum(shells.killed for shells in crowded(ready).made) == 2)
    assert sandbox.alive


async def test_spares_that_nobody_asks_for_are_destroyed(make_pool: MakePool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spares, "IDLE_LIMIT", 0.2)
    monkeypatch.setattr(spares, "SWEEP", 0.05)
    ready = make_pool()
    ready.keep_spares(None, 1)
    await until(lambda: [shells.killed for shells in crowded(ready).made] == [True])


async def test_spares_that_can_not_be_made_are_tried_again_later(
    make_pool: MakePool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(spares, "LONGEST_PAUSE", 0.1)
    monkeypatch.setattr(spares, "SWEEP", 0.05)
    ready = make_pool()
    crowded(ready).failure = SandboxUnavailable("not yet")
    ready.keep_spares(None, 1)
    await until(lambda: "a spare sandbox could not be made: not yet" in caplog.text)
    crowded(ready).failure = None
    await until(lambda: crowded(ready).made)


def test_waits_grow_and_are_spread() -> None:
    first, *_, last = [list(zip(range(10), pool._waits(), strict=False)) for _ in range(50)]
    assert first != last
    for number, wait in first:
        middle = min(pool.FIRST_WAIT * 2**number, pool.LONGEST_WAIT)
        assert 0.5 * middle <= wait <= 1.5 * middle


# -- backends by name --------------------------------------------------------------------------------------------------


def test_a_backend_of_ones_own_is_made_by_its_name_with_its_options(tmp_path: Path) -> None:
    made = backend("support.crowded_sandboxes:Crowded", folder=str(tmp_path), room="3")
    assert isinstance(made, Crowded)
    assert made._room == 3


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("jail", {}, "no sandbox backend 'jail'; there are bubblewrap, docker, local, and module:Class"),
        ("not_there:Jail", {}, "can't import the sandbox backend 'not_there:Jail': No module named 'not_there'"),
        ("support.crowded_sandboxes:Jail", {}, "can't import .* no attribute 'Jail'"),
        ("support.crowded_sandboxes:Rush", {}, "is no sandbox backend: it must be a class below"),
        (
            "support.crowded_sandboxes:Crowded",
            {"size": "3"},
            "can't be made so: .*; its options: folder, room, seconds",
        ),
    ],
)
def test_a_wrong_backend_is_named(name: str, options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        backend(name, **options)


def peak_of(pool: Pool) -> int:
    """The most creations in flight so far; 0 before the first."""
    folder = crowded(pool)._folder
    return peak(folder) if list(folder.glob("peak-*")) else 0


async def test_what_is_no_spec_is_refused(make_pool: MakePool) -> None:
    # An environment's attribute `spec` is Gymnasium's.
    spec: Any = gymnasium.spec("CartPole-v1")
    with pytest.raises(InvalidArgument, match="made from a SandboxSpec, not from EnvSpec"):
        await make_pool().create(spec)
