"""The persistent shell: what lasts, what a command returns, and what can be done to it."""

import asyncio
import time
from collections.abc import AsyncGenerator

import pytest

from gymhost.envs.sandbox.sandbox import Sandbox
from gymhost.envs.sandbox.shell import Shell
from gymhost.wire.errors import InvalidArgument, SandboxLost
from support.sandboxes import BACKENDS, fresh_sandbox


@pytest.fixture(params=BACKENDS)
async def sandbox(request: pytest.FixtureRequest) -> AsyncGenerator[Sandbox]:
    async with fresh_sandbox(request.param) as sandbox:
        yield sandbox


@pytest.fixture
async def shell(sandbox: Sandbox) -> Shell:
    return await sandbox.shell()


async def test_variables_functions_options_and_the_folder_last(shell: Shell):
    await shell.run("x='a  b'; export y=1; f() { echo f$1; }; mkdir -p d/e; cd d/e; set -o noglob; alias g='echo g'")
    result = await shell.run('echo "$x"; f 2; env | grep ^y=; echo *; g')
    assert result.stdout == "a  b\nf2\ny=1\n*\ng\n"
    assert result.stderr == ""
    assert (await shell.run("pwd")).stdout.endswith("/d/e\n")
    assert (await shell.run("(exit 3)")).exit_status == 3
    assert (await shell.run("echo $?; set -e")).stdout == "3\n"
    result = await shell.run("echo $?; false || echo $?")
    assert (result.stdout, result.stderr) == ("0\n1\n", "")


@pytest.mark.parametrize(
    ("command", "status", "stdout", "stderr"),
    [
        ("true", 0, "", ""),
        ("false", 1, "", ""),
        ("", 0, "", ""),
        ("# nothing", 0, "", ""),
        ("-x", 127, "", "-x: command not found"),
        ("(exit 255)", 255, "", ""),
        ("bash -c 'kill -TERM $$'", 143, "", ""),
        ("no-such-program", 127, "", "not found"),
        ("echo 'unclosed", 2, "", "unexpected EOF"),
        ('echo "$(', 1, "", "unexpected EOF"),
        ("if", 2, "", "syntax error"),
        (") echo", 2, "", "syntax error"),
        ("cat <<END\na\n$((1 + 1))\nEND", 0, "a\n2\n", ""),
        ("echo a\necho b; false\n", 1, "a\nb\n", ""),
        ("echo 'a\n\nb' \"c'd\" \\\\", 0, "a\n\nb c'd \\\n", ""),
        ("printf 'no end'", 0, "no end", ""),
        ("printf err >&2", 0, "", "err"),
        ("echo !! !x", 0, "!! !x\n", ""),
        ("read x; echo $?$x", 0, "1\n", ""),
        ("return 4", 2, "", "return"),
        ("break", 0, "", "only meaningful"),
        ("echo ü; echo $'\\xff'", 0, "ü\n\ufffd\n", ""),
        (
            "printf() { echo mine; }; builtin() { :; }; unset -f builtin; echo()  { command echo my$1; }; echo x",
            0,
            "myx\n",
            "",
        ),
        ("trap 'echo bye' EXIT", 0, "", ""),
        ("PS1='$ '; PS2='> '; PS4='+'", 0, "", ""),
        ("PROMPT_COMMAND='echo prompt >&2'", 0, "", ""),
        ("PS0='0 '; readonly PS1='$ '", 0, "", ""),
        ("echo ${missing?no}", 1, "", "no"),
        ("x=1; readonly x; x=2", 1, "", "readonly"),
        ("set -u; echo $missing", 1, "", "unbound"),
        ("history", 0, "", ""),
        ("ls -l /proc/self/fd | tail -n +2 | wc -l", 0, "4\n", ""),
        ("tty", 1, "not a tty\n", ""),
        ("yes | head -n 1", 0, "y\n", ""),
    ],
)
async def test_what_a_command_returns_is_exact(shell: Shell, command: str, status: int, stdout: str, stderr: str):
    result = await shell.run(command)
    assert (result.exit_status, result.stdout, result.limit, result.restarted) == (status, stdout, None, False)
    assert stderr in result.stderr if stderr else not result.stderr
    result = await shell.run("command echo next; (exit 6)")
    assert (result.exit_status, result.stdout, result.restarted) == (6, "next\n", False)


