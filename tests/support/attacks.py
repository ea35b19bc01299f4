"""What tests run inside a sandbox to get out of it, or to be a nuisance: Bash first, then Python."""

# Files of the host's, by all names that could lead to them. It is given some.
LOOK_FOR_FILES = r"""
for root in '' /proc/self/root /proc/1/root /proc/1/cwd/../.. ../../../.. /proc/*/root; do
    for file in "$@" /etc/shadow /root/.bash_history; do cat "$root$file"; done
done
find / -xdev -type f -newermt '-1 hour' -not -path '/proc/*' -exec head -c 1000 {} +
for device in mem kmem port sda vda nvme0n1 kmsg; do head -c 1000 "/dev/$device"; done
head -c 1000 /proc/kcore /proc/keys /proc/kmsg
cat /proc/mounts
"""

# It is given a name that is nowhere yet, and says what it could open to write, or do. It changes nothing that matters.
WRITE_TO_SYSTEM = r"""
exec 3>&1 >/dev/null 2>&1
for file in /usr/$1 /usr/bin/env /usr/bin/$1 /bin/$1 /etc/passwd /etc/$1 /sys/$1 /sys/kernel/uevent_helper \
    /sys/kernel/mm/transparent_hugepage/enabled /sys/fs/cgroup/cgroup.procs /sys/fs/cgroup/memory/cgroup.procs \
    /proc/sys/kernel/core_pattern /proc/sys/kernel/hostname /proc/sys/vm/drop_caches /proc/sys/kernel/modprobe \
    /proc/sysrq-trigger /proc/irq/0/smp_affinity /dev/sda /dev/vda /dev/kmsg /dev/mem
do
    ln -sfn "$file" link
    for target in "$file" link "/proc/self/root$file" "/proc/1/root$file" /proc/self/cwd/link; do
        # What is no device is a file of the sandbox's own.
        if : >>"$target" && [[ $file != /dev/* || ! -f $target ]]; then echo "wrote $target" >&3; fi
    done
done
map_root() { echo 0 0 1 >/proc/self/uid_map; }
for command in "mknod disk b 8 0" "mknod /tmp/memory c 1 1" "chown 0 kept" "chmod 755 /usr" "touch /usr/bin/env" \
    "mkdir /usr/$1" "ln /usr/bin/env /usr/bin/$1" "ln /usr/bin/env hard" "chroot / true" map_root "hostname $1" \
    "mount -t tmpfs none /tmp" "mount --bind / /tmp" "mount -o remount,rw /usr" "umount /proc" "umount -l /dev"
do
    if $command; then echo "did $command" >&3; fi
done
echo tried >&3
"""

# Shows what it sees of other processes and kills them; it is given the ids of some.
KILL_OTHERS = r"""
cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ | tr '\0' '\n'
for pid in "$@" {2..4000}; do
    if [ "$pid" != $$ ] && kill -9 "$pid" 2>/dev/null; then echo "killed $pid"; fi
done
"""

# Shows the rights that a process has, and those that it can get.
GET_RIGHTS = r"""
grep -E '^(Cap|NoNewPrivs|Seccomp:|Uid|Groups)' /proc/self/status
for program in $(find /usr/bin /usr/sbin /usr/lib /usr/libexec -perm /6000 -type f); do
    timeout -s KILL 1 "$program" -c 'id -u' </dev/null
done 2>/dev/null
unshare -Ur id -u
nsenter -t 1 -a id -u
"""

# Python from here on; each prints what it has achieved.

