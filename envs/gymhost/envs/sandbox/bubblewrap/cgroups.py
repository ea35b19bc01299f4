"""Control groups: one a sandbox below the worker's own, of version 1 or 2. Standard library alone: the keeper uses it.

A keeper's groups lie in a folder that it holds locked, so that another one can tell what a dead keeper left behind.
"""

import contextlib
import fcntl
import os
import secrets
import signal
import time
from collections.abc import Iterable, Mapping

__all__ = ["Group", "Groups", "counted", "remove_all", "sweep", "thaw_all"]

PREFIX = "gymhost-sandboxes-"

# What each controller of version 1 is asked for, by the name of the limit that it holds.
CONTROLLERS = {"memory": "memory", "processes": "pids", "cpus": "cpu"}

# Seconds to wait for a group to be empty, or to stand still.
SETTLE_LIMIT = 2.0


class Groups:
    """Where groups are made.

    Attributes:
        version: 1 or 2; 0 where none can be made.
        folders: For each controller the path of this keeper's folder, as the process that made this sees it.
    """

    def __init__(self) -> None:
        self.version = 0
        self.folders: dict[str, str] = {}
        self._descriptors: dict[str, int] = {}
        name = f"{PREFIX}{secrets.token_hex(8)}"
        for controller, parent in _parents().items():
            _sweep(parent)
            try:
                self._hold(controller, parent, name)
            except OSError:
                continue
        if self.folders:
            self.version = 2 if "unified" in self.folders else 1

    def _hold(self, controller: str, parent: str, name: str) -> None:
        path = os.path.join(parent, name)
        os.mkdir(path)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if controller == "unified":
                _write(f"{path}/cgroup.subtree_control", "+memory +pids")
                with contextlib.suppress(OSError):
                    _write(f"{path}/cgroup.subtree_control", "+cpu")
        except OSError:
            os.rmdir(path)
            raise
        self.folders[controller], self._descriptors[controller] = path, descriptor

    def holds(self, limit: str) -> bool:
        """Whether groups hold a limit, by its name in `Limits`."""
        if self.version == 2:
            return limit in ("memory", "processes") or os.path.exists(f"{self._base('unified')}/cpu.max")
        return CONTROLLERS[limit] in self.folders

    def _base(self, controller: str) -> str:
        # By the descriptor, since the keeper's own root has no /sys.
        return f"/proc/self/fd/{self._descriptors[controller]}"

    def make(self, name: str, *, memory: int, processes: int, cpus: float | None) -> "Group":
        """Makes a group.

        Raises:
            OSError: It could not be made; nothing of it is left.
        """
        # One for processors too where there is no limit: then many processes have no more of them than a few.
        group = Group(self.version, {c: f"{self._base(c)}/{name}" for c in self.folders})
        try:
            for path in group.paths.values():
                os.mkdir(path)
            for controller, settings in _settings(self.version, memory, processes, cpus).items():
                if (path := group.paths.get(controller)) is not None:
                    for file, value in settings:
                        group.set(path, file, value)
        except OSError:
            group.remove()
            raise
        return group


