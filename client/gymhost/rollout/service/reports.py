"""What the rollout service says of itself: jobs, rollouts, generators, servers."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, Self, get_args

from gymhost.v1 import operations_pb2
from gymhost.v1 import rollouts_pb2 as pb
from gymhost.wire.errors import InvalidArgument

__all__ = [
    "EnvironmentRollouts",
    "EnvironmentServerStatus",
    "GeneratorStatus",
    "JobState",
    "JobStatus",
    "OutcomeCount",
    "RolloutStatus",
    "ServiceStatus",
    "Stage",
    "StageSeconds",
    "state_number",
]

JobState = Literal["queued", "running", "paused", "waiting", "finished", "cancelled", "expired"]
Stage = Literal["queued", "init", "run", "eval", "ended"]

_OVER = ("finished", "cancelled", "expired")


@dataclass(frozen=True, slots=True)
class JobStatus:
    """A job at one moment.

    Args:
        id: Its id.
        key: Its name among those of its caller.
        identity: Whose it is.
        label: What people call it.
        state: "queued", "running", "paused", "waiting" (an open job that has nothing to do), or how it has ended:
            "finished", "cancelled" or "expired".
        priority: Higher goes first.
        created: When it was submitted, in seconds since 1970; so are `begun` and `ended`, None before.
        begun: When its first rollout began.
        ended: When it ended.
        time_left: Seconds until its time limit; None without one.
        env_id: The environment of its tasks, or of the first of them.
        samples: Rollouts of each task.
        open: Whether it can be extended.
        extensions: The number of its last extension.
        target: How many groups are wanted; None where all tasks are played.
        queued: Rollouts that have not begun. Each rollout is counted in one of these.
        in_flight: Those that have begun and not ended.
        terminated: Those whose episode ended.
        truncated: Those that a limit ended.
        failed: Those that failed.
        cancelled: Those that were cancelled.
        dropped: Those of groups that were not kept, and those beyond what was wanted.
        groups_kept: Groups that were kept, of a job with a grouping.
        groups_dropped: Groups that were not.
        unacknowledged: Results that wait to be acknowledged.
        unacknowledged_bytes: The bytes that they take.
        last_cursor: The cursor of the last result.
        mean_reward: The mean reward of those that have one; None before the first.
        rewarded: How many these are.
        sampled_tokens: Tokens that were sampled in what has ended.
        retries: How often a rollout was begun again after a fault.
        last_fault: What the last fault was.
        waits_for: What keeps it from going on, if anything does.
    """

    id: str
    key: str
    identity: str
    label: str
    state: JobState
    priority: int
    created: float
    begun: float | None
    ended: float | None
    time_left: float | None
    env_id: str
    samples: int
    open: bool
    extensions: int
    target: int | None
    queued: int
    in_flight: int
    terminated: int
    truncated: int
    failed: int
    cancelled: int
    dropped: int
    groups_kept: int
    groups_dropped: int
    unacknowledged: int
    unacknowledged_bytes: int
    last_cursor: int
    mean_reward: float | None
    rewarded: int
    sampled_tokens: int
    retries: int
    last_fault: str
    waits_for: str

    @classmethod
    def from_message(cls, job: pb.Job) -> Self:
        """Reads the contract's message."""
        return _read(
            cls,
            job,
            state=_word(pb.JobState.Name(job.state), "JOB_STATE_"),
            begun=job.begun or None,
            ended=job.ended or None,
            time_left=job.time_left or None,
            env_id=job.environment_id,
            target=job.target or None,
            mean_reward=job.mean_reward if job.rewarded else None,
        )

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.state in _OVER

    @property
    def done(self) -> int:
        """How many rollouts have ended and have a result."""
        return self.terminated + self.truncated + self.failed + self.cancelled

    @property
    def total(self) -> int:
        """How many rollouts there are, as far as is known."""
        return self.queued + self.in_flight + self.done + self.dropped


