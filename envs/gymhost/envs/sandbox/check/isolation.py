"""Isolation: what runs inside sees, reaches and changes nothing of the host."""

import asyncio
import contextlib
import json
import socket
import subprocess
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

from gymhost.envs.sandbox.check.attempts import NETWORK, REFUSED_SOCKETS, REFUSED_SYSTEM_CALLS, SERVE
from gymhost.envs.sandbox.check.host import process_namespace
from gymhost.envs.sandbox.check.trial import Family, NotTried, Trial, new_mark, shown
from gymhost.wire.errors import Error, InvalidArgument

__all__ = ["FAMILY"]

FAMILY = Family("isolation")

# Reads files of the host by every way that is not plain; each argument is a path, each line of output a way and a text.
_READ_FILES = r"""
up=../../../../../../../../../../..
for path; do
    ln -sfn "$path" link
    for way in "$path" link "/proc/self/root$path" /proc/[0-9]*/root"$path" /proc/[0-9]*/cwd/$up"$path" \
        /proc/self/fd/*/$up"$path" "/dev/fd/../root$path"; do
        { IFS= read -r -t 1 text <"$way"; } 2>/dev/null || [[ -n $text ]] && printf '%s\t%s\n' "$way" "$text"
        text=
    done
done
for way in /proc/[0-9]*/fd/*; do
    [[ -f $way ]] && printf '%s\t%s\n' "$way" "$(head -c 200 "$way" 2>/dev/null | tr -d '\0\n')"
done
"""

# Looks for them wherever they may be seen by their names.
_FIND_FILES = r"""
find / -path /proc -prune -o -name "gymhost-secret-*" -exec grep -H . {} + 2>/dev/null | tr ':' '\t'
"""

# Standard input, output and error are its own; what else is open it was given.
_DESCRIPTORS = r"""
for open in /proc/$$/fd/*; do
    (( ${open##*/} > 2 )) && readlink "$open"
done
true
"""

_WRITE_SYSTEM = r"""
for folder in / /bin /boot /etc /lib /lib64 /opt /root /sbin /srv /sys /usr /usr/bin /usr/lib /usr/local; do
    [[ -d $folder ]] && { : >"$folder/$1"; } 2>/dev/null && echo "$folder"
done
true
"""

_KERNEL = r"""
for path in /proc/sysrq-trigger /proc/sys/kernel/core_pattern /proc/sys/kernel/hostname /proc/sys/vm/drop_caches \
    /sys/kernel/uevent_helper /sys/fs/cgroup/cgroup.procs /sys/fs/cgroup/memory/cgroup.procs; do
    { : >>"$path"; } 2>/dev/null && echo "$path can be written"
done
for path in /proc/kcore /dev/mem /dev/kmsg /dev/port; do
    { head -c 1 "$path" >/dev/null; } 2>/dev/null && echo "$path can be read"
done
for path in /run/docker.sock /var/run/docker.sock /run/podman/podman.sock /run/containerd/containerd.sock; do
    [[ -S $path ]] && echo "$path is there"
done
find /dev -type b 2>/dev/null | while read -r path; do echo "$path is a disk"; done
true
"""


@FAMILY.case("files of the host")
async def _files(trial: Trial) -> None:
    secrets = trial.secrets
    async with trial.sandbox() as sandbox:
        result = await sandbox.run(["bash", "-c", _READ_FILES, "bash", *secrets.files], timeout=20)
        trial.expect(result.limit is None, f"looking for them did not end: {shown(result)}")
        found = await sandbox.run(_FIND_FILES, timeout=20)
        if found.limit is not None:
            trial.note("There are too many files to look through them all")
        for line in result.stdout.splitlines() + found.stdout.splitlines():
            way, _, text = line.partition("\t")
            trial.expect(secrets.text not in text, f"a file of the host was read as {way}")
        for path in secrets.files:
            with contextlib.suppress(OSError, Error):
                trial.expect(
                    secrets.text.encode() not in await sandbox.read(path), f"read({path!r}) read the host's file"
                )


@FAMILY.case("variables of the server")
async def _variables(trial: Trial) -> None:
    look = "env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n'"
    async with trial.sandbox() as sandbox:
        seen = {"a command": (await sandbox.run(look, output_limit=2**22)).stdout}
        shell = await sandbox.shell()
        seen["the shell"] = (await shell.run(f"{look}; set", output_limit=2**22)).stdout
        with contextlib.suppress(NotTried):
            await trial.python_of(sandbox)
            python = await sandbox.python()
            seen["Python"] = (await python.run("import os; print(dict(os.environ))")).stdout
    for where, text in seen.items():
        for name, value in trial.secrets.variables.items():
            trial.expect(value not in text, f"{where} sees the value of {name}, a variable of this process")
    trial.expect("HOME=" in seen["a command"], "`env` did not show the sandbox's own variables")


