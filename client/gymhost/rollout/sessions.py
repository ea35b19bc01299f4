"""Where the engine has its sessions from: anything with the async session API, with or without reuse."""

import asyncio
import logging
import math
import random
import weakref
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol, cast

from gymhost.rollout.faults import bound
from gymhost.rollout.requests import RolloutRequest
from gymhost.wire import errors

__all__ = ["Lease", "Session", "Sessions", "Source"]

logger = logging.getLogger(__name__)

# Seconds for which a session waits for a next episode.
_IDLE_SECONDS = 600.0
# How much of a label servers take.
_LABEL = 128


class Session(Protocol):
    """One live environment, as `gymhost.client` gives it."""

    @property
    def tools(self) -> list[dict[str, Any]]:
        """What the model may call: name, description, parameters."""
        ...

    async def reset(
        self,
        *,
        seed: int | None = None,
        options: dict[str, Any] | None = None,
        timeout: float | None = None,
        label: str = "",
    ) -> tuple[Any, dict[str, Any]]:
        """Begins an episode, which its server's operators know by the label."""
        ...

    async def step(self, action: Any, *, timeout: float | None = None) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Takes one step."""
        ...

    @property
    def evaluates(self) -> bool:
        """Whether the environment knows the option `evaluate_apart`, and `evaluate`."""
        ...

    async def evaluate(
        self, limit: str | None = None, *, timeout: float | None = None
    ) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Scores an episode that has ended unscored, or ends it here because of a limit and scores it."""
        ...


class Source(Protocol):
    """What opens sessions: a connection of `gymhost.client`, or anything alike."""

    def session(
        self, env_id: str, /, *, task: int | None = None, split: str | None = None, **kwargs: Any
    ) -> AbstractAsyncContextManager[Session]:
        """Opens a session, which is closed on leaving."""
        ...


@dataclass(slots=True)
class Lease:
    """What a rollout holds of the sessions: one for itself, once it has begun, until it gives it back."""

    key: tuple[Any, ...]
    session: Session | None = None
    manager: AbstractAsyncContextManager[Session] | None = None
    since: float = 0.0
    """Since when it waits for a next episode, on the loop's clock."""


