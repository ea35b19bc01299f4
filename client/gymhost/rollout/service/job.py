"""A job of the rollout service, as those see it who wait for its results."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from typing import TypeAlias

from gymhost.rollout.groups import Group
from gymhost.rollout.requests import RolloutRequest
from gymhost.rollout.service.link import ASK_LIMIT, CLOSE_LIMIT, Link, ResultStream
from gymhost.rollout.service.messages import from_result
from gymhost.rollout.service.receipts import Receipts
from gymhost.rollout.service.reports import JobStatus, RolloutStatus
from gymhost.rollout.service.submission import QUOTA_TIMEOUT, ask, pieces
from gymhost.rollout.trajectory import Trajectory
from gymhost.v1 import rollouts_pb2 as pb
from gymhost.wire import errors

__all__ = ["Job"]

# Results that `collect` keeps unacknowledged, and seconds without one upon which it looks whether that holds it up.
_HELD = 1024
_QUIET = 5.0

Unit: TypeAlias = list[tuple[pb.Result, Trajectory]]
"""What is handed out at once."""


class Job:
    """A job; made by `RolloutClient.submit` and `RolloutClient.job`.

    Each rollout's result is handed out once by a client, by whichever of the methods here asks first. A result that was
    handed out and not acknowledged is handed out again to the next client that asks, such as that of a trainer which
    was restarted.

    Attributes:
        id: Its id.
        key: Its name among those of its caller.
    """

    def __init__(self, link: Link, receipts: Receipts, job: pb.Job) -> None:
        self.id = job.id
        self.key = job.key
        self._link = link
        self._receipts = receipts
        # The number of the last extension; None where that is not certain.
        self._extensions: int | None = job.extensions
        self._extending = asyncio.Lock()
        # The cursor of the last result that was fetched.
        self._fetched = 0

    def __repr__(self) -> str:
        return f"<Job {self.id}, key {self.key!r}>"

    # -- results -------------------------------------------------------------------------------------------------------

    async def results(
        self, *, acknowledge: bool = True, cancel_on_exit: bool = False
    ) -> AsyncGenerator[Trajectory, None]:
        """Yields each trajectory as it ends, until the job has ended and all were yielded.

        Leaving early leaves the job running: its results are kept, and another iterator goes on with them.

        Args:
            acknowledge: Whether a trajectory is acknowledged when the next one is asked for: the service need not keep
                it any more. Without it `acknowledge` does so, for those who store trajectories first.
            cancel_on_exit: Whether leaving early cancels the job.

        Raises:
            ServerUnavailable: The service was away for longer than `reconnect_timeout`.
            UnknownJob: The job is not there any more.
        """
        async with aclosing(self._handed_out(self._singly(), acknowledge, cancel_on_exit)) as units:
            async for [trajectory] in units:
                yield trajectory

    async def collect(self, *, cancel_on_exit: bool = False) -> list[Trajectory]:
        """Returns all trajectories when the job has ended, in the order of the requests, and of places in their groups.

        They are acknowledged when all are there: whoever collects again after a crash misses none. Of a job with more
        than a thousand rollouts the first ones are acknowledged before, since a service keeps so many and no more.

        Args:
            cancel_on_exit: Whether the job is cancelled where this is.

        Raises:
            ServerUnavailable: The service was away for longer than `reconnect_timeout`.
            UnknownJob: The job is not there any more.
        """
        found: list[tuple[int, int, Trajectory]] = []
        held: list[pb.Result] = []
        whole = False
        try:
            async with aclosing(self._incoming(_QUIET)) as incoming:
                async for result in incoming:
                    if result is None:
                        if held and await self._held_up():
                            self._release(held)
                        continue
                    if self._receipts.known(result):
                        self._receipts.hand_out(result)  # which it is not, but noted
                        continue
                    trajectory = from_result(result)
                    found.append((result.group_number, trajectory.index, trajectory))
                    held.append(result)
                    if len(held) >= _HELD:
                        self._release(held)
            self._release(held)
            await self._receipts.flush()
            whole = True
        finally:
            if cancel_on_exit and not whole:
                await self._cancel_on_exit()
        return [trajectory for _, _, trajectory in sorted(found, key=lambda each: each[:2])]

    async def groups(self, *, acknowledge: bool = True, cancel_on_exit: bool = False) -> AsyncGenerator[Group, None]:
        """Yields each group when it is complete, until the job has ended and all were yielded.

        The request of a group is what its trajectories tell of it: environment, task, seed, split, labels and name.
        Leaving early leaves the job running.

        Args:
            acknowledge: Whether a group's trajectories are acknowledged when the next one is asked for.
            cancel_on_exit: Whether leaving early cancels the job.

        Raises:
            ServerUnavailable: The service was away for longer than `reconnect_timeout`.
            UnknownJob: The job is not there any more.
        """
        async with aclosing(self._handed_out(self._by_group(), acknowledge, cancel_on_exit)) as units:
            async for members in units:
                yield _group(members)

    async def fetch(self, limit: int = 64, wait: float = 0.0) -> tuple[list[Trajectory], bool]:
        """Asks once for results, for those who would rather ask than be sent them. They are not acknowledged.

        Args:
            limit: How many at most.
            wait: Seconds to wait where there is none yet, at most 60.

        Returns:
            Trajectories that were not handed out before, and whether the job has ended and these were the last.

        Raises:
            ServerUnavailable: The service was away for longer than `reconnect_timeout`.
            UnknownJob: The job is not there any more.
        """
        request = pb.FetchResultsRequest(job_ids=[self.id], after=self._fetched, limit=limit, wait=wait)
        response = await self._link.call("FetchResults", request, wait + ASK_LIMIT)
        trajectories = [from_result(result) for result in response.results]
        self._fetched = max([self._fetched, *(result.cursor for result in response.results)])
        pairs = zip(response.results, trajectories, strict=True)
        return [trajectory for result, trajectory in pairs if self._receipts.hand_out(result)], response.ended

    async def acknowledge(self, trajectories: Iterable[Trajectory]) -> None:
        """Says that trajectories, which this client handed out, need not be kept any more. Once more is no error.

        Raises:
            ServerUnavailable: The service was away for longer than `reconnect_timeout`; it is told with the next ones.
        """
        self._receipts.acknowledge([trajectory.id for trajectory in trajectories])
        await self._receipts.flush()

    # -- the job itself ------------------------------------------------------------------------------------------------

    async def status(self) -> JobStatus:
        """How it stands.

        Raises:
            UnknownJob: It is not there any more.
        """
        return JobStatus.from_message(await self._get())

    async def rollouts(self, limit: int = 1000) -> list[RolloutStatus]:
        """What of it is in flight or waits, those in flight first.

        Args:
            limit: How many at most.

        Raises:
            UnknownJob: It is not there any more.
        """
        response = await self._link.call("ListRollouts", pb.ListRolloutsRequest(job_id=self.id, limit=limit))
        return [RolloutStatus.from_message(rollout) for rollout in response.rollouts]

    async def extend(
        self,
        requests: Iterable[RolloutRequest] = (),
        *,
        more_groups: int = 0,
        close: bool = False,
        timeout: float = QUOTA_TIMEOUT,
    ) -> JobStatus:
        """Gives an open job more to do.

        Where this fails or is cancelled, `status().extensions` tells how many extensions were taken.

        Args:
            requests: What to play beside what it has.
            more_groups: How many more groups are wanted, of a job with a target.
            close: Whether this was the last: the job ends when it has nothing more to do.
            timeout: Seconds to wait while a quota is used up.

        Raises:
            CapacityExhausted: A quota was used up all that time.
            InvalidArgument: The job is not open, or a request can't be a task.
        """
        *parts, last = list(pieces(requests)) or [[]]
        async with self._extending:
            for tasks in parts:
                await self._extend(tasks, 0, False, timeout)
            return JobStatus.from_message(await self._extend(last, more_groups, close, timeout))

    async def close(self) -> JobStatus:
        """Closes an open job: it ends when it has nothing more to do."""
        return await self.extend(close=True)

    async def go_on(self, parts: Sequence[list[pb.RolloutTask]], *, close: bool, timeout: float) -> None:
        """Sends what is left of a submission that takes more than one message, whoever began to send it.

        Args:
            parts: The tasks of each message after the first.
            close: Whether the job is complete with these.
            timeout: Seconds to wait while a quota is used up.
        """
        async with self._extending:
            for number in range((self._extensions or 0) + 1, len(parts) + 1):
                await self._extend(parts[number - 1], 0, close and number == len(parts), timeout)

    async def cancel(self) -> int:
        """Cancels it: what is in flight ends, and has results that say so. Once more is no error.

        Returns:
            How many rollouts this ended or kept from beginning.
        """
        response = await self._link.call("CancelRollouts", pb.CancelRolloutsRequest(job_ids=[self.id]))
        return response.cancelled

    async def pause(self, *, in_flight: bool = False) -> JobStatus:
        """Begins no more rollouts of it.

        Args:
            in_flight: Whether those that have begun stop too, before their next turn, and keep sessions and tokens.
        """
        request = pb.PauseJobRequest(job_id=self.id, in_flight=in_flight)
        return JobStatus.from_message((await self._link.call("PauseJob", request)).job)

    async def resume(self) -> JobStatus:
        """Goes on after `pause`."""
        return JobStatus.from_message((await self._link.call("ResumeJob", pb.ResumeJobRequest(job_id=self.id))).job)

    # ------------------------------------------------------------------------------------------------------------------

    async def _get(self) -> pb.Job:
        return (await self._link.call("GetJob", pb.GetJobRequest(job_id=self.id))).job

    async def _extend(self, tasks: list[pb.RolloutTask], more_groups: int, close: bool, timeout: float) -> pb.Job:
        before = self._extensions
        if before is None:
            before = (await self._get()).extensions
        request = pb.ExtendJobRequest(
            job_id=self.id, number=before + 1, tasks=tasks, more_groups=more_groups, close=close
        )
        self._extensions = None
        job = (await ask(self._link, "ExtendJob", request, timeout)).job
        self._extensions = before + 1
        return job

    async def _incoming(self, quiet: float | None = None) -> AsyncGenerator[pb.Result | None, None]:
        """Yields results, those that were handed out before too, and None where there were none for `quiet` seconds."""
        stream = ResultStream(self._link, [self.id])
        try:
            while (batch := await stream.batch(quiet)) is not None:
                if not batch:
                    yield None
                for result in batch:
                    yield result
        finally:
            stream.close()

    async def _singly(self) -> AsyncGenerator[Unit, None]:
        async with aclosing(self._incoming()) as incoming:
            async for result in incoming:
                assert result is not None
                yield [(result, from_result(result))]

    async def _by_group(self) -> AsyncGenerator[Unit, None]:
        begun: dict[int, Unit] = {}
        async with aclosing(self._singly()) as units:
            async for [(result, trajectory)] in units:
                begun.setdefault(result.group_number, []).append((result, trajectory))
                if result.completes_group:
                    yield begun.pop(result.group_number)
        for members in begun.values():  # the others of their groups were handed out before
            yield members

    async def _handed_out(
        self, units: AsyncGenerator[Unit, None], acknowledge: bool, cancel_on_exit: bool
    ) -> AsyncGenerator[list[Trajectory], None]:
        """Hands out what was not before, and acknowledges it when the next is asked for."""
        receipts = self._receipts
        out: list[str] = []
        whole = False
        try:
            async with aclosing(units):
                async for unit in units:
                    fresh = [
                        (result.rollout_id, trajectory) for result, trajectory in unit if receipts.hand_out(result)
                    ]
                    if fresh:
                        out = [rollout_id for rollout_id, _ in fresh]
                        yield [trajectory for _, trajectory in fresh]
                        if acknowledge:
                            receipts.acknowledge(out)
                        out = []
            if acknowledge:
                await receipts.flush()
            whole = True
        finally:
            if acknowledge:
                receipts.leave(out)
            if cancel_on_exit and not whole:
                await self._cancel_on_exit()

    async def _held_up(self) -> bool:
        """Whether the job begins nothing more since its results wait to be acknowledged."""
        job = await self._get()
        may_go_on = job.state in (pb.JOB_STATE_QUEUED, pb.JOB_STATE_RUNNING)
        return may_go_on and not job.in_flight and bool(job.queued and job.unacknowledged)

    def _release(self, held: list[pb.Result]) -> None:
        for result in held:
            self._receipts.hand_out(result)
        self._receipts.acknowledge([result.rollout_id for result in held])
        held.clear()

    async def _cancel_on_exit(self) -> None:
        with contextlib.suppress(errors.Error, TimeoutError):
            async with asyncio.timeout(CLOSE_LIMIT):
                await self.cancel()


def _group(trajectories: list[Trajectory]) -> Group:
    members = sorted(trajectories, key=lambda each: each.index)
    first = members[0]
    request = RolloutRequest(
        first.env_id, task=first.task, seed=first.seed, split=first.split, group=first.group, labels=first.labels
    )
    cut = any(each.outcome.kind == "cancelled" for each in members)
    return Group(request, members, (), "time" if cut else "all")
