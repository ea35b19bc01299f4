"""What others' sandboxes got wrong, through environments on a real server."""

import asyncio
import base64
import contextlib
import itertools
import json
import statistics
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from gymhost.client import RemoteServer, Session, connect
from support.server import ServerProcess, until

# Seconds by which something may be late on a busy machine.
LATE = 5.0

# What a call's processes may use of the processor in half a second and not be said to go on: in clock ticks.
IDLE_TICKS = 3

SECRETS = {"HF_TOKEN": "hf-c0ffee", "AWS_SECRET_ACCESS_KEY": "aws-c0ffee", "FOO_PRIVATE": "foo-c0ffee"}
OWN_TOKEN = "own-c0ffee"


@pytest.fixture
def start_server() -> Generator[Callable[..., ServerProcess]]:
    with contextlib.ExitStack() as started:

        def start(**settings: Any) -> ServerProcess:
            server = ServerProcess(modules=["support.sandbox_environments"], workers=1, **settings)
            return started.enter_context(server)

        yield start


@pytest.fixture(scope="module")
def usual_server() -> Generator[ServerProcess]:
    with ServerProcess(modules=["support.sandbox_environments"], workers=1) as server:
        yield server


@pytest.fixture
async def remote(usual_server: ServerProcess) -> AsyncGenerator[RemoteServer]:
    async with connect(usual_server.address) as remote:
        yield remote


async def call(session: Session, tool: str, text: str, timeout: float = 60.0) -> dict[str, Any]:
    """Calls a tool, and returns what it says of the result."""
    argument = "code" if tool == "python" else "command"
    [message], *_ = await session.call_tool(tool, {argument: text, "timeout": timeout})
    return json.loads(message["content"])


async def ticks(session: Session) -> dict[str, int]:
    """The processor time of all processes in a sandbox, without those that ask."""
    # Builtins alone, so that nothing is started in between; those of the question are gone at the next one.
    listed = await call(session, "run", 'for stat in /proc/[0-9]*/stat; do read -r line <"$stat" && echo "$line"; done')
    found: dict[str, int] = {}
    for line in listed["stdout"].splitlines():
        pid, _, rest = line.partition(" ")
        fields = rest.rpartition(")")[2].split()
        found[pid] = int(fields[11]) + int(fields[12])
    return found


async def test_only_the_commands_own_limit_stops_it(start_server: Callable[..., ServerProcess]) -> None:
    """S12."""
    server = start_server(heartbeat=1.0, lease=4.0, worker_liveness=5.0)

    async def silent_for_long(environment_id: str, tool: str) -> None:
        async with remote.session(environment_id) as session:
            await session.reset()
            began = time.monotonic()
            result = await call(session, tool, "sleep 7; echo ok", timeout=30.0)
            assert (result["stdout"], result["exit_status"], result["limit"]) == ("ok\n", 0, None)
            assert 7 <= time.monotonic() - began < 7 + LATE
            result = await call(session, tool, "echo begun; sleep 20", timeout=0.5)
            assert (result["stdout"], result["exit_status"], result["limit"]) == ("begun\n", None, "time")

    async with connect(server.address) as remote:
        cases = itertools.product(("test/Workbench-v0", "test/WorkbenchThread-v0"), ("run", "shell"))
        await asyncio.gather(*(silent_for_long(*case) for case in cases))


@pytest.mark.parametrize(
    ("tool", "spin"),
    [
        ("run", "while :; do :; done"),
        ("run", "trap '' INT TERM HUP QUIT; setsid bash -c 'while :; do :; done' & while :; do :; done"),
        ("shell", "while :; do :; done"),
        ("shell", "trap '' INT TERM HUP QUIT; (setsid bash -c 'while :; do :; done' &); while :; do :; done"),
        ("python", "while True: pass"),
        ("python", "while True:\n    try:\n        while True: pass\n    except BaseException: pass"),
    ],
)
async def test_a_time_limit_stops_the_work(tool: str, spin: str, remote: RemoteServer) -> None:
    """S13."""
    session = await remote.session("test/Workbench-v0").open()
    await session.reset()
    began = time.monotonic()
    result = await call(session, tool, spin, timeout=1.0)
    assert time.monotonic() - began < 1.0 + LATE
    assert result["limit"] == "time"

    before = await ticks(session)
    await asyncio.sleep(0.5)
    after = await ticks(session)
    busy = {pid: after[pid] - before[pid] for pid in before.keys() & after.keys()}
    assert busy
    assert sum(busy.values()) <= IDLE_TICKS, busy

    sum_of = {"python": "print(1 + 1)"}.get(tool, "echo 2")
    assert (await call(session, tool, sum_of))["stdout"] == "2\n"
    await session.reset()
    assert (await call(session, tool, sum_of))["stdout"] == "2\n"
    async with asyncio.timeout(LATE):
        await session.close()


