"""Leaks: a sandbox that is gone leaves nothing, in whatever way it went."""

import asyncio
import dataclasses
import gc
import time
from collections.abc import Awaitable, Callable

from gymhost.envs.sandbox.check.host import Held, held
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
    gc.collect()
    before = held()
    for _ in range(_ROUNDS):
        await live()
    # What ends with a sandbox may take a moment more than destroy; other processes of the machine come and go besides,
    # so that only what grows with the number of sandboxes counts.
    end = time.monotonic() + SOON
    while left := _growth(before, held()):
        if time.monotonic() > end:
            trial.fault(f"{_ROUNDS} sandboxes that were destroyed left {left}")
            break
        gc.collect()
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
    gc.collect()
    before = held()
    for _ in range(_ROUNDS // 4):
        await live()
    left = _growth(before, held(), _ROUNDS // 4)
    trial.expect(not left, f"{_ROUNDS // 4} sandboxes with two copies each left {left}")


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


def _growth(before: Held, now: Held, rounds: int = _ROUNDS) -> str:
    """Returns what there is more of by at least one for every second sandbox."""
    more = {name: getattr(now, name) - count for name, count in dataclasses.asdict(before).items()}
    if more["memory"] < rounds * _MEMORY:
        del more["memory"]
    names = {name: f"{count} {name}" for name, count in more.items() if count >= rounds / 2}
    if "memory" in names:
        names["memory"] = f"{more['memory'] // 2**20} MiB of memory"
    return ", ".join(names.values())
