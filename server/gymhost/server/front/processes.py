"""What the processes of workers use, as Linux tells it."""

import asyncio
import os
import resource
import time
from typing import NamedTuple

__all__ = ["Look", "Used", "own_memory", "used_by_group"]

# Seconds for which what was seen serves others who ask; and the part of a core that looking may take, as on a machine
# with very many processes.
FRESH = 1.0
SHARE = 0.01

_TICK = 1.0 / os.sysconf("SC_CLK_TCK")


class Used(NamedTuple):
    """What a process group uses.

    Attributes:
        memory: Resident memory, in bytes.
        cpu: CPU time, in seconds: that of processes that have ended too, once their parents have heard of it.
    """

    memory: int = 0
    cpu: float = 0.0


def used_by_group() -> dict[int, Used]:
    """What each process group of the machine uses. It takes some 20 µs a process."""
    page = resource.getpagesize()
    used: dict[int, Used] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb", buffering=0) as file:
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                continue  # it has ended
            group = int(fields[2])
            memory, cpu = used.get(group, (0, 0.0))
            cpu += sum(int(ticks) for ticks in fields[11:15]) * _TICK
            used[group] = Used(memory + int(fields[21]) * page, cpu)
    return used


def own_memory() -> int:
    """The resident memory of this process, in bytes."""
    with open("/proc/self/statm", "rb", buffering=0) as file:
        return int(file.read().split()[1]) * resource.getpagesize()


class Look:
    """Looks at what process groups use, for all who ask, and not too often."""

    def __init__(self) -> None:
        self._stale = 0.0
        self._look: asyncio.Task[dict[int, Used]] | None = None

    async def used(self) -> dict[int, Used]:
        """What each process group uses; empty where that can't be seen."""
        if self._look is None or (self._look.done() and asyncio.get_running_loop().time() > self._stale):
            self._look = asyncio.create_task(self._used())
        # One look serves all who ask meanwhile, whoever of them goes away.
        return await asyncio.shield(self._look)

    async def _used(self) -> dict[int, Used]:
        began = time.perf_counter()
        try:
            return await asyncio.to_thread(used_by_group)
        except OSError:
            return {}  # the machine has no descriptor left
        finally:
            took = time.perf_counter() - began
            self._stale = asyncio.get_running_loop().time() + max(FRESH, took / SHARE)
