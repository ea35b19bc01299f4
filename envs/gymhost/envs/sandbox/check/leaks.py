"""Leaks: a sandbox that is gone leaves nothing, in whatever way it went."""

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable

from gymhost.envs.sandbox.check.host import held
from gymhost.envs.sandbox.check.trial import SOON, Family, NotTried, Trial, new_mark
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

    async def live() -> None:
        sandbox = await trial.create()
        try:
            mark = new_mark()
            shell = await sandbox.shell()
            await shell.run(f"setsid sleep {mark} >/dev/null 2>&1 & echo x >file")
            await sandbox.write("folder/file", b"x")
            marks.append(mark)
        finally:
            await trial.destroy(sandbox)

    for _ in range(_WARM_UP):
        await live()
    await _compare(trial, live, _ROUNDS, f"{_ROUNDS} sandboxes that were destroyed")
    for mark in marks:
        if not trial.expect(await trial.gone(mark), "a process outlives its sandbox"):
            break


@FAMILY.case("copies and snapshots")
async def _copies(trial: Trial) -> None:
    async def live() -> None:
        async with trial.sandbox() as parent:
            await parent.write("file", b"x")
            copies = await parent.fork(2)
            await trial.destroy(*copies)

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
        return await trial.appears(mark, sandbox)

    seen = await forget()
    gc.collect()
    if not seen:
        raise NotTried(
            "processes of its sandboxes are not seen on this machine, so nobody can tell whether they are left"
        )
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
        await trial.appears(mark, sandbox)
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


async def _compare(trial: Trial, live: Callable[[], Awaitable[None]], rounds: int, what: str) -> None:
    """Does something so many times, and says of what there is more by at least one for every second time."""
    gc.collect()
    before = held()
    for _ in range(rounds):
        await live()
    folders = cgroups = None
    # What ends with a sandbox may take a moment more than destroy, and others on this machine have theirs besides.
    end = time.monotonic() + SOON
    while True:
        gc.collect()
        now = held()
        folders = now.folders - before.folders if folders is None else folders & now.folders
        cgroups = now.cgroups - before.cgroups if cgroups is None else cgroups & now.cgroups
        more = {
            "processes": now.processes - before.processes,
            "open descriptors": now.descriptors - before.descriptors,
            "mounts": now.mounts - before.mounts,
            "folders": len(folders),
            "cgroups": len(cgroups),
        }
        left = [f"{count} {name}" for name, count in more.items() if count >= rounds / 2]
        if now.memory - before.memory > rounds * _MEMORY:
            left.append(f"{(now.memory - before.memory) // 2**20} MiB of memory")
        if not left:
            return None
        if time.monotonic() > end:
            return trial.fault(f"{what} left {', '.join(left)}")
        await asyncio.sleep(0.1)