@FAMILY.case("open files of the server")
async def _descriptors(trial: Trial) -> None:
    async with trial.sandbox() as sandbox:
        shell = await sandbox.shell()
        seen = {
            "a command": (await sandbox.run(["bash", "-c", _DESCRIPTORS])).stdout,
            "a line of shell": (await sandbox.run(f"bash -c '{_DESCRIPTORS}'")).stdout,
            "a command of the shell": (await shell.run(f"bash -c '{_DESCRIPTORS}'")).stdout,
        }
    for where, text in seen.items():
        for line in text.splitlines():
            trial.fault(f"{where} begins with {line} open")


@FAMILY.case("processes of the host")
async def _processes(trial: Trial) -> None:
    mark = new_mark()
    with _host_process(mark) as process:
        async with trial.sandbox() as sandbox:
            result = await sandbox.run("cat /proc/[0-9]*/cmdline | tr '\\0' ' '", output_limit=2**22)
            trial.expect(mark not in result.stdout, "the command lines of the host's processes are seen")
            # The same number may be that of a process inside.
            await sandbox.run(
                ["bash", "-c", f"kill -0 $1 && grep -q {mark} /proc/$1/cmdline || kill $1", "bash", str(process.pid)]
            )
            await asyncio.sleep(0.1)
            trial.expect(process.poll() is None, "a process of the host was ended by a signal from inside")
            first = await sandbox.run("readlink /proc/self/ns/pid")
            trial.expect(first.stdout.strip() != process_namespace(), "it has the process namespace of the host")


@FAMILY.case("rights")
async def _rights(trial: Trial) -> None:
    async with trial.sandbox() as sandbox:
        shell = await sandbox.shell()
        seen = {
            "a command": (await sandbox.run(["cat", "/proc/self/status"])).stdout,
            "the shell": (await shell.run("cat /proc/self/status")).stdout,
        }
        with contextlib.suppress(NotTried):
            await trial.python_of(sandbox)
            python = await sandbox.python()
            seen["Python"] = (await python.run("print(open('/proc/self/status').read())")).stdout
        filtered = bool(sandbox.limits_in_force.get("seccomp"))
    for where, text in seen.items():
        status = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        users = set(status.get("Uid", "").split())
        trial.expect(users == {str(trial.spec.user)}, f"{where} runs as the users {users}, not {trial.spec.user}")
        groups = {*status.get("Gid", "").split(), *status.get("Groups", "").split()}
        trial.expect("0" not in groups, f"{where} has the group 0")
        for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
            held = int(status.get(name, "0"), 16)
            trial.expect(not held, f"{where} has capabilities: {name} {held:#x}")
        trial.expect(status.get("NoNewPrivs", "").strip() == "1", f"{where} runs without no_new_privs")
        if filtered:
            trial.expect(status.get("Seccomp", "").strip() == "2", f"{where} runs without the filter of system calls")
    if not filtered:
        trial.advise("System calls are not filtered: install libseccomp and gymhost[sandbox], or use another backend")


@FAMILY.case("system calls")
async def _system_calls(trial: Trial) -> None:
    async with trial.sandbox() as sandbox:
        result = await trial.script(sandbox, REFUSED_SYSTEM_CALLS)
        if not trial.expect(result.ok, f"trying them gave {shown(result)}"):
            return
        by_rights, by_filter = json.loads(result.stdout)
        outcomes: dict[str, str] = by_rights | (by_filter if sandbox.limits_in_force.get("seccomp") else {})
        for name, outcome in outcomes.items():
            trial.expect(outcome != "allowed", f"{name} is allowed")


@FAMILY.case("the system is read-only")
async def _read_only(trial: Trial) -> None:
    name = f"gymhost-check-{new_mark()}"
    async with trial.sandbox() as sandbox:
        result = await sandbox.run(["bash", "-c", _WRITE_SYSTEM, "bash", name])
        for folder in result.stdout.splitlines():
            trial.fault(f"{folder} can be written")
            trial.expect(not _take_away(Path(folder, name)), f"{folder} of the host was written")


@FAMILY.case("devices and the kernel's files")
async def _kernel(trial: Trial) -> None:
    async with trial.sandbox() as sandbox:
        for line in (await sandbox.run(["bash", "-c", _KERNEL])).stdout.splitlines():
            trial.fault(line)


