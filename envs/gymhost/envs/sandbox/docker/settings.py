"""What the engine is told of a container, from what a sandbox is to be like."""

import resource
from collections.abc import Mapping, Sequence
from typing import Any

from gymhost.envs.sandbox.docker.engine import Facts
from gymhost.envs.sandbox.docker.seccomp import profile, profile_file
from gymhost.envs.sandbox.spec import Mount, SandboxSpec

__all__ = ["command_line", "in_force", "settings"]

# All processes of a sandbox go before any of the host's own when the host's memory is used up.
_OOM_SCORE = 500

# The runtimes that filter system calls. Others give a sandbox a kernel of its own, which is no filter's business.
_FILTERING = ("runc", "crun")


def command_line(argv: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """Returns a command that runs another one with just this environment, without what images and engines add."""
    return ["env", "-i", *(f"{name}={value}" for name, value in env.items()), *argv]


def settings(
    spec: SandboxSpec,
    *,
    image: str,
    mounts: Sequence[Mount],
    volumes: Sequence[str],
    command: Sequence[str],
    labels: Mapping[str, str],
    runtime: str | None,
    facts: Facts,
) -> dict[str, Any]:
    """Returns the body of the request that creates a container.

    Args:
        spec: What the sandbox is to be like.
        image: The image.
        mounts: What of the host is seen in it.
        volumes: Folders for which the image asks for volumes.
        command: Its first process.
        labels: Its labels.
        runtime: Its runtime; None for the engine's default.
        facts: What the engine can do.
    """
    limits, taken = spec.limits, {mount.path for mount in mounts}
    env = spec.variables()
    host: dict[str, Any] = {
        "AutoRemove": True,
        "CapDrop": ["ALL"],
        "CgroupnsMode": "private",
        "IpcMode": "private",
        "LogConfig": {"Type": "none"},
        "Memory": limits.memory,
        "MemorySwap": limits.memory,
        "Mounts": [_bind(mount) for mount in mounts],
        "NetworkMode": "none",
        "OomScoreAdj": _OOM_SCORE,
        "PidsLimit": limits.processes,
        "ReadonlyRootfs": True,
        "SecurityOpt": ["no-new-privileges", *_filter(spec, facts)],
        "ShmSize": _shares(spec)["/dev/shm"],
        # A volume has no limit, so where the image wants one there is an empty folder that can't be written.
        "Tmpfs": dict.fromkeys((path for path in (*volumes, *_extra(facts)) if path not in taken), "ro,size=4k")
        | {
            path: f"rw,exec,nosuid,nodev,size={size},{_files(spec, size, facts)}"
            for path, size in _shares(spec).items()
            if path != "/dev/shm" and path not in taken
        },
        "Ulimits": _ulimits(spec, facts),
    }
    if not facts.podman:
        # Else it would see the host's own settings; podman has none to hide where there is no network.
        host |= {"Dns": ["127.0.0.1"], "DnsSearch": ["."]}
    if facts.cgroup == "1" and not facts.podman:
        # What waits in Internet sockets is counted apart there, and would be the host's without a limit of its own.
        host["KernelMemoryTCP"] = limits.memory // 4
    if limits.cpus is not None:
        host["NanoCpus"] = round(limits.cpus * 1e9)
    if runtime is not None:
        host["Runtime"] = runtime
    return {
        "Image": image,
        "Entrypoint": command_line(command, env),
        "Cmd": [],
        "Env": [f"PATH={env['PATH']}"],
        "User": f"{spec.user}:{spec.user}",
        "WorkingDir": spec.workdir,
        "Hostname": "sandbox",
        "Labels": dict(labels),
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "OpenStdin": True,
        # When its owner is gone, whatever way, its shell has no more input and ends, and the container with it.
        "StdinOnce": True,
        "HostConfig": host,
    }


def in_force(spec: SandboxSpec, facts: Facts, runtime: str | None) -> dict[str, str]:
    """Returns how each limit is held; see `Container.limits_in_force`."""
    if (runtime or facts.runtime) not in _FILTERING or not facts.seccomp:
        seccomp = ""
    else:
        seccomp = "filter of system calls" if _filter(spec, facts) else "the engine's own filter"
    cgroup = f"cgroup v{facts.cgroup}"
    return {
        "memory": (cgroup if facts.swap else f"{cgroup}, swap is not counted") if facts.memory else "",
        "processes": cgroup if facts.processes else "",
        "cpus": cgroup if facts.cpus or spec.limits.cpus is None else "",
        "disk": "tmpfs of at most half of the memory: 1/4 of it /tmp, 1/16 /dev/shm, 1/32 each of scratch, or workdir",
        "open_files": "rlimit, each process by itself",
        "seccomp": seccomp,
        "user": "a user of its own on the host" if facts.remaps else f"user {spec.user} on the host too",
        "network": "a network namespace with nothing but loopback",
    }


def _filter(spec: SandboxSpec, facts: Facts) -> list[str]:
    """Returns the option with the filter of system calls; nothing where the engine can't be given one."""
    if not facts.seccomp:
        return []
    if not facts.podman:
        return [f"seccomp={profile(spec.network)}"]
    return [f"seccomp={profile_file(spec.network)}"] if facts.local else []


def _shares(spec: SandboxSpec) -> dict[str, int]:
    """Returns how much may be written where: no limit holds over several file systems, so each gets its share.

    Files are in memory. Were they to fill it, its processes would be ended, the first one among them.
    """
    whole = min(spec.limits.disk, spec.limits.memory // 2)
    shares = {"/tmp": whole // 4, "/dev/shm": whole // 16, **dict.fromkeys(spec.scratch, whole // 32)}
    return {**shares, spec.workdir: whole - sum(shares.values())}


def _extra(facts: Facts) -> tuple[str, ...]:
    """Returns what can be written, without a limit, of what is said to be read-only, unless it is told otherwise."""
    return ("/run", "/var/tmp") if facts.podman else ()


def _files(spec: SandboxSpec, size: int, facts: Facts) -> str:
    """Returns whose a folder is, and how many files it may have: as many as there is room for, and some empty ones."""
    if facts.podman:
        # It knows no such options.
        return "mode=1777"
    return f"mode=0755,uid={spec.user},gid={spec.user},nr_inodes={size // 4096 + 1024}"


def _bind(mount: Mount) -> dict[str, Any]:
    return {
        "Type": "bind",
        "Source": mount.source,
        "Target": mount.path,
        "ReadOnly": not mount.writable,
        # Read-only does not go for what is mounted beneath, so that is left out.
        "BindOptions": {"Propagation": "rprivate", "NonRecursive": not mount.writable},
    }


def _ulimits(spec: SandboxSpec, facts: Facts) -> list[dict[str, Any]]:
    files = spec.limits.open_files
    limits = {"nofile": files, "core": 0}
    if facts.podman:
        # It would ask for more than it may give, where it has not all rights.
        limits["nproc"] = min(resource.getrlimit(resource.RLIMIT_NPROC)[1] % 2**63, 30_000)
    return [{"Name": name, "Soft": value, "Hard": value} for name, value in limits.items()]
