"""The filter of system calls for what runs in a sandbox."""

import errno
import functools
import importlib
import socket
import tempfile
from collections.abc import Mapping
from types import ModuleType

from gymhost.envs.sandbox.spec import Network
from gymhost.wire.errors import SandboxUnavailable

__all__ = ["library", "program"]

# Refused with EPERM. What an architecture does not have is passed over.
REFUSED = {
    "mounts and namespaces": """
        mount umount umount2 pivot_root chroot mount_setattr move_mount open_tree open_tree_attr fsopen fsconfig fsmount
        fspick unshare setns""",
    "other processes": "ptrace process_vm_readv process_vm_writev process_madvise pidfd_getfd kcmp",
    "parts of the kernel with a long record of holes, or with what is nobody's and there for all": """
        keyctl add_key request_key bpf perf_event_open userfaultfd io_uring_setup io_uring_enter io_uring_register
        io_setup lookup_dcookie fanotify_init vmsplice nfsservctl remap_file_pages""",
    "the machine itself": """
        kexec_load kexec_file_load init_module finit_module delete_module create_module query_module get_kernel_syms
        reboot swapon swapoff acct quotactl quotactl_fd open_by_handle_at syslog sethostname setdomainname settimeofday
        clock_settime clock_settime64 clock_adjtime clock_adjtime64 adjtimex stime iopl ioperm vhangup vm86 vm86old
        modify_ldt uselib ustat sysfs _sysctl""",
    "where memory lies": "mbind set_mempolicy set_mempolicy_home_node migrate_pages move_pages",
}

# Calls that libraries older than they are have no names for; the newer ones have one number on all architectures.
NUMBERS = {"open_tree_attr": 467, "set_mempolicy_home_node": 450, "quotactl_fd": 443, "mount_setattr": 442}

# With a new namespace among them, `clone` makes one.
CLONE_FLAGS = (0x80, 0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)

# Requests of `ioctl` that put input into a terminal.
TIOCSTI, TIOCLINUX = 0x5412, 0x541C

# What is refused of `personality`: all but 0, the usual one, and 0xFFFFFFFF, which asks. All others have a bit whose
# neighbour is missing.
PERSONALITIES = tuple((3 << bit if bit < 31 else 1 << 31 | 1, 1 << bit) for bit in range(32))

# Sockets that stay within the namespaces. VM sockets, the kernel's ciphers and others know no network namespace.
LOCAL_FAMILIES = (socket.AF_UNIX, 16)  # 16: netlink, which tells programs of the interfaces
INTERNET_FAMILIES = (socket.AF_INET, socket.AF_INET6)
LAST_FAMILY = 64

# What the sockets of a family may speak. Others are parts of the kernel that are loaded for whoever asks for them.
NETLINK_PROTOCOLS = (0, 4)  # 0: interfaces and routes; 4: which sockets there are
INTERNET_PROTOCOLS = (0, socket.IPPROTO_ICMP, socket.IPPROTO_TCP, socket.IPPROTO_UDP, socket.IPPROTO_ICMPV6)
PROTOCOLS: Mapping[int, tuple[int, ...]] = {
    16: NETLINK_PROTOCOLS,
    **dict.fromkeys(INTERNET_FAMILIES, INTERNET_PROTOCOLS),
}

# Options by which a socket gets a program that filters: those are compiled into memory that is nobody's, and of which
# there is little for all, such as for the filters of further sandboxes.
SOCKET_FILTERS = (26, 50, 51, 52)


def library() -> ModuleType:
    """Returns pyseccomp.

    Raises:
        SandboxUnavailable: It, or the library that it needs, is not there; the message says what to install.
    """
    try:
        return importlib.import_module("pyseccomp")
    except ImportError as error:
        raise SandboxUnavailable("bubblewrap needs pyseccomp: install gymhost[sandbox]") from error
    except (OSError, RuntimeError) as error:
        raise SandboxUnavailable(
            "bubblewrap needs the library libseccomp.so.2: install the system's package libseccomp2 (or libseccomp)"
        ) from error


@functools.cache
def program(network: Network) -> bytes:
    """Returns the filter as the kernel's instructions.

    Raises:
        SandboxUnavailable: The library is not there.
    """
    lib = library()
    # Other architectures' calls, 32-bit ones on x86-64 too, end the process: that is the library's default.
    filters = lib.SyscallFilter(defaction=lib.ALLOW)
    refused = lib.ERRNO(errno.EPERM)

    add = filters.add_rule
    for call in " ".join(REFUSED.values()).split():
        try:
            add(refused, NUMBERS.get(call, call))
        except (OSError, ValueError, RuntimeError):
            pass  # no call of this architecture
    for flag in CLONE_FLAGS:
        add(refused, "clone", lib.Arg(0, lib.MASKED_EQ, flag, flag))
    # Its flags lie in memory, where no filter can look: C libraries fall back to `clone`.
    add(lib.ERRNO(errno.ENOSYS), "clone3")
    for request in (TIOCSTI, TIOCLINUX):
        # The kernel looks at the lower 32 bits alone.
        add(refused, "ioctl", lib.Arg(1, lib.MASKED_EQ, 0xFFFFFFFF, request))
    for mask, value in PERSONALITIES:
        add(refused, "personality", lib.Arg(0, lib.MASKED_EQ, mask, value))
    # The limits of other processes, such as the first one, which has to start what is asked for.
    add(refused, "prlimit64", lib.Arg(0, lib.NE, 0))
    families = {*LOCAL_FAMILIES, *(INTERNET_FAMILIES if network == "loopback" else ())}
    add(lib.ERRNO(errno.EAFNOSUPPORT), "socket", lib.Arg(0, lib.GT, LAST_FAMILY))
    for family in range(LAST_FAMILY + 1):
        if family not in families:
            add(lib.ERRNO(errno.EAFNOSUPPORT), "socket", lib.Arg(0, lib.MASKED_EQ, 0xFFFFFFFF, family))
    # This makes sockets of the family before it finds that they can't be a pair.
    add(lib.ERRNO(errno.EAFNOSUPPORT), "socketpair", lib.Arg(0, lib.NE, socket.AF_UNIX))
    for option in SOCKET_FILTERS:
        of_sockets = lib.Arg(1, lib.MASKED_EQ, 0xFFFFFFFF, socket.SOL_SOCKET)
        add(refused, "setsockopt", of_sockets, lib.Arg(2, lib.MASKED_EQ, 0xFFFFFFFF, option))
    for family in families.intersection(PROTOCOLS):
        allowed = PROTOCOLS[family]
        of_family = lib.Arg(0, lib.MASKED_EQ, 0xFFFFFFFF, family)
        others = [lib.Arg(2, lib.MASKED_EQ, 0xFFFFFFFF, each) for each in range(max(allowed)) if each not in allowed]
        for protocol in (*others, lib.Arg(2, lib.GT, max(allowed))):
            add(lib.ERRNO(errno.EPROTONOSUPPORT), "socket", of_family, protocol)
    with tempfile.TemporaryFile() as file:
        filters.export_bpf(file)
        file.seek(0)
        return file.read()
