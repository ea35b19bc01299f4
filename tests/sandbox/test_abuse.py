"""Attempts to be a nuisance in a bubblewrap sandbox. A second sandbox beside it stays usable throughout."""

import asyncio
import contextlib
import fcntl
import itertools
import os
import resource
import time
import uuid
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from gymhost.client import SandboxUnavailable, connect
from support import attacks
from support.arena import KEPT, LIMITS, MIB, Arena, an_arena, in_namespace, marked
from support.server import PATIENCE, ServerProcess, until


@pytest.fixture
async def arena() -> AsyncGenerator[Arena]:
    async with an_arena() as arena:
        yield arena


# ----------------------------------------------------------------------------------------------------------------------
# Using up what there is


@pytest.mark.parametrize(
    "bomb",
    [
        ["bash", "-c", "bomb() { bomb | bomb & }; while :; do bomb; done"],
        ["python3", "-c", attacks.FORKING],
        ["python3", "-c", attacks.THREADING],
        ["bash", "-c", "trap '' TERM INT HUP; while :; do setsid bash -c 'trap \"\" TERM; sleep 1000' & done"],
    ],
    ids=["shell", "forks", "threads", "sessions"],
)
async def test_a_fork_bomb_stays_within_its_limit(bomb: list[str], arena: Arena) -> None:
    link = (await arena.said(["readlink", "/proc/self/ns/pid"])).strip()
    exploding = asyncio.create_task(arena.attack(bomb, timeout=2.0))
    most = 0
    while not exploding.done():
        most = max(most, sum(map(threads, in_namespace(link))))
        assert (await arena.beside.run(["echo", "usable"], timeout=PATIENCE)).stdout == "usable\n"
    # Those that join from outside for a moment count to nobody's limit.
    assert 8 < most <= LIMITS.processes + 4
    await exploding
    if not arena.lost:
        await until(lambda: len(in_namespace(link)) < 8)


async def test_what_takes_all_processes_and_stays_can_be_ended(arena: Arena) -> None:
    shell = await arena.attacked.shell()
    await arena.said(["python3", "-c", attacks.LITTERING])
    assert await arena.said(["echo", "answered"]) == "answered\n"
    assert (await shell.run("echo answered")).stdout == "answered\n"
    await arena.attack("kill -9 -1")
    await shell.close()


async def test_a_sandbox_is_destroyed_in_the_middle_of_an_attack(arena: Arena) -> None:
    link = (await arena.said(["readlink", "/proc/self/ns/pid"])).strip()
    exploding = asyncio.create_task(arena.attack(["python3", "-c", attacks.FORKING], timeout=PATIENCE))
    await until(lambda: len(in_namespace(link)) > LIMITS.processes / 2)
    async with asyncio.timeout(PATIENCE):
        await arena.attacked.destroy()
    assert in_namespace(link) == []
    assert await exploding is None


@pytest.mark.parametrize(
    "hog",
    [
        "x = [bytearray(b'x' * 2**20) for _ in range(4096)]",
        "import os\nfor _ in range(4): os.fork()\nx = [bytearray(b'x' * 2**20) for _ in range(4096)]",
        "import mmap\nx = mmap.mmap(-1, 2**32)\nfor at in range(0, 2**32, 4096): x[at] = 1",
        "import os\nfd = os.memfd_create('x')\nwhile True: os.write(fd, bytes(2**20))",
    ],
    ids=["one", "many", "shared", "memfd"],
)
async def test_a_memory_hog_is_ended(hog: str, arena: Arena) -> None:
    before = available()
    hogging = asyncio.create_task(arena.attack(["python3", "-c", hog], timeout=5.0))
    while not hogging.done():
        assert (await arena.beside.run(["echo", "usable"], timeout=PATIENCE)).stdout == "usable\n"
    result = await hogging
    assert result is None or result.limit is not None or not result.ok
    # Far more was asked for; what others on this machine use meanwhile is not known.
    assert before - available() < 2048 * MIB


@pytest.mark.parametrize("place", ["/workspace", "/tmp", "/dev/shm", "/var/tmp", "/run", "/dev", "/home"])
async def test_a_disk_that_is_filled_is_the_sandboxs_own(place: str, arena: Arena) -> None:
    free = os.statvfs("/tmp").f_bavail * os.statvfs("/tmp").f_frsize
    await arena.attack(
        f"yes | head -c 2G >{place}/filler; fallocate -l 2G {place}/more; cp {place}/filler {place}/again", timeout=20.0
    )
    written = await arena.attack(f"cat {place}/filler {place}/more {place}/again 2>/dev/null | wc -c")
    if written is not None:
        assert int(written.stdout) <= LIMITS.disk + MIB
    assert free - os.statvfs("/tmp").f_bavail * os.statvfs("/tmp").f_frsize < 1024 * MIB
    await arena.attack(f"rm -f {place}/filler {place}/more {place}/again")


