"""Commands: their input, output and ends, exactly."""

import asyncio
import gc
import time
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from gymhost.envs.sandbox import Limits, SandboxSpec
from gymhost.envs.sandbox.pool import Pool
from gymhost.envs.sandbox.sandbox import Sandbox
from gymhost.wire.errors import InvalidArgument, SandboxLost
from support.sandboxes import BACKENDS, ISOLATING, fresh_sandbox, make_backend

# Leaves no room for another process, and fills what becomes free.
_FILL = """
import os, pathlib, time

while True:
    try:
        os.fork() or time.sleep(60)
    except OSError:
        pathlib.Path("full").touch()
        time.sleep(0.001)
"""


@pytest.fixture(params=BACKENDS)
async def sandbox(request: pytest.FixtureRequest) -> AsyncGenerator[Sandbox]:
    async with fresh_sandbox(request.param) as sandbox:
        yield sandbox


@pytest.fixture(params=ISOLATING)
async def isolating_sandbox(request: pytest.FixtureRequest) -> AsyncGenerator[Sandbox]:
    async with fresh_sandbox(request.param) as sandbox:
        yield sandbox


async def test_a_program_gets_its_arguments_as_they_are(sandbox: Sandbox):
    words = ["", "a b", "'", '"', "$HOME", "`id`", "\\", "\n", "*", "-n", "ü", "x" * 50_000, "\udcff"]
    result = await sandbox.run(["printf", "<%s>", *words])
    assert result.stdout_bytes == b"".join(b"<%s>" % word.encode(errors="surrogateescape") for word in words)
    assert result.exit_status == 0
    assert result.ok


async def test_a_text_is_run_by_bash(sandbox: Sandbox):
    result = await sandbox.run("x=4; echo $((x + 1)) | tr 5 6; echo err >&2; [[ a == a ]] && exit 7")
    assert (result.stdout, result.stderr, result.exit_status, result.limit) == ("6\n", "err\n", 7, None)
    assert not result.ok


@pytest.mark.parametrize(
    ("command", "status", "said"),
    [
        ("true", 0, ""),
        ("exit 255", 255, ""),
        ("kill -TERM $$", 143, ""),
        ("kill -KILL $$", 137, ""),
        ("no-such-program", 127, "not found"),
        (["no-such-program"], 127, "not found"),
        (["/"], 126, "directory"),
        ("echo 'unclosed", 2, "unexpected EOF"),
        ("if", 2, "syntax error"),
        ("set -e; false; echo no", 1, ""),
        ("exec true", 0, ""),
        ("trap 'exit 9' EXIT; false", 9, ""),
    ],
)
async def test_the_exit_status_is_exact(sandbox: Sandbox, command: str | list[str], status: int, said: str):
    result = await sandbox.run(command)
    assert (result.exit_status, result.stdout, result.limit) == (status, "", None)
    assert said in result.stderr if said else not result.stderr


async def test_the_command_of_a_run_can_be_long(sandbox: Sandbox):
    text = "".join(f"# {number}\n" for number in range(100_000))
    result = await sandbox.run(
        f"{text}echo it\\'s $((6 * 7)); cat; ls -l /proc/self/fd | tail -n +2 | wc -l", stdin="in\n"
    )
    assert (result.stdout, result.stderr) == ("it's 42\nin\n4\n", "")


