"""Looks at a server, again and again, and what they say of the time between."""

import asyncio
import time
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from gymhost.client.operations import Operations
from gymhost.client.tls import TlsLike
from gymhost.v1 import operations_pb2 as pb
from gymhost.wire import errors

if TYPE_CHECKING:
    from gymhost.rollout.service import GeneratorStatus, JobStatus, RolloutClient, ServiceStatus

__all__ = ["SESSIONS", "Look", "RolloutsLook", "Watch"]

# Sessions that are asked for, and points of the history that are kept.
SESSIONS = 200
POINTS = 240
# Seconds for each call to a rollout service, before it counts as gone.
PATIENCE = 5.0


@dataclass(frozen=True)
class RolloutsLook:
    """A rollout service at one moment.

    Args:
        at: When, on the monotonic clock.
        status: What it says of itself.
        jobs: Its jobs: everybody's, to an admin.
    """

    at: float
    status: "ServiceStatus"
    jobs: "list[JobStatus]"

    @property
    def generators(self) -> "tuple[GeneratorStatus, ...]":
        """What samples."""
        return self.status.generators


@dataclass(frozen=True)
class Look:
    """All that there is to show at one moment.

    Args:
        address: Where the server is.
        at: When, on the monotonic clock.
        overview: What there is; None of a rollout service alone.
        live: Sessions.
        failures: The last failures.
        rollouts: The rollout service, where one is watched and could be reached.
        missing: Why something is not there, by what: "sessions", "failures", "rollouts".
        history: Figures over time, by name.
        before: The look before at the same instance of the server, from which rates come.
    """

    address: str
    at: float
    overview: pb.GetOverviewResponse | None = None
    live: pb.ListLiveSessionsResponse = field(default_factory=pb.ListLiveSessionsResponse)
    failures: tuple[pb.Failure, ...] = ()
    rollouts: RolloutsLook | None = None
    missing: dict[str, str] = field(default_factory=dict[str, str])
    history: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    before: "Look | None" = None

    @property
    def seconds(self) -> float:
        """Seconds since the look before; 0 where there is none."""
        return self.at - self.before.at if self.before else 0.0

    @property
    def environments_before(self) -> dict[str, pb.EnvironmentOverview]:
        """What the environments had counted at the look before, by their ids."""
        overview = self.before.overview if self.before else None
        return {each.environment_id: each for each in overview.environments} if overview else {}

    def rate(self, now: float, before: float | None) -> float | None:
        """By how much something grew a second; None before there are two looks."""
        if self.before is None or self.seconds <= 0:
            return None
        return max(0.0, now - (before or 0.0)) / self.seconds

    @property
    def role(self) -> str:
        """The role of who looks."""
        return self.overview.role if self.overview else self.rollouts.status.role if self.rollouts else ""


class Watch:
    """A server, and a rollout service beside it, that are looked at.

    Args:
        address: Where the server is; it may be a rollout service.
        token: The bearer token, of both.
        tls: How TLS is spoken, with both.
        rollouts: Where the rollout service is, if there is one.

    Raises:
        InvalidArgument: An address, the token or `tls` can't be one.
    """

    def __init__(self, address: str, token: str | None, tls: TlsLike, rollouts: str | None) -> None:
        self.address = address
        self.operations = Operations(address, token, tls, timeout=PATIENCE)
        self._reach = token, tls
        self._rollouts = self._client(rollouts) if rollouts else None
        self._alone = False
        self._last: Look | None = None
        self._points: deque[pb.HistoryPoint] = deque(maxlen=POINTS)
        self._series: list[str] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.operations.aclose()
        if self._rollouts is not None:
            await self._rollouts.aclose()

    @property
    def has_server(self) -> bool:
        """Whether it has an environment server, and not a rollout service alone."""
        return not self._alone

    @property
    def has_rollouts(self) -> bool:
        """Whether it has a rollout service."""
        return self._rollouts is not None

    async def look(self) -> Look:
        """Looks at all of it.

        Raises:
            Error: The server could not be reached, or lets nobody with this token look.
        """
        overview = None if self._alone else await self._overview()
        missing: dict[str, str] = {}
        live, failures, rollouts, history = pb.ListLiveSessionsResponse(), list[pb.Failure](), None, None
        if overview is not None:
            live, failures, rollouts, history = await asyncio.gather(
                _or(missing, "sessions", self.operations.live(limit=SESSIONS), live),
                _or(missing, "failures", self.operations.failures(), failures),
                _or(missing, "rollouts", self._look_at_rollouts(), None),
                _or(missing, "history", self._past(overview.server_instance), None),
            )
        else:
            rollouts = await self._look_at_rollouts()
        before = self._last
        if before is not None and _instance(before) != (overview.server_instance if overview else ""):
            before = None
        look = Look(
            address=self.address,
            at=time.monotonic(),
            overview=overview,
            live=live,
            failures=tuple(failures),
            rollouts=rollouts,
            missing=missing,
            history=history or {},
            before=before,
        )
        # Of looks, one before is enough: they would all be kept otherwise.
        self._last = Look(address=self.address, at=look.at, overview=overview, rollouts=rollouts)
        return look

    async def _overview(self) -> pb.GetOverviewResponse | None:
        """What the server says; None where there is a rollout service at its address."""
        try:
            return await self.operations.overview()
        except errors.Unimplemented:
            if self._last is not None:
                raise
            from gymhost.cli.extras import need

            need("rollout", "gymhost top of a rollout service", "gymhost.rollout.service")
            self._rollouts = self._rollouts or self._client(self.address)
            self._alone = True
            return None

    def _client(self, address: str) -> "RolloutClient":
        from gymhost.rollout.service import RolloutClient

        token, tls = self._reach
        return RolloutClient(address, token, tls, connect_timeout=PATIENCE, reconnect_timeout=0.0)

    async def _look_at_rollouts(self) -> RolloutsLook | None:
        if self._rollouts is None:
            return None
        status = await self._rollouts.status()
        jobs = await self._rollouts.jobs(everyone=status.role == "admin")
        return RolloutsLook(time.monotonic(), status, jobs)

    async def _past(self, instance: str) -> dict[str, list[float]]:
        if self._last is not None and _instance(self._last) != instance:
            self._points.clear()  # another one, which has a past of its own
        after = self._points[-1].time if self._points else 0.0
        told = await self.operations.history(after)
        self._series = list(told.series)
        self._points.extend(told.points)
        return {name: [point.values[place] for point in self._points] for place, name in enumerate(self._series)}


def _instance(look: Look) -> str:
    return look.overview.server_instance if look.overview else ""


async def _or(missing: dict[str, str], what: str, asked: Coroutine[Any, Any, Any], without: Any) -> Any:
    """What was asked for, or what stands for it where it is refused or can't be had."""
    try:
        return await asked
    except errors.Error as error:
        missing[what] = error.message
        return without
