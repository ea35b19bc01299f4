"""What is bubblewrap's own: who holds which limit, users, control groups, layers, and what is left behind."""

import asyncio
import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest

from gymhost.envs.sandbox.backend import Container, Stream, StreamEnded
from gymhost.envs.sandbox.bubblewrap import Bubblewrap
from gymhost.envs.sandbox.spec import Limits, Mount, SandboxSpec
from gymhost.wire.errors import InvalidArgument, SandboxLost, SandboxUnavailable
from support.ordinary_user import OrdinaryUser, ordinary_user

MIB = 2**20

END = b"\x1eend\n"

IS_ROOT = os.geteuid() == 0

# Starts processes until there can be no more, and says how many there were.
FORKS = """
import os, time
for number in range(100):
    try:
        if os.fork() == 0:
            time.sleep(600)
    except BlockingIOError:
        print(number)
        break
"""

# Makes folders that are nested too deeply.
NESTING = """
import os
for _ in range(500):
    os.mkdir("d")
    os.chdir("d")
"""

# A process of its own that makes sandboxes, says so, and waits.
OWNER = """
import asyncio
from gymhost.envs.sandbox.bubblewrap import Bubblewrap
from gymhost.envs.sandbox.spec import SandboxSpec

async def main():
    backend = Bubblewrap()
    containers = [await backend.create(SandboxSpec()) for _ in range(3)]
    for container in containers:
        await container.main.exchange(b"setsid sleep 4321 & echo\\n", lambda *_: True)
    print(*(container.id for container in containers), flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.fixture
async def backend() -> AsyncGenerator[Bubblewrap]:
    backend = Bubblewrap()
    yield backend
    await backend.close()


@pytest.fixture
async def owner() -> AsyncGenerator[tuple[subprocess.Popen[str], list[str]]]:
    process = await asyncio.to_thread(
        subprocess.Popen, [sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    yield process, (await asyncio.to_thread(process.stdout.readline)).split()
    process.kill()
    process.stdout.close()
    await asyncio.to_thread(process.wait)


@pytest.fixture
def user() -> Generator[OrdinaryUser]:
    with ordinary_user() as user:
        yield user


async def say(stream: Stream | Container, text: str) -> str:
    """Has a shell do something, and returns what it printed on both streams."""
    stream = stream if isinstance(stream, Stream) else stream.main
    said = bytearray()

    def take(number: int, data: bytes) -> bool:
        said.extend(data)
        return END in said

    async with asyncio.timeout(30):
        await stream.exchange(b"{ %s\n} 2>&1; printf '\\036end\\n'\n" % text.encode(), take)
    return said.replace(END, b"").decode().strip()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def groups_of(*names: str) -> set[Path]:
    """The control groups of sandboxes."""
    # Other sandboxes come and go meanwhile, which a walk passes over.
    found = [Path(where, name) for where, folders, _ in os.walk("/sys/fs/cgroup") for name in folders]
    return {path for path in found if path.name.removesuffix(".control") in names}


def processes_of(owner: int) -> set[int]:
    """All that descend from a process."""
    above: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit():
                above[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found = {owner}
    while more := {pid for pid, parent in above.items() if parent in found} - found:
        found |= more
    return found


def keepers_of(owner: int) -> list[int]:
    """The processes of a keeper: the one that was started, and the one that makes sandboxes."""
    titles = {pid: Path(f"/proc/{pid}/cmdline") for pid in sorted(processes_of(owner))}
    return [pid for pid, title in titles.items() if title.read_bytes().startswith(b"gymhost sandboxes")]


def keeper_here() -> int:
    """The process that this one started last to make sandboxes: other tests may have some of theirs."""
    own = [pid for pid in keepers_of(os.getpid()) if parent_and_start(pid)[0] == os.getpid()]
    return max(own, key=lambda pid: parent_and_start(pid)[1])


def parent_and_start(pid: int) -> tuple[int, int]:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[1]), int(fields[19])


def users_of(container: Container) -> set[int]:
    """Which users of the host a sandbox's processes run as."""
    listed = {pid for group in groups_of(container.id) for pid in (group / "cgroup.procs").read_text().split()}
    # Where there are no groups, all run as the user who asks.
    return {Path(f"/proc/{pid}").stat().st_uid for pid in listed} or {os.geteuid()}


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def until(condition: object, limit: float = 10.0) -> None:
    assert callable(condition)
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, "it did not come true in time"
        await asyncio.sleep(0.01)