@pytest.mark.parametrize("size", [0, 1, 1000, 32 * 1024, 32 * 1024 + 1, 5_000_000])
async def test_standard_input_of_any_size_and_any_bytes(sandbox: Sandbox, size: int):
    data = (bytes(range(256)) * (size // 256 + 1))[:size]
    result = await sandbox.run(["cat"], stdin=data, output_limit=size)
    assert result.stdout_bytes == data
    assert result.ok


@pytest.mark.parametrize("size", [1000, 5_000_000])
async def test_who_does_not_read_standard_input_ends_all_the_same(sandbox: Sandbox, size: int):
    data = b"touch stolen\n" * (size // 13)
    for _ in range(3):
        result = await sandbox.run("head -c 5 | wc -c; exit 4", stdin=data)
        assert (result.stdout, result.exit_status) == ("5\n", 4)
        assert (await sandbox.run(["false"], stdin=data)).exit_status == 1
    assert (await sandbox.run("ls")).stdout == ""


async def test_input_and_output_flow_at_the_same_time(sandbox: Sandbox):
    data = b"x" * 3_000_000
    result = await sandbox.run("tee /dev/stderr", stdin=data, output_limit=len(data))
    assert result.stdout_bytes == result.stderr_bytes == data


async def test_without_input_there_is_none(sandbox: Sandbox):
    assert (await sandbox.run(["cat"])).stdout_bytes == b""


async def test_programs_inherit_nothing_of_ours(sandbox: Sandbox):
    look = "ls -l /proc/self/fd | awk '{print $9}' | tr '\\n' ' '; trap; ps -o stat= $$ 2>/dev/null | grep -c N; true"
    for stdin in (b"", b"x", b"x" * 100_000):
        result = await sandbox.run(look, stdin=stdin)
        assert result.stdout.split() in (["0", "1", "2", "3"], ["0", "1", "2", "3", "0"])
    assert (await sandbox.run("yes | head -n 1; echo ${PIPESTATUS[0]}")).stdout == "y\n141\n"


async def test_environment_and_folder(sandbox: Sandbox):
    await sandbox.run("mkdir -p 'a b/c'")
    result = await sandbox.run('pwd; echo "$X"; echo $PATH', env={"X": "a\n'b", "PATH": "/bin:/usr/bin"}, cwd="a b/c")
    assert result.stdout.endswith("/a b/c\na\n'b\n/bin:/usr/bin\n")
    result = await sandbox.run(["env"])
    assert "X=" not in result.stdout
    result = await sandbox.run(["pwd"], cwd="missing")
    assert result.exit_status == 126
    assert "No such file or directory" in result.stderr


async def test_output_that_is_no_text_and_has_no_end_of_line(sandbox: Sandbox):
    result = await sandbox.run(r"printf '\377\0\036'; printf '\036abc \n\036' >&2")
    assert (result.stdout_bytes, result.stderr_bytes) == (b"\xff\0\x1e", b"\x1eabc \n\x1e")


async def test_output_that_looks_like_the_end_of_a_call_ends_nothing(sandbox: Sandbox):
    mimic = r"printf '\036AAAAAAAAAAAAAAAAAAAAAA 0\n'; printf '\036AAAAAAAAAAAAAAAAAAAAAA\n' >&2"
    result = await sandbox.run(f"for i in {{1..2000}}; do {mimic}; done; exit 5")
    assert result.exit_status == 5
    assert result.stdout == "\x1eAAAAAAAAAAAAAAAAAAAAAA 0\n" * 2000
    assert (await sandbox.run("echo next")).stdout == "next\n"


async def test_the_middle_of_much_output_is_left_out(sandbox: Sandbox):
    result = await sandbox.run("seq 100000; seq 3 >&2", output_limit=101)
    everything = "".join(f"{number}\n" for number in range(1, 100_001)).encode()
    assert result.stdout_bytes == everything[:50] + everything[-51:]
    assert result.stdout_left_out == len(everything) - 101
    assert result.truncated
    assert f"[... {len(everything) - 101} bytes left out ...]" in result.stdout
    assert (result.stderr, result.stderr_left_out, result.limit) == ("1\n2\n3\n", 0, None)
    result = await sandbox.run("echo much", output_limit=0)
    assert (result.stdout_bytes, result.stdout_left_out) == (b"", 5)


@pytest.mark.parametrize("command", ["yes", "yes >&2", "cat /dev/zero", "while :; do echo x; done"])
async def test_endless_output_is_ended_and_leaves_the_loop_to_others(sandbox: Sandbox, command: str):
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counting = asyncio.create_task(count())
    result = await sandbox.run(command, output_limit=1000)
    counting.cancel()
    assert (result.limit, result.exit_status) == ("output", None)
    assert len(result.stdout_bytes) + len(result.stderr_bytes) == 1000
    assert turns > 50
    assert (await sandbox.run("echo fine")).stdout == "fine\n"


async def test_a_time_limit_ends_it(sandbox: Sandbox):
    started = time.monotonic()
    result = await sandbox.run("echo begun; sleep 50; echo no", timeout=0.2)
    assert (result.limit, result.exit_status, result.stdout) == ("time", None, "begun\n")
    assert time.monotonic() - started < 5
    assert result.seconds >= 0.2
    assert (await sandbox.run("echo fine")).stdout == "fine\n"


async def test_many_at_once(sandbox: Sandbox):
    await sandbox.run("mkfifo gate")
    # Each waits for the others: they can only end if they all run.
    meet = "echo > here$0; until (( $(ls here* | wc -l) >= 8 )); do sleep 0.01; done; echo $0"
    results = await asyncio.gather(*(sandbox.run(["bash", "-c", meet, str(number)], timeout=30) for number in range(8)))
    assert [result.stdout for result in results] == [f"{number}\n" for number in range(8)]
    results = await asyncio.gather(*(sandbox.run(f"echo {number}", timeout=30) for number in range(50)))
    assert [result.stdout for result in results] == [f"{number}\n" for number in range(50)]


async def test_what_a_command_does_to_its_group_it_does_to_itself(sandbox: Sandbox):
    for signal in ("TERM", "INT", "HUP", "USR1"):
        result = await sandbox.run(f"trap 'exit 8' {signal}; kill -{signal} 0; sleep 50")
        assert result.exit_status == 8
        assert (await sandbox.run("echo fine")).stdout == "fine\n"


@pytest.mark.parametrize("signal", ["KILL 0", "KILL -1", "STOP -1"])
async def test_whoever_ends_what_runs_commands_ends_its_own_and_no_more(isolating_sandbox: Sandbox, signal: str):
    sandbox = isolating_sandbox
    for _ in range(2):
        # The second one of two is not run by the first process of the container.
        meet = "echo >met$0; until (( $(ls met* | wc -l) == 2 )); do sleep 0.01; done"
        results = await asyncio.gather(
            *(sandbox.run(["bash", "-c", f"{meet}; kill -{signal}", str(number)], timeout=1) for number in range(2))
        )
        # Who signals all does not signal itself.
        assert {result.exit_status for result in results} <= {0, 137, None}
        assert (await sandbox.run("echo fine; rm met*")).stdout == "fine\n"


async def test_what_goes_on_in_the_background_holds_up_nothing(sandbox: Sandbox):
    started = time.monotonic()
    result = await sandbox.run("sleep 50 & echo $!")
    assert time.monotonic() - started < 20
    assert (await sandbox.run(["kill", "-0", result.stdout.strip()])).exit_status == 0
    # Nor does what it writes get into the way of others.
    await sandbox.run("(for i in {1..400}; do echo $i; sleep 0.001; done) &")
    for number in range(100):
        assert (await sandbox.run(f"exit {number}")).exit_status == number


@pytest.mark.parametrize("size", [0, 1000, 1_000_000])
async def test_cancelling_stops_it(sandbox: Sandbox, size: int):
    for _ in range(3):
        running = asyncio.create_task(sandbox.run("touch begun; sleep 51", stdin=b"x" * size))
        while not (await sandbox.run(["test", "-e", "begun"])).ok:
            pass
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        result = await sandbox.run("rm begun; cat /proc/[0-9]*/cmdline | tr '\\0' ' '", output_limit=2**22)
        assert "sleep 51" not in result.stdout
        assert "xxx" not in result.stderr


async def test_a_second_cancel_does_not_wait_and_leaves_it_usable(sandbox: Sandbox):
    running = asyncio.create_task(sandbox.run("trap '' TERM; sleep 50"))
    await asyncio.sleep(0.1)
    for _ in range(3):
        running.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await sandbox.run("echo fine")).stdout == "fine\n"


@pytest.mark.parametrize(
    ("command", "settings"),
    [
        ("a\0b", {}),
        (["a\0b"], {}),
        ([], {}),
        ("\ud800", {}),
        (["echo", 5], {}),
        (b"true", {}),
        ("true", {"timeout": None}),
        ("true", {"timeout": 0.0}),
        ("true", {"timeout": float("inf")}),
        ("true", {"timeout": float("nan")}),
        ("true", {"output_limit": -1}),
        ("true", {"env": {"a b": "c"}}),
        ("true", {"env": {"a": "\0"}}),
        ("true", {"env": {"a": 1}}),
        ("true", {"cwd": "\0"}),
    ],
)
async def test_what_can_not_be_meant_is_refused(sandbox: Sandbox, command: Any, settings: dict[str, Any]):
    with pytest.raises(InvalidArgument):
        await sandbox.run(command, **settings)
    assert (await sandbox.run("echo fine")).stdout == "fine\n"


async def test_a_sandbox_that_is_destroyed_says_so_at_once(sandbox: Sandbox):
    running = asyncio.create_task(sandbox.run("sleep 50"))
    await sandbox.run("true")
    started = time.monotonic()
    await sandbox.destroy()
    with pytest.raises(SandboxLost):
        await running
    with pytest.raises(SandboxLost):
        await sandbox.run("true")
    assert time.monotonic() - started < 10
    assert not sandbox.alive
    assert repr(sandbox) == f"<Sandbox {sandbox.id}, which is gone>"
    await sandbox.destroy()


async def test_memory_that_is_used_up_is_the_limit_that_ended_it():
    spec = SandboxSpec(limits=Limits(memory=64 * 2**20))
    async with fresh_sandbox("bubblewrap", spec) as sandbox:
        if "cgroup" not in sandbox.limits_in_force["memory"]:
            return
        result = await sandbox.run(["python3", "-c", "print(len('x' * 10**9))"])
        assert (result.exit_status, result.limit, result.stdout) == (137, "memory", "")
        assert not result.ok
        result = await sandbox.run("kill -KILL $$")
        assert (result.exit_status, result.limit) == (137, None)
        # What a pipeline hides is told all the same, and not of the next command.
        result = await sandbox.run("""python3 -c "print(len('x' * 10**9))" | cat""")
        assert (result.exit_status, result.limit) == (0, "memory")
        result = await sandbox.run("kill -KILL $$")
        assert (result.exit_status, result.limit) == (137, None)
        shell = await sandbox.shell()
        result = await shell.run("x=$(tr '\\0' x </dev/zero)")
        assert (result.limit, result.restarted) == ("memory", True)
        assert (await shell.run("echo fine")).stdout == "fine\n"


async def test_a_sandbox_without_room_for_a_process_answers_in_time_and_can_be_used_on():
    async with fresh_sandbox("bubblewrap", SandboxSpec(limits=Limits(processes=32))) as sandbox:
        await sandbox.write("fill.py", _FILL)
        await sandbox.run("python3 fill.py & until [[ -e full ]]; do :; done")
        for _ in range(5):
            started = time.monotonic()
            result = await sandbox.run("echo fine", timeout=1, stdin="in")
            assert time.monotonic() - started < 10
            assert result.stdout == "fine\n" or "fork: Resource temporarily unavailable" in result.stderr
        assert sandbox.alive


async def test_a_sandbox_that_nobody_holds_is_ended():
    async with Pool(make_backend("local")) as pool:
        sandbox = await pool.create()
        container, shell, python = sandbox._container, await sandbox.shell(), await sandbox.python()
        del sandbox
        gc.collect()
        assert (await shell.run("echo fine")).stdout == "fine\n"
        del shell
        gc.collect()
        assert (await python.run("1 + 1")).value == "2"
        del python
        gc.collect()
        assert not container.alive


def test_it_belongs_to_no_event_loop():
    pool = Pool(make_backend("local"))
    with asyncio.Runner() as first:
        sandbox = first.run(pool.create())
        first.run(sandbox.run("echo 1 > file"))
    with asyncio.Runner() as second:
        assert second.run(sandbox.run("cat file")).stdout == "1\n"
        second.run(pool.close())
