"""What processes use, as Linux tells it: CPU time and memory, with no package for it."""

import contextlib
import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path

__all__ = ["children", "cpu_seconds", "descendants", "machine", "private_bytes"]


def children() -> list[int]:
    """The processes that this one has started, and theirs; none where they can't be seen."""
    return descendants(os.getpid())


def descendants(pid: int) -> list[int]:
    """The processes that a process has started, and theirs."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += [int(child), *descendants(int(child))]
    return found


def cpu_seconds(pids: Sequence[int]) -> float:
    """The CPU time that processes have used; those that have ended count no more."""
    used = 0.0
    for pid in pids:
        with contextlib.suppress(OSError):
            # What clock_getcpuclockid(3) returns. /proc/PID/stat says it in steps of 10 ms, too coarse for a window.
            used += time.clock_gettime(~pid << 3 | 2)
    return used


def private_bytes(pids: Sequence[int]) -> int:
    """The memory that would be free if these processes alone ended."""
    used = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            used += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))
    return used


def machine() -> str:
    """What this machine is, in words."""
    model = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    system = f"{platform.system()} {platform.release()}, Python {platform.python_version()}"
    return f"{cores} core{'' if cores == 1 else 's'} ({model}), {system}"
