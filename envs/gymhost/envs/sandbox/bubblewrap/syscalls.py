"""The system calls that Python has no functions for. Standard library alone: the keeper uses it."""

import ctypes
import os
import resource
import signal

__all__ = [
    "CLONE_NEWCGROUP",
    "CLONE_NEWIPC",
    "CLONE_NEWNET",
    "CLONE_NEWNS",
    "CLONE_NEWPID",
    "CLONE_NEWUSER",
    "CLONE_NEWUTS",
    "MS_BIND",
    "MS_NODEV",
    "MS_NOEXEC",
    "MS_NOSUID",
    "MS_PRIVATE",
    "MS_RDONLY",
    "MS_REC",
    "bind",
    "die_with_parent",
    "drop_capabilities",
    "end_first",
    "fresh_signals",
    "hide_memory",
    "limit",
    "many_files",
    "mount",
    "no_new_privileges",
    "pivot_root",
    "rename",
    "seccomp",
    "setns",
    "unmount",
    "unshare",
]

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000
MNT_DETACH = 0x2

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4
SECCOMP_MODE_FILTER = 2
CAPABILITY_VERSION_3 = 0x20080522
LAST_CAPABILITY = 63

# pivot_root has no function in the C library. These architectures have a number of their own for it; the newer ones
# share one.
_PIVOT_ROOT = {"x86_64": 155, "ppc64le": 203, "s390x": 217}.get(os.uname().machine, 41)

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p]
_libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def _checked(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def unshare(flags: int) -> None:
    """Gives this process namespaces of its own."""
    _checked(_libc.unshare(flags), "unshare")


def setns(descriptor: int, flags: int) -> None:
    """Enters namespaces: those of a process, by its pidfd, or one by its file."""
    _checked(_libc.setns(descriptor, flags), "setns")


def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    """Mounts a file system."""
    arguments = (source.encode(), target.encode(), kind.encode() if kind else None, flags, options.encode() or None)
    _checked(_libc.mount(*arguments), f"mount {kind or source} on {target}")


def bind(source: str, target: str) -> None:
    """Has a folder or file, and what is mounted below it, be seen at another place too."""
    mount(source, target, None, MS_BIND | MS_REC)


def unmount(target: str) -> None:
    """Unmounts a file system and all below it, at once or when nobody uses it any more."""
    _checked(_libc.umount2(target.encode(), MNT_DETACH), f"unmount {target}")


def pivot_root(new: str, old: str) -> None:
    """Makes a mount the root and moves the old root into it."""
    _checked(_libc.syscall(_PIVOT_ROOT, new.encode(), old.encode()), "pivot_root")


def die_with_parent() -> None:
    """Has the kernel kill this process when its parent is gone."""
    _checked(_libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")


def hide_memory() -> None:
    """Keeps other processes from this one's memory and descriptors, until it is another program."""
    _checked(_libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0), "prctl")


def no_new_privileges() -> None:
    """Has set-user-id programs and file capabilities give nothing."""
    _checked(_libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")


def drop_capabilities() -> None:
    """Gives up all capabilities, for good."""
    for number in range(LAST_CAPABILITY + 1):
        if _libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0) != 0:
            break  # the kernel knows no more
    _libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    _checked(_libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")


def seccomp(program: bytes) -> None:
    """Has this process's system calls filtered."""
    filters = _Program(len(program) // 8, program)
    address = ctypes.cast(ctypes.pointer(filters), ctypes.c_void_p).value or 0
    _checked(_libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, address, 0, 0), "seccomp")


def limit(name: str, value: int) -> None:
    """Sets a limit of this process's, or the most that it may set where that is less."""
    number: int = getattr(resource, f"RLIMIT_{name}")
    _, hard = resource.getrlimit(number)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(number, (value, value))


def end_first(score: int) -> None:
    """Has the kernel end this process and its children before others when all of the machine's memory is used up."""
    with open("/proc/self/oom_score_adj", "r+") as file:
        if int(file.read()) < score:
            file.write(str(score))


def rename(title: str) -> None:
    """Has this process be listed with a title in place of its arguments, also by its children until they are others."""
    with open("/proc/self/stat") as file:
        # After the program's name, which may have spaces in it, come the fields from the third one on.
        start, end = (int(word) for word in file.read().rpartition(")")[2].split()[45:47])
    if 0 < start < end:
        ctypes.memmove(start, title.encode()[: end - start - 1].ljust(end - start, b"\0"), end - start)


def many_files() -> None:
    """Has this process open as many files as it ever may."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def fresh_signals() -> None:
    """Has all signals do what they do by default: what is ignored would stay so in other programs, shells too."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if signal.getsignal(number) not in (signal.SIG_DFL, None):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
