"""What the host sees of sandboxes, and what it must keep from them."""

import contextlib
import os
import tempfile
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Held", "Secrets", "held", "process_namespace", "processes_with", "secrets_planted"]

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


def processes_with(mark: str) -> list[int]:
    """Returns the processes of the host whose command line has a text."""
    sought = mark.encode()
    return [pid for pid in _pids() if sought in _read(f"/proc/{pid}/cmdline")]


def process_namespace() -> str:
    """Returns the name of the process namespace that this process is in."""
    return str(Path("/proc/self/ns/pid").readlink())


@dataclass(frozen=True, slots=True)
class Held:
    """What this process and those below it hold, and what they left elsewhere."""

    processes: int
    descriptors: int
    mounts: int
    memory: int
    folders: frozenset[str]
    cgroups: frozenset[str]


def held() -> Held:
    """Returns what is held now."""
    tree = _tree()
    return Held(
        processes=len(tree),
        descriptors=sum(_entries(f"/proc/{pid}/fd") for pid in tree),
        mounts=sum(_read(f"/proc/{pid}/mountinfo").count(b"\n") for pid in _one_a_namespace(tree)),
        memory=sum(_resident(pid) for pid in tree),
        folders=frozenset(_named_folders(tempfile.gettempdir(), "/dev/shm", "/run", "/var/tmp")),
        cgroups=frozenset(_cgroups()),
    )


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


def _cgroups() -> Iterator[str]:
    for folder, below, _ in os.walk("/sys/fs/cgroup"):
        yield from (f"{folder}/{name}" for name in below if "gymhost" in name or "gymhost" in folder)


def _named_folders(*places: str) -> Iterator[str]:
    for place in places:
        with contextlib.suppress(OSError):
            yield from (f"{place}/{name}" for name in os.listdir(place) if name.startswith("gymhost"))


def _entries(folder: str) -> int:
    with contextlib.suppress(OSError):
        return len(os.listdir(folder))
    return 0


def _resident(pid: int) -> int:
    fields = _read(f"/proc/{pid}/statm").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if fields else 0


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""