@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("exit 3", 3),
        ("echo before; exit", 0),
        ("exec bash -c 'exit 5'", 5),
        ("set -e; false", 1),
        ("set -e; (exit 9)", 9),
        ("kill -KILL $$", 137),
        ("trap 'exit 4' USR1; kill -USR1 $$; sleep 5", 4),
        ("sleep 60 & disown; exit 6", 6),
        ("sleep 60 & exit 7", 7),
        ("(while :; do sleep 1; done) & exit 8", 8),
        ("kill -KILL $PPID; exit 2", None),
        ("kill -KILL $PPID $$", None),
        ("logout; exit 1", 1),
    ],
)
async def test_a_shell_that_ends_is_started_anew(shell: Shell, command: str, status: int | None):
    await shell.run("x=5")
    result = await shell.run(command, timeout=2)
    assert result.restarted
    if status is not None:
        assert (result.exit_status, result.limit) == (status, None)
    result = await shell.run("echo x$x; (exit 6)")
    assert (result.exit_status, result.stdout, result.stderr, result.restarted) == (6, "x\n", "", False)


@pytest.mark.parametrize(
    "command",
    [
        "exec >&-",
        "exec 2>&-",
        "exec >/dev/null 2>&1",
        "exec <&-",
        "exec </dev/zero",
        "exec 249>&- 250>&-",
        "set -x",
        "set -v",
        "set -m",
        "set -o posix",
        "trap 'echo debug' DEBUG",
        "trap 'echo err' ERR",
        "shopt -s extdebug",
        "IFS=0123456789abcdef",
        "PATH=",
        "unset PATH HOME",
        "umask 777",
        "ulimit -n 20",
        "readonly PS1 PS2 IFS",
        "eval() { :; }",
        "LC_ALL=xx LANG=yy",
        "exec 3<&0 4>&1 9>/dev/null",
        "printf() { :; }",
    ],
)
async def test_what_is_done_to_the_shell_gives_no_wrong_answer_later(shell: Shell, command: str):
    await shell.run(command, timeout=2)
    results = [await shell.run(f"command echo {number} >&2; (exit {number})", timeout=2) for number in range(4)]
    for number, result in enumerate(results):
        if result.limit is None and not result.restarted:
            assert result.exit_status == number, result
    # If it became useless, it was started anew.
    result = await shell.run("exec >&2; (exit 7)", timeout=2)
    assert result.restarted or result.exit_status in (7, None)


@pytest.mark.parametrize(
    "command",
    [
        "sleep 50; echo no",
        "while :; do :; done",
        "while :; do sleep 0.01; done",
        "for i in {1..10000}; do sleep 50; done; echo no",
        "bash -c \"trap '' INT TERM; while :; do sleep 50; done\"",
        "f() { f2; }; f2() { sleep 50; }; f",
        "sleep 50 | cat | sleep 50",
        "cat <(sleep 50)",
        "x=$(sleep 50)",
        "wait & sleep 50 & wait",
        "until false; do true; done",
        "coproc sleep 50; wait",
    ],
)
async def test_a_time_limit_keeps_variables_and_folder(shell: Shell, command: str):
    await shell.run("x=5; cd /tmp")
    started = time.monotonic()
    result = await shell.run(command, timeout=0.2)
    assert time.monotonic() - started < 10
    assert (result.limit, result.exit_status, result.stdout, result.restarted) == ("time", None, "", False)
    result = await shell.run("echo $x $PWD")
    assert (result.stdout, result.stderr, result.exit_status) == ("5 /tmp\n", "", 0)


@pytest.mark.parametrize(
    "command",
    [
        "trap '' INT; while :; do :; done",
        "trap 'echo caught' INT; while :; do sleep 0.1; done",
        "trap '' INT TERM HUP; while :; do sleep 50; done",
        "read x </dev/zero",
        "read -N 1000000000 x </dev/zero",
        "kill -STOP $$",
        "mapfile x </dev/zero",
        "x=$(cat /dev/zero)",
        "exec sleep 50",
        "sleep 50 & exec bash -c 'trap \"\" INT; while :; do :; done'",
        "printf() { :; }; builtin() { :; }",
        "exec 10>&- 11>&- 12>&- 13>&-",
        "kill -STOP $PPID; exit 2",
    ],
)
async def test_whatever_it_does_the_next_command_is_answered(shell: Shell, command: str):
    started = time.monotonic()
    first = await shell.run(command, timeout=0.3)
    assert time.monotonic() - started < 20
    result = await shell.run("echo fine; (exit 3)", timeout=5)
    if not first.restarted and result.limit == "time":
        assert result.restarted
        result = await shell.run("echo fine; (exit 3)", timeout=5)
    assert "fine\n" in result.stdout or result.restarted
    assert result.exit_status in (3, None) or result.restarted
    assert (await shell.run("(exit 4)")).exit_status == 4


async def test_output_that_looks_like_the_end_of_a_command_ends_nothing(shell: Shell):
    mimic = r"printf '\036AAAAAAAAAAAAAAAAAAAAAA 0\n'; printf '\036AAAAAAAAAAAAAAAAAAAAAA\n' >&2"
    result = await shell.run(f"for i in {{1..1000}}; do {mimic}; done; (exit 5)")
    assert (result.exit_status, len(result.stdout)) == (5, 26 * 1000)
    # The nonce of a command is in sight of what runs later.
    result = await shell.run("cat /proc/$$/cmdline /proc/$$/environ | tr '\\0' '\\n'; set; echo end")
    assert result.stdout.endswith("end\n")
    assert (await shell.run("echo next")).stdout == "next\n"


