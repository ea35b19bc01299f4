"""Time-outs: a limit ends the work and not the wait alone, and it alone does."""

import asyncio
import contextlib
import time

from gymhost.envs.sandbox.check.trial import SLACK, Family, Trial, new_mark, shown
from gymhost.envs.sandbox.results import CommandResult, PythonResult

__all__ = ["FAMILY"]

FAMILY = Family("timeouts")

# Work that would go on; {} is a mark on its command line.
_ENDLESS = {
    "a loop": "bash -c 'while :; do :; done' {}",
    "a loop that ignores signals": "bash -c \"trap '' TERM INT HUP QUIT; while :; do :; done\" {}",
    "a stopped process": "bash -c 'kill -STOP $$; sleep 1' {}",
    "a pipe of several": "sleep {} | bash -c 'while :; do :; done' {} | cat",
    "a process that makes others": "bash -c 'while :; do (:); sleep {} & sleep 0.05; done' {}",
}
_LIMIT = 0.7


@FAMILY.case("commands without an end")
async def _commands(trial: Trial) -> None:
    async with trial.sandbox() as sandbox:
        for what, command in _ENDLESS.items():
            mark = new_mark()
            started = time.monotonic()
            result = await sandbox.run(command.replace("{}", mark), timeout=_LIMIT)
            _check(trial, what, result, time.monotonic() - started)
            trial.expect(await trial.gone(mark, sandbox), f"{what}: the limit ended the wait, but the work goes on")
            await trial.usable(sandbox)


@FAMILY.case("commands of the shell without an end")
async def _shell(trial: Trial) -> None:
    async with trial.sandbox() as sandbox:
        shell = await sandbox.shell()
        for what, command in {**_ENDLESS, "a loop of the shell's own": "while :; do :; done"}.items():
            mark = new_mark()
            await shell.run("kept=value; cd /tmp")
            started = time.monotonic()
            result = await shell.run(command.replace("{}", mark), timeout=_LIMIT)
            _check(trial, what, result, time.monotonic() - started)
            trial.expect(await trial.gone(mark, sandbox), f"{what}: the limit ended the wait, but the work goes on")
            after = await shell.run('echo "$kept $PWD"')
            expected = f" {sandbox.spec.workdir}\n" if result.restarted else "value /tmp\n"
            said = "was" if result.restarted else "was not"
            trial.expect(
                after.stdout == expected, f"{what}: the shell {said} restarted, it says, but has {shown(after)}"
            )


@FAMILY.case("Python without an end")
async def _python(trial: Trial) -> None:
    endless = {
        "a loop": "while True: pass",
        "a loop that catches all": "while True:\n  try:\n    while True: pass\n  except BaseException: pass",
        "a child": "import subprocess; subprocess.run(['sleep', '{}'])",
    }
    async with trial.sandbox() as sandbox:
        await trial.python_of(sandbox)
        python = await sandbox.python()
        for what, code in endless.items():
            mark = new_mark()
            started = time.monotonic()
            result = await python.run(code.replace("{}", mark), timeout=_LIMIT)
            _check(trial, what, result, time.monotonic() - started)
            trial.expect(await trial.gone(mark, sandbox), f"{what}: the limit ended the wait, but the work goes on")
            after = await python.run("40 + 2")
            trial.expect(after.value == "42", f"{what}: afterwards `40 + 2` gave {after}")


@FAMILY.case("silence")
async def _silence(trial: Trial) -> None:
    async with trial.sandbox() as sandbox:
        result = await sandbox.run("sleep 3; echo fine", timeout=30)
        trial.expect(
            result.ok and result.stdout == "fine\n" and result.limit is None,
            f"a command that was silent for 3 s of its 30 gave {shown(result)}",
        )
        trial.expect(result.seconds >= 2.9, f"it took 3 s, but is said to have taken {result.seconds:.1f} s")


@FAMILY.case("what was written before the end")
async def _partial(trial: Trial) -> None:
    async with trial.sandbox() as sandbox:
        result = await sandbox.run("echo out; echo err >&2; sleep 60", timeout=2.0)
        trial.expect(
            result.stdout == "out\n" and result.stderr == "err\n" and result.limit == "time",
            f"what it had written is not returned: {shown(result)}",
        )


@FAMILY.case("a command whose caller gives up")
async def _cancelled(trial: Trial) -> None:
    async with trial.sandbox() as sandbox:
        shell = await sandbox.shell()
        for runner in (sandbox, shell):
            mark = new_mark()
            task = asyncio.create_task(runner.run(f"sleep {mark}", timeout=60))
            await trial.appears(sandbox, mark)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            trial.expect(await trial.gone(mark, sandbox), "a command that was cancelled goes on")
            result = await runner.run("echo fine", timeout=10)
            trial.expect(result.stdout == "fine\n", f"after a cancelled command `echo fine` gave {shown(result)}")


def _check(trial: Trial, what: str, result: CommandResult | PythonResult, seconds: float) -> None:
    trial.expect(seconds < _LIMIT + SLACK, f"{what}: a limit of {_LIMIT} s fired after {seconds:.1f} s")
    trial.expect(result.limit == "time", f"{what}: the result does not name the time limit: {result}")