class Group:
    """The group of one sandbox: a folder for each controller."""

    def __init__(self, version: int, paths: Mapping[str, str]) -> None:
        self._version = version
        self.paths = paths

    def set(self, path: str, file: str, value: str) -> None:
        """Sets what a group may use; what not every kernel knows of is passed over where it is not there."""
        try:
            _write(f"{path}/{file}", value)
        except FileNotFoundError:
            if not any(word in file for word in ("memsw", "swap", "tcp")):
                raise

    def doors(self) -> list[int]:
        """Returns open files: whoever writes `0` to all of them moves in, also where the groups are not seen."""
        return [os.open(f"{path}/cgroup.procs", os.O_WRONLY | os.O_CLOEXEC) for path in self.paths.values()]

    def enter(self) -> None:
        """Moves this process in."""
        for door in self.doors():
            os.write(door, b"0")
            os.close(door)

    def end_all(self, but: Iterable[int]) -> None:
        """Kills all that is in it but for some."""
        path = self.paths.get("unified") or self.paths.get("pids")
        if path is None:
            return
        with contextlib.suppress(OSError):
            most = _read(f"{path}/pids.max")
            # So that what is killed starts nothing meanwhile.
            _write(f"{path}/pids.max", "0")
            for pid in map(int, _read(f"{path}/cgroup.procs").split()):
                with contextlib.suppress(ProcessLookupError):
                    if pid not in (0, *but):
                        os.kill(pid, signal.SIGKILL)
            _write(f"{path}/pids.max", most)

    def freeze(self) -> bool:
        """Has all processes stand still; False where that can't be, or not in time."""
        if self._version == 2:
            return self._settle("unified", "cgroup.freeze", "1", "cgroup.events", "frozen 1")
        return self._settle("freezer", "freezer.state", "FROZEN", "freezer.state", "FROZEN")

    def thaw(self) -> None:
        """Has them go on."""
        controller, file, value = ("unified", "cgroup.freeze", "0")
        if self._version == 1:
            controller, file, value = ("freezer", "freezer.state", "THAWED")
        with contextlib.suppress(OSError, KeyError):
            _write(f"{self.paths[controller]}/{file}", value)

    def _settle(self, controller: str, file: str, value: str, shown: str, wanted: str) -> bool:
        if controller not in self.paths:
            return False
        path = self.paths[controller]
        try:
            until = time.monotonic() + SETTLE_LIMIT
            while time.monotonic() < until:
                _write(f"{path}/{file}", value)
                if wanted in _read(f"{path}/{shown}"):
                    return True
                time.sleep(0.001)
        except OSError:
            pass
        self.thaw()
        return False

    def remove(self) -> None:
        """Removes it, where there is nothing in it."""
        for path in self.paths.values():
            with contextlib.suppress(OSError):
                os.rmdir(path)