async def test_many_files_end_at_a_limit(arena: Arena) -> None:
    many = (
        "import os\nos.mkdir('many')\ncount = 0\ntry:\n  while count < 10**6:\n"
        "    os.close(os.open(f'many/{count}', os.O_CREAT)); count += 1\nexcept OSError: pass\nprint(count)"
    )
    result = await arena.attack(["python3", "-c", many], timeout=20.0)
    assert result is None or result.limit is not None or int(result.stdout) < 10**6
    await arena.attack(["rm", "-rf", "many"])


@pytest.mark.parametrize(
    "flood", ["yes", "yes >&2", "yes & yes >&2", "cat /dev/zero", "cat /dev/zero | tr '\\0' '\\36'", "(yes &) ; yes"]
)
async def test_endless_output_is_cut_off(flood: str, arena: Arena) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.monotonic()
    result = await arena.attack(flood, timeout=20.0)
    assert result is not None
    assert result.limit in ("output", "time")
    assert result.truncated
    assert len(result.stdout_bytes) + len(result.stderr_bytes) <= 2 * 256 * 1024
    assert time.monotonic() - began < 20.0 + PATIENCE
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024


async def test_output_of_what_was_left_behind_is_nobody_elses(arena: Arena) -> None:
    shell = await arena.attacked.shell()
    await shell.run("(while :; do echo late; echo late >&2; done &)", timeout=5.0)
    for number in range(20):
        result = await shell.run(f"echo {number} >number; cat number >/tmp/number", timeout=5.0)
        assert result.limit in (None, "output")
    assert (await arena.attacked.run("cat number")).stdout == "19\n"
    await shell.close()


async def test_what_is_counted_by_user_is_not_used_up_for_others(arena: Arena) -> None:
    hoarding = asyncio.create_task(arena.attack(["python3", "-c", attacks.HOARDING], timeout=4.0))
    check = (
        "import ctypes, fcntl, os, signal, socket\nlibc = ctypes.CDLL(None)\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN])\n"
        "assert libc.sigqueue(os.getpid(), signal.SIGRTMIN, None) == 0\nassert libc.inotify_init() >= 0\n"
        "reader, writer = os.pipe()\nassert fcntl.fcntl(writer, 1031, 1 << 18) == 1 << 18\n"
        "socket.socketpair()\nprint('fine')"
    )
    # All sandboxes of an ordinary user's are that user on the host.
    own_user = arena.attacked.limits_in_force["user"] != arena.beside.limits_in_force["user"]
    while own_user and not hoarding.done():
        beside = await arena.beside.run(["python3", "-c", check], timeout=PATIENCE)
        assert beside.stdout == "fine\n", beside
    if own_user:
        # Nor for the user of this process.
        reader, writer = os.pipe()
        assert fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, MIB) == MIB
        os.close(reader)
        os.close(writer)
    await hoarding


# ----------------------------------------------------------------------------------------------------------------------
# Not ending


@pytest.mark.parametrize(
    "child",
    [
        "setsid sleep 1000 & wait",
        "bash -c 'trap \"\" $(seq 1 64); while :; do sleep 1000; done' & wait",
        "(setsid bash -c '(sleep 1000 &) & sleep 1000' &) ; sleep 1000",
        "sleep 1000 & kill -STOP $!; (sleep 1000 & kill -STOP $!; kill -STOP $BASHPID) & wait",
        "nohup setsid nohup sleep 1000 & disown -a; kill -STOP $BASHPID",
        f"setsid python3 -c '{attacks.WAITING}' & python3 -c '{attacks.WAITING}'",
        'export run=\'sleep 0.01; setsid bash -c "$run" &\'; for i in {1..9}; do bash -c "$run" & done; sleep 1000',
        "mkfifo pipe; cat pipe & exec 9<>pipe; flock pipe sleep 1000",
    ],
    ids=["session", "traps", "orphans", "stopped", "nohup", "waiting", "running away", "pipe"],
)
async def test_children_that_look_unkillable_are_killed(child: str, arena: Arena) -> None:
    mark = f"child-{uuid.uuid4().hex}"
    running = asyncio.create_task(arena.attack(["env", f"MARK={mark}", "bash", "-c", child], timeout=1.5))
    await until(lambda: marked(mark))
    result = await running
    assert result is None or result.limit == "time"
    if not arena.lost:
        left = await arena.attack("cat /proc/[0-9]*/environ | tr '\\0' '\\n' | grep -c ^MARK=")
        assert left is None or left.stdout == "0\n"


