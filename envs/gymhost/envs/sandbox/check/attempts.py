"""What is tried inside by Python scripts: system calls and sockets that a sandbox has no use for, ways to networks."""

__all__ = ["NETWORK", "REFUSED_SOCKETS", "REFUSED_SYSTEM_CALLS", "SERVE"]

# Each attempt runs in a child of its own and does no harm where it works. EINVAL and the like say that the kernel
# looked at the arguments, so that the call was allowed. First those that rights alone refuse, then those that a filter
# has to.
REFUSED_SYSTEM_CALLS = r"""
import ctypes, errno, json, os, platform

libc = ctypes.CDLL(None, use_errno=True)
os.makedirs("attempt/root", exist_ok=True)
REFUSALS = {errno.EPERM, errno.EACCES, errno.ENOSYS}
NEWNS, NEWUSER, NEWPID, NEWNET = 0x20000, 0x10000000, 0x20000000, 0x40000000


def outcome(call):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        code = 255
        try:
            ctypes.set_errno(0)
            code = ctypes.get_errno() or 254 if call() == -1 else 0
        except OSError as error:
            code = error.errno
        except BaseException:
            pass
        os.write(write, bytes([code]))
        os._exit(0)
    os.close(write)
    said = os.read(read, 1)
    os.close(read)
    os.waitpid(child, 0)
    # A filter may end the process instead of refusing the call.
    if not said or said[0] in REFUSALS:
        return "refused"
    return "allowed" if said[0] < 254 else "refused"


def peek():
    class Piece(ctypes.Structure):
        _fields_ = [("at", ctypes.c_void_p), ("size", ctypes.c_size_t)]
    with open("/proc/1/maps") as maps:
        address = int(maps.readline().split("-")[0], 16)
    buffer = ctypes.create_string_buffer(8)
    here, there = Piece(ctypes.addressof(buffer), 8), Piece(address, 8)
    return libc.process_vm_readv(1, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)


def attach():
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    done = libc.ptrace(16, 1, None, None)
    if done == 0:
        os.waitpid(1, 0x40000000)
        libc.ptrace(17, 1, None, None)
    return done


def chroot():
    os.chroot("attempt/root")


def mknod():
    os.mknod("attempt/disk", 0o60600, os.makedev(7, 0))


def become(call):
    done = call(0)
    # Where there is no such user inside, another reason is given.
    ctypes.set_errno(errno.EPERM)
    return done


RIGHTS = {
    "mount (tmpfs)": lambda: libc.mount(b"none", b"attempt/root", b"tmpfs", 0, None),
    "mount (bind)": lambda: libc.mount(b"/proc", b"attempt/root", None, 4096, None),
    "umount": lambda: libc.umount2(b"attempt/root", 0),
    "pivot_root": lambda: libc.syscall({"x86_64": 155}.get(platform.machine(), 41), b"attempt", b"attempt/root"),
    "chroot": chroot,
    "mknod (a disk)": mknod,
    "unshare (user namespace)": lambda: libc.unshare(NEWUSER),
    "unshare (mount namespace)": lambda: libc.unshare(NEWNS),
    "unshare (network namespace)": lambda: libc.unshare(NEWNET),
    "unshare (all)": lambda: libc.unshare(NEWUSER | NEWNS | NEWPID | NEWNET),
    "setuid 0": lambda: become(libc.setuid),
    "setgid 0": lambda: become(libc.setgid),
    "sethostname": lambda: libc.sethostname(b"other", 5),
    "init_module": lambda: libc.syscall({"x86_64": 175}.get(platform.machine(), 105), None, 0, b""),
    "kexec_load": lambda: libc.syscall({"x86_64": 246}.get(platform.machine(), 104), 0, 0, None, 0),
}
FILTER = {
    "ptrace of the first process": attach,
    "reading the memory of the first process": peek,
    "bpf": lambda: libc.syscall({"x86_64": 321}.get(platform.machine(), 280), 0, None, 0),
    "keyctl": lambda: libc.syscall({"x86_64": 250}.get(platform.machine(), 219), 0, -3, 0),
}
print(json.dumps([{name: outcome(call) for name, call in calls.items()} for calls in (RIGHTS, FILTER)]))
"""

REFUSED_SOCKETS = r"""
import json, socket

kinds = {
    "AF_VSOCK": (40, socket.SOCK_STREAM, 0),
    "AF_PACKET": (17, socket.SOCK_RAW, 0),
    "raw IPv4": (socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP),
    "raw IPv6": (socket.AF_INET6, socket.SOCK_RAW, 58),
}
outcomes = {}
for name, kind in kinds.items():
    try:
        socket.socket(*kind).close()
        outcomes[name] = "allowed"
    except OSError:
        outcomes[name] = "refused"
print(json.dumps(outcomes))
"""

# Arguments: a port of TCP on the host's loopback and the name of an abstract Unix socket there.
NETWORK = r"""
import socket, sys

port, name = int(sys.argv[1]), sys.argv[2]
ways = [(socket.AF_INET, (host, port)) for host in ("127.0.0.1", "127.1.2.3", "0.0.0.0", "localhost")]
ways += [(socket.AF_INET6, ("::1", port)), (socket.AF_INET6, ("::ffff:127.0.0.1", port)), (socket.AF_UNIX, "\0" + name)]
for family, address in ways:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as way:
            way.settimeout(0.5)
            way.connect(address)
    except OSError:
        pass
"""

# A server that answers one line, on the port that is its argument. It is put between single quotes.
SERVE = (
    "import socket, sys\n"
    'server = socket.create_server(("127.0.0.1", int(sys.argv[1])))\n'
    'print("ready", flush=True)\n'
    "while True:\n"
    '    server.accept()[0].sendall(b"answer\\n")'
)