async def test_there_is_no_problem_here_and_a_trial_leaves_nothing(backend: Bubblewrap):
    assert await backend.problem() is None


async def test_the_first_process_is_the_runner_alone_in_its_namespaces(backend: Bubblewrap):
    container = await backend.create(SandboxSpec())
    assert container.alive
    assert container.init == 1
    assert await say(container, "echo $$; id -u; pwd; hostname") == "1\n1000\n/workspace\nsandbox"
    status = await say(container, "grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status")
    words = dict(line.split(":\t") for line in status.splitlines())
    assert {words.pop("NoNewPrivs"), words.pop("Seccomp")} == {"1", "2"}
    assert set(words.values()) == {"0000000000000000"}
    assert await say(container, "unshare --user true; unshare --mount true; mount -t tmpfs x /tmp") != ""
    assert await say(container, "cat /proc/net/dev | grep -c :") == "1"
    await container.destroy()
    assert not container.alive


async def test_what_is_opened_has_the_same_rights_and_no_more_descriptors(backend: Bubblewrap):
    container = await backend.create(SandboxSpec())
    stream = await container.open(["bash", "--noprofile", "--norc"], {"PATH": "/usr/bin:/bin", "OWN": "1"})
    look = (
        "grep -E '^(Cap|NoNewPrivs|Seccomp:|Uid|Gid|Groups|Sig(Blk|Ign)|Umask)' /proc/$BASHPID/status; pwd; "
        "for file in /proc/$BASHPID/fd/*; do echo ${file##*/}; done; ulimit -n; ulimit -c; "
        "for kind in /proc/$BASHPID/ns/*; do readlink $kind; done"
    )
    assert await say(stream, f"({look})") == await say(container, f"({look})")
    assert await say(stream, "set | grep -c ^OWN=; test $$ = $(ps -o sid= $$) && echo leader") == "1\nleader"
    assert await say(stream, "trap 'echo interrupted' INT; kill -INT $$") == "interrupted"
    stream.close()
    with pytest.raises(SandboxUnavailable, match="no-such-program"):
        await container.open(["no-such-program"], {"PATH": "/usr/bin"})