# Calls of the kernel that would do something if they were allowed. Those above 400 have the same number everywhere.
SYSCALLS = """
import ctypes, mmap, os, platform, struct
libc = ctypes.CDLL(None, use_errno=True)
arm = platform.machine() == "aarch64"
zeros = ctypes.create_string_buffer(4096)
here = os.open("/tmp", os.O_RDONLY)
root = b"/"
attributes = ctypes.create_string_buffer(struct.pack("=II", 1, 120), 120)
parent = os.getppid()
loop = b"/tmp/attack"
os.makedirs(loop, exist_ok=True)
clone3 = ctypes.create_string_buffer(struct.pack("=11Q", 0x10000000, 0, 0, 0, 17, 0, 0, 0, 0, 0, 0), 88)
CALLS = {
    "unshare user": (97 if arm else 272, 0x10000000),
    "unshare mount": (97 if arm else 272, 0x00020000),
    "unshare network": (97 if arm else 272, 0x40000000),
    "clone3 user": (435, clone3, 88),
    "setns": (268 if arm else 308, os.open("/proc/self/ns/mnt", os.O_RDONLY), 0),
    "mount tmpfs": (40 if arm else 165, b"none", loop, b"tmpfs", 0, None),
    "mount bind": (40 if arm else 165, root, loop, None, 4096, None),
    "remount": (40 if arm else 165, None, b"/usr", None, 32 | 4096, None),
    "umount": (39 if arm else 166, b"/proc", 2),
    "pivot_root": (41 if arm else 155, loop, loop),
    "chroot": (51 if arm else 161, loop),
    "open_tree": (428, -100, root, 1),
    "move_mount": (429, here, b"", -100, loop, 4),
    "fsopen": (430, b"tmpfs", 0),
    "fspick": (433, -100, root, 0),
    "mount_setattr": (442, -100, b"/usr", 0, zeros, 32),
    "io_uring_setup": (425, 8, zeros),
    "bpf map": (280 if arm else 321, 0, ctypes.create_string_buffer(struct.pack("=IIII", 2, 4, 4, 1), 72), 72),
    "userfaultfd": (282 if arm else 323, 1),
    "keyctl join": (219 if arm else 250, 1, b"attack"),
    "add_key": (217 if arm else 248, b"user", b"attack", b"x", 1, -3),
    "request_key": (218 if arm else 249, b"user", b"attack", None, -3),
    "perf_event_open": (241 if arm else 298, attributes, 0, -1, -1, 0),
    "ptrace parent": (117 if arm else 101, 0x4206, parent, 0, 0),
    "ptrace first": (117 if arm else 101, 0x4206, 1, 0, 0),
    "open_by_handle_at": (265 if arm else 304, here, zeros, 0),
    "kexec_load": (104 if arm else 246, 0, 0, None, 0),
    "init_module": (105 if arm else 175, zeros, 4096, b""),
    "reboot": (142 if arm else 169, 0xFEE1DEAD, 672274793, 0x89ABCDEF, None),
    "swapon": (224 if arm else 167, loop, 0),
    "syslog": (116 if arm else 103, 3, zeros, 4096),
    "acct": (89 if arm else 163, None),
    "settimeofday": (170 if arm else 164, None, zeros),
    "sethostname": (161 if arm else 170, b"attack", 6),
    "quotactl": (60 if arm else 179, 0x800002, b"/dev/root", 0, zeros),
    "setuid": (146 if arm else 105, 0),
    "setgroups": (159 if arm else 116, 1, ctypes.create_string_buffer(struct.pack("=I", 0), 4)),
    "mknod disk": (33 if arm else 259, -100, b"/tmp/attack-disk", 0o60666, os.makedev(8, 0)),
    "nice": (140 if arm else 141, 0, 0, -20),
}
for name, (number, *arguments) in CALLS.items():
    if os.fork() == 0:
        result = libc.syscall(*(ctypes.c_long(a) if isinstance(a, int) else a for a in (number, *arguments)))
        if result >= 0:
            print(name, "returned", result, flush=True)
        os._exit(0)
    os.wait()
# The kernel's other interfaces for programs know the same calls by other numbers: "who am I" by 64 bits and by 32.
code = mmap.mmap(-1, 4096, prot=7)
code.write(bytes.fromhex("b814000000cd80c3"))
by_32_bits = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
for name, other in (("x32", lambda: libc.syscall(ctypes.c_long(0x40000000 + 39))), ("i386", by_32_bits)):
    if not arm and (child := os.fork()) == 0:
        os._exit(other() > 0)
    if not arm and os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1:
        print(name, "answers")
print("tried", len(CALLS))
"""

# Sockets of all kinds that could lead out. It is given the port of a server on the host, and an abstract name.
NETWORK = """
import socket, struct, sys
port, name = int(sys.argv[1]), sys.argv[2]
addresses = sys.argv[3:] + ["127.0.0.1", "169.254.169.254", "10.0.0.1", "1.1.1.1", "255.255.255.255"]

def attempt(what, go):
    try:
        go()
    except OSError:
        return
    print("reached", what)

def tcp(address):
    with socket.create_connection((address, port), timeout=0.3) as made:
        made.sendall(b"attack")

def udp(address):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        made.settimeout(0.3)
        made.connect((address, port))
        made.send(b"attack")
        # An answer, or an error, may only come back where something was reached.
        made.recv(1)

def unix(address):
    with socket.socket(socket.AF_UNIX) as made:
        made.connect(address)

def kind(family, kind, protocol=0):
    socket.socket(family, kind, protocol).close()

for address in addresses:
    attempt("TCP " + address, lambda: tcp(address))
    attempt("UDP " + address, lambda: udp(address))
attempt("abstract", lambda: unix(chr(0) + name))
attempt("path", lambda: unix("/tmp/" + name))
attempt("vsock", lambda: kind(40, socket.SOCK_STREAM))
attempt("packet", lambda: kind(17, socket.SOCK_RAW, 768))
attempt("raw", lambda: kind(socket.AF_INET, socket.SOCK_RAW, 1))
attempt("kernel crypto", lambda: kind(38, socket.SOCK_SEQPACKET))
attempt("bluetooth", lambda: kind(31, socket.SOCK_RAW, 1))
attempt("xdp", lambda: kind(44, socket.SOCK_RAW))
attempt("tipc", lambda: kind(30, socket.SOCK_STREAM))
attempt("name", lambda: socket.getaddrinfo("example.com", 80))
print("tried")
"""

