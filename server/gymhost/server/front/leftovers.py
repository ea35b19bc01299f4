"""What servers of this user left behind that were killed: folders with sockets, and processes."""

import contextlib
import logging
import os
import select
import shutil
import signal
import time
from pathlib import Path

from gymhost.wire.folders import abandoned

__all__ = ["FOLDER_VARIABLE", "WORKERS_PREFIX", "clear", "clear_embedded"]

log = logging.getLogger("gymhost.server")

# What the folders are called that servers hold: where workers listen, and where embedded servers do.
WORKERS_PREFIX, EMBEDDED_PREFIX = "gymhost-workers-", "gymhost-embedded-"
# The variable by which all that a worker starts can be told to be a certain server's: it has the server's folder.
FOLDER_VARIABLE = "GYMHOST_WORKERS_FOLDER"

# Seconds for processes to end that were killed.
END_LIMIT = 5.0


def clear() -> int:
    """Ends and removes it. Blocks, for seconds at most. What belongs to a server that lives is not touched.

    Returns:
        How many servers had left something.
    """
    found = 0
    for path in abandoned(WORKERS_PREFIX):
        ended = _end_processes(path)
        shutil.rmtree(path, ignore_errors=True)
        found += 1
        log.info("cleared what a server left that was killed: %s, and %d processes", path, ended)
    clear_embedded()
    return found


def clear_embedded() -> None:
    """Removes the folders of embedded servers whose clients were killed."""
    for path in abandoned(EMBEDDED_PREFIX):
        shutil.rmtree(path, ignore_errors=True)


def _end_processes(folder: Path) -> int:
    """Kills the processes of a server by its folder, until there are none; says how many there were."""
    mark = f"{FOLDER_VARIABLE}={folder}".encode()
    deadline = time.monotonic() + END_LIMIT
    ended = 0
    with contextlib.ExitStack() as stack:
        while time.monotonic() < deadline and (found := _marked(mark, stack)):
            poll = select.poll()
            for descriptor in found:
                with contextlib.suppress(OSError):
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                poll.register(descriptor, select.POLLIN)
            ended += len(found)
            # Those that were killed may have started others meanwhile, which the next look finds.
            waiting = set(found)
            while waiting and (left := deadline - time.monotonic()) > 0:
                for descriptor, _ in poll.poll(left * 1000):
                    poll.unregister(descriptor)
                    waiting.discard(descriptor)
    return ended


def _marked(mark: bytes, stack: contextlib.ExitStack) -> list[int]:
    """Descriptors of the processes whose environment has a mark."""
    found: list[int] = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            # First the descriptor, then the look: it stays that of the process that was looked at.
            descriptor = os.pidfd_open(int(name))
        except OSError:
            continue
        marked = False
        with contextlib.suppress(OSError):
            marked = mark in Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
        if marked:
            stack.callback(os.close, descriptor)
            found.append(descriptor)
        else:
            os.close(descriptor)
    return found
