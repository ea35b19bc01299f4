"""Making sandboxes: so many at a time, again when there is no room yet, and some of them in advance."""

import asyncio
import contextlib
import functools
import random
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self, cast

from gymhost.envs.sandbox.backend import Backend, Container
from gymhost.envs.sandbox.counting import counts
from gymhost.envs.sandbox.sandbox import Sandbox
from gymhost.envs.sandbox.slots import Slots
from gymhost.envs.sandbox.snapshots import Snapshot, TarSnapshot
from gymhost.envs.sandbox.spares import Spares
from gymhost.envs.sandbox.spec import SandboxSpec
from gymhost.envs.sandboxing import CREATIONS, Scope, owner
from gymhost.wire.errors import CapacityExhausted, InvalidArgument, SandboxLost, SandboxUnavailable

__all__ = ["CREATE_TIMEOUT", "Pool"]

# Seconds that a sandbox may take to be there where its caller names no limit.
CREATE_TIMEOUT = 120.0
# The first wait after a refusal and the longest, in seconds; each is spread by half of it to either side.
FIRST_WAIT = 0.1
LONGEST_WAIT = 5.0


@dataclass(slots=True)
class Times:
    """How long a container took.

    Attributes:
        queued: Seconds that it waited for its turn, and between refusals.
        making: Seconds that making it took, refused attempts included.
        attempts: How often the backend was asked.
        refusal: What it said last when it had no room.
        share: Why it had to wait for memory, while it does.
        began: When all that began.
    """

    queued: float = 0.0
    making: float = 0.0
    attempts: int = 0
    refusal: str = ""
    share: str = ""
    began: float = field(default_factory=time.monotonic)


