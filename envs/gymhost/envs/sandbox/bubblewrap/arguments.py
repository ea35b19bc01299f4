"""What bubblewrap is told, and what a sandbox's /etc has."""

import hashlib
import json
from pathlib import Path

from gymhost.envs.sandbox.backend import RUNNER
from gymhost.envs.sandbox.bubblewrap.terms import BOX, ETC
from gymhost.envs.sandbox.spec import SandboxSpec

__all__ = ["ETC_COPIES", "command", "etc_folder", "etc_name", "etc_texts", "options", "points"]

# The descriptors that bubblewrap is started with, beyond the three and that of these options.
SECCOMP, INFO = 4, 5

# What programs look for in /etc that says nothing of the host's users or services.
ETC_COPIES = (
    "alternatives",
    "ca-certificates",
    "fonts",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "mime.types",
    "pki/ca-trust/extracted",
    "pki/tls/certs",
    "protocols",
    "services",
    "ssl/cert.pem",
    "ssl/certs",
    "ssl/openssl.cnf",
    "timezone",
)

# Where the host's system is, besides /usr: links to there on newer systems, folders on older ones.
_SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")

_HOST_NAME = "sandbox"


def etc_texts(spec: SandboxSpec) -> dict[str, str]:
    """Returns the files of /etc that are made up."""
    user = f"sandbox:x:{spec.user}:{spec.user}:sandbox:{spec.workdir}:/bin/bash\n"
    return {
        "passwd": f"root:x:0:0:root:/:/bin/sh\n{user}nobody:x:65534:65534:nobody:/:/bin/false\n",
        "group": f"root:x:0:\nsandbox:x:{spec.user}:\nnogroup:x:65534:\n",
        "hosts": f"127.0.0.1 localhost {_HOST_NAME}\n::1 localhost\n",
        "hostname": f"{_HOST_NAME}\n",
        "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\nservices: files\nprotocols: files\n",
        "resolv.conf": "",
    }


def etc_name(texts: dict[str, str]) -> str:
    """Returns a name for an /etc, the same for the same texts."""
    return hashlib.sha256(json.dumps(texts, sort_keys=True).encode()).hexdigest()[:16]


def etc_folder(name: str) -> str:
    """Returns where the keeper has an /etc."""
    return f"{ETC}/{name}"


def points(spec: SandboxSpec) -> list[tuple[str, bool]]:
    """Returns where something is mounted, and whether that is a folder."""
    folders = [(path, True) for path in ("/proc", "/dev", "/tmp", spec.workdir, *spec.scratch)]
    return [*folders, *((mount.path, Path(mount.source).is_dir()) for mount in spec.mounts)]


def options(spec: SandboxSpec, etc: str) -> list[str]:
    """Returns bubblewrap's options. What they refer to lies where the keeper's child puts it, see `children`.

    Args:
        spec: What the sandbox is to be like.
        etc: The folder that is seen as /etc, where the system is the host's.
    """
    user = str(spec.user)
    words = ["--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--as-pid-1", "--new-session"]
    words += ["--clearenv", "--cap-drop", "ALL", "--hostname", _HOST_NAME, "--uid", user, "--gid", user]
    for name, value in spec.variables().items():
        words += ["--setenv", name, value]
    words += _host_system(etc) if spec.image is None else ["--ro-bind", f"{BOX}/root", "/"]
    words += ["--proc", "/proc", "--dev", "/dev", "--dev-bind", f"{BOX}/pts", "/dev/pts"]
    words += ["--bind", f"{BOX}/shm", "/dev/shm", "--remount-ro", "/dev"]
    words += ["--bind", f"{BOX}/tmp", "/tmp", "--bind", f"{BOX}/work", spec.workdir]
    binds = [(path, ["--bind", f"{BOX}/more/{number}", path]) for number, path in enumerate(spec.scratch)]
    for number, mount in enumerate(spec.mounts):
        how = "--bind" if mount.writable else "--ro-bind"
        binds.append((mount.path, [how, f"{BOX}/mounts/{number}", mount.path]))
    # What lies in another one comes after it.
    for _, bind in sorted(binds, key=lambda bound: bound[0].count("/")):
        words += bind
    if spec.image is None:
        words += ["--remount-ro", "/"]
    return [*words, "--chdir", spec.workdir, "--seccomp", str(SECCOMP), "--info-fd", str(INFO)]


def _host_system(etc: str) -> list[str]:
    words = ["--ro-bind", "/usr", "/usr", "--ro-bind", etc, "/etc", "--dir", "/run"]
    words += ["--perms", "0755", "--dir", "/var", "--symlink", "/tmp", "/var/tmp"]
    for name in _SYSTEM:
        path = Path("/", name)
        if path.is_symlink():
            words += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            words += ["--ro-bind", str(path), str(path)]
    return words


def command(processes: int | None) -> list[str]:
    """Returns the command that is the first process.

    Args:
        processes: How many there may be, where no group holds that. It is set inside, since the limit counts the
            processes of the user namespace that it is set in.
    """
    if processes is None:
        return list(RUNNER)
    return [*RUNNER, "-c", 'ulimit -u "$0"; exec "$@"', str(processes), *RUNNER]
