"""Limits: whatever a command takes, it takes no more than it may, and the host and the sandbox go on."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable

from gymhost.envs.sandbox.check.trial import SLACK, Family, NotTried, Trial, new_mark, shown
from gymhost.envs.sandbox.results import CommandResult
from gymhost.envs.sandbox.sandbox import Sandbox
from gymhost.envs.sandbox.spec import Limits
from gymhost.wire.errors import SandboxLost

__all__ = ["FAMILY"]

# It takes much of the machine.
FAMILY = Family("limits", alone=True)

MIB = 2**20

# Small ones, so that reaching them is quick.
_LIMITS = Limits(memory=96 * MIB, processes=40, disk=8 * MIB, open_files=64)

_CGROUP = "Run as root, or give this user a cgroup of its own with {} in it (systemd: Delegate=yes), or use Docker"
_REMEDIES = {
    "memory": _CGROUP.format("memory"),
    "processes": _CGROUP.format("pids"),
    "cpus": _CGROUP.format("cpu"),
    "disk": "Run as root, or use Docker",
    "open_files": "Use another backend",
}


@FAMILY.case("in force")
async def _in_force(trial: Trial) -> None:
    async with trial.sandbox() as sandbox:
        for name, how in sandbox.limits_in_force.items():
            if how:
                trial.note(f"{name}: {how}")
            elif name in _REMEDIES and getattr(trial.spec.limits, name) is not None:
                trial.advise(f"{name}: not in force. {_remedy(trial, name)}.")
        for name in _REMEDIES:
            if name not in sandbox.limits_in_force:
                trial.fault(f"it does not say whether the limit of {name} is in force")


@FAMILY.case("memory of one process")
async def _memory(trial: Trial) -> None:
    async with _limited(trial, "memory") as sandbox:
        result = await sandbox.run(f"head -c {_LIMITS.memory + 64 * MIB} /dev/zero | tail >/dev/null", timeout=30)
        trial.expect(
            not result.ok, f"a process took {(_LIMITS.memory + 64 * MIB) // MIB} MiB of {_LIMITS.memory // MIB}"
        )
        trial.expect(result.limit in ("memory", None), f"it does not name the limit of memory: {shown(result)}")
        if result.limit is None and not result.ok:
            trial.note(f"The result does not name the limit: {shown(result)}")
        if await trial.usable(sandbox):
            result = await sandbox.run(f"head -c {_LIMITS.memory // 4} /dev/zero | tail >/dev/null", timeout=30)
            trial.expect(result.ok, f"afterwards a quarter of the memory could not be had: {shown(result)}")


@FAMILY.case("memory of several processes")
async def _memory_together(trial: Trial) -> None:
    share = _LIMITS.memory * 2 // 5
    async with _limited(trial, "memory") as sandbox:
        if "by itself" in sandbox.limits_in_force["memory"]:
            return trial.advise(f"It is held for each process by itself. {_remedy(trial, 'memory')}.")
        # Each keeps its share until all have theirs.
        hog = f"{{ head -c {share} /dev/zero; sleep 2; }} | tail >/dev/null"
        wait = "for i in 1 2 3 4; do wait ${held[i]} || lost=1; done; exit $lost"
        result = await sandbox.run(f"for i in 1 2 3 4; do ({hog}) & held[i]=$!; done; lost=0; {wait}", timeout=30)
        trial.expect(not result.ok, f"four processes took {4 * share // MIB} MiB of {_LIMITS.memory // MIB}")
        await trial.usable(sandbox)
    return None


@FAMILY.case("memory of the shell")
async def _memory_of_shell(trial: Trial) -> None:
    async with _limited(trial, "memory") as sandbox:
        shell = await sandbox.shell()
        more = _LIMITS.memory + 64 * MIB
        await shell.run(f"text=$(head -c {more} /dev/zero | tr '\\0' x); echo ${{#text}}", timeout=30)
        with contextlib.suppress(SandboxLost):
            after = await shell.run("echo fine", timeout=10)
            trial.expect(after.stdout == "fine\n", f"afterwards the shell's `echo fine` gave {shown(after)}")
        await trial.usable(sandbox)


@FAMILY.case("processes")
async def _processes(trial: Trial) -> None:
    mark = new_mark()
    async with _limited(trial, "processes") as sandbox:
        wanted = _LIMITS.processes + 40
        # Bash tries again for a while where it can't have one more.
        work = sandbox.run(f"for i in {{1..{wanted}}}; do sleep {mark} & done; wait", timeout=2)
        result, most = await _watched(sandbox, work)
        trial.expect(result is None or not result.ok, f"{wanted} processes could be had")
        trial.expect(most <= _LIMITS.processes + 4, f"{most} processes ran at a time, of {_LIMITS.processes}")
        await trial.usable(sandbox)
        if most > _LIMITS.processes + 4:
            return
        started = time.monotonic()
        bomb = f"bash -c 'bomb() {{ bomb | bomb & }}; bomb; sleep 60' {mark}"
        result, most = await _watched(sandbox, sandbox.run(bomb, timeout=2))
        seconds = time.monotonic() - started
        trial.expect(seconds < 2 + 2 * SLACK, f"a fork bomb with a limit of 2 s was over after {seconds:.1f} s")
        trial.expect(most <= _LIMITS.processes + 4, f"a fork bomb had {most} processes, of {_LIMITS.processes}")
        if await trial.usable(sandbox):
            trial.expect(await trial.gone(mark, sandbox), "a fork bomb outlives its time-out")
    trial.expect(await trial.gone(mark), "a fork bomb outlives its sandbox")


@FAMILY.case("a fork bomb in the background")
async def _bomb(trial: Trial) -> None:
    mark = new_mark()
    async with _limited(trial, "processes") as sandbox:
        shell = await sandbox.shell()
        with contextlib.suppress(SandboxLost):
            await shell.run(f"bash -c 'bomb() {{ bomb | bomb & }}; bomb' {mark} >/dev/null 2>&1", timeout=2)
            await sandbox.run("echo fine", timeout=2)
    trial.expect(await trial.gone(mark), "a fork bomb outlives its sandbox")


@FAMILY.case("files: one that is large")
async def _disk(trial: Trial) -> None:
    async with _limited(trial, "disk") as sandbox:
        taken: dict[str, int] = {}
        folders = [sandbox.spec.workdir]
        if trial.backend.isolates:
            folders += ["/tmp", "/dev/shm", "/dev", "/run", "/var/tmp", "/var/lock"]
        for folder in folders:
            path = f"{folder}/gymhost-check"
            await sandbox.run(f"head -c {2 * _LIMITS.disk} /dev/zero >{path}", timeout=30)
            size = (await sandbox.run(f"stat -c %s {path}")).stdout.strip()
            taken[folder] = int(size or 0)
        largest = max(taken, key=taken.__getitem__)
        trial.expect(
            taken[largest] <= _LIMITS.disk, f"{taken[largest]} bytes could be written to {largest}, of {_LIMITS.disk}"
        )
        where = ", ".join(f"{size // 1024} KiB to {folder}" for folder, size in taken.items() if size)
        trial.expect(
            sum(taken.values()) <= 2.5 * _LIMITS.disk, f"of {_LIMITS.disk // 1024} KiB one could write {where}"
        )
        if sum(taken.values()) > 1.1 * _LIMITS.disk:
            trial.advise(f"Of {_LIMITS.disk // 1024} KiB in all, one could write {where}")
        await trial.usable(sandbox)
        await sandbox.run(["rm", "-f", *(f"{folder}/gymhost-check" for folder in folders)])
        result = await sandbox.run("echo x >small && cat small")
        trial.expect(result.stdout == "x\n", f"after clearing up nothing can be written: {shown(result)}")


@FAMILY.case("files: many that are small")
async def _many_files(trial: Trial) -> None:
    async with _limited(trial, "disk") as sandbox:
        if "by itself" in sandbox.limits_in_force["disk"]:
            return trial.advise(f"It is held for each file by itself. {_remedy(trial, 'disk')}.")
        wanted = 2 * _LIMITS.disk // 4096
        write = f'for ((i = 0; i < {wanted}; i++)); do echo "$page" >f$i || break; done 2>/dev/null; echo $i'
        result = await sandbox.run(f"printf -v page %4096s x; {write}", timeout=30)
        trial.expect(
            result.stdout.strip() != str(wanted), f"{wanted} files of 4 KiB could be written, of {_LIMITS.disk} bytes"
        )
        await trial.usable(sandbox)
        result = await sandbox.run(
            "rm -f f*; for ((i = 0; i < 50000; i++)); do : >e$i || break; done 2>/dev/null; echo $i", timeout=30
        )
        if result.stdout.strip() == "50000":
            trial.advise("The number of files is not limited: 50000 empty ones could be made")
        await trial.usable(sandbox)
    return None


@FAMILY.case("open files")
async def _open_files(trial: Trial) -> None:
    async with _limited(trial, "open_files") as sandbox:
        wanted = _LIMITS.open_files + 20
        result = await sandbox.run(
            ["bash", "-c", f"for i in {{1..{wanted}}}; do exec {{file}}</dev/null || exit 7; done"]
        )
        trial.expect(not result.ok, f"{wanted} files could be opened, of {_LIMITS.open_files}")
        result = await sandbox.run(["bash", "-c", f"ulimit -Sn {2 * wanted} 2>/dev/null || ulimit -n {2 * wanted}"])
        trial.expect(not result.ok, "the limit of open files can be raised")
        await trial.usable(sandbox)


@FAMILY.case("output")
async def _output(trial: Trial) -> None:
    async with trial.sandbox() as sandbox:
        shell = await sandbox.shell()
        for command in ("yes", "yes >&2", "cat /dev/zero", "cat /dev/zero & cat /dev/zero >&2"):
            for runner, name in ((sandbox, "run"), (shell, "the shell")):
                result = await runner.run(command, timeout=20, output_limit=50_000)
                trial.expect(
                    result.limit == "output" and result.truncated,
                    f"`{command}` by {name}: the limit of output was not named: {shown(result)}",
                )
                kept = max(len(result.stdout_bytes), len(result.stderr_bytes))
                trial.expect(kept <= 50_000, f"`{command}` by {name}: {kept} bytes are kept of 50000")
                trial.expect(result.seconds < 15, f"`{command}` by {name} was ended after {result.seconds:.1f} s")
                await trial.usable(sandbox)
        result = await sandbox.run("seq 100000; exit 3", output_limit=50_000)
        trial.expect(
            result.exit_status == 3 and result.limit is None and result.truncated,
            f"output above what is kept ended a command: {shown(result)}",
        )
        trial.expect(
            result.stdout.startswith("1\n2\n") and result.stdout.endswith("\n100000\n"),
            "its first and last lines are not kept",
        )


@FAMILY.case("processors")
async def _cpus(trial: Trial) -> None:
    async with _limited(trial, "cpus", Limits(cpus=0.25)) as sandbox:
        loop = "while (( ${EPOCHREALTIME/./} < end )); do :; done"
        result = await sandbox.run(
            f"end=$(( ${{EPOCHREALTIME/./}} + 2000000 )); ({loop}) & ({loop}) & wait; times | tail -n 1", timeout=30
        )
        try:
            used = sum(_seconds(part) for part in result.stdout.split())
        except ValueError:
            return trial.fault(f"measuring it gave {shown(result)}")
        trial.expect(used < 1.0, f"{used:.2f} s of processor were used in 2 s, of 0.25 processors")
    return None


@FAMILY.case("usage")
async def _usage(trial: Trial) -> None:
    async with trial.sandbox() as sandbox:
        await sandbox.run("head -c 1000000 /dev/zero >file; sleep 60 >/dev/null 2>&1 &")
        usage = await sandbox.usage()
        missing = [name for name in ("memory", "processes", "cpu_seconds", "disk") if getattr(usage, name) is None]
        if missing:
            trial.advise(f"It does not tell the usage of {', '.join(missing)}. {_remedy(trial, 'memory')}.")
        trial.expect(
            usage.processes is None or 2 <= usage.processes < 20, f"two processes are said to be {usage.processes}"
        )
        trial.expect(
            usage.memory is None or 0 < usage.memory < 2**30, f"it is said to use {usage.memory} bytes of memory"
        )
        trial.expect(
            usage.disk is None or usage.disk >= 1_000_000, f"a file of 1 MB is said to take {usage.disk} bytes"
        )


@contextlib.asynccontextmanager
async def _limited(trial: Trial, name: str, limits: Limits = _LIMITS) -> AsyncGenerator[Sandbox, None]:
    """A sandbox with small limits.

    Raises:
        NotTried: The limit is not in force; trying it would harm the machine.
    """
    async with trial.sandbox(limits=limits) as sandbox:
        if not sandbox.limits_in_force.get(name):
            raise NotTried(f"the limit is not in force. {_remedy(trial, name)}")
        yield sandbox


def _remedy(trial: Trial, name: str) -> str:
    """Returns what to do for a limit to be in force."""
    return _REMEDIES[name] if trial.backend.isolates else "Use bubblewrap or Docker"


async def _watched(sandbox: Sandbox, work: Awaitable[CommandResult]) -> tuple[CommandResult | None, int]:
    """Returns the result of work, None where it lost the sandbox, and the most processes that were there meanwhile."""
    task = asyncio.ensure_future(work)
    most = 0
    while not task.done():
        with contextlib.suppress(SandboxLost):
            most = max(most, (await sandbox.usage()).processes or 0)
        await asyncio.sleep(0.05)
    try:
        return task.result(), most
    except SandboxLost:
        return None, most


def _seconds(text: str) -> float:
    """Returns what `times` says, such as 0m1.234s."""
    minutes, _, seconds = text.rstrip("s").partition("m")
    return 60 * float(minutes) + float(seconds)