async def test_the_output_of_what_runs_in_the_background_is_no_ones_end(shell: Shell):
    await shell.run("(for i in {1..3000}; do echo background; done) & (sleep 0.2; echo late; echo late >&2) &")
    for number in range(50):
        result = await shell.run(f"echo here{number}; (exit {number})")
        assert (result.exit_status, result.restarted) == (number, False)
        assert f"here{number}\n" in result.stdout
    result = await shell.run("wait; echo last")
    assert result.stdout.endswith("last\n")


async def test_a_long_command(shell: Shell):
    text = "x='" + "line of text\n" * 80_000 + "'; echo ${#x}; (exit 3)"
    result = await shell.run(text)
    assert (result.stdout, result.exit_status) == (f"{13 * 80_000}\n", 3)
    result = await shell.run("cat <<'E' | wc -c\n" + "it's $HOME\n" * 10_000 + "E\n")
    assert result.stdout == f"{11 * 10_000}\n"


@pytest.mark.parametrize("command", ["yes", "while :; do echo x; done", "cat /dev/zero >&2"])
async def test_endless_output_is_ended(shell: Shell, command: str):
    await shell.run("x=5")
    result = await shell.run(command, output_limit=100)
    assert (result.limit, result.exit_status, result.restarted) == ("output", None, False)
    assert len(result.stdout_bytes) + len(result.stderr_bytes) <= 101
    assert (await shell.run("echo $x")).stdout == "5\n"


async def test_one_command_at_a_time_in_order(shell: Shell):
    results = await asyncio.gather(*(shell.run(f"x=${{x}}{number}; sleep 0.01; echo $x") for number in range(8)))
    assert [result.stdout for result in results] == [f"{'01234567'[: number + 1]}\n" for number in range(8)]


async def test_several_shells_know_nothing_of_each_other(sandbox: Sandbox):
    shells = [await sandbox.shell() for _ in range(3)]
    await asyncio.gather(*(shell.run(f"x={number}; sleep 0.05") for number, shell in enumerate(shells)))
    results = await asyncio.gather(*(shell.run("echo $x; sleep 50", timeout=0.3) for shell in shells))
    assert [result.stdout for result in results] == ["0\n", "1\n", "2\n"]
    assert not any(result.restarted for result in results)


async def test_cancelling_stops_the_command_and_keeps_the_shell(shell: Shell, sandbox: Sandbox):
    await shell.run("x=5")
    for _ in range(3):
        running = asyncio.create_task(shell.run("touch begun; sleep 51; echo no"))
        while not (await sandbox.run(["test", "-e", "begun"])).ok:
            pass
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        result = await shell.run("rm begun; echo $x")
        assert (result.stdout, result.stderr, result.restarted) == ("5\n", "", False)
    waiting = [asyncio.create_task(shell.run("sleep 0.05")) for _ in range(4)]
    await asyncio.sleep(0.01)
    for task in waiting[1:3]:
        task.cancel()
    await asyncio.wait(waiting)
    assert (await shell.run("echo $x")).stdout == "5\n"


async def test_a_shell_that_a_cancelled_command_took_along_is_said_to_be_new(shell: Shell):
    await shell.run("x=5")
    running = asyncio.create_task(shell.run("trap '' INT; while :; do :; done"))
    await asyncio.sleep(0.2)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    result = await shell.run("echo x$x")
    assert (result.stdout, result.exit_status, result.restarted) == ("x\n", 0, True)
    assert not (await shell.run("true")).restarted


async def test_closing_ends_it_and_its_jobs(shell: Shell, sandbox: Sandbox):
    await shell.run("sleep 52 & (sleep 52; :) &")
    await shell.close()
    await shell.close()
    assert "sleep 52" not in (await sandbox.run("cat /proc/[0-9]*/cmdline | tr '\\0' ' '", output_limit=2**22)).stdout
    with pytest.raises(InvalidArgument):
        await shell.run("true")


async def test_a_nul_is_refused(shell: Shell):
    with pytest.raises(InvalidArgument):
        await shell.run("echo a\0b")
    assert (await shell.run("echo fine")).stdout == "fine\n"


async def test_a_sandbox_that_is_gone_is_said_to_be_at_once(shell: Shell, sandbox: Sandbox):
    running = asyncio.create_task(shell.run("sleep 50"))
    await asyncio.sleep(0.1)
    started = time.monotonic()
    sandbox.kill()
    with pytest.raises(SandboxLost):
        await running
    with pytest.raises(SandboxLost):
        await shell.run("true")
    assert time.monotonic() - started < 5
