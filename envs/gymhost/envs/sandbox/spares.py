"""Containers that are made before they are asked for."""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from gymhost.envs.sandbox.backend import Container
from gymhost.envs.sandbox.spec import SandboxSpec

__all__ = ["Spares"]

log = logging.getLogger("gymhost.envs.sandbox")

# Seconds after which the spares of a kind that nobody asks for are destroyed.
IDLE_LIMIT = 600.0
# The most kinds with spares: the one that was asked for the longest ago makes room for a new one.
KINDS = 16
# Seconds between two looks at what has died or is idle.
SWEEP = 5.0
# The longest wait after a spare that could not be made, in seconds.
LONGEST_PAUSE = 60.0
# Seconds that the thread gets to end.
CLOSE_LIMIT = 10.0


@dataclass(slots=True)
class _Kind:
    """The spares of equal specs."""

    spec: SandboxSpec
    wanted: int
    asked: float = field(default_factory=time.monotonic)
    ready: list[Container] = field(default_factory=list[Container])
    making: int = 0
    failures: int = 0
    pause: float = 0.0


class Spares:
    """Keeps containers ready, on a thread of its own. All but `close` never waits.

    Args:
        make: Makes one.
    """

    def __init__(self, make: Callable[[SandboxSpec], Awaitable[Container]]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._kinds: dict[SandboxSpec, _Kind] = {}
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: asyncio.Event
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def keep(self, spec: SandboxSpec, wanted: int) -> None:
        """Has so many kept of a kind; fewer are destroyed, or taken, one by one."""
        surplus: list[Container] = []
        with self._lock:
            if self._closed or (wanted <= 0 and spec not in self._kinds):
                return
            if (kind := self._kinds.get(spec)) is not None:
                kind.wanted, kind.asked = wanted, time.monotonic()
                surplus, kind.ready = kind.ready[wanted:], kind.ready[:wanted]
            else:
                if len(self._kinds) >= KINDS:
                    oldest = min(self._kinds.values(), key=lambda kind: kind.asked)
                    surplus = self._drop(oldest)
                self._kinds[spec] = _Kind(spec, wanted)
            if wanted > 0 and self._thread is None:
                self._thread = threading.Thread(target=self._work, name="gymhost-spares", daemon=True)
                self._thread.start()
            self._look()
        for container in surplus:
            container.kill()

    def take(self, spec: SandboxSpec) -> Container | None:
        """Takes one of a kind, if there is one; another will take its place."""
        with self._lock:
            if (kind := self._kinds.get(spec)) is None:
                return None
            kind.asked = time.monotonic()
            while kind.ready:
                container = kind.ready.pop(0)
                self._look()
                if container.alive:
                    return container
                container.kill()
        return None

    def __len__(self) -> int:
        with self._lock:
            return sum(len(kind.ready) for kind in self._kinds.values())

    async def close(self) -> None:
        """Destroys all, and makes no more. Bounded; may be called twice."""
        with self._lock:
            self._closed = True
            left = [container for kind in list(self._kinds.values()) for container in self._drop(kind)]
            thread = self._thread
            self._look()
        if thread is not None:
            await asyncio.to_thread(thread.join, CLOSE_LIMIT)
        await asyncio.gather(*(container.destroy() for container in left))

    def _drop(self, kind: _Kind) -> list[Container]:
        """Forgets a kind; what was ready is for the caller to destroy. The lock is held."""
        del self._kinds[kind.spec]
        kind.wanted = 0
        ready, kind.ready = kind.ready, []
        return ready

    def _look(self) -> None:
        """Has the thread look at what is wanted. The lock is held."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._wake.set)

    # -- on the thread -------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        self._wake = asyncio.Event()
        with self._lock:
            self._loop = asyncio.get_running_loop()
        while not self._closed:
            self._wake.clear()
            for container in self._sweep():
                container.kill()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), SWEEP)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSE_LIMIT / 2)

    def _sweep(self) -> list[Container]:
        """Begins to make what is missing; returns what is to be destroyed."""
        now = time.monotonic()
        gone: list[Container] = []
        with self._lock:
            for kind in list(self._kinds.values()):
                if now > kind.asked + IDLE_LIMIT:
                    gone += self._drop(kind)
                    continue
                gone += [container for container in kind.ready if not container.alive]
                kind.ready = [container for container in kind.ready if container.alive]
                if now < kind.pause:
                    continue
                for _ in range(kind.wanted - len(kind.ready) - kind.making):
                    kind.making += 1
                    task = asyncio.get_running_loop().create_task(self._make_one(kind))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
        return gone

    async def _make_one(self, kind: _Kind) -> None:
        try:
            container = await self._make(kind.spec)
        except Exception as error:  # noqa: BLE001 - a spare is made for nobody who could be told
            kind.failures += 1
            kind.pause = time.monotonic() + min(2.0**kind.failures, LONGEST_PAUSE)
            log.warning("a spare sandbox could not be made: %s", error)
            return
        finally:
            with self._lock:
                kind.making -= 1
        kind.failures = 0
        with self._lock:
            if not self._closed and len(kind.ready) < kind.wanted:
                kind.ready.append(container)
                return
        container.kill()
