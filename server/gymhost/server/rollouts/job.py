"""A job in memory: numbers rather than objects, however many rollouts it has."""

import asyncio
import heapq
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from gymhost.rollout.requests import RolloutRequest
from gymhost.rollout.service.messages import from_limits, from_sampling, from_task, map_of
from gymhost.server.rollouts.config import RolloutsConfig
from gymhost.server.rollouts.database import Change
from gymhost.server.rollouts.groups import Group, Member
from gymhost.server.rollouts.store import JobRow, RolloutRow, State
from gymhost.v1 import rollouts_pb2 as pb
from gymhost.wire.errors import InvalidArgument

__all__ = ["ENDED", "Caller", "Flight", "Job"]

ENDED = (pb.JOB_STATE_FINISHED, pb.JOB_STATE_CANCELLED, pb.JOB_STATE_EXPIRED)

# After so many faults one after the other a job begins nothing new until what has begun goes well or is given up: where
# no server can be reached, not all of it is to fail.
_FAULTS_IN_A_ROW = 16


@dataclass
class Caller:
    """An identity: its jobs by id, and what waits to be acknowledged in all of them."""

    identity: str
    jobs: dict[str, "Job"] = field(default_factory=dict[str, "Job"])
    unacknowledged_bytes: int = 0
    watchers: set[asyncio.Event] = field(default_factory=set[asyncio.Event])
    """Set whenever there are new results, or a job has ended."""

    @property
    def live(self) -> Iterator["Job"]:
        """The jobs that have not ended."""
        return (job for job in self.jobs.values() if not job.ended)


@dataclass(slots=True)
class Flight:
    """A rollout that is in flight."""

    job: "Job"
    number: int
    id: str
    """Its trajectory's, until it is taken: that of the rollout and something that no other flight has."""
    begun: float
    request: RolloutRequest | None = None
    """None while its task is being read."""


