"""Attacks on what is around a bubblewrap sandbox: what is shared with others, and what handles what it says."""

import asyncio
import resource
import socket
import time
import uuid
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from gymhost.envs.sandbox import Limits, SandboxSpec, create, python_session
from gymhost.envs.sandbox.bubblewrap import Bubblewrap
from gymhost.wire.errors import InvalidArgument
from support.arena import LIMITS, MARK, MIB, Arena, an_arena, in_namespace, marked
from support.server import until

# Looks at the newest processes alone, again and again, to see one before it is what it shall be. It is given seconds,
# and a mark that is nowhere in a sandbox.
GLIMPSING = """
import os, sys, time
own = open("/proc/self/mountinfo", "rb").read().count(b"\\n")
until, mark, last, looked, seen = time.monotonic() + float(sys.argv[1]), sys.argv[2].encode(), os.getpid(), 0, set()
while time.monotonic() < until:
    newest = int(open("/proc/loadavg").read().split()[-1])
    for pid in range(max(last - 1, 2), newest + 3):
        for name in ("net/unix", "net/dev", "mountinfo", "cmdline"):
            try:
                with open(f"/proc/{pid}/{name}", "rb") as file:
                    said = file.read()
            except OSError:
                continue
            looked += 1
            mounted = name == "mountinfo" and said.count(b"\\n") != own and b" /workspace " not in said
            if pid != os.getpid() and (mark in said or mounted):
                seen.add(name)
    last = newest
print("looked", looked, *sorted(seen))
"""

# Fills the buffers of sockets that nobody reads from.
FILLING = """
import os, socket, time
for _ in range(2):
    os.fork()
held = []
try:
    while len(held) < 240:
        one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        one.bind(("127.0.0.1", 0))
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        held.append(one)
        for _ in range(20):
            one.sendto(bytes(60000), one.getsockname())
except OSError:
    pass
print("full", flush=True)
time.sleep(1000)
"""

TERMINALS = """
import os, pty
held = []
try:
    while len(held) < 100:
        held.append(pty.openpty())
except OSError:
    pass
print(len(held))
"""

# Sockets and such that are parts of the kernel which nobody needs, or that are there for the whole machine.
KINDS = """
import ctypes, platform, socket, struct
libc = ctypes.CDLL(None, use_errno=True)
for name, arguments in {
    "uevents": (16, 3, 15), "crypto": (16, 3, 21), "transport": (16, 3, 6), "sctp": (2, 1, 132), "dccp": (2, 6, 33),
    "mptcp": (2, 1, 262), "udplite": (10, 2, 136), "l2tp": (2, 2, 115),
}.items():
    try:
        socket.socket(*arguments).close()
        print(name)
    except OSError:
        pass
for family in (16, 17, 30, 38, 40, 44):
    libc.socketpair(family, 1, 0, (ctypes.c_int * 2)())
    if ctypes.get_errno() != 97:
        print("pair of family", family)
returning = struct.pack("HBBI", 6, 0, 0, 1)
program = ctypes.create_string_buffer(returning)
for option in (26, 51):
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as filtered:
            filtered.setsockopt(socket.SOL_SOCKET, option, struct.pack("HL", 1, ctypes.addressof(program)))
        print("filter", option)
    except OSError:
        pass
context = ctypes.c_ulong(0)
if libc.syscall(0 if platform.machine() == "aarch64" else 206, 1, ctypes.byref(context)) == 0:
    print("asynchronous")
for arguments in ((2, 1, 0), (2, 1, 6), (2, 2, 17), (10, 1, 0), (16, 3, 0), (1, 1, 0)):
    socket.socket(*arguments).close()
print("tried")
"""

