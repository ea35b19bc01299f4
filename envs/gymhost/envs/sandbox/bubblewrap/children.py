"""What the keeper's children do before they become other programs. Standard library alone: the keeper uses it.

A child never returns. What goes wrong before it is bubblewrap it says where the sandbox's standard error goes, as
bubblewrap does; one that was to join a sandbox says it through a pipe that closes when it is another program.

Whoever is in a sandbox sees a process as soon as it is in its process namespace, with the mounts and the network that
it has then. So one that joins is in all the other namespaces before: a child is, which starts it and ends.
"""

import errno
import fcntl
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gymhost.envs.sandbox.bubblewrap import layers, syscalls
from gymhost.envs.sandbox.bubblewrap.cgroups import Group
from gymhost.envs.sandbox.bubblewrap.terms import BOX

__all__ = ["COPY_LIMIT", "Plan", "become_bwrap", "copying", "in_memory", "join", "run"]

# The status of a child that failed for a reason without a number.
FAILED = 125

# Seconds that copying what a sandbox has written may take.
COPY_LIMIT = 100

# Terminals that a sandbox may have.
TERMINALS = 64

# All processes of a sandbox go before any of the host's own when the host's memory is used up.
_END_FIRST = 500

# Descriptors are moved beyond this one before they get the numbers that they shall have.
_BEYOND = 64

# All namespaces of a sandbox but the one of users, in which nobody has a right to join groups. That of processes is for
# children.
_NAMESPACES = (
    syscalls.CLONE_NEWPID
    | syscalls.CLONE_NEWNS
    | syscalls.CLONE_NEWNET
    | syscalls.CLONE_NEWIPC
    | syscalls.CLONE_NEWUTS
    | syscalls.CLONE_NEWCGROUP
)


@dataclass(frozen=True)
class Plan:
    """What the worker asks for.

    Attributes:
        options: Bubblewrap's options.
        command: What it runs.
        uid: The user id of the host to run as; None for the keeper's own.
        user: The one inside.
        disk: Bytes of what may be written.
        rlimits: Limits of each process, by their names without `RLIMIT_`.
        processes: How many processes there may be, where no group holds that.
        image: The root file system; None for the host's own system.
        workdir: The working folder.
        etc: The folder for what is made up of /etc.
        points: Where something is mounted in the image, and whether that is a folder.
        mounts: What is mounted there, from the host.
        more: How many folders it may write to besides the usual ones.
    """

    options: Sequence[str]
    command: Sequence[str]
    uid: int | None
    user: int
    disk: int
    rlimits: Mapping[str, int]
    processes: int | None
    image: str | None
    workdir: str
    etc: str
    points: Sequence[tuple[str, bool]]
    mounts: Sequence[str]
    more: int


