"""Process trees: what a command started ends with it or lasts, as said, and all ends with the sandbox."""

import asyncio
import os
from pathlib import Path

from gymhost.envs.sandbox.check.host import process_namespace
from gymhost.envs.sandbox.check.trial import UNSEEN, Family, NotTried, Trial, new_mark, shown
from gymhost.wire.errors import SandboxLost

__all__ = ["FAMILY"]

FAMILY = Family("trees")

# Ways to leave the tree of a command or to outlive signals; {} is the mark.
_WAYS = {
    "a background process": "sleep {} &",
    "setsid": "setsid sleep {} &",
    "nohup": "nohup sleep {} >/dev/null 2>&1 &",
    "a double fork": "( (sleep {} >/dev/null 2>&1 </dev/null &) & )",
    "a daemon": "(setsid bash -c 'exec <&- >&- 2>&-; cd /; (sleep {}) & exit' &)",
    "a stopped process": "sleep {} & sleep 0.1; kill -STOP $!",
    "a process that ignores signals": "bash -c \"trap '' TERM INT HUP QUIT; while :; do sleep 0.2; done\" {} &",
    "a process group of its own": "set -m; sleep {} & set +m",
}


def _start_all() -> tuple[dict[str, str], str]:
    """What each mark stands for, and what starts them all."""
    marks = {new_mark(): what for what in _WAYS}
    return marks, "\n".join(_WAYS[what].replace("{}", mark) for mark, what in marks.items())


@FAMILY.case("after a time-out")
async def _after_timeout(trial: Trial) -> None:
    async with trial.sandbox() as sandbox:
        shell = await sandbox.shell()
        for runner, name in ((sandbox, "a command"), (shell, "a command of the shell")):
            marks, start = _start_all()
            result = await runner.run(f"{start}\nsleep 60", timeout=1.0)
            trial.expect(result.limit == "time", f"no time limit fired: {shown(result)}")
            for mark in await trial.left(*marks, sandbox=sandbox):
                trial.fault(f"{marks[mark]} of {name} outlives its time-out")
        await trial.usable(sandbox)


@FAMILY.case("after destroy()")
async def _after_destroy(trial: Trial) -> None:
    sandbox = await trial.create()
    started: dict[str, str] = {}
    try:
        shell = await sandbox.shell()
        for runner, name in ((sandbox, "a command"), (shell, "the shell")):
            marks, start = _start_all()
            result = await runner.run(f"{start}\ntrue", timeout=10)
            trial.expect(result.ok, f"{name} that starts them did not end at once: {shown(result)}")
            started |= {mark: f"{what} of {name}" for mark, what in marks.items()}
        seen = await trial.appears(sandbox, *started)
    finally:
        await trial.destroy(sandbox)
    if not seen:
        raise NotTried(UNSEEN)
    for mark in await trial.left(*started):
        trial.fault(f"{started[mark]} outlives its sandbox")


@FAMILY.case("background processes of a command that ends")
async def _background(trial: Trial) -> None:
    async with trial.sandbox() as sandbox:
        shell = await sandbox.shell()
        for runner, name in ((sandbox, "a command"), (shell, "the shell")):
            mark = new_mark()
            result = await runner.run(f"sleep {mark} >/dev/null 2>&1 &", timeout=10)
            trial.expect(result.ok, f"{name} waits for what it started in the background: {shown(result)}")
            # What is of the same age as a command can't be told from what the command started.
            await asyncio.sleep(0.1)
            for way in ("true", "exit 3" if runner is sandbox else "false", "sleep 60"):
                await runner.run(way, timeout=0.4 if "sleep" in way else 10)
            kept = await sandbox.run("cat /proc/[0-9]*/cmdline", output_limit=2**20)
            trial.expect(mark in kept.stdout, f"what {name} started in the background did not outlast other commands")
            holding = await runner.run("sleep 30 & echo fine", timeout=10)
            trial.expect(
                holding.stdout == "fine\n" and holding.limit is None,
                f"{name} is held by a background process that kept its output: {shown(holding)}",
            )


@FAMILY.case("orphans")
async def _orphans(trial: Trial) -> None:
    async with trial.sandbox() as sandbox:
        await sandbox.run("for i in {1..50}; do (true & ); done", timeout=10)
        result = await sandbox.run("sleep 0.3; cat /proc/[0-9]*/stat | grep -c ') Z ' || true", timeout=10)
        zombies = int(result.stdout.strip() or 0)
        if trial.backend.isolates:
            trial.expect(zombies < 10, f"{zombies} processes that ended are not waited for by the first process")


@FAMILY.case("numbers of processes")
async def _numbers(trial: Trial) -> None:
    if not trial.backend.isolates:
        raise NotTried("it has the processes of the host")
    mark = new_mark()
    async with trial.sandbox() as sandbox:
        result = await sandbox.run(f"sleep {mark} >/dev/null 2>&1 & echo $!")
        if not await trial.appears(sandbox, mark):
            raise NotTried(UNSEEN)
        inside = int(result.stdout)
        statuses = [_status(pid) for pid in os.listdir("/proc") if pid.isdigit() and mark in _command_line(pid)]
        numbers = {line for status in statuses for line in status.splitlines() if line.startswith("NSpid:")}
        trial.expect(
            any(len(line.split()) > 2 and line.split()[-1] == str(inside) for line in numbers),
            f"a process that has the number {inside} inside is {numbers or 'nothing'} on the host",
        )


@FAMILY.case("signals to all")
async def _signals(trial: Trial) -> None:
    async with trial.sandbox() as sandbox:
        # Where it does not hold, the signals would reach the host.
        own = await sandbox.run("readlink /proc/self/ns/pid; cat /proc/1/cmdline | tr '\\0' ' '")
        if not trial.backend.isolates or own.stdout.split()[:1] in ([], [process_namespace()]):
            raise NotTried("it has the processes of the host")
        for signal in ("TERM", "KILL"):
            try:
                await sandbox.run(f"kill -{signal} 1; kill -{signal} -1; sleep 0.2", timeout=5)
            except SandboxLost:
                return trial.note("Killing all inside has the sandbox given up")
            if not await trial.usable(sandbox):
                return None
    return None


def _status(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return ""


def _command_line(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return ""