async def test_nothing_of_the_environment_gets_in_unasked(backend: Bubblewrap, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_TOKEN", "c0ffee")
    monkeypatch.setenv("PASSED", "1")
    container = await backend.create(SandboxSpec(env={"OWN": "2"}, pass_env=("PASSED", "NOT_SET")))
    names = await say(container, "tr '\\0' '\\n' </proc/1/environ | cut -d= -f1 | grep -v SHLVL | sort | tr '\\n' ' '")
    assert names == "HOME LANG OWN PASSED PATH PWD TERM USER"
    assert await say(container, "cat /proc/*/environ | tr '\\0' '\\n' | grep -c c0ffee") == "0"


async def test_a_network_is_none_or_its_own_loopback(backend: Bubblewrap):
    listen = "python3 -c 'import socket; socket.create_server((\"127.0.0.1\", 0)); print(1)' 2>&1 | tail -1"
    without, loopback = [await backend.create(SandboxSpec(network=network)) for network in ("none", "loopback")]
    assert "Address family not supported" in await say(without, listen)
    assert await say(loopback, listen) == "1"
    vsock = "python3 -c 'import socket; socket.socket(socket.AF_VSOCK)' 2>&1 | tail -1"
    assert "Address family not supported" in await say(loopback, vsock)
    assert "no IP sockets" in without.limits_in_force["network"]
    assert "127.0.0.1" in loopback.limits_in_force["network"]


async def test_limits_hold_by_what_they_are_said_to_hold_by(backend: Bubblewrap):
    limits = Limits(memory=64 * MIB, processes=16, cpus=0.5, disk=8 * MIB, open_files=64)
    container = await backend.create(SandboxSpec(limits=limits))
    force = container.limits_in_force
    assert force.keys() == {"memory", "processes", "cpus", "disk", "open_files", "seccomp", "user", "network"}
    hog = await say(container, "(python3 -c 'bytearray(256 << 20)'); echo $?")
    if "cgroup" in force["memory"]:
        assert hog.endswith("137")
        assert container.out_of_memory() == 1
        assert (await container.usage()).memory in range(1, 64 * MIB)
    else:
        assert "MemoryError" in hog
        assert force["memory"] == "rlimit, each process by itself"
    assert await say(container, f"python3 -c '{FORKS}'") == "14"
    # A script out of band is not kept out by that.
    assert await container.control("kill -KILL -1; (echo out)") == b"out\n"
    assert "No space left" in await say(container, "head -c 9M /dev/zero >big")
    assert (await container.usage()).disk == 8 * MIB
    assert await say(container, "rm big; ulimit -n") == "64"
    if force["cpus"]:
        before = time.monotonic()
        usage = (await container.usage()).cpu_seconds
        await say(container, "(timeout 1 bash -c 'while :; do :; done')")
        spent = (await container.usage()).cpu_seconds
        assert usage is not None
        assert spent is not None
        assert spent - usage < 0.8 * (time.monotonic() - before)


async def test_a_full_disk_ends_no_process(backend: Bubblewrap):
    container = await backend.create(SandboxSpec(limits=Limits(memory=48 * MIB, disk=512 * MIB)))
    if "cgroup" in container.limits_in_force["memory"]:
        assert f"{36 * MIB} bytes" in container.limits_in_force["disk"]
        assert "No space left" in await say(
            container, "head -c 512M /dev/zero >big; head -c 9M /dev/zero >/dev/shm/big"
        )
        assert container.out_of_memory() == 0


async def test_only_the_working_folder_and_tmp_can_be_written(backend: Bubblewrap):
    container = await backend.create(SandboxSpec(workdir="/home/me/work", user=77))
    folders = "/ /dev /etc /usr /run /var /home /home/me /proc/sys/kernel"
    tried = f"for at in {folders}; do touch $at/x && echo $at; done 2>/dev/null"
    assert await say(container, tried) == ""
    assert await say(container, "touch x /tmp/x /dev/shm/x ~/y && ls; id -u; getent passwd 77") == (
        "x\ny\n77\nsandbox:x:77:77:sandbox:/home/me/work:/bin/bash"
    )


@pytest.fixture
def shown(tmp_path: Path) -> Path:
    """A folder with things to mount, in one that only its owner may enter."""
    closed = tmp_path / "closed"
    (closed / "data").mkdir(parents=True)
    (closed / "data/file").write_text("text")
    (tmp_path / "one").write_text("one")
    closed.chmod(0o700)
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    return tmp_path


async def test_mounts_are_seen_where_they_are_said_to_be(backend: Bubblewrap, shown: Path):
    mounts = (Mount(f"{shown}/closed/data", "/data/in"), Mount(f"{shown}/one", "/workspace/one"))
    container = await backend.create(SandboxSpec(mounts=mounts))
    assert await say(container, "cat /data/in/file one") == "textone"
    assert await say(container, "(touch /data/in/x; echo >one) 2>&1 | grep -c Read-only") == "2"
    container = await backend.create(SandboxSpec(mounts=(Mount(f"{shown}/shared", "/shared", writable=True),)))
    assert await say(container, "echo hello >/shared/file") == ""
    assert await asyncio.to_thread((shown / "shared/file").read_text) == "hello\n"
    if IS_ROOT:
        assert (await asyncio.to_thread((shown / "shared/file").stat)).st_uid > 0


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """A root file system without programs."""
    for folder in ("usr", "etc", "opt/tool"):
        (tmp_path / folder).mkdir(parents=True)
    for name in ("bin", "lib", "lib64", "sbin"):
        (tmp_path / name).symlink_to(f"usr/{name}")
    (tmp_path / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/bash\n")
    (tmp_path / "etc/os-release").write_text("mine")
    tmp_path.chmod(0o755)
    return tmp_path


def make_a_link(folder: Path, target: str) -> None:
    folder.rename(folder.with_name("real"))
    folder.symlink_to(target)


async def test_an_image_is_a_root_file_system(backend: Bubblewrap, image: Path):
    with pytest.raises(InvalidArgument, match="bash"):
        await backend.create(SandboxSpec(image=str(image)))
    spec = SandboxSpec(image=str(image), mounts=(Mount("/usr"),), workdir="/srv/work")
    container = await backend.create(spec)
    assert await say(
        container, "pwd; cat /etc/os-release; touch ok; touch /opt/tool/x /etc/x 2>/dev/null; ls /opt/tool"
    )
    assert await say(container, "getent passwd 1000 | cut -d: -f6; getent passwd 0 | cut -d: -f6") == "/srv/work\n/root"
    assert sorted(os.listdir(image)) == ["bin", "etc", "lib", "lib64", "opt", "sbin", "usr"]
    with pytest.raises(InvalidArgument, match="/lib is a link"):
        await backend.create(SandboxSpec(image=str(image), mounts=(Mount("/usr"), Mount("/usr", "/lib/more"))))
    make_a_link(image / "etc", "/etc")
    with pytest.raises(InvalidArgument, match="/etc is a link"):
        await backend.create(spec)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (SandboxSpec(mounts=(Mount("/no/such/folder"),)), "/no/such/folder"),
        (SandboxSpec(image="/no/such/image"), "/no/such/image"),
        (SandboxSpec(image="python:3.12"), "root file system"),
        (SandboxSpec(workdir="/usr/work"), "/usr/work: Read-only"),
        (SandboxSpec(mounts=(Mount("/usr", "/etc/below"),)), "/etc/below: Read-only"),
        (SandboxSpec(env={"BIG": "x" * 200_000}), "180000 bytes"),
    ],
    ids=["mount", "image", "name", "workdir", "target", "env"],
)
async def test_what_can_not_be_is_said_in_words(backend: Bubblewrap, spec: SandboxSpec, words: str):
    await (await backend.create(SandboxSpec())).destroy()
    before = descriptors()
    with pytest.raises(InvalidArgument, match=words):
        await backend.create(spec)
    assert descriptors() == before


