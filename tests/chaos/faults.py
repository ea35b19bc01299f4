"""The faults: each does its harm, waits as long as it is to last, and undoes what can be undone."""

import contextlib
import os
import random
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path

from chaos.arena import FAKETIME, Arena

Fault = Callable[[Arena, random.Random], None]


def _a_worker(arena: Arena, chance: random.Random) -> int | None:
    workers = arena.workers
    return chance.choice(workers) if workers else None


def _signal(pid: int | None, number: int) -> None:
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def kill_worker(arena: Arena, chance: random.Random) -> None:
    """A worker dies."""
    _signal(_a_worker(arena, chance), signal.SIGKILL)


def stop_worker(arena: Arena, chance: random.Random) -> None:
    """A worker stands still; beyond `worker_liveness` the server is to take it for dead."""
    worker = _a_worker(arena, chance)
    _signal(worker, signal.SIGSTOP)
    time.sleep(chance.choice([0.3, 1.0, 13.0]))
    _signal(worker, signal.SIGCONT)


def kill_server(arena: Arena, chance: random.Random) -> None:
    """The server dies, and another is started in its place."""
    arena.restart()


def stop_server(arena: Arena, chance: random.Random) -> None:
    """The front stands still."""
    arena.server.signal(signal.SIGSTOP)
    time.sleep(chance.uniform(0.2, 3.0))
    arena.server.signal(signal.SIGCONT)


def cut(arena: Arena, chance: random.Random) -> None:
    """Connections break, with whatever was on its way."""
    arena.proxy.cut()


def refuse(arena: Arena, chance: random.Random) -> None:
    """Connections break, and new ones too for a while."""
    arena.proxy.refuse(True)
    arena.proxy.cut()
    time.sleep(chance.uniform(0.1, 2.0))
    arena.proxy.refuse(False)


def stall(arena: Arena, chance: random.Random) -> None:
    """Nothing comes through in one direction for a while."""
    to_server = chance.random() < 0.5
    arena.proxy.hold(to_server=to_server)
    time.sleep(chance.uniform(0.2, 4.0))
    arena.proxy.release(to_server=to_server)


def delay(arena: Arena, chance: random.Random) -> None:
    """What comes through comes late, over and over."""
    end = time.monotonic() + chance.uniform(0.5, 3.0)
    while time.monotonic() < end:
        for to_server in (True, False):
            arena.proxy.hold(to_server=to_server)
        time.sleep(chance.uniform(0.01, 0.1))
        for to_server in (True, False):
            arena.proxy.release(to_server=to_server)
        time.sleep(0.01)


def swallow(arena: Arena, chance: random.Random) -> None:
    """Commands come through and run; their replies are lost with the connection."""
    arena.proxy.hold(to_server=False)
    time.sleep(chance.uniform(0.05, 0.5))
    arena.proxy.cut()
    arena.proxy.release(to_server=False)


def full_disk(arena: Arena, chance: random.Random) -> None:
    """The disk that the server and its sandboxes write to is full for a while."""
    filler = arena.disk / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 2**16)
    time.sleep(chance.uniform(0.5, 3.0))
    filler.unlink(missing_ok=True)


def few_descriptors(arena: Arena, chance: random.Random) -> None:
    """The front, or a worker, can open no more files for a while."""
    pid = _a_worker(arena, chance) if chance.random() < 0.5 else arena.server.pid
    if pid is None:
        return
    with contextlib.suppress(OSError):
        used = max(int(path.name) for path in Path(f"/proc/{pid}/fd").iterdir())
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + 1, hard))
        time.sleep(chance.uniform(0.5, 3.0))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))


def out_of_memory(arena: Arena, chance: random.Random) -> None:
    """The kernel ends a worker for want of memory: it is put where there is none left.

    Where control groups can't be made the worker is killed in the way that the kernel does it.
    """
    worker = _a_worker(arena, chance)
    if worker is None:
        return
    group = Path("/sys/fs/cgroup/memory" if Path("/sys/fs/cgroup/memory").exists() else "/sys/fs/cgroup")
    group /= f"gymhost-chaos-{worker}"
    try:
        group.mkdir()
    except OSError:
        _signal(worker, signal.SIGKILL)
        return
    try:
        limit = "memory.limit_in_bytes" if (group / "memory.limit_in_bytes").exists() else "memory.max"
        # Its pages stay where they were counted; what it takes from now on counts here, and a few steps take this much.
        (group / limit).write_text(str(2**16))
        (group / "cgroup.procs").write_text(str(worker))
        give_up = time.monotonic() + 10.0
        while Path(f"/proc/{worker}").exists() and time.monotonic() < give_up:
            time.sleep(0.05)
    except OSError:
        pass
    finally:
        _signal(worker, signal.SIGKILL)
        give_up = time.monotonic() + 5.0
        while group.exists() and time.monotonic() < give_up:
            with contextlib.suppress(OSError):
                group.rmdir()
            time.sleep(0.05)


def clock_jump(arena: Arena, chance: random.Random) -> None:
    """The server's clock is set: a minute, a day or a year, either way."""
    arena.set_clock(chance.choice([-1, 1]) * chance.choice([60, 86_400, 31_536_000]))
    time.sleep(chance.uniform(0.5, 3.0))
    if chance.random() < 0.5:
        arena.set_clock(0)


# How often each comes, as weights.
FAULTS: dict[Fault, int] = {
    kill_worker: 6,
    stop_worker: 2,
    kill_server: 1,
    stop_server: 2,
    cut: 4,
    refuse: 2,
    stall: 2,
    delay: 2,
    swallow: 4,
    full_disk: 1,
    few_descriptors: 2,
    out_of_memory: 2,
    **({clock_jump: 2} if FAKETIME is not None else {}),
}
