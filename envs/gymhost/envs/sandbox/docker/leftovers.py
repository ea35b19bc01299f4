"""Whose a container is, and the removal of those whose owner is dead."""

import json
import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from gymhost.envs.sandbox.docker.engine import Engine

__all__ = ["IMAGE_LABEL", "abandoned", "labels", "query", "sweep"]

_log = logging.getLogger(__name__)

# On images that are gymhost's own, so that `docker image prune --all --filter label=gymhost.image` finds them.
IMAGE_LABEL = "gymhost.image"

_HOST, _PID, _STARTED, _SERVER = "gymhost.host", "gymhost.pid", "gymhost.started", "gymhost.server"


def labels(server: str) -> dict[str, str]:
    """Returns the labels of what this process makes.

    Args:
        server: The server that the process works for, for those who look at lists of containers.
    """
    pid = os.getpid()
    return {_HOST: _host(), _PID: str(pid), _STARTED: _started(pid) or "", _SERVER: server}


def sweep(engine: Engine) -> None:
    """Removes the containers of owners that lived on this machine and are dead; blocks.

    Those of owners that can't be seen from here, such as on other machines, are left alone.
    """
    for name in abandoned(engine.api().containers(all=True, filters={"label": _of_this_machine()})):
        try:
            engine.remove(name)
            _log.warning("removed container %s: its owner is dead", name[:12])
        except engine.errors.APIError as error:
            _log.warning("could not remove container %s, whose owner is dead: %s", name[:12], error)


def query() -> str:
    """Returns what asks an engine's list of containers for those of owners on this machine."""
    return urlencode({"all": 1, "filters": json.dumps({"label": [_of_this_machine()]})})


def abandoned(containers: Iterable[Mapping[str, Any]]) -> list[str]:
    """Returns the ids of those containers of owners on this machine whose owner is dead."""
    return [container["Id"] for container in containers if not _alive(container["Labels"])]


def _of_this_machine() -> str:
    return f"{_HOST}={_host()}"


def _host() -> str:
    """Returns what process ids can be compared within: one start of one machine, and one space of process ids."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"


def _alive(marks: Mapping[str, str]) -> bool:
    pid = marks.get(_PID, "")
    return pid.isdigit() and _started(int(pid)) == marks.get(_STARTED)


def _started(pid: int) -> str | None:
    """Returns when a process began, in the machine's ticks, which tells it from another one with its number."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else fields[19]