async def test_a_snapshot_keeps_kinds_modes_links_holes_and_deletions(backend: Bubblewrap):
    first = await backend.create(SandboxSpec())
    made = (
        "mkdir -p a/b c; echo one >a/one; ln a/one a/two; ln -s /etc/passwd link; mkfifo pipe; truncate -s 1G hole; "
        "echo end >>hole; chmod 640 a/one; chmod 700 c; echo below >c/below; touch -d @1000 a/b; echo t >/tmp/t; "
        "mkdir shut; echo x >shut/x; chmod 000 shut; chmod 750 ."
    )
    assert await say(first, made) == ""
    one = await first.snapshot()
    listing = "find . /tmp ! -type d -printf '%p %y %n %m %U %s %l\\n' -o -printf '%p %y %m %U %T@\\n' | sort"
    before = await say(first, listing)
    second = await backend.create(SandboxSpec(), one)
    assert await say(second, listing) == before
    assert await say(second, "chmod 700 shut; cat a/two shut/x; tail -c 4 hole; echo 2 >>a/one") == "one\nx\nend"
    # Deleted, and made anew in the place of what is below; the first one sees nothing of it.
    assert await say(second, "rm -r c hole; mkdir c; echo above >c/above; rm link; mv a d && ls -R") != ""
    two = await second.snapshot()
    third = await backend.create(SandboxSpec(), two)
    look = "ls . c d"
    assert await say(third, look) == await say(second, look)
    assert await say(third, "ls c; cat d/one; test -e hole -o -e link || echo gone") == "above\none\n2\ngone"
    assert await say(first, listing) == before
    assert one is not None
    assert two is not None
    for snapshot in (one, two):
        await snapshot.discard()
        await snapshot.discard()
    await second.destroy()
    assert await say(third, "cat shut/x d/one") == "x\none\n2"
    with pytest.raises(InvalidArgument, match="snapshot"):
        await backend.create(SandboxSpec(), one)


