"""`RolloutClient`: how trainers get rollouts from a service that plays them."""

import asyncio
import contextlib
import logging
import math
import os
import secrets
from collections.abc import AsyncGenerator, Coroutine, Iterable, Iterator, Sequence
from contextlib import aclosing
from typing import Any, Self, TypeVar, Unpack

from gymhost.client.api import check_address, check_token
from gymhost.client.connection import CONNECT_TIMEOUT
from gymhost.client.tls import TlsLike, tls_of
from gymhost.rollout.groups import Group
from gymhost.rollout.loop_thread import LoopThread
from gymhost.rollout.requests import RolloutRequest
from gymhost.rollout.service.controls import Controls
from gymhost.rollout.service.job import Job
from gymhost.rollout.service.link import CLOSE_LIMIT, Link
from gymhost.rollout.service.receipts import Receipts
from gymhost.rollout.service.reports import JobState, JobStatus, state_number
from gymhost.rollout.service.submission import QUOTA_TIMEOUT, JobSettings, ask, first_message, pieces
from gymhost.rollout.trajectory import Trajectory
from gymhost.v1 import rollouts_pb2 as pb
from gymhost.wire import errors

__all__ = ["RECONNECT_TIMEOUT", "RolloutClient"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

# Seconds that a service may be away.
RECONNECT_TIMEOUT = 300.0


class RolloutClient(Controls):
    """A rollout service, as trainers use it: tasks go in, trajectories come out.

        async with RolloutClient("cpu7:50052") as rollouts:
            async for trajectory in rollouts.run(requests, samples=8):
                ...

    All calls are safe to repeat, and are repeated while the service is away, such as when it is killed and started
    again. Jobs, and results that nobody has acknowledged, outlive the service and its clients: with a `key` a trainer
    that was restarted finds its job again.

    Methods may be awaited on any event loop. For callers without one there are those that end in `_sync`, and
    `call_sync` and `iterate_sync` for all others. It is a context manager, for `async with` and for `with` alike.

    Args:
        address: `HOST:PORT` or `unix:PATH`.
        token: The bearer token; None takes the environment variable GYMHOST_TOKEN.
        tls: How TLS is spoken with the service; as in `gymhost.client.connect`.
        connect_timeout: Seconds for the first answer.
        reconnect_timeout: Seconds that a service which has answered before may be away, after which what waits for it
            fails with ServerUnavailable.

    Raises:
        InvalidArgument: The address, the token, `tls` or a timeout can't be one.
    """

    def __init__(
        self,
        address: str,
        token: str | None = None,
        tls: TlsLike = None,
        *,
        connect_timeout: float = CONNECT_TIMEOUT,
        reconnect_timeout: float = RECONNECT_TIMEOUT,
    ) -> None:
        check_address(address)
        token = token if token is not None else os.environ.get("GYMHOST_TOKEN")
        if token is not None:
            check_token(token)
        if tls and address.startswith("unix:"):
            raise errors.InvalidArgument("tls is for a service at HOST:PORT: nothing else leaves this machine")
        for name, seconds in (("connect_timeout", connect_timeout), ("reconnect_timeout", reconnect_timeout)):
            if not 0 <= seconds < math.inf:
                raise errors.InvalidArgument(f"{name} is a number of seconds, not {seconds!r}")
        self.address = address
        known = None if address.startswith("unix:") else tls_of(tls)
        super().__init__(Link(address, token, known, connect_timeout, reconnect_timeout))
        self._receipts = Receipts(self._link)
        self._thread: LoopThread | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close_sync()

    async def aclose(self) -> None:
        """Sends the acknowledgements that are due, for some seconds at most, and lets go of the service.

        Jobs go on. Twice is no error.
        """
        with contextlib.suppress(errors.Error, TimeoutError):
            async with asyncio.timeout(CLOSE_LIMIT):
                await self._receipts.flush()
        await self._link.aclose()

    # -- rollouts ------------------------------------------------------------------------------------------------------

    async def run(
        self, requests: Iterable[RolloutRequest], *, acknowledge: bool = True, **settings: Unpack[JobSettings]
    ) -> AsyncGenerator[Trajectory, None]:
        """Submits a job, and yields each trajectory as it ends.

        Leaving early cancels the job, unless it has a `key`, by which it can be found again.

        Args:
            requests: What to play.
            acknowledge: As in `Job.results`.
            **settings: Those of `submit`.

        Raises:
            ServerUnavailable: The service could not be reached, or was away for too long.
            CapacityExhausted: A quota was used up all the time.
            InvalidArgument: A request can't be a task of a job, or a setting makes no sense.
        """
        job = await self._submit_whole(requests, settings)
        async with aclosing(job.results(acknowledge=acknowledge, cancel_on_exit=_leaves(settings))) as results:
            async for trajectory in results:
                yield trajectory

    async def collect(self, requests: Iterable[RolloutRequest], **settings: Unpack[JobSettings]) -> list[Trajectory]:
        """Submits a job, and returns its trajectories in the order of the requests, those of a group in that of places.

        Being cancelled cancels the job, unless it has a `key`.

        Args:
            requests: What to play.
            **settings: Those of `submit`.

        Raises:
            ServerUnavailable: The service could not be reached, or was away for too long.
            CapacityExhausted: A quota was used up all the time.
            InvalidArgument: A request can't be a task of a job, or a setting makes no sense.
        """
        job = await self._submit_whole(requests, settings)
        return await job.collect(cancel_on_exit=_leaves(settings))

    async def groups(
        self, requests: Iterable[RolloutRequest], *, acknowledge: bool = True, **settings: Unpack[JobSettings]
    ) -> AsyncGenerator[Group, None]:
        """Submits a job, and yields each group when it is complete.

        Leaving early cancels the job, unless it has a `key`.

        Args:
            requests: One for each group.
            acknowledge: As in `Job.groups`.
            **settings: Those of `submit`; `samples` is the size of a group.

        Raises:
            ServerUnavailable: The service could not be reached, or was away for too long.
            CapacityExhausted: A quota was used up all the time.
            InvalidArgument: A request can't be a task of a job, or a setting makes no sense.
        """
        job = await self._submit_whole(requests, settings)
        async with aclosing(job.groups(acknowledge=acknowledge, cancel_on_exit=_leaves(settings))) as groups:
            async for group in groups:
                yield group

    # -- jobs ----------------------------------------------------------------------------------------------------------

    async def submit(self, requests: Iterable[RolloutRequest], **settings: Unpack[JobSettings]) -> Job:
        """Submits a job, which is on the service's disk when this returns. However large it is, it is one job.

        Where this fails or is cancelled and no key was given, what has arrived is cancelled.

        Args:
            requests: What to play: each once, whatever `samples` is.
            **settings: The rest; see `JobSettings`.

        Raises:
            ServerUnavailable: The service could not be reached, or was away for too long.
            CapacityExhausted: A quota was used up all the time.
            InvalidArgument: A request can't be a task of a job, or a setting makes no sense.
        """
        key = settings.get("key") or secrets.token_hex(16)
        stays_open = settings.get("open", False)
        timeout = settings.get("timeout", QUOTA_TIMEOUT)
        message = first_message(settings, key)
        first, *others = list(pieces(requests)) or [[]]  # all of them, so that none is sent where one can't be
        message.tasks.extend(first)
        message.open = stays_open or bool(others)
        try:
            response = await ask(self._link, "SubmitJob", message, timeout)
            job = Job(self._link, self._receipts, response.job)
            if response.known and response.job.ended and not response.job.unacknowledged:
                logger.warning(
                    "the job %r was there already, and all its results have been acknowledged: nothing more comes of "
                    "it; another key makes another job",
                    key,
                )
            if others and response.job.open:
                await job.go_on(others, close=not stays_open, timeout=timeout)
        except BaseException:
            if not settings.get("key"):
                await self._abandon(key)
            raise
        return job

    async def job(self, *, id: str | None = None, key: str | None = None) -> Job:
        """Finds a job again, by one of the two.

        Args:
            id: Its id.
            key: The key that it was submitted with.

        Raises:
            UnknownJob: There is none, or none any more.
            InvalidArgument: Not one of the two was given.
        """
        if (id is None) == (key is None):
            raise errors.InvalidArgument("a job is found by its id or by its key: give one of them")
        response = await self._link.call("GetJob", pb.GetJobRequest(job_id=id or "", key=key or ""))
        return Job(self._link, self._receipts, response.job)

    async def jobs(
        self, *, states: Sequence[JobState] = (), everyone: bool = False, limit: int = 100
    ) -> list[JobStatus]:
        """Lists the caller's jobs, the latest first.

        Args:
            states: Only those in one of these states.
            everyone: Everybody's instead.
            limit: How many at most.

        Raises:
            PermissionDenied: Everybody's are for the role `admin`.
        """
        request = pb.ListJobsRequest(
            all_identities=everyone, states=[state_number(state) for state in states], limit=limit
        )
        return [JobStatus.from_message(job) for job in (await self._link.call("ListJobs", request)).jobs]

    async def cancel_all(self) -> int:
        """Cancels all jobs of the caller, and returns how many rollouts this ended or kept from beginning."""
        return (await self._link.call("CancelRollouts", pb.CancelRolloutsRequest(all=True))).cancelled

    async def cancel_rollouts(self, rollout_ids: Iterable[str]) -> int:
        """Cancels single rollouts, and returns how many this ended or kept from beginning."""
        request = pb.CancelRolloutsRequest(rollout_ids=rollout_ids)
        return (await self._link.call("CancelRollouts", request)).cancelled

    # -- without an event loop -----------------------------------------------------------------------------------------

    def run_sync(
        self, requests: Iterable[RolloutRequest], *, acknowledge: bool = True, **settings: Unpack[JobSettings]
    ) -> Iterator[Trajectory]:
        """`run` for callers without an event loop."""
        return self.iterate_sync(self.run(requests, acknowledge=acknowledge, **settings))

    def collect_sync(self, requests: Iterable[RolloutRequest], **settings: Unpack[JobSettings]) -> list[Trajectory]:
        """`collect` for callers without an event loop."""
        return self.call_sync(self.collect(requests, **settings))

    def groups_sync(
        self, requests: Iterable[RolloutRequest], *, acknowledge: bool = True, **settings: Unpack[JobSettings]
    ) -> Iterator[Group]:
        """`groups` for callers without an event loop."""
        return self.iterate_sync(self.groups(requests, acknowledge=acknowledge, **settings))

    def call_sync(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs any coroutine, such as those of the methods here and of jobs, to its end.

        Ctrl-C cancels it, and is raised once it has ended.
        """
        return self._loop_thread().run(coroutine)

    def iterate_sync(self, items: AsyncGenerator[T, None]) -> Iterator[T]:
        """Yields what an asynchronous generator yields, such as `Job.results`; leaving early closes it."""
        return self._loop_thread().iterate(items)

    def close_sync(self) -> None:
        """`aclose` for callers without an event loop."""
        thread = self._loop_thread()
        self._thread = None
        thread.run(self.aclose())
        thread.close()

    # ------------------------------------------------------------------------------------------------------------------

    def _loop_thread(self) -> LoopThread:
        if self._thread is None:
            self._thread = LoopThread("gymhost-rollouts")
        return self._thread

    async def _submit_whole(self, requests: Iterable[RolloutRequest], settings: JobSettings) -> Job:
        if settings.get("open"):
            raise errors.InvalidArgument("an open job has no end to wait for: submit it, and take its results")
        return await self.submit(requests, **settings)

    async def _abandon(self, key: str) -> None:
        """Cancels a job that nobody knows, if it has arrived."""

        async def cancel() -> None:
            job = (await self._link.answer("GetJob", pb.GetJobRequest(key=key))).job
            await self._link.answer("CancelRollouts", pb.CancelRolloutsRequest(job_ids=[job.id]))

        with contextlib.suppress(errors.Error, TimeoutError):
            async with asyncio.timeout(CLOSE_LIMIT):
                await self._link.thread.acall(cancel())


def _leaves(settings: JobSettings) -> bool:
    """Whether a job ends with whoever waits for it: nobody else could find it."""
    return not settings.get("key")