@FAMILY.case("networks")
async def _networks(trial: Trial) -> None:
    async with _listening() as (port, datagrams, name, received), trial.sandbox() as sandbox:
        interfaces = (await sandbox.run("tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '")).stdout.split()
        trial.expect(set(interfaces) <= {"lo"}, f"it has network interfaces: {', '.join(interfaces)}")
        reach = f"(echo tcp >/dev/tcp/127.0.0.1/{port}); (echo udp >/dev/udp/127.0.0.1/{datagrams})"
        await sandbox.run(["bash", "-c", reach])
        with contextlib.suppress(NotTried):
            await trial.script(sandbox, NETWORK, str(port), name)
        await asyncio.sleep(0.1)
        for what in sorted(received):
            trial.fault(f"a server on the host's loopback was reached by {what}")


@FAMILY.case("sockets of other kinds")
async def _sockets(trial: Trial) -> None:
    async with trial.sandbox() as sandbox:
        result = await trial.script(sandbox, REFUSED_SOCKETS)
        if not trial.expect(result.ok, f"trying them gave {shown(result)}"):
            return
        for name, outcome in json.loads(result.stdout).items():
            trial.expect(outcome != "allowed", f"a socket of {name} can be made")


@FAMILY.case("loopback, where asked for")
async def _loopback(trial: Trial) -> None:
    # The host holds the same port meanwhile, so that it can't be the host's loopback.
    async with _listening() as (port, _, _, received):
        try:
            sandbox = await trial.create(network="loopback")
        except InvalidArgument as refusal:
            raise NotTried(str(refusal)) from None
        try:
            python = await trial.python_of(sandbox)
            started = await sandbox.run(
                f"{python} -I -c '{SERVE}' {port} >log 2>&1 & "
                "for i in {1..200}; do grep -q ready log && break; sleep 0.02; done; cat log; "
                f"exec 3<>/dev/tcp/127.0.0.1/{port} && head -n 1 <&3",
                timeout=20,
            )
            trial.expect("answer" in started.stdout, f"a server inside was not reached by 127.0.0.1: {shown(started)}")
            trial.expect(not received, "a server on the host's loopback was reached")
            listed = (await sandbox.run("tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '")).stdout.split()
            trial.expect(set(listed) <= {"lo"}, f"it has network interfaces: {', '.join(listed)}")
        finally:
            await trial.destroy(sandbox)
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            again.bind(("127.0.0.1", port))
        except OSError as error:
            trial.fault(f"the port that was used inside is kept on the host: {error}")


@FAMILY.case("one sandbox and another")
async def _neighbours(trial: Trial) -> None:
    mark = new_mark()
    async with trial.sandbox() as one, trial.sandbox() as other:
        await one.run(f"echo {mark} | tee own >/tmp/own; chmod a+r own /tmp/own; sleep {mark} >/dev/null 2>&1 &")
        result = await other.run(
            "cat own /tmp/own /proc/[0-9]*/cmdline /proc/[0-9]*/root/tmp/own 2>/dev/null | tr '\\0' ' '"
        )
        trial.expect(mark not in result.stdout, "the files or processes of another sandbox are seen")
        kept = await one.run("cat own")
        trial.expect(kept.stdout.strip() == mark, f"a file is not kept: {shown(kept)}")


@contextlib.contextmanager
def _host_process(mark: str) -> Generator["subprocess.Popen[bytes]", None, None]:
    process = subprocess.Popen(["sleep", mark], stdin=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextlib.asynccontextmanager
async def _listening() -> AsyncGenerator[tuple[int, int, str, set[str]], None]:
    """Servers on the host: a port of TCP, one of UDP, an abstract Unix socket, and by what they were reached."""
    received: set[str] = set()
    name = f"gymhost-check-{new_mark()}"

    def reached(by: str):
        def note(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            received.add(by)
            writer.close()

        return note

    class Datagrams(asyncio.DatagramProtocol):
        def datagram_received(self, data: bytes, addr: object) -> None:
            received.add("UDP")

    loop = asyncio.get_running_loop()
    tcp = await asyncio.start_server(reached("TCP"), "127.0.0.1", 0)
    unix = await asyncio.start_unix_server(reached("an abstract Unix socket"), f"\0{name}")
    udp, _ = await loop.create_datagram_endpoint(Datagrams, ("127.0.0.1", 0))
    try:
        yield tcp.sockets[0].getsockname()[1], udp.get_extra_info("sockname")[1], name, received
    finally:
        udp.close()
        for server in (tcp, unix):
            server.close()
            await server.wait_closed()


def _take_away(path: Path) -> bool:
    """Whether a file was there; it no longer is."""
    with contextlib.suppress(OSError):
        path.unlink()
        return True
    return False
