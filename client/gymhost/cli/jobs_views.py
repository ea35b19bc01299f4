"""What `gymhost jobs` prints of jobs, rollouts and generators."""

import dataclasses
import re
import time
from collections.abc import Iterator, Sequence
from typing import Any

from gymhost.cli.words import clock, in_short
from gymhost.rollout.service import GeneratorStatus, JobStatus, RolloutStatus

__all__ = ["as_dict", "describe", "generator_rows", "job_rows", "name_of", "rollout_rows"]

# As much of an id as people are shown; a key that nobody gave is none to show.
_SHORT = 12
_MADE_KEY = re.compile("[0-9a-f]{32}")


def as_dict(status: Any) -> dict[str, Any]:
    """What JSON says of a status."""
    return dataclasses.asdict(status)


def job_rows(jobs: Sequence[JobStatus], *, everyone: bool) -> list[list[str]]:
    """A row a job."""
    heads = ["ID", "STATE", "DONE", "IN FLIGHT", "TO BEGIN", "TO FETCH", "REWARD", "AGE", "NAME"]
    rows = [[*heads[:1], *(["WHOSE"] if everyone else []), *heads[1:]]]
    for job in jobs:
        reward = "-" if job.mean_reward is None else f"{job.mean_reward:.3f}"
        rows.append(
            [
                job.id[:_SHORT],
                *([in_short(job.identity) or "-"] if everyone else []),
                job.state,
                f"{job.done:,}",
                f"{job.in_flight:,}",
                f"{job.queued:,}",
                f"{job.unacknowledged:,}",
                reward,
                clock(max(0.0, time.time() - job.created)),
                name_of(job),
            ]
        )
    return rows


def rollout_rows(rollouts: Sequence[RolloutStatus]) -> list[list[str]]:
    """A row a rollout."""
    rows = [["ROLLOUT", "STAGE", "GROUP", "PLACE", "TURNS", "TOKENS", "SECONDS", "BEGUN"]]
    for each in rollouts:
        numbers = [str(each.index), str(each.turns), f"{each.sampled_tokens:,}", f"{each.seconds:.0f}"]
        rows.append([each.id, each.stage, in_short(each.group), *numbers, f"{each.attempts} times"])
    return rows


def generator_rows(generators: Sequence[GeneratorStatus]) -> list[list[str]]:
    """A row a generator."""
    rows = [["NAME", "URL", "VERSION", "REQUESTS", "LOAD", "SAMPLED", "STATE"]]
    for each in generators:
        used = each.healthy and each.current and not each.draining
        state = "in use" if used else "draining" if each.draining else "not used"
        why = f": {in_short(each.why)}" if each.why else ""
        numbers = [str(each.policy_version), f"{each.requests:,}", f"{each.load:,}", f"{each.sampled_tokens:,}"]
        rows.append([in_short(each.name), in_short(each.url), *numbers, f"{state}{why}"])
    return rows


def describe(job: JobStatus) -> Iterator[str]:
    """All that is known of a job, for people."""
    yield f"Job {job.id}"
    facts: list[tuple[str, str]] = [
        ("key", job.key),
        ("label", job.label),
        ("whose", job.identity),
        ("environment", job.env_id),
        ("state", job.state + (", open" if job.open else "")),
        ("waits for", job.waits_for),
        ("priority", str(job.priority) if job.priority else ""),
        ("submitted", _when(job.created)),
        ("begun", _when(job.begun)),
        ("ended", _when(job.ended)),
        ("time left", "" if job.time_left is None else clock(job.time_left)),
        ("rollouts", f"{job.queued:,} to begin, {job.in_flight:,} in flight, {job.samples:,} of each task"),
        ("ended so", _ends(job)),
        ("groups", _groups(job)),
        ("reward", "" if job.mean_reward is None else f"{job.mean_reward:.3f}, the mean of {job.rewarded:,}"),
        ("tokens", f"{job.sampled_tokens:,} sampled"),
        ("to fetch", f"{job.unacknowledged:,} results, {job.unacknowledged_bytes:,} bytes"),
        ("tried again", f"{job.retries:,} times; the last fault: {job.last_fault}" if job.retries else ""),
    ]
    for name, said in facts:
        if said:
            yield f"  {name + ':':<14}{in_short(said)}"


def name_of(job: JobStatus) -> str:
    """What people call it."""
    return in_short(job.label or ("" if _MADE_KEY.fullmatch(job.key) else job.key)) or "-"


def _ends(job: JobStatus) -> str:
    kinds = ("terminated", "truncated", "failed", "cancelled", "dropped")
    return ", ".join(f"{getattr(job, kind):,} {kind}" for kind in kinds if getattr(job, kind)) or "none yet"


def _groups(job: JobStatus) -> str:
    if not (job.target or job.groups_kept or job.groups_dropped):
        return ""
    wanted = f" of {job.target:,}" if job.target else ""
    return f"{job.groups_kept:,}{wanted} kept, {job.groups_dropped:,} dropped"


def _when(seconds: float | None) -> str:
    return "" if seconds is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
