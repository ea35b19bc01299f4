"""What becomes of rollouts that have ended: results, groups, and the end of a job."""

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Iterable

from gymhost.rollout.service.messages import to_result
from gymhost.rollout.trajectory import Outcome, Trajectory
from gymhost.server.rollouts.groups import Group, Member, choose, oldest_version, varies
from gymhost.server.rollouts.job import Job
from gymhost.server.rollouts.store import JobStore
from gymhost.server.rollouts.tally import Tally
from gymhost.v1 import rollouts_pb2 as pb

__all__ = ["Outcomes", "lost"]

logger = logging.getLogger(__name__)

Ended = tuple[int, Trajectory | None]
"""A rollout's number, and its trajectory if it had begun."""


class Outcomes:
    """Keeps what comes of rollouts, and says what it means for their groups and jobs.

    Nothing here waits: what is changed in memory is gathered for the store at the same time.

    Args:
        store: Where all of it is kept.
        version: The policy version.
        abort: Ends rollouts of a job that are in flight, and returns what had come of them.
        offer: Called with a job that may be able to begin something.

    Attributes:
        tally: What has ended since this began.
    """

    def __init__(
        self,
        store: JobStore,
        version: int,
        abort: Callable[[Job, Iterable[int]], list[Ended]],
        offer: Callable[[Job], None],
    ) -> None:
        self.tally = Tally()
        self._store = store
        self._version = version
        self._abort = abort
        self._offer = offer

    # -- single rollouts -----------------------------------------------------------------------------------------------

    def take(self, job: Job, number: int, trajectory: Trajectory) -> None:
        """Takes the trajectory of a rollout that has ended for good."""
        self._arrive(job, [self._keep(job, number, trajectory)])
        self.settle(job)

    def cancel(self, job: Job, numbers: Iterable[int]) -> int:
        """Cancels single rollouts; returns how many had not ended."""
        wanted = {number for number in numbers if 0 <= number < job.total}
        members: list[Member] = []
        count = 0
        for number, trajectory in self._abort(job, sorted(wanted & job.flights.keys())):
            if trajectory is None:
                job.begin_again(number)
            else:
                members.append(self._keep(job, number, trajectory))
        for number in wanted:
            if job.leave(number):
                self._store.forget(job.row, number)
            elif number >= job.next and number not in job.skipped:
                job.skipped.add(number)
                self._store.skip(job.row, number)
            else:
                continue
            count += 1
        job.info.cancelled += count
        job.pass_over()
        self._arrive(job, members)
        for place in {number // job.width for number in wanted} & job.groups.keys():
            self._judge(job, job.groups[place])
        self.settle(job)
        return count + len(members)

    def _arrive(self, job: Job, members: list[Member]) -> None:
        """Says what becomes of rollouts that have ended together."""
        for place, some in itertools.groupby(members, lambda member: member.number // job.width):
            if job.grouped:
                job.groups[place].members.extend(some)
                self._judge(job, job.groups[place])
            else:
                self._deliver(job, list(some), whole=not job.outstanding(place))

    # -- jobs ----------------------------------------------------------------------------------------------------------

    def settle(self, job: Job) -> None:
        """Sees whether a job has come to its end or may begin something, and has it written. For after each change."""
        self._store.touch(job)
        if job.ended:
            return
        if job.exhausted or (job.reached and not job.info.open):
            self.finish(job, pb.JOB_STATE_FINISHED)
        else:
            self._offer(job)

    def finish(self, job: Job, state: pb.JobState.ValueType) -> int:
        """Ends a job; returns how many of its rollouts had not ended.

        What is in flight is cancelled. In a job that was cancelled or whose time is up that makes results, and groups
        come with what there is of them, those beyond the target too; in one that is finished it is not wanted any more.
        """
        if job.ended:
            return 0
        wanted = state != pb.JOB_STATE_FINISHED
        left = job.queued + len(job.flights)
        for number, trajectory in self._abort(job, list(job.flights)):
            if trajectory is None:
                job.begin_again(number)
                continue
            member = self._keep(job, number, trajectory)
            place = number // job.width
            group = job.groups.setdefault(place, Group(place))
            group.members.append(member)
        for members in job.complete.values():
            if wanted:
                job.info.groups_kept += 1
                self._deliver(job, members, whole=True)
            else:
                self._drop(job, members)
        for group in job.groups.values():
            group.stop()
            chosen, spare = choose(group.members, job.samples)
            self._drop(job, spare)
            if wanted:
                self._deliver(job, chosen, whole=True)
            else:
                self._drop(job, chosen)
        if wanted:
            job.info.cancelled += job.queued
        else:
            job.info.dropped += job.queued
        for number in list(job.again):
            job.leave(number)
        for held in (job.groups, job.complete, job.skipped, job.attempts):
            held.clear()
        job.keep_tasks(0, [])
        if job.deadline is not None:
            job.deadline.cancel()
        job.info.state = state
        job.info.ended = job.touched = time.time()
        self._store.end_job(job.row)
        self._store.touch(job)
        return left

    def judge(self, job: Job) -> None:
        """Looks again at what has begun and ended of a job that was just read or extended."""
        for group in list(job.groups.values()):
            self._judge(job, group)
        self._deliver_complete(job)
        self.settle(job)

    def policy_changed(self, jobs: Iterable[Job], version: int) -> None:
        """Has what waits and is too old now played again."""
        self._version = max(version, self._version)
        for job in jobs:
            stale = [place for place, members in job.complete.items() if self._stale(job, members)]
            for place in stale:
                self._play_again(job, Group(place, job.complete.pop(place)))
            if stale:
                self.settle(job)

    # -- groups --------------------------------------------------------------------------------------------------------

    def _judge(self, job: Job, group: Group) -> None:
        """Sees whether a group has enough."""
        if group.rewarded >= job.samples or not job.outstanding(group.number):
            self._complete(job, group)
        elif (patience := job.request.grouping.patience) and group.timer is None:
            if len(group.members) * 2 >= job.samples:
                loop = asyncio.get_running_loop()
                group.timer = loop.call_later(patience, self._patience_is_over, job, group)

    def _patience_is_over(self, job: Job, group: Group) -> None:
        group.timer = None
        self._complete(job, group)
        self.settle(job)

    def _complete(self, job: Job, group: Group) -> None:
        """Ends what is left of a group, and says what becomes of it."""
        group.stop()
        numbers = job.numbers(group.number)
        for number, trajectory in self._abort(job, [number for number in numbers if number in job.flights]):
            if trajectory is None:
                job.begin_again(number)
            else:
                group.members.append(self._keep(job, number, trajectory))
        chosen, spare = choose(group.members, job.samples)
        stale = self._stale(job, chosen)
        if stale and group.plays + 1 < job.most_attempts:
            self._play_again(job, group)
            return
        del job.groups[group.number]
        for number in numbers:
            if job.leave(number) or (number >= job.next and number not in job.skipped):
                job.info.dropped += 1
                self._store.forget(job.row, number)
        job.skipped.difference_update(numbers)
        job.next = max(job.next, numbers.stop)
        job.pass_over()
        self._drop(job, spare)
        if not chosen:
            return
        if stale or (job.request.grouping.keep == pb.KEEP_GROUPS_WITH_VARIANCE and not varies(chosen)):
            if stale:
                job.info.last_fault = f"group {group.number} was too old each time it was played (max_staleness)"
            self._drop(job, chosen)
            job.info.groups_dropped += 1
        else:
            job.complete[group.number] = chosen
            if job.reached:
                for member in chosen:
                    self._store.complete(job.row, member.number)
            self._deliver_complete(job)

    def _deliver_complete(self, job: Job) -> None:
        """Delivers groups that are complete, up to the target."""
        for place, members in list(job.complete.items()):
            if job.reached:
                break
            del job.complete[place]
            if self._stale(job, members):
                self._play_again(job, Group(place, members))
            else:
                job.info.groups_kept += 1
                self._deliver(job, members, whole=True)

    def _play_again(self, job: Job, group: Group) -> None:
        """Has all of a group played again, before all others."""
        for member in group.members:
            job.count(member, -1)
        # What was dropped of it, as it was one too many, stays so.
        ended = {member.number for member in group.members}
        for number in sorted(ended):
            self._store.begun(job.row, number, 0)
            job.attempts.pop(number, None)
            job.begin_again(number)
        job.groups[group.number] = Group(group.number, plays=group.plays + 1)

    def _stale(self, job: Job, members: list[Member]) -> bool:
        grouping, oldest = job.request.grouping, oldest_version(members)
        return (
            grouping.HasField("max_staleness")
            and oldest is not None
            and self._version - oldest > grouping.max_staleness
        )

    # -- results -------------------------------------------------------------------------------------------------------

    def _keep(self, job: Job, number: int, trajectory: Trajectory) -> Member:
        """Keeps a trajectory, and counts it."""
        trajectory.id = f"{job.id}/{number}"
        trajectory.attempts = job.attempts.pop(number, 0) + 1
        try:
            body = _written(job, number, trajectory)
        except Exception as error:  # whatever it is, it concerns this rollout alone
            logger.exception(
                "the trajectory of rollout %s can't be written down: it counts as failed",
                trajectory.id,
                extra={"job": job.id, "rollout": trajectory.id, "environment": trajectory.env_id},
            )
            trajectory = lost(trajectory, error)
            body = _written(job, number, trajectory)
        self._store.ended(job.row, number, trajectory, time.time(), body)
        reward = trajectory.reward if trajectory.valid else None
        member = Member(number, trajectory.outcome.kind, reward, trajectory.oldest_version, len(body))
        job.count(member)
        job.info.sampled_tokens += trajectory.sampled_tokens
        self.tally.count(trajectory)
        return member

    def _deliver(self, job: Job, members: list[Member], *, whole: bool) -> None:
        """Lets results be sent, the last one as that of its group if they are `whole`."""
        for member in members:
            cursor = self._store.deliver(job.row, member.number, whole and member is members[-1])
            job.delivered(cursor, member.size)

    def _drop(self, job: Job, members: Iterable[Member]) -> None:
        for member in members:
            job.drop(member)
            self.tally.dropped += 1
            self._store.forget(job.row, member.number)


def lost(trajectory: Trajectory, error: Exception) -> Trajectory:
    """What stands for a trajectory that can't be taken, by a fault that is not its own: one that has failed."""
    fields = ("env_id", "id", "task", "seed", "split", "group", "index", "labels", "created", "attempts")
    outcome = Outcome(
        kind="failed",
        fault="infrastructure",
        cause=type(error).__name__,
        message=f"its trajectory can't be taken: {error}",
        turn=trajectory.outcome.turn,
    )
    return Trajectory(outcome=outcome, **{name: getattr(trajectory, name) for name in fields})


def _written(job: Job, number: int, trajectory: Trajectory) -> bytes:
    result = to_result(trajectory)
    result.job_id, result.group_number = job.id, number // job.width
    return result.SerializeToString()