def run(work: Callable[[], None]) -> int:
    """Starts a child that does some work and ends, and returns its process id.

    Its status is 0 where all went well, else the number of the error where it has one.
    """
    pid = os.fork()
    if pid != 0:
        return pid
    status = FAILED
    try:
        work()
        status = 0
    except BaseException as error:  # noqa: BLE001 - it must not go on as a second keeper
        if isinstance(error, OSError) and error.errno is not None:
            status = min(error.errno, FAILED)
        print(f"gymhost: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(status)


def in_memory(data: bytes) -> int:
    """Returns a file with some bytes, at its beginning."""
    descriptor = os.memfd_create("gymhost")
    os.write(descriptor, data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def copying(work: Callable[[], None]) -> tuple[int, Callable[[], str]]:
    """Starts a child, and returns its process id and what tells, once at its end, what it said of its failure."""
    file = os.memfd_create("gymhost")

    def speaking() -> None:
        os.dup2(file, 2)
        signal.alarm(COPY_LIMIT)
        work()

    def said() -> str:
        try:
            return os.pread(file, 4096, 0).decode(errors="replace").removeprefix("gymhost: ").strip()
        finally:
            os.close(file)

    return run(speaking), said


def become_bwrap(
    plan: Plan,
    bwrap: str,
    group: Group | None,
    stack: Sequence[str],
    overlays: bool,
    pipes: Sequence[int],
    extra: Sequence[int],
) -> None:
    """Makes what a sandbox writes to, gives up all rights, and becomes bubblewrap.

    Args:
        plan: What was asked for.
        bwrap: Bubblewrap.
        group: The control group to be in.
        stack: The layers to begin with, the topmost first.
        overlays: Whether they are mounted as overlays; else there is one, and it is copied.
        pipes: The standard streams.
        extra: Bubblewrap's options, the filter and where it tells of the process that it starts.
    """
    for number, pipe in enumerate(pipes):
        os.dup2(pipe, number)
    syscalls.end_first(_END_FIRST)
    syscalls.hide_memory()
    if group is not None:
        group.enter()
    syscalls.unshare(syscalls.CLONE_NEWNS)
    _make_box(plan, stack, overlays)
    _arrange([0, 1, 2, *extra])
    _lower(plan.rlimits)
    if plan.uid is not None:
        os.setresgid(plan.uid, plan.uid, plan.uid)
        os.setresuid(plan.uid, plan.uid, plan.uid)
    syscalls.no_new_privileges()
    syscalls.die_with_parent()
    os.execve(bwrap, [bwrap, "--args", "3", "--", *plan.command], {})


def _make_box(plan: Plan, stack: Sequence[str], overlays: bool) -> None:
    inodes = plan.disk // 4096 + 1024
    flags = syscalls.MS_NOSUID | syscalls.MS_NODEV
    syscalls.mount("tmpfs", BOX, "tmpfs", flags, f"size={plan.disk},nr_inodes={inodes},mode=0755")
    for folder, mode in (("work", 0o755), ("tmp", 0o1777), ("shm", 0o1777)):
        if folder == "shm" or not stack:
            _owned(f"{BOX}/{folder}", mode, plan.uid)
        elif overlays:
            for path in (f"{BOX}/up", f"{BOX}/scratch", f"{BOX}/scratch/{folder}", f"{BOX}/{folder}"):
                os.makedirs(path, exist_ok=True)
            status = os.stat(f"{stack[0]}/{folder}")
            _owned(f"{BOX}/up/{folder}", status.st_mode & 0o7777, plan.uid)
            lower = layers.stacked(stack, folder)
            os.utime(f"{BOX}/up/{folder}", ns=(status.st_atime_ns, status.st_mtime_ns))
            layers.overlay(f"{BOX}/{folder}", lower, f"{BOX}/up/{folder}", f"{BOX}/scratch/{folder}")
        else:
            layers.copy_tree(f"{stack[0]}/{folder}", f"{BOX}/{folder}", marks=False)
    os.mkdir(f"{BOX}/more")
    for number in range(plan.more):
        _owned(f"{BOX}/more/{number}", 0o755, plan.uid)
    # The machine has a few thousand terminals for all, and bubblewrap's own way sets no limit.
    os.mkdir(f"{BOX}/pts")
    flags = syscalls.MS_NOSUID | syscalls.MS_NOEXEC
    syscalls.mount("devpts", f"{BOX}/pts", "devpts", flags, f"newinstance,ptmxmode=0666,mode=0620,max={TERMINALS}")
    for number, source in enumerate(plan.mounts):
        _bind(source, f"{BOX}/mounts/{number}")
    if plan.image is not None:
        _make_root(plan, plan.image)


def _owned(path: str, mode: int, uid: int | None) -> None:
    os.mkdir(path)
    if uid is not None:
        os.chown(path, uid, uid)
    os.chmod(path, mode)


def _bind(source: str, target: str) -> None:
    """Has it be seen where whoever runs bubblewrap can reach it: on its own path there may be no way for them."""
    _make_point(target, os.path.isdir(source))
    syscalls.bind(source, target)


def _make_point(path: str, is_folder: bool) -> None:
    """Makes what something is mounted on."""
    if is_folder:
        os.makedirs(path, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))


def _check_links(image: str, point: str) -> None:
    """Refuses a place that is reached by a link: a folder of its name would hide the link, and all that it leads to."""
    path = ""
    for name in point.split("/")[1:]:
        path += f"/{name}"
        if os.path.islink(image + path):
            raise OSError(errno.ELOOP, f"nothing can be mounted on {point}: {path} is a link in the image")


def _lines_of(text: str, user: int) -> list[str]:
    return [line for line in text.splitlines() if line.split(":")[2:3] == [str(user)]]


def _make_root(plan: Plan, image: str) -> None:
    """Lays the places of mounts and what is made up of /etc over an image."""
    top, lower = f"{BOX}/top", f"{BOX}/image"
    _bind(image, lower)
    os.makedirs(f"{BOX}/root")
    for point, is_folder in plan.points:
        _check_links(lower, point)
        _make_point(top + point, is_folder)
    # Else what is read of it would be the host's.
    _check_links(lower, "/etc")
    os.makedirs(f"{top}/etc", exist_ok=True)
    for name in ("hosts", "hostname", "resolv.conf"):
        _write(f"{top}/etc/{name}", _read(f"{plan.etc}/{name}"))
    for name in ("passwd", "group"):
        own = _read(f"{lower}/etc/{name}")
        if not _lines_of(own, plan.user):
            own += "".join(f"{line}\n" for line in _lines_of(_read(f"{plan.etc}/{name}"), plan.user))
        _write(f"{top}/etc/{name}", own)
    layers.overlay(f"{BOX}/root", [top, lower])


def _read(path: str) -> str:
    try:
        # An image's own links must not lead out of it.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    with open(descriptor, errors="replace") as file:
        return file.read(2**20)


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def join(
    plan: Plan,
    pidfd: int,
    group: Group | None,
    program: bytes,
    argv: Sequence[str],
    env: Mapping[str, str],
    pipes: Sequence[int],
    tells: int,
) -> None:
    """Starts a process in a sandbox, with the rights of its own processes and no more, that becomes a program.

    Args:
        plan: What was asked for when the sandbox was made.
        pidfd: Its first process.
        group: The control group to be in.
        program: The filter of system calls.
        argv: The program and its arguments.
        env: Its environment.
        pipes: Its standard streams.
        tells: Where the process id is told, and the number and the text of what went wrong; each is a line of JSON.
    """
    try:
        syscalls.end_first(_END_FIRST)
        syscalls.hide_memory()
        _arrange(pipes)
        doors = group.doors() if group is not None else []
        _lower(plan.rlimits)
        syscalls.setns(pidfd, _NAMESPACES)
        if (pid := os.fork()) == 0:
            _enter(plan, pidfd, doors)
            syscalls.seccomp(program)
            os.execvpe(argv[0], list(argv), env)
        os.write(tells, f"{pid}\n".encode())
    except (OSError, ValueError) as error:
        code = error.errno if isinstance(error, OSError) else None
        reason = os.strerror(code) if code else str(error)
        os.write(tells, f"{json.dumps([code, f'{argv[0][:100]}: {reason[:200]}'])}\n".encode())
    os._exit(0)


def _enter(plan: Plan, pidfd: int, doors: Sequence[int]) -> None:
    """Becomes one of the processes of a sandbox: whoever is inside sees this one already."""
    os.setsid()
    for door in doors:
        os.write(door, b"0")
    if plan.processes is not None:
        syscalls.limit("NPROC", plan.processes)
    syscalls.setns(pidfd, syscalls.CLONE_NEWUSER)
    os.setresgid(plan.user, plan.user, plan.user)
    os.setresuid(plan.user, plan.user, plan.user)
    syscalls.no_new_privileges()
    syscalls.drop_capabilities()
    try:
        os.chdir(plan.workdir)
    except PermissionError:
        os.chdir("/")  # who is inside took the right from itself


def _lower(rlimits: Mapping[str, int]) -> None:
    syscalls.fresh_signals()
    os.umask(0o022)
    for name, value in rlimits.items():
        syscalls.limit(name, value)


def _arrange(descriptors: Sequence[int]) -> None:
    """Gives descriptors the numbers from 0 on; all others close with the next program."""
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _BEYOND) for descriptor in descriptors]
    for number, descriptor in enumerate(moved):
        os.dup2(descriptor, number)