class Job:
    """A job.

    Its rollouts are numbered: those of a task follow each other. What is below `next` has begun, or was passed over.

    Args:
        row: Its number in the file.
        caller: Whose it is.
        request: What was submitted, without the tasks.
        info: How it stands; what counts is kept up to date, the rest is filled in when it is told.
        config: What holds where the request says nothing.
        tasks: How many tasks there are.

    Attributes:
        view: How it stands on disk: what others may be told.
        again: Rollouts that have begun and are to begin again, those in `pauses` not yet.
        skipped: Rollouts that are not to begin when their turn comes.
        attempts: How often those that are not over have ended in a fault; 0 is left out.
        groups: Where results come by the group: those that have begun.
        complete: Groups that are complete, and wait for the target to be raised.
        missing_agent: Its agent, where the service was started without it: it begins nothing then.
    """

    def __init__(
        self, row: int, caller: Caller, request: pb.SubmitJobRequest, info: pb.Job, config: RolloutsConfig, tasks: int
    ) -> None:
        self.row, self.caller, self.request, self.info = row, caller, request, info
        self.tasks = tasks
        self.next = 0
        self.paused = False
        self.rewards = 0.0
        self.touched = time.time()
        grouping = request.grouping
        self.samples = request.samples or 1
        self.width = self.samples + grouping.extra
        self.grouped = bool(grouping.ListFields())
        self.sampling = from_sampling(request.sampling, config.default_sampling)
        limits = from_limits(request.limits, config.default_limits)
        self.most_attempts = limits.retries + 1
        self.limits = replace(limits, retries=0)  # the place is free while it waits for another attempt
        self.agent_options = map_of(request.agent_options, "agent_options")
        self.missing_agent = "" if request.agent in config.agents else request.agent
        self.lock = asyncio.Lock()
        self.flights: dict[int, Flight] = {}
        self.again: set[int] = set()
        self.pauses: dict[int, asyncio.TimerHandle] = {}
        self.skipped: set[int] = set()
        self.attempts: dict[int, int] = {}
        self.groups: dict[int, Group] = {}
        self.complete: dict[int, list[Member]] = {}
        self.faults_in_a_row = 0
        self.deadline: asyncio.TimerHandle | None = None
        self.forgotten = False
        self.view = pb.Job()
        self._most_unacknowledged = config.max_unacknowledged
        self._most_bytes = config.quota("bytes", caller.identity)
        self._ripe: list[int] = []
        self._snapshot = self.view
        self._chunk: tuple[int, list[pb.RolloutTask]] = (0, [])

    @classmethod
    def found(cls, row: JobRow, caller: Caller, request: bytes, config: RolloutsConfig) -> "Job":
        """A job as it was found on disk, but for its rollouts."""
        info = pb.Job.FromString(row.info)
        job = cls(row.job, caller, pb.SubmitJobRequest.FromString(request), info, config, row.tasks)
        job.next, job.paused, job.rewards, job.touched = row.next, bool(row.paused), row.rewards, row.touched
        return job

    def restore(self, rollout: RolloutRow) -> None:
        """Puts a rollout where it was when it was found."""
        number, place = rollout.number, rollout.number // self.width
        match rollout.state:
            case State.BEGUN:
                if rollout.attempts:
                    self.attempts[number] = rollout.attempts
                self.begin_again(number)
                if self.grouped:
                    self.groups.setdefault(place, Group(place))
            case State.SKIPPED:
                if number >= self.next:
                    self.skipped.add(number)
            case _:
                member = Member(number, rollout.kind or "", rollout.reward, rollout.oldest, rollout.bytes or 0)
                if rollout.state == State.HELD:
                    self.groups.setdefault(place, Group(place)).members.append(member)
                else:
                    self.complete.setdefault(place, []).append(member)

    # -- what is to be played ------------------------------------------------------------------------------------------

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self.info.state in ENDED

    @property
    def total(self) -> int:
        """How many rollouts its tasks make."""
        return self.tasks * self.width

    @property
    def queued(self) -> int:
        """How many rollouts may still begin."""
        return 0 if self.ended else max(0, self.total - self.next) - len(self.skipped) + len(self.again)

    @property
    def reached(self) -> bool:
        """Whether all groups are there that are wanted."""
        return 0 < self.info.target <= self.info.groups_kept

    @property
    def has_more(self) -> bool:
        """Whether there is a rollout that never began, and is wanted.

        An open job works ahead of its target, since nothing of that is lost; another job begins a group only for one
        that was dropped.
        """
        if self.next >= self.total:
            return False
        if self.grouped and self.next // self.width in self.groups:
            return True
        info = self.info
        return not info.target or info.groups_kept + (0 if info.open else len(self.groups)) < info.target

    @property
    def exhausted(self) -> bool:
        """Whether there is nothing to do, and there never will be."""
        return not (self.info.open or self.flights or self.again or self.groups or self.has_more)

    @property
    def full(self) -> str:
        """Why it begins nothing, where that is since its results are not fetched."""
        waiting, size = self.info.unacknowledged, self.caller.unacknowledged_bytes
        if waiting >= self._most_unacknowledged:
            return f"{waiting} of its results wait to be acknowledged (max_unacknowledged)"
        if self._most_bytes and size >= self._most_bytes:
            return f"{size} bytes of results of {self.info.identity} wait to be acknowledged (quota_bytes)"
        return ""

    @property
    def ready(self) -> bool:
        """Whether it may begin a rollout now."""
        if self.ended or self.paused or self.missing_agent or self.full:
            return False
        if len(self.again) > len(self.pauses):
            return True
        return self.has_more and not (self.troubled and (self.flights or self.again))

    def begin(self) -> int:
        """Takes the next rollout; only for one that is `ready`."""
        while self._ripe:
            number = heapq.heappop(self._ripe)
            if number in self.again and number not in self.pauses:
                self.again.discard(number)
                return number
        number = self.next
        self.next += 1
        self.pass_over()
        if self.grouped:
            self.groups.setdefault(number // self.width, Group(number // self.width))
        return number

    def begin_again(self, number: int, pause: asyncio.TimerHandle | None = None) -> None:
        """Lets a rollout begin again: now, or when `ripen` is called."""
        self.again.add(number)
        if pause is None:
            heapq.heappush(self._ripe, number)
        else:
            self.pauses[number] = pause

    def ripen(self, number: int) -> None:
        """Says that a rollout has paused for long enough."""
        if self.pauses.pop(number, None) is not None:
            heapq.heappush(self._ripe, number)

    def leave(self, number: int) -> bool:
        """Lets a rollout not begin again; returns whether it was to."""
        if (pause := self.pauses.pop(number, None)) is not None:
            pause.cancel()
        self.attempts.pop(number, None)
        found = number in self.again
        self.again.discard(number)
        return found

    def pass_over(self) -> None:
        """Goes on to the next rollout that was not skipped."""
        while self.next in self.skipped:
            self.skipped.discard(self.next)
            self.next += 1

    def numbers(self, group: int) -> range:
        """The rollouts of a group."""
        return range(group * self.width, (group + 1) * self.width)

    def outstanding(self, group: int) -> bool:
        """Whether a rollout of a group is in flight, or may still begin."""
        return any(
            number in self.flights or number in self.again or (number >= self.next and number not in self.skipped)
            for number in self.numbers(group)
        )

    def stop(self) -> None:
        """Stops what would happen by itself at some time."""
        for timer in (self.deadline, *self.pauses.values()):
            if timer is not None:
                timer.cancel()
        for group in self.groups.values():
            group.stop()

    # -- tasks ---------------------------------------------------------------------------------------------------------

    def task(self, place: int) -> pb.RolloutTask | None:
        """A task, if it is among those that were read last."""
        first, tasks = self._chunk
        return tasks[place - first] if first <= place < first + len(tasks) else None

    def keep_tasks(self, first: int, tasks: list[pb.RolloutTask]) -> None:
        """Keeps tasks that were read, in place of the last ones."""
        self._chunk = (first, tasks)

    def rollout(self, number: int, flight: str) -> RolloutRequest:
        """What the engine is asked for, once the task was read.

        Raises:
            InvalidArgument: The task can't be read.
        """
        place, index = divmod(number, self.width)
        if (task := self.task(place)) is None:
            raise InvalidArgument(f"task {place} is not in the file")
        return replace(
            from_task(task, place, index),
            sampling=self.sampling,
            limits=self.limits,
            agent=self.request.agent or None,
            agent_options=self.agent_options,
            id=flight,
        )

    # -- counting ------------------------------------------------------------------------------------------------------

    def count(self, member: Member, by: int = 1) -> None:
        """Counts a rollout that has ended, or with -1 takes that back."""
        kind = member.kind
        setattr(self.info, kind, getattr(self.info, kind) + by)
        if member.reward is not None:
            self.info.rewarded += by
            self.rewards += by * member.reward

    def drop(self, member: Member) -> None:
        """Counts a rollout that has ended as dropped instead; the reward that it had still counts."""
        setattr(self.info, member.kind, getattr(self.info, member.kind) - 1)
        self.info.dropped += 1

    def delivered(self, cursor: int, size: int) -> None:
        """Counts a result that waits to be acknowledged."""
        self.info.unacknowledged += 1
        self.info.unacknowledged_bytes += size
        self.info.last_cursor = cursor
        self.caller.unacknowledged_bytes += size

    def acknowledged(self, size: int) -> None:
        """Counts a result that waits no more."""
        self.info.unacknowledged -= 1
        self.info.unacknowledged_bytes -= size
        self.caller.unacknowledged_bytes -= size
        self.touched = time.time()

    # -- telling -------------------------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """Its id."""
        return self.info.id

    @property
    def kept(self) -> bool:
        """Whether it is on disk, so that others may be told of it."""
        return bool(self.view.id)

    @property
    def state(self) -> pb.JobState.ValueType:
        """Where it stands."""
        if self.ended:
            return self.info.state
        if self.paused:
            return pb.JOB_STATE_PAUSED
        if self.flights or self.again:
            return pb.JOB_STATE_RUNNING
        if self.info.open and not self.has_more:
            return pb.JOB_STATE_WAITING
        return pb.JOB_STATE_RUNNING if self.info.begun else pb.JOB_STATE_QUEUED

    @property
    def time_left(self) -> float:
        """Seconds until the time limit; 0 for none, and where it has passed."""
        if not self.request.time_limit or self.ended:
            return 0.0
        return max(0.0, self.info.created + self.request.time_limit - time.time())

    def waiting(self) -> Iterator[int]:
        """The rollouts that may still begin, in their order."""
        if not self.ended:
            yield from sorted(self.again)
            yield from (number for number in range(self.next, self.total) if number not in self.skipped)

    @property
    def troubled(self) -> bool:
        """Whether so much has failed in a row that it begins nothing new."""
        return self.faults_in_a_row >= _FAULTS_IN_A_ROW

    # -- the row -------------------------------------------------------------------------------------------------------

    def snapshot(self) -> Change:
        """The statement that writes it."""
        if self.forgotten:
            return "DELETE FROM jobs WHERE job = ?", (self.row,)
        info = pb.Job()
        info.CopyFrom(self.info)
        info.state = self.state
        info.queued, info.in_flight = self.queued, len(self.flights)
        info.mean_reward = self.rewards / info.rewarded if info.rewarded else 0.0
        self._snapshot = info
        values = (self.row, info.SerializeToString(), self.tasks, self.next, self.paused, self.rewards, self.touched)
        return "INSERT OR REPLACE INTO jobs VALUES (?, ?, ?, ?, ?, ?, ?)", values

    def saved(self) -> None:
        """Lets others see what is on disk now."""
        before, self.view = self.view, self._snapshot
        if self.view.last_cursor != before.last_cursor or (self.view.state in ENDED) != (before.state in ENDED):
            for event in self.caller.watchers:
                event.set()
