"""What runs outside of the project's virtual environment: each peer in one of its own."""

import os
import subprocess
import sys
from pathlib import Path

from tests.benchmarks.processes import ROOT, Failed

# What is installed for a peer.
PEERS = {"openenv": ["--editable", f"{ROOT}[server,openenv]"], "envpool": ["envpool", "gymnasium"]}


def python(peer: str | None) -> str:
    """The interpreter that a contender runs in."""
    return sys.executable if peer is None else str(_folder(peer) / "bin" / "python")


def install(peer: str) -> None:
    """Makes a peer's virtual environment, where it is not there already.

    Raises:
        Failed: It could not be installed.
    """
    folder = _folder(peer)
    done = folder / "installed"
    if done.exists() and done.read_text() == str(PEERS[peer]):
        return
    print(f"installing {peer} in {os.path.relpath(folder, ROOT)}", file=sys.stderr)
    for command in (
        [sys.executable, "-m", "venv", "--clear", str(folder)],
        [python(peer), "-m", "pip", "-qq", "install", *PEERS[peer]],
    ):
        result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=1200)
        if result.returncode:
            lines = (result.stderr or result.stdout).strip().splitlines()
            raise Failed(f"{peer} could not be installed: {lines[-1] if lines else result.returncode}")
    done.write_text(str(PEERS[peer]))


def _folder(peer: str) -> Path:
    return ROOT / ".venv-bench" / peer
