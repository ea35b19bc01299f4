"""What the host sees of sandboxes, and what it must keep from them."""

import contextlib
import os
import tempfile
from collections.abc import Collection, Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Held", "Secrets", "command_lines", "groups_with", "held", "process_namespace", "secrets_planted", "traces"]

# As those that servers commonly have; one of no known name shows a filter that goes by names.
_VARIABLES = ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "GYMHOST_TOKEN", "FOO_PRIVATE")


@dataclass(frozen=True, slots=True)
class Secrets:
    """What no sandbox may come to see.

    Attributes:
        variables: Environment variables of this process.
        files: Paths of files on the host.
        text: What the files hold.
    """

    variables: Mapping[str, str]
    files: tuple[str, ...]
    text: str


@contextlib.contextmanager
def secrets_planted() -> Generator[Secrets, None, None]:
    """Puts secrets into this process's environment, its open files, the host's /tmp and the home folder."""
    text = f"secret-{os.urandom(12).hex()}"
    planted = {name: f"{name.lower()}-{os.urandom(12).hex()}" for name in _VARIABLES if name not in os.environ}
    with contextlib.ExitStack() as stack:
        os.environ.update(planted)
        stack.callback(lambda: [os.environ.pop(name, None) for name in planted])
        files: list[str] = []
        for folder in dict.fromkeys((tempfile.gettempdir(), "/tmp", str(Path.home()))):
            with contextlib.suppress(OSError):
                file = stack.enter_context(tempfile.NamedTemporaryFile(prefix="gymhost-secret-", dir=folder))
                file.write(text.encode())
                file.flush()
                # Whoever may enter its folder may read it, so that only isolation keeps it.
                os.fchmod(file.fileno(), 0o644)
                os.set_inheritable(file.fileno(), True)
                files.append(file.name)
        yield Secrets({name: os.environ[name] for name in _VARIABLES}, tuple(files), text)


def command_lines() -> bytes:
    """Returns the command lines of all processes of the host."""
    return b"\n".join(_read(f"/proc/{pid}/cmdline") for pid in _pids())


def process_namespace() -> str:
    """Returns the name of the process namespace that this process is in."""
    return str(Path("/proc/self/ns/pid").readlink())


@dataclass(frozen=True, slots=True)
class Held:
    """What this process and those below it hold."""

    processes: int
    descriptors: int
    mounts: int
    memory: int


def held() -> Held:
    """Returns what is held now."""
    tree = _tree()
    return Held(
        processes=len(tree),
        descriptors=sum(_entries(f"/proc/{pid}/fd") for pid in tree),
        mounts=sum(_read(f"/proc/{pid}/mountinfo").count(b"\n") for pid in _one_a_namespace(tree)),
        memory=sum(_resident(pid) for pid in tree),
    )


def groups_with(mark: str) -> set[str]:
    """Returns the folders of the control groups of processes with a mark in their command lines, but this process's."""
    marked = [pid for pid in _pids() if mark.encode() in _read(f"/proc/{pid}/cmdline")]
    return {group for pid in marked for group in _groups(pid)} - _groups(os.getpid())


def traces(names: Collection[str]) -> list[str]:
    """Returns what has one of some names: of temporary files, mounts and control groups."""
    places = dict.fromkeys((tempfile.gettempdir(), "/tmp", "/dev/shm", "/run", "/var/tmp"))
    found = [f"{place}/{name}" for place in places for name in _listed(place)]
    found += [line.decode(errors="replace") for line in _read("/proc/self/mountinfo").splitlines()]
    found += [f"{folder}/{name}" for folder, below, _ in os.walk("/sys/fs/cgroup") for name in below]
    return [trace for trace in found if any(name in trace for name in names)]


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def _tree() -> list[int]:
    """This process and all below it."""
    parents: dict[int, int] = {}
    for pid in _pids():
        # The name may have spaces and brackets; what follows the last bracket has none.
        fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        if len(fields) > 1:
            parents[pid] = int(fields[1])
    tree = [os.getpid()]
    for pid in tree:
        tree += [child for child, parent in parents.items() if parent == pid]
    return tree


def _one_a_namespace(pids: list[int]) -> list[int]:
    """One process for each mount namespace, so that no mount is counted twice."""
    chosen: dict[str, int] = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            chosen.setdefault(str(Path(f"/proc/{pid}/ns/mnt").readlink()), pid)
    return list(chosen.values())


def _groups(pid: int) -> set[str]:
    """The folders of a process's control groups, in whatever way they are mounted."""
    lines = _read(f"/proc/{pid}/cgroup").decode().splitlines()
    found: set[str] = set()
    for _, controllers, path in (line.split(":", 2) for line in lines):
        tops = ("", "/unified") if not controllers else (f"/{controllers.removeprefix('name=')}",)
        found.update(folder for top in tops if os.path.isdir(folder := f"/sys/fs/cgroup{top}{path}"))  # noqa: PTH112
    return found


def _listed(folder: str) -> list[str]:
    with contextlib.suppress(OSError):
        return os.listdir(folder)
    return []


def _entries(folder: str) -> int:
    return len(_listed(folder))


def _resident(pid: int) -> int:
    fields = _read(f"/proc/{pid}/statm").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if fields else 0


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""
