"""Leaks: a sandbox that is gone leaves nothing, in whatever way it went."""

import asyncio
import gc
import os
import time
from collections.abc import Awaitable, Callable

from gymhost.envs.sandbox.check.host import Held, groups_with, held, traces
from gymhost.envs.sandbox.check.trial import SOON, UNSEEN, Family, NotTried, Trial, new_mark
from gymhost.wire.errors import SandboxLost

__all__ = ["FAMILY"]

FAMILY = Family("leaks", alone=True)

_ROUNDS = 20
_WARM_UP = 4
# Bytes a sandbox that the memory of this process and of those below it may grow: allocators keep some.
_MEMORY = 300_000


@FAMILY.case("what sandboxes leave")
async def _left(trial: Trial) -> None:
    marks: list[str] = []
    groups: set[str] = set()

    async def live() -> list[str]:
        async with trial.sandbox() as sandbox:
            mark = new_mark()
            shell = await sandbox.shell()
            await shell.run(f"setsid sleep {mark} >/dev/null 2>&1 & echo x >file")
            await sandbox.write("folder/file", b"x")
            await trial.appears(sandbox, mark)
            marks.append(mark)
            groups.update(groups_with(mark))
            return [sandbox.id] if trial.backend.isolates else [sandbox.id, sandbox.spec.workdir]

    for _ in range(_WARM_UP):
        await live()
    await _compare(trial, live, _ROUNDS, f"{_ROUNDS} sandboxes that were destroyed")
    trial.expect(not await trial.left(*marks), "processes outlive their sandboxes")
    left = [group for group in groups if os.path.exists(group)]  # noqa: ASYNC240, PTH110
    trial.expect(not left, f"{len(left)} control groups outlive their sandboxes, such as {''.join(left[:1])}")


@FAMILY.case("copies and snapshots")
async def _copies(trial: Trial) -> None:
    async def live() -> list[str]:
        async with trial.sandbox() as parent:
            await parent.write("file", b"x")
            copies = await parent.fork(2)
            await trial.destroy(*copies)
            return [sandbox.id for sandbox in (parent, *copies)]

    for _ in range(2):
        await live()
    await _compare(trial, live, _ROUNDS // 4, f"{_ROUNDS // 4} sandboxes with two copies each")


@FAMILY.case("a sandbox that is forgotten")
async def _forgotten(trial: Trial) -> None:
    mark = new_mark()

    async def forget() -> bool:
        sandbox = await trial.create()
        shell = await sandbox.shell()
        await shell.run(f"sleep {mark} >/dev/null 2>&1 &")
        return await trial.appears(sandbox, mark)

    seen = await forget()
    gc.collect()
    if not seen:
        raise NotTried(UNSEEN)
    trial.expect(await trial.gone(mark), "a sandbox that nothing refers to any more goes on")


@FAMILY.case("destroy(), again and after use")
async def _again(trial: Trial) -> None:
    sandbox = await trial.create()
    try:
        shell = await sandbox.shell()
        await shell.run("true")
    finally:
        await trial.destroy(sandbox, sandbox)
    trial.expect(not sandbox.alive, "a sandbox that was destroyed says that it is alive")
    uses: dict[str, Callable[[], Awaitable[object]]] = {
        "run": lambda: sandbox.run("true"),
        "shell": sandbox.shell,
        "Shell.run": lambda: shell.run("true"),
        "python": sandbox.python,
        "read": lambda: sandbox.read("file"),
        "write": lambda: sandbox.write("file", b""),
        "list": sandbox.list,
        "snapshot": sandbox.snapshot,
        "fork": sandbox.fork,
        "usage": sandbox.usage,
    }
    for name, use in uses.items():
        started = time.monotonic()
        try:
            await use()
        except SandboxLost:
            trial.expect(
                time.monotonic() - started < 1, f"{name}() after destroy() took {time.monotonic() - started:.1f} s"
            )
        except Exception as error:  # noqa: BLE001 - it is a finding
            trial.fault(f"{name}() after destroy() raises {type(error).__name__}, not SandboxLost: {error}")
        else:
            trial.fault(f"{name}() after destroy() raises nothing")


@FAMILY.case("destroy() in the middle of a command")
async def _busy(trial: Trial) -> None:
    mark = new_mark()
    sandbox = await trial.create()
    try:
        task = asyncio.create_task(sandbox.run(f"sleep {mark}", timeout=60))
        await trial.appears(sandbox, mark)
    finally:
        await trial.destroy(sandbox)
    try:
        async with asyncio.timeout(SOON):
            result = await task
        trial.fault(f"a command whose sandbox was destroyed returned {result}")
    except SandboxLost:
        pass
    except TimeoutError:
        trial.fault("a command whose sandbox was destroyed does not end")
    trial.expect(await trial.gone(mark), "the command outlives its sandbox")


async def _compare(trial: Trial, live: Callable[[], Awaitable[list[str]]], rounds: int, what: str) -> None:
    """Does something so many times, and says what has one of the names that it returns, and what there is more of."""
    gc.collect()
    before = held()
    names = [name for _ in range(rounds) for name in await live()]
    # What ends with a sandbox may take a moment more than destroy.
    end = time.monotonic() + SOON
    while left := _growth(before, rounds) + traces(names):
        if time.monotonic() > end:
            return trial.fault(f"{what} left {', '.join(left[:10])}")
        await asyncio.sleep(0.1)
    return None


def _growth(before: Held, rounds: int) -> list[str]:
    """Returns what there is more of by at least one for every second round."""
    gc.collect()
    now = held()
    more = {
        "processes": now.processes - before.processes,
        "open descriptors": now.descriptors - before.descriptors,
        "mounts": now.mounts - before.mounts,
    }
    grown = [f"{count} {name}" for name, count in more.items() if count >= rounds / 2]
    if now.memory - before.memory > rounds * _MEMORY:
        grown.append(f"{(now.memory - before.memory) // 2**20} MiB of memory")
    return grown
