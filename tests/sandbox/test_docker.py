"""What is particular about sandboxes in containers of a Docker engine."""

import asyncio
import contextlib
import errno
import functools
import gc
import hashlib
import http.server
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import threading
import time
import warnings
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymhost.cli import doctor_machine
from gymhost.envs.sandbox.backend import RUNNER, Stream, StreamEnded
from gymhost.envs.sandbox.bubblewrap.seccomp import REFUSED
from gymhost.envs.sandbox.docker import Docker
from gymhost.envs.sandbox.docker.attach import Frames
from gymhost.envs.sandbox.docker.seccomp import ALLOWED
from gymhost.envs.sandbox.pool import Pool
from gymhost.envs.sandbox.spec import MIB, Limits, Mount, SandboxSpec
from gymhost.wire.errors import CapacityExhausted, InvalidArgument, SandboxLost, SandboxUnavailable
from support.docker_engine import DockerEngine
from support.server import PATIENCE, running, until

pytestmark = pytest.mark.docker


# What is in a shell's image: the least that a sandbox needs, and what the tests ask with.
PROGRAMS = ("bash", "cat", "env", "head", "id", "ls", "mkdir", "rm", "sleep", "stat", "tail", "wc")


@pytest.fixture
async def backend(docker_engine: DockerEngine) -> AsyncGenerator[Docker]:
    made = Docker(docker_engine.base_url, timeout=PATIENCE)
    yield made
    await made.close()


@pytest.fixture
def own_engine() -> Iterator[DockerEngine]:
    """An engine of a test's own, to do to it what others would not bear."""
    engine = DockerEngine()
    yield engine
    engine.stop()


@pytest.fixture
def api(docker_engine: DockerEngine) -> Iterator[Any]:
    """The engine as others see it."""
    client = docker.APIClient(docker_engine.base_url, timeout=int(PATIENCE))
    yield client
    client.close()


async def say(stream: Stream, command: str) -> tuple[str, str]:
    """Has a shell run a command, and returns what it wrote to standard output and error."""
    end = f"end-{os.urandom(8).hex()}\n".encode()
    said = {1: bytearray(), 2: bytearray()}

    def take(number: int, data: bytes) -> bool:
        said[number] += data
        return all(text.endswith(end) for text in said.values())

    mark = f"printf %s\\\\n {end.decode().strip()}"
    async with asyncio.timeout(PATIENCE):
        await stream.exchange(f"{command}\n{mark}; {mark} >&2\n".encode(), take)
    return tuple(bytes(text).removesuffix(end).decode() for text in said.values())  # type: ignore[return-value]


# Frames


@given(st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=40))), st.integers(1, 30))
def test_frames_come_in_any_pieces(frames: list[tuple[int, bytes]], size: int) -> None:
    data = b"".join(bytes([stream, 0, 0, 0]) + len(text).to_bytes(4, "big") + text for stream, text in frames)
    taken = Frames()
    given_out = [piece for at in range(0, len(data), size) for piece in taken.feed(data[at : at + size])]
    for stream in (1, 2):
        whole = b"".join(text for number, text in frames if number == stream)
        assert b"".join(text for number, text in given_out if number == stream) == whole
    assert all(text for _, text in given_out)


def test_what_is_there_of_a_frame_is_given_at_once() -> None:
    taken = Frames()
    assert list(taken.feed(bytes([1, 0, 0, 0, 0, 0, 0, 9]) + b"half")) == [(1, b"half")]


# Streams


async def test_output_and_errors_are_told_apart(backend: Docker) -> None:
    container = await backend.create(SandboxSpec())
    assert await say(container.main, "echo out; echo err >&2") == ("out\n", "err\n")


async def test_much_goes_both_ways_at_once(backend: Docker) -> None:
    container = await backend.create(SandboxSpec())
    stream = await container.open(["cat"], {"PATH": "/usr/bin:/bin"})
    data, back = os.urandom(4 * MIB), bytearray()

    def take(number: int, piece: bytes) -> bool:
        back.extend(piece)
        return len(back) == len(data)

    async with asyncio.timeout(PATIENCE):
        await stream.exchange(data, take)
    assert back == data
    stream.close()