@dataclass(frozen=True, slots=True)
class RolloutStatus:
    """A rollout that has not ended.

    Args:
        id: Its id, as its trajectory will have it.
        job_id: Its job.
        env_id: Its environment.
        group: The name of its group.
        index: Its place within the group.
        stage: "queued", "init", "run", "eval" or "ended".
        attempts: How often it was begun.
        turns: Turns so far.
        sampled_tokens: Tokens so far.
        seconds: Seconds since it has begun.
    """

    id: str
    job_id: str
    env_id: str
    group: str
    index: int
    stage: Stage
    attempts: int
    turns: int
    sampled_tokens: int
    seconds: float

    @classmethod
    def from_message(cls, rollout: pb.RolloutInfo) -> Self:
        """Reads the contract's message."""
        stage = _word(pb.RolloutStage.Name(rollout.stage), "ROLLOUT_STAGE_")
        return _read(cls, rollout, env_id=rollout.environment_id, stage=stage)


@dataclass(frozen=True, slots=True)
class GeneratorStatus:
    """A generator of the service.

    Args:
        name: Its name.
        url: Where it is.
        load: Tokens in flight there: prompts, and what may still be sampled.
        requests: Generations in flight there.
        healthy: Whether it answers.
        current: Whether it has the weights of the service's policy version; only then, and if healthy, it is used.
        draining: Whether it is sent nothing more.
        policy_version: The version of its weights.
        why: Why it is not used.
        sampled_tokens: Tokens that it has sampled.
        prompt_tokens: Tokens of prompts since the vLLM server was started, of all its clients; 0 if it does not tell.
        cached_prompt_tokens: Those of them that it had in its prefix cache.
        tokens_per_second: Sampled over the last seconds.
        generations: Generations that it has ended.
    """

    name: str
    url: str
    load: int
    requests: int
    healthy: bool
    current: bool
    draining: bool
    policy_version: int
    why: str
    sampled_tokens: int
    prompt_tokens: int
    cached_prompt_tokens: int
    tokens_per_second: float
    generations: int

    @classmethod
    def from_message(cls, generator: pb.Generator) -> Self:
        """Reads the contract's message."""
        return _read(cls, generator)


@dataclass(frozen=True, slots=True)
class EnvironmentServerStatus:
    """A server that the service plays on.

    Args:
        address: Where it is.
        reachable: Whether it could be reached when it was last needed.
        sessions: Sessions that are open there.
    """

    address: str
    reachable: bool
    sessions: int

    @classmethod
    def from_message(cls, server: pb.EnvironmentServer) -> Self:
        """Reads the contract's message."""
        return _read(cls, server)


@dataclass(frozen=True, slots=True)
class OutcomeCount:
    """How many rollouts ended in the same way.

    Args:
        outcome: "terminated", "truncated", "failed" or "cancelled".
        limit: The limit that ended them, if one did; else empty.
        fault: Whose fault it was, where they failed; else empty.
        count: How many.
    """

    outcome: str
    limit: str
    fault: str
    count: int

    @classmethod
    def from_message(cls, outcome: pb.OutcomeCount) -> Self:
        """Reads the contract's message."""
        return _read(cls, outcome)


@dataclass(frozen=True, slots=True)
class StageSeconds:
    """How long a stage took.

    Args:
        count: How many rollouts got there.
        sum: Seconds of all of them together.
        p50: The median, as exact as the buckets of a histogram are; so is `p99`.
        p99: What one in a hundred took longer than.
    """

    count: int
    sum: float
    p50: float
    p99: float

    @classmethod
    def from_message(cls, durations: operations_pb2.Durations) -> Self:
        """Reads the contract's message."""
        return _read(cls, durations)


