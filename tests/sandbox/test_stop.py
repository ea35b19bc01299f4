"""What a stop ends, and what it leaves alone."""

import asyncio
import os
import time
from collections.abc import AsyncGenerator

import pytest

from gymhost.envs.sandbox.sandbox import Sandbox
from support.sandboxes import BACKENDS, ISOLATING, fresh_sandbox

# How long things sleep that are looked for. Where nothing is isolated, others' processes are seen too.
LONG, LONGER, LONGEST, ENDLESS = (f"{seconds}.{os.getpid()}" for seconds in (771, 772, 773, 774))


@pytest.fixture(params=BACKENDS)
async def sandbox(request: pytest.FixtureRequest) -> AsyncGenerator[Sandbox]:
    async with fresh_sandbox(request.param) as sandbox:
        yield sandbox


@pytest.fixture(params=ISOLATING)
async def isolating_sandbox(request: pytest.FixtureRequest) -> AsyncGenerator[Sandbox]:
    async with fresh_sandbox(request.param) as sandbox:
        yield sandbox


async def running(sandbox: Sandbox, name: str) -> int:
    """How many processes have a command line that begins like this."""
    result = await sandbox.run(["ps", "-eo", "stat=,args="], output_limit=2**22)
    assert result.ok
    processes = [line.split(maxsplit=1) for line in result.stdout.splitlines()]
    return sum(state[0] not in "ZX" and line.startswith(name) for state, line in processes)


STUBBORN = {
    "a child": "sleep {n}",
    "a session of its own": "setsid sleep {n} & sleep 50",
    "two forks": "(setsid bash -c 'sleep {n} & sleep {n}' &) ; sleep 50",
    "an orphan": "(sleep {n} &) ; sleep 50",
    "nohup": "nohup sleep {n} >/dev/null 2>&1 & disown -a; sleep 50",
    "trapped signals": "trap '' HUP INT TERM QUIT USR1 USR2 TSTP; (setsid sleep {n} &); while :; do sleep {n}; done",
    "stopped": "sleep {n} & kill -STOP $!; (setsid sleep {n} & kill -STOP $!); kill -STOP $$",
    "closed streams": "(exec sleep {n} <&- >&- 2>&- &); exec >&- 2>&-; sleep {n}",
    "a spinning shell": "exec -a {n} bash -c 'while :; do :; done'",
    "forks all the time": "f() {{ sleep {n} & sleep 0.01; f & }}; f & sleep 50",
    "many": "for i in {{1..60}}; do setsid sleep {n} & done; sleep 50",
}


@pytest.mark.parametrize("kind", STUBBORN)
async def test_a_time_limit_ends_all_that_a_command_started(sandbox: Sandbox, kind: str):
    started = time.monotonic()
    result = await sandbox.run(STUBBORN[kind].format(n=LONG), timeout=0.5)
    assert result.limit == "time"
    assert time.monotonic() - started < 10
    assert await running(sandbox, f"sleep {LONG}") + await running(sandbox, LONG) == 0
    assert (await sandbox.run("echo fine")).stdout == "fine\n"


@pytest.mark.parametrize("kind", STUBBORN)
async def test_in_a_shell_too(sandbox: Sandbox, kind: str):
    shell = await sandbox.shell()
    started = time.monotonic()
    result = await shell.run(STUBBORN[kind].format(n=LONG), timeout=0.5)
    assert result.limit == "time"
    assert time.monotonic() - started < 20
    assert await running(sandbox, f"sleep {LONG}") + await running(sandbox, LONG) == 0
    assert (await shell.run("(exit 3)")).exit_status == 3


async def test_what_others_started_is_left_alone(sandbox: Sandbox):
    shell, other = await sandbox.shell(), await sandbox.shell()
    await shell.run(f"sleep {LONG} & (setsid sleep {LONG} &)")
    await other.run(f"sleep {LONG} & (sleep {LONG} &)")
    await sandbox.run(f"sleep {LONG} & (setsid sleep {LONG} &)")
    # Jobs that are older than the command may start more meanwhile.
    await shell.run(f"bash -c 'while :; do sleep {LONGER} & sleep 0.02; done' &")
    await asyncio.sleep(0.1)
    beside = asyncio.create_task(sandbox.run(f"sleep {LONG} & (sleep {LONG} &); sleep {LONGEST}; exit 6"))
    while await running(sandbox, f"sleep {LONGEST}") == 0:
        pass
    for run in (shell.run, other.run, sandbox.run):
        result = await run(f"sleep {ENDLESS} & (setsid sleep {ENDLESS} &); sleep {ENDLESS}", timeout=0.3)
        assert (result.limit, result.restarted) == ("time", False)
    assert await running(sandbox, f"sleep {ENDLESS}") == 0
    assert await running(sandbox, f"sleep {LONG}") == 8
    assert await running(sandbox, f"sleep {LONGER}") > 3
    assert await running(sandbox, f"sleep {LONGEST}") == 1
    beside.cancel()
    with pytest.raises(asyncio.CancelledError):
        await beside
    assert await running(sandbox, f"sleep {LONGEST}") == 0
    assert await running(sandbox, f"sleep {LONG}") >= 6


@pytest.mark.parametrize(
    "bomb", [":(){ :|:& };:; sleep 50", "while :; do setsid bash -c 'sleep 50' & done", "f() { f & f & }; f; sleep 50"]
)
async def test_a_fork_bomb_is_ended(isolating_sandbox: Sandbox, bomb: str):
    sandbox = isolating_sandbox
    started = time.monotonic()
    result = await sandbox.run(bomb, timeout=1)
    # Its shell may find no room for more, and end; then its children are background jobs.
    assert result.limit in ("time", None)
    assert time.monotonic() - started < 20
    if result.limit:
        # A process of the test is one, and the first one.
        usage = await sandbox.usage()
        assert usage.processes is None or usage.processes < 20
        assert (await sandbox.run("echo fine")).stdout == "fine\n"
