"""The one event-loop thread that runs all gRPC of the process.

gRPC's asyncio support wants to live on one loop of a process; users have loops of their own, several threads, or none.
"""

import asyncio
import atexit
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from gymhost.wire.errors import ConnectionLost

T = TypeVar("T")

_lock = threading.Lock()
_current: "LoopThread | None" = None
# Whether this process was forked from one that had gRPC running: it would crash here.
_spoiled = False
# Called in a forked child: gRPC does not survive a fork, so what used it must say so instead of hanging.
_on_fork: "weakref.WeakSet[Any]" = weakref.WeakSet()


class LoopThread:
    """A daemon thread with an event loop, stopped when the interpreter exits."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._pid = os.getpid()
        self._stopped = False
        self._closers: dict[int, Callable[[], Coroutine[Any, Any, None]]] = {}
        self._thread = threading.Thread(target=self._run, name="gymhost-client", daemon=True)
        self._thread.start()
        atexit.register(self._stop)

    def call(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Runs a coroutine on the loop from another thread and waits for what it returns.

        Raises:
            ConnectionLost: The interpreter is exiting, and the loop has stopped.
        """
        if self._stopped:
            work.close()
            raise ConnectionLost("the interpreter is exiting: its connections are closed")
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result(timeout)
        except BaseException:
            future.cancel()
            raise

    async def acall(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on the loop from another loop.

        Raises:
            ConnectionLost: The interpreter is exiting, and the loop has stopped.
        """
        if self._stopped:
            work.close()
            raise ConnectionLost("the interpreter is exiting: its connections are closed")
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.loop))

    def at_exit(self, owner: object, close: Callable[[], Coroutine[Any, Any, None]] | None) -> None:
        """Has `close` awaited, for a short time, when the interpreter exits; None takes it back."""
        if close is None:
            self._closers.pop(id(owner), None)
        else:
            self._closers[id(owner)] = close

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def _stop(self) -> None:
        if os.getpid() != self._pid:
            return  # a forked child has the object, but not the thread

        async def close_all() -> None:
            await asyncio.wait_for(asyncio.gather(*(close() for close in list(self._closers.values()))), 2.0)

        try:
            asyncio.run_coroutine_threadsafe(close_all(), self.loop).result(3.0)
        except Exception:  # noqa: BLE001 - at exit the rest is left to the lease
            pass
        self._stopped = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(2.0)


def loop_thread() -> LoopThread:
    """The thread of this process, started when first asked for.

    Raises:
        ConnectionLost: The process was forked from one that had connected before.
    """
    global _current
    if _spoiled:
        raise ConnectionLost(
            "the process that this one was forked from had connected already, which gRPC does not survive: "
            "connect after the fork, or spawn"
        )
    with _lock:
        if _current is None:
            _current = LoopThread()
        return _current


def on_fork(thing: Any) -> None:
    """Has `thing.forked()` called in forked children."""
    _on_fork.add(thing)


def _after_fork() -> None:
    global _current, _lock, _spoiled
    _lock = threading.Lock()
    _spoiled = _spoiled or _current is not None
    _current = None
    for thing in list(_on_fork):
        thing.forked()
    _on_fork.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
