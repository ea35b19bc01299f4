"""Measures sandboxes: what is done with them, beside what they are compared with, and what many idle ones cost."""

import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks import rounds
from tests.benchmarks.contenders import Cell
from tests.benchmarks.peers import python
from tests.benchmarks.processes import ROOT, Failed, Process, tree
from tests.benchmarks.rounds import Note

# Seconds for making, asking and destroying as many as there may be.
_LIMIT = 600.0

MIB = 2**20


def run(cells: Sequence[Cell], idle: dict[str, int], number: int, seconds: float, note: Note) -> None:
    """Runs all cells, and then holds idle ones.

    Args:
        cells: What is run, in this order.
        idle: How many sandboxes are held, by backend.
        number: How often each cell is run.
        seconds: The window of a cell.
        note: Gets each result.
    """
    with contextlib.ExitStack() as stack:
        if any(map(_needs_engine, cells)) or "docker" in idle:
            problem = _start_engine(stack)
            if problem is not None:
                for contender in dict.fromkeys(cell.contender for cell in cells if _needs_engine(cell)):
                    note(rounds.missing("sandboxes", contender, problem))
                cells = [cell for cell in cells if not _needs_engine(cell)]
                idle = {backend: count for backend, count in idle.items() if backend != "docker"}
        rounds.run("sandboxes", cells, number, seconds, note, with_children=False)
        for backend, count in idle.items():
            print(f"sandboxes: {count} idle ones of {backend}", file=sys.stderr)
            _hold(backend, count, note)


def _needs_engine(cell: Cell) -> bool:
    return any("docker" in word for word in cell.contender.client)


def _start_engine(stack: contextlib.ExitStack) -> str | None:
    """Starts an engine of Docker's for all that is started until the stack is closed; returns why it did not start."""
    # The tests' own one. What is beside it there imports its like in this way.
    sys.path.append(str(ROOT / "tests"))
    import pytest

    from support.docker_engine import DockerEngine

    try:
        engine = DockerEngine()
    except pytest.fail.Exception as error:
        return str(error)
    stack.callback(engine.stop)
    stack.callback(os.environ.pop, "DOCKER_HOST")
    os.environ["DOCKER_HOST"] = engine.base_url
    return None


def _hold(backend: str, count: int, note: Note) -> None:
    said: dict[str, Any] = {"kind": "idle sandboxes", "backend": backend, "count": count}
    command = [python(None), "-m", "tests.benchmarks.sandbox_idle", backend, str(count)]
    try:
        with Process(command, limit=_LIMIT) as holder:
            holder.json()
            available, pss = _available(), _pss(holder.pid)
            holder.go_on()
            said |= holder.json()
            said["free_bytes_each"] = (available - _available()) / count
            said["pss_bytes_each"] = (_pss(holder.pid) - pss) / count
            said["processes_each"] = len(tree(holder.pid)) / count
            for _ in ("answered", "destroyed"):
                holder.go_on()
                said |= holder.json()
            said["left_bytes_each"] = (available - _available()) / count
            holder.go_on()
            holder.wait()
    except (Failed, ValueError) as error:
        said["error"] = str(error)
    note(said)


def _available() -> int:
    """The bytes of memory that may still be had on this machine; what others do meanwhile counts too."""
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(fields["MemAvailable"].split()[0]) * 1024


def _pss(pid: int) -> int:
    """The bytes of memory of a process and its descendants, what they share counted once."""
    total = 0
    for each in tree(pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            rollup = Path(f"/proc/{each}/smaps_rollup").read_text()
            total += sum(int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith("Pss:"))
    return total
