"""How many processes of a container were ended for want of memory, where its control group can be seen."""

from pathlib import Path
from typing import Any

__all__ = ["count", "counter"]

_GROUPS = Path("/sys/fs/cgroup")


def counter(api: Any, container: str) -> Path | None:
    """Returns the file that counts them; None where it can't be seen, as with an engine elsewhere; blocks."""
    pid = api.inspect_container(container)["State"]["Pid"]
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if container not in group:
            continue
        if "memory" in controllers.split(","):
            file = _GROUPS / "memory" / group.lstrip("/") / "memory.oom_control"
        elif not controllers:
            file = _GROUPS / group.lstrip("/") / "memory.events"
        else:
            continue
        if file.exists():
            return file
    return None


def count(file: Path) -> int:
    """Returns the number in such a file; 0 where it is gone."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return 0
    return next((int(value) for name, _, value in (line.partition(" ") for line in lines) if name == "oom_kill"), 0)