# What a piece of code can say in the place of what runs it, whose nonce it has found.
FORGING = """
import os, sys, time
frame = sys._getframe()
while "nonce" not in frame.f_locals:
    frame = frame.f_back
nonce = frame.f_locals["nonce"]
def say(text, length=None):
    data = b"\\x1e%s 0 %s\\n%s" % (nonce, length or b"%d" % len(text), text)
    while data:
        data = data[os.write(11, data):]
    os.write(12, b"\\x1e%s\\n" % nonce)
def next():
    global nonce
    nonce = os.read(10, 65536).split()[0]
"""
DRIPPING = "say(b'+x')\nwhile True: next(); time.sleep(0.1); say(b'+x')"
BOASTING = """
answer = b'{"value":"%s","error":null,"exception":"%s","truncated":false,"images":[]}' % (b"v" * 10**6, b"e" * 10**5)
for at in range(0, len(answer), 4000):
    say((b"." if at + 4000 >= len(answer) else b"+") + answer[at : at + 4000])
    next()
"""
CHATTING = """
for _ in range(100):
    os.write(11, bytes(60000)); say(b"+"); next()
say(b'.{"value":null,"error":null,"exception":null,"truncated":false,"images":[]}')
"""
PICTURING = """
answer = b'.{"value":null,"error":null,"exception":null,"truncated":false,"images":[%s]}'
say(answer % b",".join([b'"QUFB"'] * 20))
"""
COUNTING = "say(b'', b'9' * 5000); time.sleep(1000)"

# A shell's own function in the place of what says that a command has ended.
ENDLESS_END = 'builtin() { if [[ $1 == printf ]]; then command printf "${2%% *}"; cat /dev/zero; fi; }'


@pytest.fixture
async def arena() -> AsyncGenerator[Arena]:
    async with an_arena() as arena:
        yield arena


async def test_a_process_that_joins_is_never_seen_with_what_the_host_has(arena: Arena) -> None:
    with socket.socket(socket.AF_UNIX) as told:
        told.bind(f"\0{MARK}")
        looking = asyncio.create_task(arena.python(GLIMPSING, "3", MARK, timeout=30.0))
        while not looking.done():
            shell = await arena.attacked.shell()
            await shell.close()
        [said] = await looking
        assert int(said.split()[1]) > 100
        assert said.split()[2:] == []


async def test_what_waits_in_sockets_is_bounded(arena: Arena) -> None:
    def pages() -> int:
        [line] = [line for line in text("/proc/net/sockstat").splitlines() if line.startswith("UDP:")]
        return int(line.split()[-1])

    filling = asyncio.create_task(arena.attack(["python3", "-c", FILLING], timeout=4.0))
    most = 0
    while not filling.done():
        most = max(most, pages() * resource.getpagesize())
        await asyncio.sleep(0.05)
    assert 0 < most <= LIMITS.memory


async def test_terminals_are_not_used_up_for_others(arena: Arena) -> None:
    taking = asyncio.create_task(arena.attack(["python3", "-c", f"{TERMINALS}\nimport time; time.sleep(1)"]))
    beside = await arena.beside.run(["python3", "-c", TERMINALS])
    taken = await taking
    assert taken is not None
    assert 8 < int(taken.stdout) <= 64
    assert 8 < int(beside.stdout) <= 64


async def test_parts_of_the_kernel_that_nobody_needs_are_not_there(arena: Arena) -> None:
    assert await arena.python(KINDS) == ["tried"]


async def test_many_processes_have_no_more_processors_than_a_few() -> None:
    async with await create(SandboxSpec()) as sandbox:
        link = (await sandbox.run(["readlink", "/proc/self/ns/pid"])).stdout.strip()
        groups = text(f"/proc/{in_namespace(link)[0]}/cgroup").splitlines()
        if not sandbox.limits_in_force["memory"].startswith("cgroup"):
            return
        sharing = [line for line in groups if line.startswith("0::") or "cpu" in line.split(":")[1].split(",")]
        assert any(sandbox.id in line for line in sharing), groups