@dataclass(frozen=True, slots=True)
class EnvironmentRollouts:
    """The rollouts of an environment that have ended since the service was started, over all callers.

    Args:
        env_id: The environment.
        outcomes: How they ended, the most frequent first.
        rewarded: How many have a reward.
        rewards: The sum of their rewards.
        rewards_squared: The sum of the squares of these.
        stages: Where the time went: "queue", "init", "run", "eval", and within "run" "generation" and "environment".
        turns: Turns that they took.
        sampled_tokens: Tokens that were sampled in them.
    """

    env_id: str
    outcomes: tuple[OutcomeCount, ...]
    rewarded: int
    rewards: float
    rewards_squared: float
    stages: Mapping[str, StageSeconds]
    turns: int
    sampled_tokens: int

    @classmethod
    def from_message(cls, environment: pb.EnvironmentRollouts) -> Self:
        """Reads the contract's message."""
        return _read(
            cls,
            environment,
            env_id=environment.environment_id,
            outcomes=tuple(OutcomeCount.from_message(outcome) for outcome in environment.outcomes),
            stages={stage: StageSeconds.from_message(durations) for stage, durations in environment.stages.items()},
        )

    @property
    def ended(self) -> int:
        """How many have ended."""
        return sum(outcome.count for outcome in self.outcomes)

    @property
    def mean_reward(self) -> float | None:
        """The mean of the rewards; None before the first."""
        return self.rewards / self.rewarded if self.rewarded else None

    @property
    def reward_spread(self) -> float | None:
        """The standard deviation of the rewards; None before the first."""
        if not self.rewarded:
            return None
        mean = self.rewards / self.rewarded
        return math.sqrt(max(0.0, self.rewards_squared / self.rewarded - mean * mean))


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """How the service fares.

    Args:
        instance: Random at each start.
        uptime: Seconds since that.
        policy_version: The version of the weights.
        queued: Rollouts that have not begun.
        init: Those whose session is being opened and reset.
        ready: Those that wait for a place to take turns.
        run: Those that take turns.
        eval: Those that are being scored.
        jobs: Jobs that have not ended.
        unacknowledged: Results that wait to be acknowledged.
        ended: Rollouts that have ended.
        retries: How often a rollout was begun again after a fault.
        sampled_tokens: Tokens that were sampled.
        servers: The servers that it plays on.
        generators: The generators.
        agents: Names of the agents that jobs may ask for.
        environments: What has ended, by environment: those first whose rollouts take longest.
        generating: Rollouts whose model is sampling.
        dropped: Rollouts that had ended and were not wanted afterwards.
        unacknowledged_bytes: The bytes of the results that wait to be acknowledged.
        waits_for: What keeps all jobs from going on, if anything does.
        role: The role of who asks, such as "admin".
    """

    instance: str
    uptime: float
    policy_version: int
    queued: int
    init: int
    ready: int
    run: int
    eval: int
    jobs: int
    unacknowledged: int
    ended: int
    retries: int
    sampled_tokens: int
    servers: tuple[EnvironmentServerStatus, ...]
    generators: tuple[GeneratorStatus, ...]
    agents: tuple[str, ...]
    environments: tuple[EnvironmentRollouts, ...]
    generating: int
    dropped: int
    unacknowledged_bytes: int
    waits_for: str
    role: str

    @classmethod
    def from_message(cls, status: pb.GetStatusResponse) -> Self:
        """Reads the contract's message."""
        return _read(
            cls,
            status,
            instance=status.service_instance,
            servers=tuple(EnvironmentServerStatus.from_message(server) for server in status.servers),
            generators=tuple(GeneratorStatus.from_message(generator) for generator in status.generators),
            agents=tuple(status.agents),
            environments=tuple(EnvironmentRollouts.from_message(each) for each in status.environments),
        )


def state_number(state: JobState) -> pb.JobState.ValueType:
    """The contract's number of a state.

    Raises:
        InvalidArgument: There is no such state.
    """
    if state not in get_args(JobState):
        raise InvalidArgument(f"a job's state is one of {', '.join(get_args(JobState))}, not {state!r}")
    return pb.JobState.Value(f"JOB_STATE_{state.upper()}")


def _read(cls: type[Any], message: Any, **changed: Any) -> Any:
    """Reads the fields that a message has under the same name; the others are given."""
    same = {field.name: getattr(message, field.name) for field in fields(cls) if field.name not in changed}
    return cls(**same, **changed)


def _word(name: str, prefix: str) -> str:
    return name.removeprefix(prefix).lower()
