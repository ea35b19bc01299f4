"""The filter of system calls, as a profile of Docker's: a list of what is allowed.

The engine's own profile depends on its version: older ones leave VM sockets and io_uring open, none refuses the
kernel's ciphers, and the network `none` is to have no Internet sockets at all.
"""

import atexit
import errno
import functools
import json
import socket
import tempfile
from typing import Any

from gymhost.envs.sandbox.bubblewrap.seccomp import INTERNET_FAMILIES, LAST_FAMILY, LOCAL_FAMILIES, PROTOCOLS
from gymhost.envs.sandbox.spec import Network

__all__ = ["ALLOWED", "profile", "profile_file"]

# What programs of 64-bit machines use. Left out is what bubblewrap's filter refuses, and what is not known yet.
_NAMES = """
    accept accept4 access alarm arch_prctl bind brk cachestat capget capset chdir chmod chown clock_getres
    clock_gettime clock_nanosleep close close_range connect copy_file_range creat dup dup2 dup3 epoll_create
    epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 epoll_wait eventfd eventfd2 execve execveat exit exit_group
    faccessat faccessat2 fadvise64 fallocate fchdir fchmod fchmodat fchmodat2 fchown fchownat fcntl fdatasync
    fgetxattr flistxattr flock fork fremovexattr fsetxattr fstat fstatfs fsync ftruncate futex futex_requeue
    futex_wait futex_waitv futex_wake futimesat get_mempolicy get_robust_list getcpu getcwd getdents getdents64
    getegid geteuid getgid getgroups getitimer getpeername getpgid getpgrp getpid getppid getpriority getrandom
    getresgid getresuid getrlimit getrusage getsid getsockname getsockopt gettid gettimeofday getuid getxattr
    getxattrat inotify_add_watch inotify_init inotify_init1 inotify_rm_watch ioctl ioprio_get ioprio_set kill
    landlock_add_rule landlock_create_ruleset landlock_restrict_self lchown lgetxattr link linkat listen listxattr
    listxattrat llistxattr lremovexattr lseek lsetxattr lstat madvise map_shadow_stack membarrier memfd_create
    mincore mkdir mkdirat mknod mknodat mlock mlock2 mlockall mmap mprotect mq_getsetattr mq_notify mq_open
    mq_timedreceive mq_timedsend mq_unlink mremap mseal msgctl msgget msgrcv msgsnd msync munlock munlockall munmap
    nanosleep newfstatat open openat openat2 pause pidfd_open pidfd_send_signal pipe pipe2 pkey_alloc pkey_free
    pkey_mprotect poll ppoll prctl pread64 preadv preadv2 prlimit64 process_mrelease pselect6 pwrite64 pwritev
    pwritev2 read readahead readlink readlinkat readv recvfrom recvmmsg recvmsg removexattr removexattrat rename
    renameat renameat2 restart_syscall rmdir rseq rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo
    rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_tgsigqueueinfo sched_get_priority_max sched_get_priority_min
    sched_getaffinity sched_getattr sched_getparam sched_getscheduler sched_rr_get_interval sched_setaffinity
    sched_setattr sched_setparam sched_setscheduler sched_yield seccomp select semctl semget semop semtimedop
    sendfile sendmmsg sendmsg sendto set_robust_list set_tid_address setfsgid setfsuid setgid setgroups setitimer
    setpgid setpriority setregid setresgid setresuid setreuid setrlimit setsid setsockopt setuid setxattr setxattrat
    shmat shmctl shmdt shmget shutdown sigaltstack signalfd signalfd4 splice stat statfs statx symlink symlinkat
    sync sync_file_range syncfs sysinfo tee tgkill time timer_create timer_delete timer_getoverrun timer_gettime
    timer_settime timerfd_create timerfd_gettime timerfd_settime times tkill truncate umask uname unlink unlinkat
    utime utimensat utimes vfork wait4 waitid write writev
"""
ALLOWED = _NAMES.split()

# Any flag for which `clone` makes a namespace.
_NAMESPACES = 0x7E020000

# What `personality` may be asked for: the usual one, without random addresses as debuggers want it, and to be told.
_PERSONALITIES = (0, 0x0040000, 0xFFFFFFFF)

# The kernel looks at no more than this of most arguments, whatever is in the upper half.
_LOWER_HALF = 0xFFFFFFFF


@functools.cache
def profile(network: Network) -> str:
    """Returns the profile. It names no architecture, so that the calls of any but the machine's own end the process."""
    families = (*LOCAL_FAMILIES, *(INTERNET_FAMILIES if network == "loopback" else ()))
    sockets = [(family, protocol) for family in families for protocol in PROTOCOLS.get(family, (None,))]
    others = set(range(LAST_FAMILY + 1)).difference(families)
    rules = [
        {"names": ALLOWED, "action": "SCMP_ACT_ALLOW"},
        _rule("clone", _NAMESPACES, 0),
        # Its flags lie in memory, where no filter can look: C libraries fall back to `clone`.
        {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": errno.ENOSYS},
        *(_rule("personality", _LOWER_HALF, persona) for persona in _PERSONALITIES),
        # It makes sockets of the family before it finds that they can't be a pair.
        _rule("socketpair", _LOWER_HALF, socket.AF_UNIX),
        *(_rule("socket", _LOWER_HALF, family, protocol=protocol) for family, protocol in sockets),
        *(_rule("socket", _LOWER_HALF, family, errno.EAFNOSUPPORT) for family in sorted(others)),
    ]
    return json.dumps({"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": errno.EPERM, "syscalls": rules})


@functools.cache
def profile_file(network: Network) -> str:
    """Returns the path of a file with the profile, which is there as long as this process: podman reads it itself."""
    file = tempfile.NamedTemporaryFile("w", prefix="gymhost-seccomp-", suffix=".json")  # noqa: SIM115
    atexit.register(file.close)
    file.write(profile(network))
    file.flush()
    return file.name


def _rule(call: str, mask: int, value: int, error: int | None = None, protocol: int | None = None) -> dict[str, Any]:
    """Allows a call where its first argument, as far as the mask goes, has a value; or refuses it with an error.

    Where a protocol is given, the third argument must be that.
    """
    arguments = [_equal(0, mask, value)] + ([] if protocol is None else [_equal(2, _LOWER_HALF, protocol)])
    rule: dict[str, Any] = {
        "names": [call],
        "action": "SCMP_ACT_ALLOW" if error is None else "SCMP_ACT_ERRNO",
        "args": arguments,
    }
    return rule if error is None else rule | {"errnoRet": error}


def _equal(index: int, mask: int, value: int) -> dict[str, Any]:
    return {"index": index, "value": mask, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"}
