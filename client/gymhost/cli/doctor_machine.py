"""What `gymhost doctor` says of this machine."""

import contextlib
import http.client
import importlib.metadata
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gymhost.cli.doctor_findings import Finding
from gymhost.cli.usage import machine
from gymhost.wire.words import counted

__all__ = ["clock", "docker", "gpu", "leftovers", "limits", "listening", "memory", "proxies", "sandboxes", "space"]

GIB = 2**30

# Seconds for each program and each service that is asked.
ASK_LIMIT = 4.0

# Where a server listens unless it is told otherwise.
PORT = 50051

_TRY_SANDBOX = """
import asyncio, json
from gymhost.envs.sandbox import Limits, Pool, SandboxSpec, backend

async def main():
    made = backend("bubblewrap")
    problem = await made.problem()
    if problem is not None:
        return {"problem": problem}
    async with Pool(made) as pool, await pool.create(SandboxSpec(limits=Limits(cpus=1.0))) as sandbox:
        result = await sandbox.run(["true"], timeout=2.0)
        return {"status": result.exit_status, "limits": dict(sandbox.limits_in_force)}

print(json.dumps(asyncio.run(main())))
"""


def memory() -> Sequence[Finding]:
    """Cores and memory."""
    available, total = 0, 0
    with contextlib.suppress(OSError):
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        total, available = (int(lines[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    if not total:
        return [Finding("machine", "ok", machine())]
    said = f"{machine()}; {available / GIB:.1f} of {total / GIB:.1f} GiB of memory are free"
    if available < GIB / 2:
        return [Finding("machine", "warning", said, "a worker takes some 60 MiB, and what its environments need")]
    return [Finding("machine", "ok", said)]


def limits() -> Sequence[Finding]:
    """How many files and sockets a process may have open."""
    try:
        import resource
    except ModuleNotFoundError:
        return []  # not this system's way
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < 4096:
        return [
            Finding(
                "descriptors",
                "warning",
                f"a process may have {most} open: each session on the direct path takes one on either side",
                "raise the hard limit: ulimit -Hn 65536, or LimitNOFILE= of the service",
            )
        ]
    return [Finding("descriptors", "ok", f"a process may have {'any number' if most < 0 else most} open")]


def listening() -> Sequence[Finding]:
    """Whether sockets can be made, and the usual port is free."""
    try:
        with socket.create_server(("127.0.0.1", 0)):
            pass
        if hasattr(socket, "AF_UNIX"):
            with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as probe:
                probe.bind(f"{folder}/socket")
    except OSError as error:
        advice = "a server needs sockets on 127.0.0.1, and in the folder for temporary files (TMPDIR)"
        return [Finding("sockets", "broken", f"can't be listened on: {error}", advice)]
    try:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", PORT))
    except OSError as error:
        return [
            Finding("sockets", "ok", f"can be listened on; 127.0.0.1:{PORT} is taken, as by a server: {error.strerror}")
        ]
    return [Finding("sockets", "ok", f"can be listened on; 127.0.0.1:{PORT}, the usual one, is free")]


def space() -> Sequence[Finding]:
    """The folder for temporary files."""
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    said = f"{free / GIB:.1f} GiB are free in {folder}"
    if not os.access(folder, os.W_OK):
        return [Finding("disk", "broken", f"{folder} can't be written to", "set TMPDIR to a folder that can")]
    if free < GIB:
        return [Finding("disk", "warning", said, "free some, or set TMPDIR to another folder")]
    return [Finding("disk", "ok", said)]


def sandboxes() -> Sequence[Finding]:
    """Whether bubblewrap makes sandboxes here, by making one."""
    name = "sandboxes"
    if sys.platform != "linux":
        return [Finding(name, "optional", f"bubblewrap needs Linux, not {sys.platform}", "use --sandbox docker")]
    try:
        said = subprocess.run(
            [sys.executable, "-c", _TRY_SANDBOX], capture_output=True, text=True, timeout=2 * ASK_LIMIT, check=False
        )
    except subprocess.TimeoutExpired:
        return [Finding(name, "warning", f"bubblewrap made none within {2 * ASK_LIMIT:g} s", _CHECK_SANDBOX)]
    if said.returncode != 0:
        last = (said.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return [Finding(name, "optional", f"bubblewrap can't be tried: {last}", "pip install 'gymhost[server]'")]
    told = json.loads(said.stdout)
    if "problem" in told:
        return [Finding(name, "optional", f"bubblewrap can't make any: {told['problem']}", _CHECK_SANDBOX)]
    held = told["limits"]
    unheld = [what for what in ("memory", "processes", "cpus") if "cgroup" not in str(held.get(what, ""))]
    overlays = "overlay" in Path("/proc/filesystems").read_text().split()
    detail = f"bubblewrap makes them; memory: {held.get('memory')}; forks: {'overlays' if overlays else 'copies'}"
    if unheld:
        advice = "run as root, or give this user a cgroup to hold limits with"
        return [Finding(name, "warning", f"{detail}; no cgroup holds their {', '.join(unheld)}", advice)]
    return [Finding(name, "ok", detail)]


_CHECK_SANDBOX = "gymhost check sandbox bubblewrap tells more"


def docker() -> Sequence[Finding]:
    """Whether Docker's engine answers."""
    address = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    name, advice = "Docker", "start Docker's engine, or set DOCKER_HOST; bubblewrap needs neither"
    try:
        version = _ask_docker(address, "/version")["Version"]
    except (OSError, LookupError, ValueError, http.client.HTTPException) as error:
        return [Finding(name, "optional", f"no engine answers at {address}: {error}", advice)]
    try:
        sdk = f"its SDK is {importlib.metadata.version('docker')}"
    except importlib.metadata.PackageNotFoundError:
        return [
            Finding(
                name, "optional", f"engine {version} at {address}, but no SDK for it", "pip install 'gymhost[docker]'"
            )
        ]
    return [Finding(name, "ok", f"engine {version} at {address}; {sdk}"), *_containers(address)]


def _containers(address: str) -> Sequence[Finding]:
    """Containers that servers left on this machine that were killed: only a server with Docker's sandboxes looks."""
    try:
        from gymhost.envs.sandbox.docker.leftovers import abandoned, query
    except ImportError:
        return []
    with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
        if found := abandoned(_ask_docker(address, f"/containers/json?{query()}")):
            said = f"a killed server left {counted(len(found), 'container')}"
            ids = " ".join(each[:12] for each in found)
            return [Finding("containers", "warning", said, f"docker rm --force --volumes {ids}")]
    return []


def _ask_docker(address: str, path: str) -> Any:
    kind, _, place = address.partition("://")
    if kind == "unix":
        end = socket.socket(socket.AF_UNIX)
        end.settimeout(ASK_LIMIT)
        connection = http.client.HTTPConnection("localhost", timeout=ASK_LIMIT)
        with contextlib.closing(end):
            end.connect(place)
            connection.sock = end
            return _get(connection, path)
    if kind != "tcp":
        raise ValueError(f"it is neither unix:// nor tcp://, and is not asked: {kind}")
    host, _, port = place.partition(":")
    return _get(http.client.HTTPConnection(host, int(port or 2375), timeout=ASK_LIMIT), path)


def _get(connection: http.client.HTTPConnection, path: str) -> Any:
    with contextlib.closing(connection):
        connection.request("GET", path)
        return json.loads(connection.getresponse().read())


def gpu() -> Sequence[Finding]:
    """What NVIDIA's own program says."""
    if (program := shutil.which("nvidia-smi")) is None:
        return [Finding("GPU", "optional", "none that nvidia-smi would show: it is not there")]
    asked = [program, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    said = subprocess.run(asked, capture_output=True, text=True, timeout=ASK_LIMIT, check=False)
    if said.returncode != 0 or not said.stdout.strip():
        detail = f"nvidia-smi fails: {(said.stderr or said.stdout).strip() or said.returncode}"
        return [Finding("GPU", "warning", detail, "look after the driver")]
    return [Finding("GPU", "ok", "; ".join(said.stdout.strip().splitlines()))]


def leftovers() -> Sequence[Finding]:
    """What killed servers of this user left behind."""
    from gymhost.wire.folders import abandoned

    if os.name != "posix":
        return []
    found = [path.name for prefix in ("gymhost-workers-", "gymhost-embedded-") for path in abandoned(prefix)]
    if found:
        detail = f"{len(found)} folders of servers that were killed: {', '.join(found[:3])}{', ...' * (len(found) > 3)}"
        return [Finding("leftovers", "warning", detail, "the next server that starts clears them")]
    return [Finding("leftovers", "ok", "no server of this user was killed and left anything")]


def clock() -> Sequence[Finding]:
    """Whether the clock may be right."""
    now = time.time()
    installed = Path(__file__).stat().st_mtime
    said = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    if now < installed - 86400:
        detail = f"{said} is before gymhost was installed: certificates may seem not to be valid yet"
        return [Finding("clock", "warning", detail, "set it, as by an NTP service")]
    return [Finding("clock", "ok", said)]


def proxies() -> Sequence[Finding]:
    """Whether gRPC's connections are sent to a proxy."""
    names = [name for name in ("grpc_proxy", "https_proxy", "http_proxy") if os.environ.get(name)]
    if not names:
        return []
    detail = f"{', '.join(names)} sends gRPC's connections to a proxy, which mostly breaks them"
    return [Finding("proxy", "warning", detail, "set no_proxy (or no_grpc_proxy) to the servers' names")]