async def test_snapshots_of_snapshots_stay_whole_however_many(backend: Bubblewrap):
    container = await backend.create(SandboxSpec())
    await say(container, "echo base >base; mkdir kept; echo kept >kept/file")
    snapshot = await container.snapshot()
    for number in range(30):
        await container.destroy()
        container = await backend.create(SandboxSpec(), snapshot)
        await say(container, f"echo {number} >file{number}; rm -f file{number - 1}; test -e base && rm base")
        assert snapshot is not None
        await snapshot.discard()
        snapshot = await container.snapshot()
    container = await backend.create(SandboxSpec(), snapshot)
    assert await say(container, "ls; cat file29 kept/file") == "file29\nkept\n29\nkept"
    depth = await say(container, "grep -c . /proc/mounts; grep -o '/layers/' /proc/mounts | wc -l")
    assert int(depth.split()[1]) <= 24


async def test_a_snapshot_of_what_is_being_written_is_one_moment(backend: Bubblewrap):
    container = await backend.create(SandboxSpec())
    await say(container, "while :; do echo >>/tmp/first; echo >>last; done & sleep 0.2")
    copy = await backend.create(SandboxSpec(), await container.snapshot())
    first, last = (await say(copy, "cat /tmp/first | wc -l; cat last | wc -l")).split()
    assert int(first) - int(last) in (0, 1)
    # It goes on.
    assert (
        await say(container, "size() { cat last | wc -l; }; a=$(size); sleep 0.2; test $(size) -gt $a && echo on")
        == "on"
    )


async def test_a_tree_that_is_no_tree_for_people_is_an_error(backend: Bubblewrap):
    container = await backend.create(SandboxSpec())
    await say(container, f"python3 -c '{NESTING}'")
    with pytest.raises(SandboxUnavailable, match="nested"):
        await container.snapshot()
    assert await say(container, "rm -r d; echo usable") == "usable"
    assert await container.snapshot() is not None


async def test_roots_sandboxes_have_users_of_their_own_and_forks_that_of_their_family():
    backend = Bubblewrap(uids="1500000000-1500000099" if IS_ROOT else None)
    containers = [await backend.create(SandboxSpec()) for _ in range(3)]
    forks = [await backend.create(SandboxSpec(), await containers[0].snapshot()) for _ in range(2)]
    listed = [users_of(container) for container in (*containers, *forks)]
    assert all(len(users) == 1 for users in listed)
    users = [users.pop() for users in listed]
    if IS_ROOT:
        assert len(set(users[:3])) == 3
        assert all(user in range(1500000000, 1500000100) for user in users)
        assert users[3:] == [users[0]] * 2
        assert str(users[0]) in containers[0].limits_in_force["user"]
    await backend.close()
    with pytest.raises(InvalidArgument, match="range"):
        Bubblewrap(uids="5")


async def test_no_descriptor_is_left_in_here(backend: Bubblewrap):
    await (await backend.create(SandboxSpec())).destroy()
    gc.collect()  # what tests before this one have dropped
    before = descriptors()
    for _ in range(50):
        container = await backend.create(SandboxSpec())
        stream = await container.open(["bash"], {"PATH": "/usr/bin"})
        await container.control(":")
        await container.destroy()
        await container.destroy()
        stream.close()
    assert descriptors() <= before


