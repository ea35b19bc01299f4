"""Holds the processes of one local sandbox together: `python -I -S local_reaper.py FD FOLDER`, with the limits as JSON.

It is a subreaper: whatever its descendants do, their orphans become its children, so none gets out of its sight. At the
other end of the socket FD is the sandbox's owner. When the owner closes it or is gone, or the first process that it
was asked for has ended, everything is ended, the folder removed, and it ends too. Standard library only.

A request is a packet of JSON, `{"argv": [...], "env": {...}}`, with four descriptors: the three standard streams of the
process, and one to answer on: its process id in a line, then the number of the error if it can't be executed.
"""

import contextlib
import ctypes
import json
import os
import resource
import select
import shutil
import signal
import socket
import stat
import sys
import time

PACKET = 2**20
# Seconds in which all processes must end.
END_LIMIT = 10.0

PR_SET_CHILD_SUBREAPER = 36


class Reaper:
    """The loop of the program."""

    def __init__(self, owner: socket.socket, folder: str) -> None:
        self._owner = owner
        self._folder = folder
        self._first = 0

    def run(self) -> None:
        """Starts what it is asked for and reaps what ends, until the owner or the first process is gone."""
        woken, waker = os.pipe()
        for end in (woken, waker):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, _ignore)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        poll = select.poll()
        for end in (self._owner.fileno(), woken):
            poll.register(end, select.POLLIN)
        while True:
            for ready, _ in poll.poll():
                if ready == woken:
                    with contextlib.suppress(BlockingIOError):
                        os.read(woken, 4096)
                    if self._reap():
                        return
                elif not self._serve():
                    return

    def end(self) -> None:
        """Ends all descendants and removes the folder."""
        deadline = time.monotonic() + END_LIMIT
        # While there are any, one of them is a child, since orphans become children. What /proc shows proves nothing:
        # processes that live shortly and begin others come and go between two looks.
        while self._has_children() and time.monotonic() < deadline:
            # Some kernels have no lists of children.
            for pid in stopped(os.getpid()) or descendants(os.getpid()):
                send(pid, signal.SIGKILL)
            time.sleep(0.0002)
        remove(self._folder)

    def _serve(self) -> bool:
        """Starts a process; False where the owner is gone."""
        try:
            packet, descriptors, _, _ = socket.recv_fds(self._owner, PACKET, 4)
        except OSError:
            return False
        if not packet:
            return False
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        stdin, stdout, stderr, answer = descriptors
        request = json.loads(packet)
        pid = os.fork()
        if pid == 0:
            _become((stdin, stdout, stderr), answer, request["argv"], request["env"], self._folder)
        self._first = self._first or pid
        for descriptor in descriptors:
            os.close(descriptor)
        return True

    def _reap(self) -> bool:
        """Takes notice of the children that have ended; whether the first process is among them."""
        ended = False
        with contextlib.suppress(ChildProcessError):
            while (pid := os.waitpid(-1, os.WNOHANG)[0]) != 0:
                ended = ended or pid == self._first
        return ended

    def _has_children(self) -> bool:
        """Takes notice of the children that have ended; whether there are others."""
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return False
        return True


def stopped(root: int) -> list[int]:
    """Stops all processes below one, each before its own children are looked for, and returns them."""
    found: list[int] = []
    unseen = children(root)
    while unseen:
        pid = unseen.pop()
        send(pid, signal.SIGSTOP)
        found.append(pid)
        unseen += children(pid)
    return found


def send(pid: int, number: int) -> None:
    """Sends a signal to a process, if it is there."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def children(pid: int) -> list[int]:
    """The children of a process."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as listing:
                found += map(int, listing.read().split())
    return found


def descendants(root: int) -> list[int]:
    """All processes below one, without those that have ended and wait to be reaped."""
    below: dict[int, list[int]] = {}
    ended: set[int] = set()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as status:
                fields = status.read().rpartition(b")")[2].split()
        except OSError:
            continue
        below.setdefault(int(fields[1]), []).append(int(name))
        # One whose main thread alone has ended runs on.
        if fields[0] in (b"Z", b"X") and int(fields[17]) < 2:
            ended.add(int(name))
    found: list[int] = []
    unseen = [root]
    while unseen:
        pids = below.get(unseen.pop(), [])
        found += pids
        unseen += pids
    return [pid for pid in found if pid not in ended]


def remove(folder: str) -> None:
    """Removes a folder, also what forbids that; links are not followed."""
    for parent, folders, _ in os.walk(folder):
        for name in folders:
            path = f"{parent}/{name}"
            with contextlib.suppress(OSError):
                if not stat.S_ISLNK(os.lstat(path).st_mode):
                    os.chmod(path, 0o700)  # noqa: PTH101 - pathlib takes longer to import than all else
    shutil.rmtree(folder, ignore_errors=True)


def _ignore(number: int, frame: object) -> None:
    """Is there so that the signal wakes the loop."""


def _become(streams: tuple[int, int, int], answer: int, argv: list[str], env: dict[str, str], folder: str) -> None:
    """Executes a program in the process that was forked for it. Never returns."""
    try:
        os.write(answer, f"{os.getpid()}\n".encode())
        os.setsid()
        os.chdir(folder)
        # Those that came are above 2: the reaper's own three are never closed.
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            with contextlib.suppress(OSError, ValueError):
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        # As a shell does: the program is looked for in the PATH of its own environment.
        os.execvpe(argv[0], argv, env)
    except OSError as error:
        os.write(answer, f"{error.errno}\n".encode())
    finally:
        os._exit(127)


def main() -> None:
    """Serves the owner at a socket, then ends all."""
    owner, folder = socket.socket(fileno=int(sys.argv[1])), sys.argv[2]
    owner.set_inheritable(False)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        sys.exit("this system has no subreapers")
    for name, limit in json.loads(sys.argv[3]).items():
        number = getattr(resource, name)
        hard = resource.getrlimit(number)[1]
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(number, (limit, limit))
    reaper = Reaper(owner, folder)
    try:
        reaper.run()
    finally:
        reaper.end()


if __name__ == "__main__":
    main()