class Pool:
    """Makes sandboxes with one backend. It can be used from several threads and event loops.

    Args:
        backend: What makes them; the pool closes it.
        creations: The most creations in flight.
        folder: Where the processes that share this limit know of each other; None for a limit of this pool's own.
        spares: How many sandboxes of each kind that was asked for are kept ready.
    """

    def __init__(
        self, backend: Backend, *, creations: int = CREATIONS, folder: Path | None = None, spares: int = 0
    ) -> None:
        self.backend = backend
        self._counts = counts(backend.name)
        self._slots = Slots(creations, folder)
        self._keep = spares
        self._spares = Spares(self._make_spare)
        self._counts.keep(self._spares)
        self._closed = False

    async def create(
        self,
        spec: SandboxSpec | None = None,
        *,
        snapshot: Snapshot | None = None,
        timeout: float = CREATE_TIMEOUT,
    ) -> Sandbox:
        """Makes a sandbox, or takes one that is ready. In a session of a server it ends with the session.

        Args:
            spec: What it is to be like.
            snapshot: What it begins with, of a sandbox of the same backend.
            timeout: Seconds that it may take, waits included.

        Returns:
            The sandbox. Its `queued_seconds` are those that it waited for its turn and between refusals, and
            `created_seconds` those of its making.

        Raises:
            CapacityExhausted: The time passed before there was room for it.
            InvalidArgument: The backend can't do what the spec asks for, or it is no `SandboxSpec`.
            SandboxUnavailable: It could not be made, or the pool is closed.
            SandboxLost: The session that it is for has ended.
        """
        spec = SandboxSpec() if spec is None else spec
        if not isinstance(cast(object, spec), SandboxSpec):
            # An environment's own attribute `spec` is Gymnasium's, and soon taken for it.
            raise InvalidArgument(f"a sandbox is made from a SandboxSpec, not from {type(spec).__name__}")
        if self._closed:
            raise SandboxUnavailable("the pool of sandboxes is closed")
        times = Times()
        scope = owner()
        with _Making() as making:
            if scope is not None:
                scope.add(making)
            limit = asyncio.timeout(timeout)
            try:
                async with limit:
                    return await self._create(spec, snapshot, times, scope)
            except TimeoutError as error:
                self._counts.failed()
                if limit.expired():
                    raise self._exhausted(times) from None
                raise SandboxUnavailable(f"a sandbox could not be made: {error}") from error

    def keep_spares(self, spec: SandboxSpec | None, number: int) -> None:
        """Has so many sandboxes of a kind made in advance, each of which is replaced when it is taken.

        They are made in the background, on a thread of the pool's own. A kind that nobody asks for is dropped after
        ten minutes. From any thread.

        Args:
            spec: The kind.
            number: How many; 0 drops them.
        """
        if not self._closed:
            self._spares.keep(SandboxSpec() if spec is None else spec, number)

    async def close(self) -> None:
        """Destroys all sandboxes, spares among them. Bounded; may be called twice."""
        self._closed = True
        await self._spares.close()
        await self.backend.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def _create(self, spec: SandboxSpec, snapshot: Snapshot | None, times: Times, scope: Scope | None) -> Sandbox:
        # A snapshot that consists of files alone is put into a sandbox that is there.
        own = None if isinstance(snapshot, TarSnapshot) else snapshot
        give_back = await _take_share(spec, times, scope)
        container: Container | None = None
        try:
            container = self._take_spare(spec) if own is None else None
            if container is None:
                container = await self._make(spec, own, times)
            began = time.monotonic()
            sandbox = await Sandbox.begin(
                container,
                snapshot,
                backend=self.backend.name,
                create=functools.partial(self.create, spec),
                queued_seconds=times.queued,
                created_seconds=times.making,
                give_back=give_back,
            )
            sandbox.created_seconds += time.monotonic() - began
            if scope is not None:
                scope.add(sandbox)
            self._counts.use(sandbox)
        except BaseException:
            if container is not None:
                container.kill()
            give_back()
            raise
        return sandbox

    def _take_spare(self, spec: SandboxSpec) -> Container | None:
        if self._keep:
            self._spares.keep(spec, self._keep)
        return self._spares.take(spec)

    async def _make_spare(self, spec: SandboxSpec) -> Container:
        async with asyncio.timeout(CREATE_TIMEOUT):
            return await self._make(spec, None, Times())

    async def _make(self, spec: SandboxSpec, snapshot: Snapshot | None, times: Times) -> Container:
        """Makes a container; attempts go on until the caller's time is over."""
        for wait in _waits():
            try:
                return await self._attempt(spec, snapshot, times)
            except CapacityExhausted as refusal:
                times.refusal = refusal.message
            began = time.monotonic()
            await asyncio.sleep(wait)
            times.queued += time.monotonic() - began
        raise AssertionError("the waits never end")

    async def _attempt(self, spec: SandboxSpec, snapshot: Snapshot | None, times: Times) -> Container:
        queued = time.monotonic()
        async with self._slots.taken():
            started = time.monotonic()
            times.queued += started - queued
            times.attempts += 1
            took: float | None = None
            self._counts.begin()
            try:
                container = await self.backend.create(spec, snapshot)
                took = time.monotonic() - started
                return container
            except (CapacityExhausted, TimeoutError):
                raise  # it is tried again, or has taken the caller's whole time
            except Exception:
                self._counts.failed()
                raise
            finally:
                self._counts.end(took)
                times.making += time.monotonic() - started

    def _exhausted(self, times: Times) -> Exception:
        """The error for a sandbox that was not there in time."""
        told = f"a sandbox was not made in {time.monotonic() - times.began:.1f} s"
        if times.share:
            return CapacityExhausted(f"{told}: {times.share}")
        if times.attempts == 0:
            return CapacityExhausted(
                f"{told}: all that time it waited for its turn, at most {self._slots.number} being made at once "
                "(sandbox_creations, --sandbox-creations)"
            )
        told = f"{told} and {times.attempts} attempts"
        if times.refusal:
            return CapacityExhausted(f"{told}; the last refusal: {times.refusal}")
        return SandboxUnavailable(f"{told}, {times.queued:.1f} s of which it waited for its turn")


async def _take_share(spec: SandboxSpec, times: Times, scope: Scope | None) -> Callable[[], object]:
    """Takes memory for a sandbox of what its owner may have; returns what gives it back."""
    if scope is None or scope.share is None:
        return lambda: None
    began = time.monotonic()
    give_back = await scope.share.take(spec.limits.memory, functools.partial(setattr, times, "share"))
    times.share = ""
    times.queued += time.monotonic() - began
    return give_back


class _Making:
    """The making of a sandbox, which its scope can break off. Entered by the task that makes it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._cancelling = 0
        self._over = False
        self._killed = False

    def __enter__(self) -> Self:
        self._cancelling = self._task.cancelling() if self._task is not None else 0
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        self._over = True
        if self._killed and self._task is not None:
            if self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
                raise SandboxLost(
                    "a sandbox was not made: the session that it is for was stopped, or has ended"
                ) from None

    @property
    def alive(self) -> bool:
        """Whether it goes on."""
        return not self._over

    def kill(self) -> None:
        """Breaks it off. From any thread."""
        with contextlib.suppress(RuntimeError):  # its loop is closed
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if not self._over and self._task is not None:
            self._killed = True
            self._task.cancel()


def _waits() -> Generator[float]:
    """Waits between attempts: longer each time, and spread so that those who were refused together part."""
    wait = FIRST_WAIT
    while True:
        yield wait * random.uniform(0.5, 1.5)
        wait = min(2 * wait, LONGEST_WAIT)