async def test_one_is_killed_from_a_thread_without_waiting(backend: Bubblewrap):
    container = await backend.create(SandboxSpec())
    await say(container, "setsid sleep 4322 & (trap '' TERM INT HUP; sleep 4322) & kill -STOP $! ")
    below = processes_of(keeper_here())
    thread = threading.Thread(target=container.kill)
    thread.start()
    thread.join()
    assert not container.alive
    await until(lambda: sum(lives(pid) for pid in below) <= 2)
    with pytest.raises(SandboxLost):
        await container.open(["bash"], {"PATH": "/usr/bin"})


async def test_one_that_ends_by_itself_is_lost(backend: Bubblewrap):
    container = await backend.create(SandboxSpec())
    with pytest.raises(StreamEnded):
        await container.main.exchange(b"exit 3\n", lambda *_: False)
    await until(lambda: not container.alive)
    for use in (container.usage(), container.snapshot(), container.control(":")):
        with pytest.raises(SandboxLost):
            await use
    await container.destroy()


async def test_a_script_that_does_not_end_is_ended(backend: Bubblewrap):
    container = await backend.create(SandboxSpec())
    before = time.monotonic()
    with pytest.raises(SandboxLost, match=r"0\.3 s"):
        await container.control("sleep 4323", timeout=0.3)
    assert time.monotonic() - before < 5
    assert await container.control("echo again") == b"again\n"


async def test_the_keepers_end_is_everybodys_and_another_one_takes_its_place(backend: Bubblewrap):
    containers = [await backend.create(SandboxSpec()) for _ in range(3)]
    await say(containers[0], "setsid sleep 4324 &")
    below = processes_of(keeper_here())
    os.kill(max(keepers_of(keeper_here()), key=lambda pid: parent_and_start(pid)[1]), signal.SIGKILL)
    await until(lambda: not any(container.alive for container in containers))
    await until(lambda: not any(lives(pid) for pid in below))
    with pytest.raises(SandboxLost, match="ended"):
        await containers[0].usage()
    for container in containers:
        await container.destroy()
    assert await say(await backend.create(SandboxSpec()), "echo again") == "again"


async def test_a_killed_owner_leaves_nothing(owner: tuple[subprocess.Popen[str], list[str]]):
    process, names = owner
    below = processes_of(process.pid)
    assert len(below) >= 9
    process.kill()
    await until(lambda: not any(lives(pid) for pid in below))
    await until(lambda: not groups_of(*names))
    assert "gymhost" not in await asyncio.to_thread(Path("/proc/self/mounts").read_text)


async def test_a_keeper_removes_what_one_that_was_killed_left_behind(owner: tuple[subprocess.Popen[str], list[str]]):
    process, names = owner
    below = processes_of(process.pid)
    for pid in keepers_of(process.pid):
        os.kill(pid, signal.SIGKILL)
    await until(lambda: not any(lives(pid) for pid in below - {process.pid}))
    # Whatever keeper begins next, here or elsewhere on this machine.
    other = Bubblewrap()
    await other.create(SandboxSpec())
    await other.close()
    assert not groups_of(*names)


async def test_a_keeper_that_is_killed_while_a_sandbox_stands_still_leaves_no_process(backend: Bubblewrap):
    container = await backend.create(SandboxSpec())
    for group in groups_of(container.id):
        for file, value in (("freezer.state", "FROZEN"), ("cgroup.freeze", "1")):
            if (group / file).exists():
                (group / file).write_text(value)
    below = processes_of(keeper_here())
    os.kill(max(keepers_of(keeper_here()), key=lambda pid: parent_and_start(pid)[1]), signal.SIGKILL)
    await until(lambda: not any(lives(pid) for pid in below))
    # One that stands still can be destroyed too.
    container = await backend.create(SandboxSpec())
    await container.destroy()
    assert not groups_of(container.id)