def _settings(version: int, memory: int, processes: int, cpus: float | None) -> dict[str, tuple[tuple[str, str], ...]]:
    """Returns what is written to which file of each controller."""
    quota = None if cpus is None else str(max(1000, int(cpus * 100_000)))
    if version == 2:
        files = [("memory.max", str(memory)), ("memory.swap.max", "0"), ("pids.max", str(processes))]
        if quota is not None:
            files.append(("cpu.max", f"{quota} 100000"))
        return {"unified": tuple(files)}
    files_of_cpu = (("cpu.cfs_period_us", "100000"), ("cpu.cfs_quota_us", quota)) if quota is not None else ()
    return {
        "memory": (
            ("memory.limit_in_bytes", str(memory)),
            ("memory.memsw.limit_in_bytes", str(memory)),
            # What waits in Internet sockets is counted apart, and would be the host's without a limit of its own.
            ("memory.kmem.tcp.limit_in_bytes", str(memory // 4)),
        ),
        "pids": (("pids.max", str(processes)),),
        "cpu": files_of_cpu,
    }


def counted(version: int, folders: Mapping[str, str], name: str, what: str) -> int | None:
    """Returns a figure of a group as those outside see it: `memory`, `processes`, `nanoseconds` or `killed`.

    Args:
        version: Of the groups.
        folders: Those of the keeper.
        name: Of the group.
        what: The figure.
    """
    if version == 2:
        controller = "unified"
        file, key = {
            "memory": ("memory.current", ""),
            "processes": ("pids.current", ""),
            "nanoseconds": ("cpu.stat", "usage_usec"),
            "killed": ("memory.events", "oom_kill"),
        }[what]
    else:
        controller, file, key = {
            "memory": ("memory", "memory.usage_in_bytes", ""),
            "processes": ("pids", "pids.current", ""),
            "nanoseconds": ("cpuacct", "cpuacct.usage", ""),
            "killed": ("memory", "memory.oom_control", "oom_kill"),
        }[what]
    if controller not in folders:
        return None
    try:
        words = _read(f"{folders[controller]}/{name}/{file}").split()
    except OSError:
        return None
    if not key:
        return int(words[0])
    if key not in words:
        return None
    figure = int(words[words.index(key) + 1])
    return figure * 1000 if key == "usage_usec" else figure


def thaw_all(folder: str) -> None:
    """Has what stands still in a keeper's folder go on: with version 1 it could not even be killed."""
    for inner in _groups_in(folder):
        for file, value in (("freezer.state", "THAWED"), ("cgroup.freeze", "0")):
            with contextlib.suppress(OSError):
                _write(f"{inner}/{file}", value)


def remove_all(folder: str) -> None:
    """Removes a keeper's folder with its groups, where all processes in them have ended."""
    for path in (*_groups_in(folder), folder):
        with contextlib.suppress(OSError):
            os.rmdir(path)


def _groups_in(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.path for entry in entries if entry.is_dir()]
    except OSError:
        return []


def _parents() -> dict[str, str]:
    """Returns the folder to make groups in for each controller of version 1, or for `unified`, version 2."""
    mounts = _mounts()
    own: dict[str, str] = {}
    for line in _read("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(",") if controllers else ["unified"]:
            own[controller] = path
    parents: dict[str, str] = {}
    for controller in ("memory", "pids", "cpu", "cpuacct", "freezer"):
        if controller in own and controller in mounts:
            parents[controller] = _seen(mounts[controller], own[controller])
    if "memory" in parents or "pids" in parents or "unified" not in own or "unified" not in mounts:
        return parents
    point = mounts["unified"][0]
    folder = _seen(mounts["unified"], own["unified"])
    # Groups with processes can't have limited ones in them, but for the very first: then it is the one above.
    while True:
        if _can_limit(folder):
            return {"unified": folder}
        if folder == point:
            return {}
        folder = os.path.dirname(folder)


def _seen(mounted: tuple[str, str], own: str) -> str:
    """Returns where a group is seen. In a container its path may begin above what is mounted."""
    point, root = mounted
    inside = os.path.relpath(own, root) if root != "/" and own.startswith(root) else own.lstrip("/")
    path = os.path.normpath(os.path.join(point, inside))
    return path if os.path.isdir(path) else point


def _can_limit(folder: str) -> bool:
    needed = {"memory", "pids"}
    try:
        if not os.access(folder, os.W_OK) or not needed <= set(_read(f"{folder}/cgroup.controllers").split()):
            return False
        if not needed <= set(_read(f"{folder}/cgroup.subtree_control").split()):
            _write(f"{folder}/cgroup.subtree_control", "+memory +pids")
        with contextlib.suppress(OSError):
            _write(f"{folder}/cgroup.subtree_control", "+cpu")
    except OSError:
        return False
    # Whoever moves a process needs leave for the group above both.
    return os.access(f"{folder}/cgroup.procs", os.W_OK)


def _mounts() -> dict[str, tuple[str, str]]:
    """Returns where each controller, or `unified`, is mounted, and which group is the root there."""
    found: dict[str, tuple[str, str]] = {}
    for line in _read("/proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        root, point = before.split()[3:5]
        kind, _, options = after.split(" ", 2)
        if kind == "cgroup2":
            found.setdefault("unified", (point, root))
        elif kind == "cgroup":
            for option in options.split(","):
                found.setdefault(option, (point, root))
    return found


def sweep() -> None:
    """Removes what dead keepers left behind. Blocks, for seconds at most."""
    for parent in _parents().values():
        _sweep(parent)


def _sweep(parent: str) -> None:
    """Removes what dead keepers left behind, here and beside: at another start a worker may be in another group."""
    for folder in {parent, *_groups_in(os.path.dirname(parent))}:
        for path in _groups_in(folder):
            if os.path.basename(path).startswith(PREFIX):
                _sweep_one(path)


def _sweep_one(path: str) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        pass  # its keeper lives
    else:
        thaw_all(path)
        remove_all(path)
        until = time.monotonic() + SETTLE_LIMIT
        while os.path.isdir(path) and time.monotonic() < until:
            _end_in(path)
            time.sleep(0.01)
            remove_all(path)
    finally:
        os.close(descriptor)


def _end_in(folder: str) -> None:
    """Kills what is in the groups of a dead keeper."""
    for inner in (*_groups_in(folder), folder):
        with contextlib.suppress(OSError):
            for pid in map(int, _read(f"{inner}/cgroup.procs").split()):
                if pid != 0:  # one that can't be seen from here
                    os.kill(pid, signal.SIGKILL)


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
