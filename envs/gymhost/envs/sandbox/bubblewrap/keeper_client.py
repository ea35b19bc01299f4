"""The worker's side of the keeper."""

import asyncio
import collections
import concurrent.futures
import contextlib
import itertools
import json
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gymhost.envs.sandbox.bubblewrap.cgroups import remove_all, thaw_all
from gymhost.envs.sandbox.bubblewrap.terms import BWRAP, PACKET
from gymhost.wire.errors import CapacityExhausted, InvalidArgument, SandboxLost, SandboxUnavailable

__all__ = ["KeeperClient"]

# Seconds that the keeper has to start, and to end.
START_LIMIT = 20.0
END_LIMIT = 10.0

# Errors of the machine that may be gone at the next attempt.
PASSING = (11, 12, 23, 24, 28)  # EAGAIN, ENOMEM, ENFILE, EMFILE, ENOSPC

_KEEPER = Path(__file__).with_name("keeper.py")


class KeeperClient:
    """A keeper process, and what is asked of it, from any thread and any event loop.

    Args:
        bwrap: The bubblewrap to use.
        on_end: Is told the name of a sandbox that has ended, from a thread; None when the keeper has, and all with it.

    Attributes:
        is_root: Whether the keeper has root's rights.
        version: Of the control groups that hold limits; 0 for none.
        folders: Where they are.
        holds: The limits that they hold.
        told: What it was told that it keeps.

    Raises:
        SandboxUnavailable: It did not start; the message says why.
    """

    def __init__(self, bwrap: Path, on_end: Callable[[str | None], None]) -> None:
        self._on_end = on_end
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, concurrent.futures.Future[dict[str, Any]]] = {}
        # What could not be sent yet: the keeper is behind, so it has something to answer first.
        self._outbox: collections.deque[tuple[bytes, list[int]]] = collections.deque()
        self._dead = False
        own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * PACKET)
        self._socket = own
        with other:
            try:
                self._process = _started(bwrap, other)
            except OSError as error:
                own.close()
                raise SandboxUnavailable(f"the process that makes sandboxes could not be started: {error}") from error
        try:
            ready = self._first_words()
        except BaseException:
            self._stop()
            raise
        self.is_root: bool = ready["root"]
        self.version: int = ready["version"]
        self.folders: dict[str, str] = ready["folders"]
        self.holds = frozenset[str](ready["holds"])
        self.told: set[str] = set()
        own.setblocking(False)
        self._reader = threading.Thread(target=self._read, name="gymhost-keeper", daemon=True)
        self._reader.start()

    @property
    def alive(self) -> bool:
        """Whether the keeper runs, as far as is known."""
        return not self._dead

    def _first_words(self) -> dict[str, Any]:
        self._socket.settimeout(START_LIMIT)
        try:
            data = self._socket.recv(PACKET)
        except OSError as error:
            raise SandboxUnavailable(f"the process that makes sandboxes did not start: {error}") from error
        if not data:
            raise SandboxUnavailable("the process that makes sandboxes ended at its start; see standard error")
        words: dict[str, Any] = json.loads(data)
        if "failed" in words:
            raise SandboxUnavailable(f"{words['error']} ({_hint(words['failed'])})")
        return words["ready"]

    def post(self, operation: str, descriptors: Sequence[int] = (), **words: Any) -> concurrent.futures.Future[Any]:
        """Asks something of the keeper without waiting, from any thread.

        Args:
            operation: What to do.
            descriptors: What it gets; they are closed here.
            words: What it needs to know.

        Returns:
            What becomes the answer. It fails with `SandboxLost` when the keeper ends.
        """
        number = next(self._numbers)
        future: concurrent.futures.Future[dict[str, Any]] = concurrent.futures.Future()
        data = json.dumps({"number": number, "operation": operation, **words}).encode()
        with self._lock:
            if self._dead or len(data) > PACKET:
                for descriptor in descriptors:
                    os.close(descriptor)
                if self._dead:
                    future.set_exception(SandboxLost(_ENDED))
                else:
                    future.set_exception(InvalidArgument(f"arguments and environment may have {PACKET} bytes in all"))
                return future
            self._waiting[number] = future
            self._outbox.append((data, list(descriptors)))
            self._flush()
        return future

    async def request(
        self, operation: str, descriptors: Sequence[int] = (), *, timeout: float, **words: Any
    ) -> dict[str, Any]:
        """Asks something of the keeper, and returns its answer.

        Raises:
            SandboxLost: The sandbox or the keeper is gone, or there is no answer in time.
            CapacityExhausted: The machine has not enough of something now.
            SandboxUnavailable: It could not be done.
        """
        future = self.post(operation, descriptors, **words)
        try:
            answer = await asyncio.wait_for(asyncio.wrap_future(future), timeout)
        except TimeoutError:
            raise SandboxLost(f"the process that makes sandboxes did not answer within {timeout:g} s") from None
        if answer.get("lost"):
            raise SandboxLost("the sandbox is gone")
        if "error" in answer:
            kind = CapacityExhausted if answer.get("errno") in PASSING else SandboxUnavailable
            raise kind(f"bubblewrap: {answer['error']}")
        return answer

    def _flush(self) -> None:
        while self._outbox:
            data, descriptors = self._outbox[0]
            try:
                if descriptors:
                    socket.send_fds(self._socket, [data], descriptors)
                else:
                    self._socket.send(data)
            except BlockingIOError:
                return
            except OSError:
                pass  # it has ended, as its reader finds too
            self._outbox.popleft()
            for descriptor in descriptors:
                os.close(descriptor)

    def _read(self) -> None:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        while True:
            poll.poll()
            try:
                data = self._socket.recv(PACKET)
            except BlockingIOError:
                continue
            except OSError:
                data = b""
            if not data:
                break
            words: dict[str, Any] = json.loads(data)
            with self._lock:
                self._flush()
                future = self._waiting.pop(words["number"], None)
            if future is not None and future.set_running_or_notify_cancel():
                future.set_result(words)
            elif "ended" in words and future is None:
                self._on_end(words["ended"])
        self._end()

    def _end(self) -> None:
        with self._lock:
            self._dead = True
            waiting, self._waiting = list(self._waiting.values()), {}
            left, self._outbox = list(self._outbox), collections.deque()
        for _, descriptors in left:
            for descriptor in descriptors:
                os.close(descriptor)
        for future in waiting:
            if future.set_running_or_notify_cancel():
                future.set_exception(SandboxLost(_ENDED))
        for folder in self.folders.values():
            thaw_all(folder)
        self._on_end(None)
        self._stop()
        for folder in self.folders.values():
            remove_all(folder)

    def close(self) -> None:
        """Ends the keeper and all that it made. Waits for that, bounded; may be called twice, from any thread."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._reader.join(2 * END_LIMIT)

    def _stop(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        try:
            self._process.wait(END_LIMIT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._socket.close()


_ENDED = "the process that makes sandboxes has ended, and all of its sandboxes with it"


def _started(bwrap: Path, channel: socket.socket) -> subprocess.Popen[bytes]:
    files: Mapping[str, str] = {}
    program = str(bwrap)
    if not bwrap.is_relative_to("/usr"):
        # Whoever sandboxes run as may have no way to it, so that it is copied; its libraries are found from its place.
        package = bwrap.parent.parent
        libraries = sorted(package.with_name(f"{package.name}.libs").glob("*"))
        files = {str(path): str(path.relative_to(package.parent)) for path in (bwrap, *libraries)}
        program = f"{BWRAP}/{files[str(bwrap)]}"
    settings = json.dumps({"bwrap": program, "files": files})
    # Python itself may need to find its libraries; nothing of this reaches a sandbox.
    env = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(_KEEPER), str(channel.fileno()), settings],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        cwd="/",
        env=env,
        pass_fds=[channel.fileno()],
        start_new_session=True,
    )


def _hint(step: str) -> str:
    """Returns what of the machine's settings may keep an ordinary user from making sandboxes."""
    hints = {
        "kernel/unprivileged_userns_clone": ("0", "set the sysctl kernel.unprivileged_userns_clone to 1"),
        "kernel/apparmor_restrict_unprivileged_userns": (
            "1",
            "set the sysctl kernel.apparmor_restrict_unprivileged_userns to 0, or give bubblewrap an AppArmor profile",
        ),
        "user/max_user_namespaces": ("0", "set the sysctl user.max_user_namespaces to 10000 or so"),
    }
    found = [advice for name, (value, advice) in hints.items() if _setting(name) == value]
    if found:
        return "; ".join(found)
    return (
        f"bubblewrap needs leave to make {step}: in a container, run that with --privileged or its seccomp filter off"
    )


def _setting(name: str) -> str:
    try:
        return Path("/proc/sys", name).read_text().strip()
    except OSError:
        return ""
