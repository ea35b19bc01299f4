"""Having all processes of a sandbox stand still for a while. Standard library alone: the keeper uses it."""

import contextlib
import os
import signal
from collections.abc import Callable

from gymhost.envs.sandbox.bubblewrap.cgroups import Group

__all__ = ["stand_still"]


def stand_still(group: Group | None, tops: set[int]) -> Callable[[], None]:
    """Has processes and all that descend from them stand still, and returns what has them go on.

    Args:
        group: The control group that has them all, where there is one.
        tops: The processes that the others descend from.
    """
    if group is not None and group.freeze():
        return group.thaw
    stopped = _tree(tops)
    for pid in stopped:
        _signal(pid, signal.SIGSTOP)

    def go_on() -> None:
        # Children first: no shell shall see that one of its own was stopped.
        for pid in reversed(stopped):
            _signal(pid, signal.SIGCONT)

    return go_on


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _tree(tops: set[int]) -> list[int]:
    """Returns processes and all that descend from them, parents first."""
    below: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat") as file:
                below.setdefault(int(file.read().rpartition(")")[2].split()[1]), []).append(int(name))
    found = [pid for pid in tops if pid > 0]
    for pid in found:
        found += below.get(pid, [])
    return found