async def test_a_cancelled_exchange_leaves_the_stream_usable(backend: Docker) -> None:
    container = await backend.create(SandboxSpec())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await container.main.exchange(b"sleep 0.2; echo late\n", lambda number, data: False)
    assert await say(container.main, "echo next") == ("late\nnext\n", "")


async def test_what_comes_after_the_end_belongs_to_the_next_exchange(backend: Docker) -> None:
    container = await backend.create(SandboxSpec())
    taken: list[bytes] = []

    def take_one(number: int, data: bytes) -> bool:
        taken.append(data)
        return True

    # Both streams have something: the one that is not taken is not lost.
    await container.main.exchange(b"echo one; echo two >&2\n", take_one)
    await container.main.exchange(b"", take_one)
    assert sorted(taken) == [b"one\n", b"two\n"]


async def test_closing_a_stream_wakes_who_waits_on_it(backend: Docker) -> None:
    container = await backend.create(SandboxSpec())
    stream = await container.open(RUNNER, container.spec.variables())
    waiting = asyncio.create_task(stream.exchange(b"sleep 1000\n", lambda number, data: False))
    await asyncio.sleep(0)
    await asyncio.to_thread(stream.close)
    with pytest.raises(StreamEnded):
        await asyncio.wait_for(waiting, PATIENCE)
    with pytest.raises(StreamEnded):
        await stream.exchange(b"", lambda number, data: True)


async def test_a_process_that_waits_for_input_ends_with_its_stream(backend: Docker) -> None:
    container = await backend.create(SandboxSpec())
    stream = await container.open(RUNNER, container.spec.variables())
    pid = (await say(stream, "echo $$"))[0].strip()
    assert await say(container.main, f"[[ -e /proc/{pid} ]] && echo there") == ("there\n", "")
    stream.close()
    for _ in range(1000):
        if await say(container.main, f"[[ -e /proc/{pid} ]] || echo gone") == ("gone\n", ""):
            return
        await asyncio.sleep(0.01)
    pytest.fail("it is there still")


