"""Attempts to get out of a bubblewrap sandbox: to look, reach or write where it should not."""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest

from support import attacks
from support.arena import MARK, Arena, an_arena
from support.server import PATIENCE, until

PYTHON = str(Path(sys.executable).resolve())


@pytest.fixture
async def arena() -> AsyncGenerator[Arena]:
    async with an_arena() as arena:
        yield arena


@pytest.fixture
def bystander() -> Generator[subprocess.Popen[bytes]]:
    """A process of the host's, with a mark on its command line and in its environment."""
    with subprocess.Popen(["sleep", "1000"], env={"SECRET": MARK, "PATH": os.environ["PATH"]}) as process:
        yield process
        assert process.poll() is None
        process.kill()


@pytest.fixture
def secrets(tmp_path: Path) -> Generator[list[Path]]:
    """Files of the host's that everybody may read."""
    places = [tmp_path / "secret", *(Path(folder, MARK) for folder in ("/tmp", "/dev/shm", "/var/tmp"))]
    try:
        for place in places:
            place.write_text(f"content of {MARK}")
            place.chmod(0o644)
        yield places
    finally:
        for place in places:
            place.unlink(missing_ok=True)


@pytest.fixture
def system_files() -> Generator[None]:
    """Sees that what attacks are after is as it was."""
    files = [Path("/etc/passwd"), Path("/usr/bin/env"), Path("/proc/sys/kernel/core_pattern")]
    before = [file.read_bytes() for file in files]
    yield
    assert [file.read_bytes() for file in files] == before
    assert [folder for folder in ("/usr", "/usr/bin", "/etc", "/sys") if Path(folder, MARK).exists()] == []


async def test_files_of_the_host_are_not_there(arena: Arena, secrets: list[Path]) -> None:
    said = await arena.said(["bash", "-c", attacks.LOOK_FOR_FILES, "bash", *map(str, secrets)])
    assert "content of" not in said
    assert not [line for line in said.splitlines() if line.startswith("root:") and ":x:0:0:" not in line]
    listed = (await arena.said("ls -A /dev /home /root /run /var/tmp /dev/shm /tmp 2>/dev/null")).split()
    assert MARK not in listed
    assert not {"mem", "kmem", "sda", "vda", "port", "loop0", "kvm", "fuse", "kmsg", "vsock"}.intersection(listed)


@pytest.mark.usefixtures("system_files")
async def test_what_belongs_to_the_system_can_not_be_written(arena: Arena) -> None:
    assert await arena.said(["bash", "-c", attacks.WRITE_TO_SYSTEM, "bash", MARK]) == "tried\n"
    # The files' operations go by the same rules.
    await arena.attacked.run(["ln", "-sf", "/etc/passwd", "link"])
    for path in ("link", f"../../../../usr/{MARK}", f"/proc/1/root/usr/{MARK}", "/proc/sys/kernel/core_pattern"):
        with pytest.raises(OSError, match=r".+"):
            await arena.attacked.write(path, b"x")


async def test_processes_of_the_host_are_neither_seen_nor_reached(
    arena: Arena, bystander: subprocess.Popen[bytes]
) -> None:
    pids = [str(pid) for pid in (bystander.pid, os.getpid(), os.getppid())]
    said = await arena.said(["bash", "-c", attacks.KILL_OTHERS, "bash", *pids])
    assert MARK not in said
    assert not {f"killed {pid}" for pid in pids}.intersection(said.splitlines())
    listed = await arena.said("echo /proc/[0-9]*")
    assert len(listed.split()) < 10
    assert bystander.poll() is None


async def test_the_network_is_not_reached(arena: Arena) -> None:
    heard: list[str] = []

    class Listening(asyncio.DatagramProtocol):
        def datagram_received(self, data: bytes, addr: object) -> None:
            heard.append(f"UDP {addr}")

    async def connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append("connected")
        writer.close()

    loop = asyncio.get_running_loop()
    tcp = await asyncio.start_server(connected, "0.0.0.0", 0)
    port = tcp.sockets[0].getsockname()[1]
    udp, _ = await loop.create_datagram_endpoint(Listening, ("0.0.0.0", port))
    abstract = await asyncio.start_unix_server(connected, f"\0{MARK}")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        # Nothing is sent: this finds the address that the host has for others.
        with contextlib.suppress(OSError):
            asked.connect(("198.51.100.1", 9))
        own = asked.getsockname()[0]
    try:
        assert await arena.python(attacks.NETWORK, str(port), MARK, own, timeout=40.0) == ["tried"]
        interfaces = await arena.said("tail -n +3 /proc/net/dev")
        assert [line.split(":")[0].strip() for line in interfaces.splitlines()] == ["lo"]
        assert heard == []
        # It would have been heard.
        with socket.create_connection(("127.0.0.1", port)), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"x", ("127.0.0.1", port))
            await until(lambda: len(heard) == 2)
    finally:
        udp.close()
        for server in (tcp, abstract):
            server.close()
            await server.wait_closed()


async def test_a_port_that_is_kept_is_the_sandboxs_own(arena: Arena) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    keep = f"import socket, time; s = socket.create_server(('', {port})); print('kept', flush=True); time.sleep(1000)"
    waiting = "until grep -qs kept kept-port; do :; done"
    assert await arena.said(f'setsid python3 -c "{keep}" >kept-port 2>&1 & {waiting}') == ""
    again = f"import socket; socket.create_connection(('127.0.0.1', {port}))"
    for sandbox, reached in ((arena.attacked, True), (arena.beside, False)):
        assert (await sandbox.run(["python3", "-c", again])).ok == reached
    with socket.create_server(("127.0.0.1", port)):
        pass


async def test_calls_of_the_kernel_that_could_lead_out_are_refused(arena: Arena) -> None:
    assert await arena.python(attacks.SYSCALLS) == ["tried 39"]


async def test_programs_that_give_rights_give_none(arena: Arena) -> None:
    said = await arena.said(["bash", "-c", attacks.GET_RIGHTS], timeout=30.0)
    lines = said.splitlines()
    status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    assert {name: int(value, 16) for name, value in status.items() if name.startswith("Cap")} == dict.fromkeys(
        ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"), 0
    )
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    assert status["Uid"].split() == ["1000"] * 4
    assert "0" not in lines


async def test_a_process_that_is_put_into_the_sandbox_shows_nothing_of_the_host(arena: Arena) -> None:
    # What the process that makes others has in its memory, and is nowhere in a sandbox.
    module = "gymhost.envs.sandbox.bubblewrap"
    arguments = [module.encode().hex(), __file__, PYTHON]
    prying = asyncio.create_task(arena.python(attacks.PRYING, "2", *arguments, timeout=30.0))
    while not prying.done():
        shell = await arena.attacked.shell()
        runs = [arena.attacked.run(["echo", "in"], timeout=PATIENCE) for _ in range(4)]
        assert [result.stdout for result in await asyncio.gather(*runs)] == ["in\n"] * 4
        await shell.close()
    *found, looked = await prying
    assert found == []
    assert int(looked.removeprefix("looked ")) > 100