async def test_an_interrupt_of_the_terminal_is_its_owners_affair(backend: Bubblewrap):
    container = await backend.create(SandboxSpec())
    for pid in keepers_of(keeper_here()):
        assert os.getsid(pid) != os.getsid(0)
        os.kill(pid, signal.SIGINT)
    assert await say(container, "echo still here") == "still here"


async def test_a_closed_backend_makes_no_more(backend: Bubblewrap):
    container = await backend.create(SandboxSpec())
    await backend.close()
    await backend.close()
    assert not container.alive
    await container.destroy()
    with pytest.raises(SandboxUnavailable, match="closed"):
        await backend.create(SandboxSpec())


@pytest.fixture
def old_program(tmp_path: Path) -> str:
    program = tmp_path / "bwrap"
    program.write_text("#!/bin/sh\necho bubblewrap 0.3.1\n")
    program.chmod(0o755)
    return str(program)


@pytest.mark.parametrize(("name", "words"), [("", "older than 0.8"), ("-gone", "option `bwrap`")], ids=["old", "gone"])
async def test_what_is_missing_is_said(old_program: str, name: str, words: str):
    problem = await Bubblewrap(bwrap=old_program + name).problem()
    assert problem is not None
    assert words in problem


WITHOUT_NAMESPACES = """
import os, sys
what = "from gymhost.envs.sandbox.bubblewrap import Bubblewrap"
inner = f"import asyncio; {what}; print(asyncio.run(Bubblewrap().problem()))"
lowered = 'echo 0 >/proc/sys/user/max_user_namespaces && exec "$@"'
same = [f"--map-user={os.geteuid()}", f"--map-group={os.getegid()}", "--keep-caps"]
# The setting belongs to a user namespace: it is lowered in one that is made for this.
os.execvp("unshare", ["unshare", "--user", *same, "bash", "-c", lowered, "bash", sys.executable, "-c", inner])
"""


def test_a_machine_without_user_namespaces_is_said_with_the_setting(user: OrdinaryUser):
    done = user.run("-c", WITHOUT_NAMESPACES)
    assert "user.max_user_namespaces" in done.stdout, done.stderr


ORDINARY = """
import asyncio, json
from gymhost.envs.sandbox.bubblewrap import Bubblewrap
from gymhost.envs.sandbox.spec import SandboxSpec

async def main():
    backend = Bubblewrap()
    containers = [await backend.create(SandboxSpec()) for _ in range(2)]
    said = []
    for container in containers:
        text = bytearray()
        take = lambda _, data: text.extend(data) or b"end" in text
        await container.main.exchange(b"id -u; ulimit -u; cat /proc/self/uid_map; echo hello >file; echo end\\n", take)
        said.append(text.decode())
    copy = await backend.create(SandboxSpec(), await containers[0].snapshot())
    text = bytearray()
    await copy.main.exchange(b"cat file\\n", lambda _, data: text.extend(data) or b"\\n" in text)
    print(json.dumps([dict(containers[0].limits_in_force), said, text.decode()]))
    await backend.close()

asyncio.run(main())
"""


def test_an_ordinary_user_has_them_too(user: OrdinaryUser):
    done = user.run("-c", ORDINARY)
    assert done.returncode == 0, done.stderr
    force, said, copied = json.loads(done.stdout)
    assert [text.split()[:3] for text in said] == [["1000", "256", "1000"]] * 2
    assert copied == "hello\n"
    assert f"own user, {user.uid}" in force["user"]
    assert force["seccomp"]


async def test_a_keeper_that_can_not_be_started_is_an_error_of_sandboxes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "executable", "/not/there/python")
    with pytest.raises(SandboxUnavailable, match=r"could not be started: .*/not/there/python"):
        await Bubblewrap().create(SandboxSpec())