@pytest.mark.parametrize(
    "attack",
    [
        "kill -9 1; kill -STOP 1; kill -TERM 1; kill -INT 1; kill -HUP 1",
        "kill -9 -1",
        "kill -STOP -1",
        "for round in {1..50}; do kill -STOP -1; kill -9 -1; done",
        "for fd in /proc/[0-9]*/fd/*; do echo 'exit 1' >$fd & done 2>/dev/null; sleep 1",
        "for fd in /proc/[0-9]*/fd/*; do head -c 10000000 /dev/urandom >$fd & done 2>/dev/null; sleep 1",
        "for fd in /proc/[0-9]*/fd/*; do timeout 1 cat $fd & done >/dev/null 2>&1; wait",
        "exec 0<&- 1>&- 2>&-; sleep 0.2",
        'for fd in {0..255}; do eval "exec $fd<&- $fd>&-"; done; sleep 0.2',
        "renice -n 19 -p 1; ulimit -n 3; ulimit -u 1; ulimit -f 0; echo -17 >/proc/1/oom_score_adj; echo done",
        "prlimit --pid 1 --nofile=3:3 --nproc=1:1 --fsize=0:0; echo done",
        'python3 -c \'open("/proc/1/mem", "r+b", 0)\'',
        "rm -rf /workspace /tmp/* /tmp/.* /workspace/.*; chmod 000 /workspace; echo done",
    ],
    ids=[
        "kill first",
        "kill all",
        "stop all",
        "stop and kill all",
        "write to all",
        "garbage to all",
        "read from all",
        "close streams",
        "close all",
        "limits",
        "limits of the first",
        "memory of the first",
        "working folder",
    ],
)
@pytest.mark.parametrize("way", ["run", "shell"])
async def test_attacks_on_what_runs_commands(attack: str, way: str, arena: Arena) -> None:
    if way == "run":
        await arena.attack(attack, timeout=5.0)
    else:
        try:
            shell = await arena.attacked.shell()
            async with asyncio.timeout(5.0 + PATIENCE):
                await shell.run(attack, timeout=5.0)
                await shell.run("echo again", timeout=5.0)
                await shell.close()
        except SandboxUnavailable:
            arena.lost = True
    if not arena.lost:
        # What the attack may take with it is what the sandbox had written.
        with contextlib.suppress(SandboxUnavailable):
            await arena.attacked.run(
                ["bash", "-c", 'chmod 755 /workspace; printf %s "$0" >/workspace/kept', KEPT], cwd="/"
            )


async def test_a_server_and_its_other_sessions_go_on() -> None:
    attacks_of_all_kinds = [
        "bomb() { bomb | bomb & }; while :; do bomb; done",
        "yes & yes >&2",
        "kill -STOP -1; kill -9 -1",
        "head -c 1G /dev/zero >filler; cat /dev/zero >/dev/shm/filler",
        "prlimit --pid 1 --nofile=3:3; for fd in /proc/[0-9]*/fd/*; do echo x >$fd & done",
    ]
    with ServerProcess(modules=["support.sandbox_environments"], workers=1) as server:
        [worker] = server.workers
        async with connect(server.address) as remote:
            limits = {"processes": 64, "disk": 32 * MIB}
            attacked, beside = (remote.session("test/Workbench-v0", limits=limits) for _ in range(2))
            async with attacked, beside:
                await beside.reset()
                for attack, tool in itertools.product(attacks_of_all_kinds, ("run", "shell")):
                    await attacked.reset()
                    with contextlib.suppress(SandboxUnavailable):
                        await attacked.call_tool(tool, {"command": attack, "timeout": 1.0}, timeout=PATIENCE)
                    [said], *_ = await beside.call_tool("shell", {"command": "echo usable"}, timeout=PATIENCE)
                    assert "usable" in said["content"]
                await attacked.reset()
                [said], *_ = await attacked.call_tool("run", {"command": "echo usable"}, timeout=PATIENCE)
                assert "usable" in said["content"]
        assert server.workers == [worker]


def threads(pid: int) -> int:
    """How many threads a process has; none where it has ended."""
    with contextlib.suppress(OSError):
        return len(list(Path(f"/proc/{pid}/task").iterdir()))
    return 0


def available() -> int:
    """The bytes of memory of this machine that may still be had."""
    [line] = [line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable")]
    return int(line.split()[1]) * 1024