@pytest.mark.parametrize("tool", ["run", "shell"])
@pytest.mark.parametrize(
    ("command", "shown", "raw"),
    [
        (r"printf '\xff\xfe\x00A'; exit 3", "��\0A", b"\xff\xfe\0A"),
        (r"printf 'caf\xe9'; exit 3", "caf�", "café".encode("latin-1")),
        ("head -c 2000 /dev/urandom; exit 3", None, None),
    ],
)
async def test_output_that_is_no_text_is_an_observation(
    tool: str, command: str, shown: str | None, raw: bytes | None, remote: RemoteServer
) -> None:
    """S30."""
    # A shell that lasts goes on after the command where it is in parentheses.
    async with remote.session("test/Workbench-v0") as session:
        await session.reset()
        result = await call(session, tool, f"({command})")
        data = base64.b64decode(result["raw"])
        assert result["exit_status"] == 3
        assert result["stdout"] == data.decode(errors="replace")
        if shown is None:
            assert len(data) == 2000
            assert "�" in result["stdout"]
        else:
            assert (result["stdout"], data) == (shown, raw)
        assert (await call(session, tool, "echo on"))["stdout"] == "on\n"


@pytest.mark.parametrize("tool", ["run", "shell", "python"])
async def test_nothing_of_the_servers_environment_is_seen(
    tool: str, start_server: Callable[..., ServerProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """S34."""
    for name, value in (SECRETS | {"DECLARED": "passed on"}).items():
        monkeypatch.setenv(name, value)
    server = start_server(tokens={OWN_TOKEN: "tests"})
    look = (
        "env; export -p; set; cat /proc/*/environ /proc/*/cmdline /proc/*/maps; ls -l /proc/*/fd; "
        "grep -rs c0ffe[e] /etc /run /var /tmp /dev/shm /home /root /opt"
    )
    if tool == "python":
        look = (
            "import os, subprocess\n"
            "print(os.environ, vars())\n"
            f"print(subprocess.run(['bash', '-c', {look!r}], capture_output=True, stdin=subprocess.DEVNULL))"
        )
    async with connect(server.address, token=OWN_TOKEN) as remote:
        own: dict[str, Any] = {"env": {"GIVEN": "by the author"}, "pass_env": ["DECLARED"]}
        async with remote.session("test/Workbench-v0", **own) as session:
            await session.reset()
            result = await call(session, tool, look)
            everything = json.dumps(result)
            assert "c0ffee" not in everything
            assert "GIVEN" in everything
            assert "by the author" in everything
            assert "passed on" in everything
            named = await call(session, "run", "env")
            names = {line.partition("=")[0] for line in named["stdout"].splitlines()}
            allowed = {"PATH", "HOME", "USER", "LANG", "TERM", "PWD", "SHLVL", "OLDPWD", "_"}
            assert names - allowed == {"GIVEN", "DECLARED"}
            # Standard streams, and the folder that is being listed.
            open_files = await call(session, "run", "ls /proc/self/fd")
            assert open_files["stdout"].split() == ["0", "1", "2", "3"]


async def test_a_fork_bomb_is_its_own_sessions_trouble(remote: RemoteServer) -> None:
    """S36."""
    mark = f"bomb-{uuid.uuid4().hex}"
    bomb = f"exec -a {mark} bash -c 'bomb() {{ bomb | bomb & }}; while :; do bomb; done' {mark}"
    calm, beside = (
        remote.session("CartPole-v1"),
        remote.session("test/Workbench-v0", limits={"processes": 64, "cpus": 0.5}),
    )
    async with calm, beside:
        await beside.reset()

        async def step_time() -> float:
            """The median time of a step, of as many as there are in a second."""
            times: list[float] = []
            until_when = time.perf_counter() + 1.0
            while (began := time.perf_counter()) < until_when:
                *_, terminated, truncated, _ = await calm.step(0)
                times.append(time.perf_counter() - began)
                if terminated or truncated:
                    await calm.reset()
            return statistics.median(times)

        await calm.reset()
        slower: list[float] = []
        # What else the machine does may come in the way of a comparison, but hardly of one after the other.
        for _ in range(3):
            usual = await step_time()
            exploding = asyncio.create_task(call(beside, "run", bomb, timeout=3.0))
            await until(lambda: marked(mark))
            slower.append(await step_time() / usual)
            result = await exploding
            assert result["limit"] == "time" or result["exit_status"] != 0
            assert marked(mark) == []
            if slower[-1] <= 3:
                break
        assert min(slower) <= 3
        assert (await call(beside, "run", "echo usable"))["stdout"] == "usable\n"
        exploding = asyncio.create_task(call(beside, "shell", bomb, timeout=1.0))
        await until(lambda: marked(mark))
        await exploding
        async with asyncio.timeout(LATE):
            await beside.close()
        assert marked(mark) == []


def marked(mark: str) -> list[int]:
    """The processes on this machine with a mark on their command line, without those that have ended."""
    found: list[int] = []
    for cmdline in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark.encode() in cmdline.read_bytes():
                found.append(int(cmdline.parent.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found
