"""What the processes of workers use, as Linux tells it."""

import os
import resource

__all__ = ["memory_by_group"]


def memory_by_group() -> dict[int, int]:
    """The resident memory of each process group of the machine, in bytes. It takes some 20 µs a process."""
    page = resource.getpagesize()
    used: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb", buffering=0) as file:
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                continue  # it has ended
            group = int(fields[2])
            used[group] = used.get(group, 0) + int(fields[21]) * page
    return used