async def test_commands_are_quick(backend: Docker) -> None:
    container = await backend.create(SandboxSpec())
    times: list[float] = []
    for _ in range(50):
        begin = time.perf_counter()
        await say(container.main, "echo")
        times.append(time.perf_counter() - begin)
    # An exec for each command takes some 50 ms and more.
    assert sorted(times)[len(times) // 2] < 0.02


async def test_silence_is_not_bounded_by_the_engine_s_time_limit(docker_engine: DockerEngine) -> None:
    pool = Pool(Docker(docker_engine.base_url, timeout=2.0))
    try:
        sandbox = await pool.create(timeout=PATIENCE)
        shell, python = await asyncio.gather(sandbox.shell(), sandbox.python())
        begin = time.monotonic()
        silent = "sleep 5; echo ok"
        results = await asyncio.gather(sandbox.run(silent), sandbox.run(["bash", "-c", silent]), shell.run(silent))
        assert [(result.stdout, result.exit_status, result.limit) for result in results] == [("ok\n", 0, None)] * 3
        result = await python.run("import time; time.sleep(3); 'ok'", timeout=20)
        assert (result.value, result.limit) == ("'ok'", None)
        assert time.monotonic() - begin > 8
        # What does bound it is said.
        assert (await sandbox.run("sleep 1000", timeout=0.2)).limit == "time"
    finally:
        await pool.close()


async def test_streams_over_tcp(docker_engine: DockerEngine) -> None:
    path = docker_engine.base_url.removeprefix("unix://")

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_unix_connection(path)

        async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError):
                while data := await source.read(2**16):
                    target.write(data)
                    await target.drain()
            target.close()

        await asyncio.gather(copy(reader, inner_writer), copy(inner_reader, writer))

    async with await asyncio.start_server(forward, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        own = Docker(docker_engine.base_url)
        await (await own.create(SandboxSpec())).destroy()
        backend = Docker(f"tcp://127.0.0.1:{port}")
        try:
            with pytest.raises(InvalidArgument, match="name an image"):
                await backend.create(SandboxSpec())
            with pytest.raises(InvalidArgument, match="no image 'nobody/nothing'"):
                await backend.create(SandboxSpec(image="nobody/nothing"))
        finally:
            await backend.close()
            await own.close()


# What is seen inside


async def test_the_environment_is_what_the_spec_says(backend: Docker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOO_PRIVATE", "secret")
    monkeypatch.setenv("FOO_PASSED", "passed on")
    spec = SandboxSpec(env={"TWO": "two  words", "EMPTY": ""}, pass_env=("FOO_PASSED",))
    container = await backend.create(spec)
    out, _ = await say(container.main, "cat /proc/1/environ")
    assert dict(line.split("=", 1) for line in out.split("\0") if line) == spec.variables()
    other = await container.open(RUNNER, {"PATH": "/usr/bin:/bin", "ONE": "1"})
    out, _ = await say(other, "cat /proc/$$/environ")
    assert sorted(out.strip("\0").split("\0")) == ["ONE=1", "PATH=/usr/bin:/bin"]
    other.close()


async def test_users_and_rights(backend: Docker) -> None:
    container = await backend.create(SandboxSpec(user=4321))
    other = await container.open(RUNNER, container.spec.variables())
    for stream in (container.main, other):
        assert (await say(stream, "id -u; id -g; id -G; pwd; stat -c %u . /tmp"))[0].split() == [
            *["4321"] * 3,
            "/workspace",
            *["4321"] * 2,
        ]
        status, _ = await say(stream, "cat /proc/self/status")
        found = dict(line.split(":\t", 1) for line in status.splitlines())
        assert {name: found[name] for name in ("CapPrm", "CapEff", "CapBnd", "CapAmb")} == dict.fromkeys(
            ("CapPrm", "CapEff", "CapBnd", "CapAmb"), "0" * 16
        )
        assert (found["NoNewPrivs"], found["Seccomp"]) == ("1", "2")
    other.close()


async def test_the_system_is_read_only_but_for_two_folders(backend: Docker) -> None:
    container = await backend.create(SandboxSpec(workdir="/home/me"))
    out, err = await say(
        container.main, "echo a >a; echo b >/tmp/b; cat a /tmp/b; echo >/x; echo >/usr/x; echo >/etc/x"
    )
    assert out == "a\nb\n"
    assert err.count("Read-only file system") == 3


async def test_mounts(backend: Docker, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir(mode=0o777)
        (tmp_path / name).chmod(0o777)
        (tmp_path / name / "file").write_text(name)
    mounts = (Mount(str(tmp_path / "one"), "/one"), Mount(str(tmp_path / "two"), "/workspace/two", writable=True))
    container = await backend.create(SandboxSpec(mounts=mounts))
    out, err = await say(container.main, "cat /one/file two/file; echo x >/one/x; echo x >two/x")
    assert out == "onetwo"
    assert "/one/x: Read-only file system" in err
    assert (tmp_path / "two" / "x").read_text() == "x\n"
    with pytest.raises(InvalidArgument, match="/no/such/folder"):
        await backend.create(SandboxSpec(mounts=(Mount("/no/such/folder"),)))


async def test_sockets(backend: Docker) -> None:
    tries = """
import socket
for family in (1, 2, 10, 17, 38, 40):
    try: socket.socket(family)
    except OSError as error: print(error.errno)
    else: print(family)
"""
    not_supported = str(errno.EAFNOSUPPORT)
    for network, internet in (("none", [not_supported] * 2), ("loopback", ["2", "10"])):
        container = await backend.create(SandboxSpec(network=network))  # type: ignore[arg-type]
        tried = (await say(container.main, f"python3 -c '{tries}'"))[0].split()
        assert tried == ["1", *internet, *[not_supported] * 3]
        assert (await say(container.main, "ls /sys/class/net"))[0].split() == ["lo"]


def test_no_system_call_is_allowed_that_bubblewrap_refuses() -> None:
    assert not set(ALLOWED).intersection(" ".join(REFUSED.values()).split())


async def test_programs_find_the_system_calls_that_they_need(backend: Docker) -> None:
    container = await backend.create(SandboxSpec())
    program = """
import asyncio, mmap, multiprocessing.pool, os, signal, sqlite3, subprocess, tempfile, threading
with multiprocessing.pool.ThreadPool(2) as pool: assert pool.map(abs, [-1, -2]) == [1, 2]
with multiprocessing.Pool(2) as pool: assert pool.map(abs, [-1, -2]) == [1, 2]
async def main():
    process = await asyncio.create_subprocess_exec("cat", stdin=-1, stdout=-1)
    assert (await process.communicate(b"text"))[0] == b"text"
asyncio.run(main())
assert subprocess.run("echo $((1 + 1))", shell=True, capture_output=True).stdout == b"2\\n"
with tempfile.TemporaryFile() as file:
    file.truncate(9); mmap.mmap(file.fileno(), 9).close(); os.posix_fallocate(file.fileno(), 0, 99)
with sqlite3.connect("data") as data: data.execute("create table t (a)")
signal.setitimer(signal.ITIMER_REAL, 100); os.sched_getaffinity(0); os.memfd_create("x"); os.openpty(); os.eventfd(0)
print("done")
"""
    out, err = await say(container.main, f"python3 - <<'END'\n{program}END")
    assert (out, err) == ("done\n", "")


# Limits


async def test_memory(backend: Docker) -> None:
    container = await backend.create(SandboxSpec(limits=Limits(memory=64 * MIB)))
    assert container.out_of_memory() == 0
    out, _ = await say(container.main, "( exec python3 -c 'bytearray(200 << 20)' ); echo $?")
    assert out == "137\n"
    assert container.out_of_memory() == 1
    assert container.alive


async def test_disk(backend: Docker) -> None:
    container = await backend.create(SandboxSpec(limits=Limits(disk=16 * MIB)))
    files = " ".join(f"{folder}/file" for folder in ("/workspace", "/tmp", "/dev/shm"))
    out, err = await say(container.main, f"for f in {files}; do head -c 20M /dev/zero >$f; done; stat -c %s {files}")
    assert err.count("No space left on device") == 3
    sizes = list(map(int, out.split()))
    assert min(sizes) >= MIB
    assert sizes[0] > 8 * MIB
    assert sum(sizes) <= 16 * MIB
    usage = await container.usage()
    assert usage.disk is not None
    assert sum(sizes) - MIB < usage.disk < sum(sizes) + MIB


async def test_files_can_not_fill_the_memory(backend: Docker) -> None:
    container = await backend.create(SandboxSpec(limits=Limits(memory=32 * MIB, disk=64 * MIB)))
    _, err = await say(container.main, "for f in file /tmp/file /dev/shm/file; do head -c 64M /dev/zero >$f; done")
    assert err.count("No space left on device") == 3
    assert await say(container.main, "echo on") == ("on\n", "")
    assert container.out_of_memory() == 0


async def test_open_files(backend: Docker) -> None:
    container = await backend.create(SandboxSpec(limits=Limits(open_files=100)))
    assert (await say(container.main, "ulimit -Hn; ulimit -Hc"))[0].split() == ["100", "0"]
    with pytest.raises(InvalidArgument, match="open_files"):
        await backend.create(SandboxSpec(limits=Limits(open_files=2**30)))


async def test_processor_time(backend: Docker) -> None:
    container = await backend.create(SandboxSpec(limits=Limits(cpus=0.1)))
    await say(container.main, "SECONDS=0; while (( SECONDS < 2 )); do :; done")
    used = (await container.usage()).cpu_seconds
    assert used is not None
    assert used < 1.0


async def test_processes_and_a_way_in_when_there_are_too_many(backend: Docker) -> None:
    container = await backend.create(SandboxSpec(limits=Limits(processes=20)))
    bomb = asyncio.create_task(say(container.main, "( b() { b | b & }; b ) 2>/dev/null &"))
    await bomb

    async def processes() -> int:
        return int(await container.control("all=(/proc/[0-9]*); echo ${#all[@]}"))

    for _ in range(1000):
        # One more for the process that looks.
        if await processes() >= 20:
            break
    for _ in range(20):
        assert 18 <= await processes() <= 21
    kill_all = "for p in /proc/[0-9]*; do p=${p##*/}; (( p == 1 || p == $$ )) || kill -KILL $p; done 2>/dev/null"
    await container.control(f"for i in {{1..20}}; do {kill_all}; done")
    assert await processes() <= 3
    assert await say(container.main, "echo on") == ("on\n", "")


async def test_what_is_in_force_is_said(backend: Docker) -> None:
    container = await backend.create(SandboxSpec(limits=Limits(cpus=1)))
    names = {"memory", "processes", "cpus", "disk", "open_files", "seccomp", "user", "network"}
    assert {name for name, how in container.limits_in_force.items() if how} == names


async def test_usage(backend: Docker) -> None:
    container = await backend.create(SandboxSpec())
    before = await container.usage()
    await say(container.main, "head -c 30M /dev/zero >file; sleep 1000 & sleep 1000 &")
    after = await container.usage()
    assert before.memory is not None
    assert after.memory is not None
    assert 25 * MIB < after.memory - before.memory < 60 * MIB
    assert after.disk is not None
    assert 29 * MIB < after.disk < 31 * MIB
    assert (before.processes, after.processes) == (1, 3)


# Out of band


async def test_control_leaves_nothing_behind(backend: Docker) -> None:
    container = await backend.create(SandboxSpec())
    assert await container.control("echo a; echo b >&2; id -u") == b"a\n1000\n"
    assert await container.control("exit 3") == b""
    assert (await say(container.main, "echo /proc/[0-9]*"))[0] == "/proc/1\n"


async def test_control_that_does_not_end_gives_the_sandbox_up(backend: Docker, api: Any) -> None:
    container = await backend.create(SandboxSpec())
    with pytest.raises(SandboxLost, match=r"did not answer within 0\.5 s"):
        await container.control("while :; do :; done", timeout=0.5)
    assert not container.alive
    await container.destroy()
    assert not api.containers(all=True, filters={"name": container.id})
    with pytest.raises(SandboxLost):
        await container.control("echo")


# The end


async def test_destroying(backend: Docker, api: Any) -> None:
    container = await backend.create(SandboxSpec())
    await say(container.main, "trap '' TERM INT HUP; setsid sleep 1000 & (sleep 1000 &) & disown -a")
    waiting = asyncio.create_task(container.main.exchange(b"sleep 1000\n", lambda number, data: False))
    await asyncio.sleep(0)
    await asyncio.gather(container.destroy(), container.destroy())
    with pytest.raises(StreamEnded):
        await asyncio.wait_for(waiting, PATIENCE)
    assert not container.alive
    assert not api.containers(all=True, filters={"name": container.id})
    await container.destroy()
    for refused in (container.usage(), container.control(""), container.open(RUNNER, {})):
        with pytest.raises(SandboxLost):
            await refused


async def test_a_container_that_ends_is_lost(backend: Docker, api: Any) -> None:
    container = await backend.create(SandboxSpec())
    with pytest.raises(StreamEnded):
        await container.main.exchange(b"exit 3\n", lambda number, data: False)
    assert not container.alive
    with pytest.raises(SandboxLost, match=container.id):
        await container.usage()
    await until(lambda: not api.containers(all=True, filters={"name": container.id}))


async def test_closing_the_backend_destroys_all(docker_engine: DockerEngine, api: Any) -> None:
    backend = Docker(docker_engine.base_url)
    containers = await asyncio.gather(*(backend.create(SandboxSpec()) for _ in range(3)))
    await backend.close()
    await backend.close()
    assert not any(container.alive for container in containers)
    assert not any(api.containers(all=True, filters={"name": container.id}) for container in containers)
    with pytest.raises(SandboxUnavailable, match="closed"):
        await backend.create(SandboxSpec())


async def test_a_creation_that_is_cancelled_leaves_nothing(backend: Docker, api: Any) -> None:
    await (await backend.create(SandboxSpec())).destroy()
    before = len(api.containers(all=True))
    for wait in (0.0, 0.01, 0.05, 0.1):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait):
                await (await backend.create(SandboxSpec())).destroy()
    # What goes on in threads is over when as many others are.
    await asyncio.gather(*(container.destroy() for container in [await backend.create(SandboxSpec())]))
    await until(lambda: len(api.containers(all=True)) == before)


# Leftovers

OWNER = """
import asyncio, sys
from gymhost.envs.sandbox.bubblewrap.seccomp import REFUSED
from gymhost.envs.sandbox.docker import Docker
from gymhost.envs.sandbox.spec import SandboxSpec

async def main():
    container = await Docker(sys.argv[1], server="the-server").create(SandboxSpec())
    print(container.id, flush=True)
    await container.main.exchange(sys.argv[2].encode() + b"\\n", lambda number, data: print("began", flush=True))

asyncio.run(main())
"""


def owner(engine: DockerEngine, command: str) -> "contextlib._GeneratorContextManager[subprocess.Popen[str]]":
    return running([sys.executable, "-c", OWNER, engine.base_url, command])


async def test_what_a_dead_owner_left_is_told_and_removed(
    docker_engine: DockerEngine, api: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with owner(docker_engine, "echo; sleep 1000") as dead, owner(docker_engine, "echo; sleep 1000") as living:
        assert dead.stdout is not None
        assert living.stdout is not None
        left, kept = dead.stdout.readline().strip(), living.stdout.readline().strip()
        assert dead.stdout.readline() == "began\n"
        dead.kill()
        dead.wait()
        [container] = api.containers(filters={"name": left})
        assert container["Labels"]["gymhost.server"] == "the-server"
        monkeypatch.setenv("DOCKER_HOST", docker_engine.base_url)
        engine, found = doctor_machine.docker()
        assert engine.verdict == "ok"
        assert found.verdict == "warning"
        assert found.detail == "a killed server left 1 container"
        assert found.advice == f"docker rm --force --volumes {container['Id'][:12]}"
        backend = Docker(docker_engine.base_url)
        assert await backend.problem() is None
        await backend.close()
        assert not api.containers(all=True, filters={"name": left})
        assert api.containers(filters={"name": kept})
        assert len(doctor_machine.docker()) == 1


async def test_an_idle_container_ends_with_its_owner(docker_engine: DockerEngine, api: Any) -> None:
    with owner(docker_engine, "echo") as process:
        assert process.stdout is not None
        name = process.stdout.readline().strip()
        assert process.stdout.readline() == "began\n"
        assert api.containers(filters={"name": name})
        process.kill()
        await until(lambda: not api.containers(all=True, filters={"name": name}))


# Engines that are not there


@pytest.fixture
def unconnected() -> Iterator[None]:
    """Collects the sockets that the SDK could not connect and leaves to the collector."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.mark.usefixtures("unconnected")
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
async def test_an_engine_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none")
    backend = Docker()
    said = rf"can't reach Docker at unix://{tmp_path}/none: is it running\? \(DOCKER_HOST\)"
    problem = await backend.problem()
    assert problem is not None
    with pytest.raises(SandboxUnavailable, match=said):
        await backend.create(SandboxSpec())
    await backend.close()


@pytest.mark.usefixtures("unconnected")
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
async def test_an_engine_that_dies(own_engine: DockerEngine) -> None:
    backend = Docker(own_engine.base_url, timeout=5.0)
    container = await backend.create(SandboxSpec())
    pool = Pool(backend)
    sandbox = await pool.create(timeout=PATIENCE)
    shell, python = await asyncio.gather(sandbox.shell(), sandbox.python())
    commands = (
        sandbox.run("sleep 999", timeout=999),
        shell.run("sleep 999", timeout=999),
        python.run("import time; time.sleep(999)", timeout=999),
    )
    waiting = [asyncio.create_task(command) for command in commands]
    # Each has begun once another command was seen to.
    await sandbox.run("true")
    own_engine.kill()
    for task in waiting:
        with pytest.raises(SandboxLost):
            await asyncio.wait_for(task, PATIENCE)
    assert not sandbox.alive
    assert not container.alive
    for refused in (container.usage(), container.control(""), container.open(RUNNER, {})):
        with pytest.raises(SandboxLost, match="can't reach Docker"):
            await refused
    with pytest.raises(SandboxLost):
        await sandbox.run("true")
    with pytest.raises(SandboxUnavailable, match="can't reach Docker"):
        await backend.create(SandboxSpec())
    await sandbox.destroy()
    await pool.close()


@pytest.mark.usefixtures("unconnected")
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
async def test_an_engine_that_does_not_answer(own_engine: DockerEngine) -> None:
    backend = Docker(own_engine.base_url, timeout=1.0)
    container = await backend.create(SandboxSpec())
    own_engine.freeze()
    with pytest.raises(CapacityExhausted, match="within 1 s"):
        await backend.create(SandboxSpec())
    own_engine.thaw()
    assert await say(container.main, "echo on") == ("on\n", "")
    await (await backend.create(SandboxSpec())).destroy()
    await backend.close()
    with contextlib.closing(docker.APIClient(own_engine.base_url)) as client:
        await until(lambda: not client.containers(all=True))


@pytest.mark.parametrize("address", ["ssh://host", "/var/run/docker.sock", "unix://", "npipe:////./pipe/docker"])
def test_an_address_of_another_kind(address: str) -> None:
    with pytest.raises(InvalidArgument, match="unix://PATH or tcp://HOST:PORT"):
        Docker(address)


async def test_a_runtime_that_is_not_there(docker_engine: DockerEngine) -> None:
    backend = Docker(docker_engine.base_url, runtime="runsc")
    problem = await backend.problem()
    assert problem is not None
    assert "runsc" in problem
    assert "runc" in problem
    with pytest.raises(InvalidArgument, match="runsc"):
        await backend.create(SandboxSpec())
    await backend.close()


# Images


@pytest.fixture(scope="session")
def shell_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of an image with a shell: programs of this machine and the libraries that they need."""
    folder = tmp_path_factory.mktemp("image")
    for program in PROGRAMS:
        path = shutil.which(program)
        assert path is not None
        listed = subprocess.run(["ldd", path], capture_output=True, text=True, check=True).stdout
        libraries = [word for line in listed.splitlines() for word in line.split() if word.startswith("/")]
        for source, target in [(path, f"bin/{program}"), *((library, library[1:]) for library in libraries)]:
            (folder / target).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, folder / target)
    return folder


@pytest.fixture
def context(shell_folder: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Makes a folder to build an image from, with further lines of its Dockerfile."""

    def make(lines: str) -> Path:
        folder = tmp_path / "context"
        shutil.copytree(shell_folder, folder / "root", dirs_exist_ok=True)
        (folder / "Dockerfile").write_text(f"FROM scratch\nCOPY root /\n{lines}\n")
        return folder

    return make


async def test_building_an_image(backend: Docker, context: Callable[[str], Path]) -> None:
    said: list[str] = []
    folder = context('ENV PYTHON_VERSION=3\nENTRYPOINT ["/bin/nothing"]\nRUN ["/bin/bash", "-c", "echo built >/made"]')
    image = await backend.build(folder, tag="gymhost-test:built", network="none", progress=said.append)
    for name in (image, "gymhost-test:built"):
        container = await backend.create(SandboxSpec(image=name))
        assert await say(container.main, "cat /made; echo $PYTHON_VERSION; ls /usr/share") == (
            "built\n\n",
            "ls: cannot access '/usr/share': No such file or directory\n",
        )
    assert any("RUN" in line for line in said)


async def test_an_image_that_can_not_be_built(backend: Docker, context: Callable[[str], Path], tmp_path: Path) -> None:
    folder = context('RUN ["/bin/bash", "-c", "echo before; exit 7"]')
    with pytest.raises(SandboxUnavailable, match=r"non-zero code: 7(.|\n)*before"):
        await backend.build(folder, network="none")
    with pytest.raises(InvalidArgument, match="no Dockerfile"):
        await backend.build(tmp_path)


async def test_volumes_of_an_image_have_no_room(backend: Docker, context: Callable[[str], Path]) -> None:
    folder = context("COPY Dockerfile /srv/data/\nVOLUME /tmp /srv/data\nUSER 1000")
    image = await backend.build(folder, network="none")
    container = await backend.create(SandboxSpec(image=image))
    out, err = await say(container.main, "ls /srv/data; echo x >/srv/data/x; echo x >/tmp/x && cat /tmp/x")
    assert out == "x\n"
    assert "/srv/data/x: Read-only file system" in err


async def test_an_image_without_a_shell(backend: Docker, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM scratch\nCOPY Dockerfile /\n")
    image = await backend.build(tmp_path)
    with pytest.raises(InvalidArgument, match="bash"):
        await backend.create(SandboxSpec(image=image))


async def test_an_image_that_is_missing(backend: Docker) -> None:
    with pytest.raises(
        InvalidArgument, match="no image 'nobody/nothing:1': fetch it by `docker pull nobody/nothing:1`"
    ):
        await backend.create(SandboxSpec(image="nobody/nothing:1"))


class Registry(http.server.ThreadingHTTPServer):
    """A registry with one image, `shell:1`, of a folder's files."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        layer = io.BytesIO()
        with tarfile.open(fileobj=layer, mode="w") as tar:
            tar.add(folder, ".")
        config = {
            "architecture": "amd64",
            "os": "linux",
            "config": {},
            "rootfs": {"type": "layers", "diff_ids": [self._digest(layer.getvalue())]},
        }
        self.blobs: dict[str, bytes] = {}
        described: list[dict[str, Any]] = []
        kinds = ("container.image.v1+json", "image.rootfs.diff.tar")
        for kind, data in zip(kinds, (json.dumps(config).encode(), layer.getvalue()), strict=True):
            self.blobs[self._digest(data)] = data
            described.append(
                {"mediaType": f"application/vnd.docker.{kind}", "size": len(data), "digest": self._digest(data)}
            )
        self.kind = "application/vnd.docker.distribution.manifest.v2+json"
        manifest = {"schemaVersion": 2, "mediaType": self.kind, "config": described[0], "layers": described[1:]}
        self.manifest = json.dumps(manifest).encode()
        self.blobs[self._digest(self.manifest)] = self.manifest
        super().__init__(("127.0.0.1", 0), _Answers)

    @staticmethod
    def _digest(data: bytes) -> str:
        return f"sha256:{hashlib.sha256(data).hexdigest()}"


class _Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        registry = self.server
        assert isinstance(registry, Registry)
        name, _, reference = self.path.rpartition("/")
        data = registry.blobs.get(reference)
        if name == "/v2/shell/manifests":
            data = registry.manifest if reference == "1" else data
        elif self.path == "/v2/":
            data = b"{}"
        self.send_response(404 if data is None else 200)
        if name.endswith("manifests"):
            self.send_header("Content-Type", registry.kind)
        said = (
            data if data is not None else b'{"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}'
        )
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(said)

    do_HEAD = do_GET  # noqa: N815 - so the handler looks for it

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def registry(shell_folder: Path) -> Generator[str]:
    """The address of a registry with the image `shell:1`."""
    with Registry(shell_folder) as server:
        thread = threading.Thread(target=functools.partial(server.serve_forever, poll_interval=0.01))
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


async def test_images_are_fetched_where_that_is_wanted(docker_engine: DockerEngine, registry: str) -> None:
    spec = SandboxSpec(image=f"{registry}/shell:1")
    pool = Pool(Docker(docker_engine.base_url, pull="missing"))
    try:
        for sandbox in await asyncio.gather(pool.create(spec, timeout=PATIENCE), pool.create(spec, timeout=PATIENCE)):
            assert (await sandbox.run("echo here")).stdout == "here\n"
        with pytest.raises(InvalidArgument, match=f"fetch the image {registry}/shell:2"):
            await pool.create(SandboxSpec(image=f"{registry}/shell:2"), timeout=PATIENCE)
    finally:
        await pool.close()


async def test_fetching_an_image(backend: Docker, registry: str) -> None:
    said: list[str] = []
    await backend.pull(f"{registry}/shell:1", said.append)
    assert any("shell" in line for line in said)
    container = await backend.create(SandboxSpec(image=f"{registry}/shell:1"))
    assert await say(container.main, "echo here") == ("here\n", "")
    with pytest.raises(InvalidArgument, match="fetch the image"):
        await backend.pull(f"{registry}/shell:2")


async def test_a_registry_that_is_not_there(backend: Docker) -> None:
    with pytest.raises(SandboxUnavailable, match=r"127\.0\.0\.1:1"):
        await backend.pull("127.0.0.1:1/nothing")