class Sessions:
    """Opens sessions for rollouts and begins their episodes.

    Args:
        source: Where they come from.
        reuse: Whether a session is kept for the next episode of the same environment, which is then begun by a reset
            with the task among its options. Cheaper than a new one each, and as good as the environment's reset is. A
            session that failed is thrown away, and so is one that no rollout has wanted for a while, or that keeps one
            of another environment from being opened where there is no room for more.
        close_seconds: How long closing one may take.
        closing: How many may be closed at once.
    """

    def __init__(self, source: Source, *, reuse: bool = True, close_seconds: float = 60.0, closing: int = 64) -> None:
        self._source = source
        self._reuse = reuse
        self._close_seconds = close_seconds
        self._closing = asyncio.Semaphore(closing)
        self._idle: dict[tuple[Any, ...], list[Lease]] = {}
        self._lost: set[asyncio.Task[None]] = set()
        self._sweep: asyncio.TimerHandle | None = None

    def lease(self, request: RolloutRequest) -> Lease:
        """What a rollout needs to begin; there is no session in it yet."""
        return Lease((request.env_id, _frozen(request.kwargs)))

    async def begin(
        self, lease: Lease, request: RolloutRequest, label: str = ""
    ) -> tuple[Session, Any, dict[str, Any]]:
        """Gets a session and resets it; returns it with what the reset gave.

        The label is what those who watch the server know the episode by.

        Whatever this raises, it is `end` that gives back what it had got.
        """
        while idle := self._idle.get(lease.key):
            kept = idle.pop()
            lease.session, lease.manager = session, _ = kept.session, kept.manager
            assert session is not None
            try:
                return session, *await self._reset(session, request, label)
            except (errors.SessionError, errors.ServerUnavailable):
                # It was lost or expired while nobody looked. The rollout need not wait until it is closed, and no
                # cancellation of the rollout may interrupt that.
                lease.session = lease.manager = None
                self._close_beside(kept)
        session = await self._open(lease, request)
        return session, *await self._reset(session, request, label)

    async def prepare(self, request: RolloutRequest) -> None:
        """Opens a session ahead of the rollout that is to begin in it; for sessions that are kept (`reuse`)."""
        lease = self.lease(request)
        await self._open(lease, request)
        self._keep(lease)

    async def _open(self, lease: Lease, request: RolloutRequest) -> Session:
        place: dict[str, Any] = {} if self._reuse else {"task": request.task, "split": request.split}
        while True:
            manager = self._source.session(request.env_id, **place, **request.kwargs)
            try:
                lease.session, lease.manager = session, _ = await manager.__aenter__(), manager
                return session
            except errors.CapacityExhausted as full:
                if others := self._take_idle():
                    await asyncio.wait([self._close_beside(other) for other in others])
                    continue
                if full.retry_after is None:
                    raise
                # It is for the limit of INIT to say when that was long enough. Not all come back at one moment.
                await _pause(full.retry_after * random.uniform(1.0, 1.5), full.message)

    async def _reset(self, session: Session, request: RolloutRequest, label: str) -> tuple[Any, dict[str, Any]]:
        options = dict(request.options)
        if request.task is not None:
            options.setdefault("task", request.task)
        if request.split is not None:
            options.setdefault("split", request.split)
        if session.evaluates:
            options["evaluate_apart"] = True
        return await session.reset(seed=request.seed, options=options or None, label=label[:_LABEL])

    async def end(self, lease: Lease, *, healthy: bool) -> None:
        """Takes a session back: keeps it for the next episode, or closes it.

        A session that can't be closed is logged: its lease will end it.
        """
        session, manager = lease.session, lease.manager
        lease.session = lease.manager = None
        if manager is None:
            return
        if healthy and self._reuse:
            self._keep(Lease(lease.key, session, manager))
            return
        try:
            async with self._closing, bound("eval_seconds", self._close_seconds, "infrastructure"):
                await manager.__aexit__(None, None, None)
        except (errors.SessionError, errors.ServerUnavailable):
            pass  # what is lost need not be closed
        except Exception:
            logger.warning("a session could not be closed; its lease will end it", exc_info=True)

    async def aclose(self) -> None:
        """Closes the sessions that wait for a next episode."""
        if self._sweep is not None:
            self._sweep.cancel()
        for lease in self._take_idle():
            self._close_beside(lease)
        await asyncio.gather(*self._lost)

    def _keep(self, lease: Lease) -> None:
        """Has a session wait for a next episode."""
        lease.since = asyncio.get_running_loop().time()
        self._idle.setdefault(lease.key, []).append(lease)
        if self._sweep is None:
            self._look_at(lease.since + _IDLE_SECONDS)

    def _close_old(self) -> None:
        """Closes what has waited for too long, and looks again when the next one will have."""
        loop = asyncio.get_running_loop()
        for lease in self._take_idle(before=loop.time() - _IDLE_SECONDS):
            self._close_beside(lease)
        left = [lease.since for leases in self._idle.values() for lease in leases]
        self._sweep = None
        if left:
            self._look_at(min(left) + _IDLE_SECONDS)

    def _look_at(self, moment: float) -> None:
        """Looks at that moment for what has waited for too long, unless all of it was let go of by then."""
        look = weakref.WeakMethod(self._close_old)

        def close_old() -> None:
            if (method := look()) is not None:
                method()

        self._sweep = asyncio.get_running_loop().call_at(moment, close_old)

    def _take_idle(self, before: float = math.inf) -> list[Lease]:
        """Takes out the sessions that have waited since before a moment on the loop's clock."""
        idle, self._idle = self._idle, {}
        taken: list[Lease] = []
        for key, leases in idle.items():
            taken += [lease for lease in leases if lease.since <= before]
            if left := [lease for lease in leases if lease.since > before]:
                self._idle[key] = left
        return taken

    def _close_beside(self, lease: Lease) -> asyncio.Task[None]:
        """Closes a session, whatever becomes of whoever has no use for it."""
        closing = asyncio.create_task(self.end(lease, healthy=False))
        self._lost.add(closing)
        closing.add_done_callback(self._lost.discard)
        return closing


def _frozen(value: Any) -> Any:
    """A value as something that can be a key."""
    if isinstance(value, Mapping):
        pairs = cast(Mapping[Any, Any], value).items()
        return tuple(sorted((str(key), _frozen(item)) for key, item in pairs))
    if isinstance(value, list | tuple):
        return tuple(_frozen(item) for item in cast(list[Any], value))
    try:
        hash(value)
    except TypeError:
        return repr(value)
    return value


async def _pause(seconds: float, why: str) -> None:
    """Waits; whoever ends that is told what for."""
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError as error:
        error.add_note(why)
        raise