async def test_what_runs_out_of_band_leaves_nothing_behind() -> None:
    # As somebody inside might who gets into its memory: limits are wider there.
    mark = f"stays-{uuid.uuid4().hex}"
    backend = Bubblewrap()
    try:
        container = await backend.create(SandboxSpec())
        if not container.limits_in_force["memory"].startswith("cgroup"):
            return
        script = f"for n in {{1..9}}; do MARK={mark} setsid sleep 1000 </dev/null >/dev/null 2>&1 & done; echo"
        assert await container.control(script) == b"\n"
        await until(lambda: not marked(mark))
        assert await container.control("(echo again)") == b"again\n"
    finally:
        await backend.close()


async def test_an_end_that_does_not_end_is_output_like_any_other(arena: Arena) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    shell = await arena.attacked.shell()
    began = time.monotonic()
    result = await shell.run(ENDLESS_END, timeout=20.0)
    assert result.limit == "output"
    assert time.monotonic() - began < 20.0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024
    await shell.close()


@pytest.mark.parametrize("answer", [DRIPPING, BOASTING, CHATTING, PICTURING, COUNTING])
async def test_forged_answers_are_bounded(answer: str, arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_session, "_PIECES_TIMEOUT", 2.0)
    python = await arena.attacked.python()
    async with asyncio.timeout(30):
        result = await python.run(FORGING + answer, timeout=2.0, output_limit=1000)
        assert len(result.value or "") <= 1100
        assert len(result.exception or "") <= 200
        assert len(result.stdout) + len(result.stderr) < 256 * 1024
        assert len(result.images) <= 16
        await python.run("1 + 1", timeout=5.0)
        assert (await python.run("1 + 1", timeout=5.0)).value == "2"
        await python.close()


async def test_complaints_that_others_wrote_are_bounded(arena: Arena, tmp_path: Path) -> None:
    complain = (
        "import os, sys\nprint('begun', flush=True)\nwhile True:\n  for pid in os.listdir('/proc'):\n    try:\n"
        "      if os.readlink(f'/proc/{pid}/exe').endswith('/tar'):\n"
        "        with open(f'/proc/{pid}/fd/2', 'wb', 0) as file:\n          while True: file.write(b'x\\n' * 4096)\n"
        "    except OSError: pass"
    )
    fill = "for n in {1..200}; do mkfifo many$n; done; mkdir closed; chmod 0 closed"
    begun = "until grep -qs begun /tmp/begun; do :; done"
    await arena.said(["bash", "-c", f'{fill}; setsid python3 -c "$0" >/tmp/begun 2>&1 & {begun}', complain])
    for number in range(5):
        download = await arena.attacked.download(".", tmp_path / str(number), timeout=20.0)
        assert len(download.left_out) < 20_000
    await arena.attack("pkill python3; chmod 700 closed")


async def test_texts_that_are_none_are_refused(arena: Arena) -> None:
    # A model's JSON may have them.
    alone = "\ud800"
    for attempt in (
        arena.attacked.write("file", alone),
        arena.attacked.write(alone, b""),
        arena.attacked.run("cat", stdin=alone),
        arena.attacked.run(alone),
        arena.attacked.run("true", env={"NAME": alone}),
        arena.attacked.run("true", cwd=alone),
        arena.attacked.upload({"file": alone}),
        arena.attacked.upload({alone: b""}),
        arena.attacked.read(alone),
        arena.attacked.list(alone),
        arena.attacked.remove(alone),
    ):
        with pytest.raises(InvalidArgument):
            await attempt


async def test_the_kernel_ends_sandboxes_before_the_server() -> None:
    limits = Limits(memory=64 * MIB, processes=32, disk=16 * MIB)
    async with await create(SandboxSpec(limits=limits)) as sandbox:
        shell = await sandbox.shell()
        own = int(text("/proc/self/oom_score_adj"))
        for run in (sandbox.run, shell.run):
            assert int((await run("cat /proc/self/oom_score_adj")).stdout) >= max(own, 500)


def text(path: str) -> str:
    return Path(path).read_text()