# Looks at all other processes for a while and prints what is none of a sandbox's business. It is given seconds, what is
# in memory of the host's alone, a file of the host's, and the program that puts processes into the sandbox.
PRYING = """
import os, re, sys, time
seconds, mark, path, keeper = float(sys.argv[1]), bytes.fromhex(sys.argv[2]), *sys.argv[3:]
mine, seen, looked = str(os.getpid()), set(), 0

def note(*what):
    if what not in seen:
        seen.add(what)
        print(*what, flush=True)

def look(pid):
    for name in ("environ", "cmdline", "mountinfo"):
        with open(f"/proc/{pid}/{name}", "rb") as file:
            if mark in file.read():
                note("mark in", name)
    executable = os.readlink(f"/proc/{pid}/exe")
    if not executable.startswith("/usr/") or executable == keeper:
        note("executable", executable)
    for fd in os.listdir(f"/proc/{pid}/fd"):
        target = os.readlink(f"/proc/{pid}/fd/{fd}")
        # A shell that begins asks for its user's name by a socket.
        fine = ("pipe:", "/proc", "/dev/null", "/dev/pts", "/dev/tty", "/usr/", "/etc/", "/workspace")
        if not target.startswith((*fine, "socket:") if executable.endswith("/bash") else fine):
            note("open file", target, executable)
    for name in ("root/etc/shadow", "cwd/../../etc/shadow", "root" + path, "exe"):
        try:
            os.close(os.open(f"/proc/{pid}/{name}", os.O_WRONLY if name == "exe" else os.O_RDONLY))
            note("opened", name)
        except OSError:
            pass
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for line in maps:
            start, end = (int(part, 16) for part in line.split()[0].split("-"))
            if "[" in line or line.split()[1].startswith("rw"):
                memory.seek(start)
                if mark in memory.read(min(end - start, 1 << 24)):
                    note("mark in memory", line.strip())

until = time.monotonic() + seconds
while time.monotonic() < until:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if pid != mine:
            looked += 1
            try:
                look(pid)
            except (OSError, ValueError, OverflowError):
                pass
print("looked", looked)
"""

# Uses up what the kernel counts by user, and then waits.
HOARDING = """
import ctypes, fcntl, os, signal, socket, sys, time
libc = ctypes.CDLL(None, use_errno=True)
held = []

def until_refused(what, take, most=20000):
    count = 0
    try:
        while count < most:
            taken = take()
            if taken is False:
                break
            held.append(taken)
            count += 1
    except OSError:
        pass
    print(what, count)

def pipe():
    reader, writer = os.pipe()
    fcntl.fcntl(writer, 1031, 1 << 20)
    os.set_blocking(writer, False)
    os.write(writer, bytes(1 << 20))
    return reader, writer

def queue():
    fd = libc.mq_open(f"/{os.getpid()}-{len(held)}".encode(), os.O_RDWR | os.O_CREAT, 0o600, None)
    return fd >= 0 and fd

signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN])
until_refused("signals", lambda: libc.sigqueue(os.getpid(), signal.SIGRTMIN, None) == 0)
for _ in range(8):
    if os.fork() == 0:
        until_refused("inotify", lambda: (fd := libc.inotify_init()) >= 0 and fd)
        until_refused("pipes", pipe)
        until_refused("sockets", lambda: socket.socketpair())
        until_refused("queues", queue)
        print("full", flush=True)
        time.sleep(1000)
until_refused("locked", lambda: libc.mlockall(3) == 0, 1)
sys.stdout.flush()
time.sleep(1000)
"""

# A process that waits for a child that shares its memory: no signal but KILL ends it, and it can't be stopped.
WAITING = """
import ctypes, platform, signal
libc = ctypes.CDLL(None)
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
clone = ctypes.c_long(220 if platform.machine() == "aarch64" else 56)
libc.syscall(clone, ctypes.c_long(0x4000 | 0x100 | 17), None, None, None, None)
while True:
    libc.sleep(1000)
"""

FORKING = """
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
"""

THREADING = """
import threading, time
while True:
    try:
        threading.Thread(target=time.sleep, args=(99,)).start()
    except RuntimeError:
        pass
"""

# Leaves as many processes behind as there may be, and ends.
LITTERING = """
import os, time
try:
    while True:
        if os.fork() == 0:
            os.setsid()
            for fd in range(3):
                os.close(fd)
            time.sleep(1000)
except OSError:
    os._exit(0)
"""
