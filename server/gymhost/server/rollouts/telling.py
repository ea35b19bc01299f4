"""What others are told of jobs and rollouts."""

import logging
import time

from gymhost.rollout.trajectory import Trajectory
from gymhost.server.rollouts.job import Flight, Job
from gymhost.v1 import rollouts_pb2 as pb

__all__ = ["in_flight", "named", "of_job", "queued"]

# What is waiting for a place in a stage counts for that stage.
_STAGES = {
    "waiting": pb.ROLLOUT_STAGE_INIT,
    "init": pb.ROLLOUT_STAGE_INIT,
    "ready": pb.ROLLOUT_STAGE_RUN,
    "run": pb.ROLLOUT_STAGE_RUN,
    "eval": pb.ROLLOUT_STAGE_EVAL,
}


def of_job(job: Job) -> pb.Job:
    """How a job stands on disk, and what it waits for now."""
    told = pb.Job()
    told.CopyFrom(job.view)
    told.time_left = job.time_left
    told.waits_for = _waits_for(job)
    return told


def in_flight(flight: Flight, stage: str, trajectory: Trajectory | None) -> pb.RolloutInfo:
    """How a rollout in flight stands.

    Args:
        flight: The rollout.
        stage: Where it is in the engine, if it is there already.
        trajectory: Its record so far, then.
    """
    info = queued(flight.job, flight.number)
    info.stage = _STAGES.get(stage, pb.ROLLOUT_STAGE_INIT)
    info.attempts += 1
    info.seconds = time.monotonic() - flight.begun
    if flight.request is not None:
        info.environment_id, info.group = flight.request.env_id, flight.request.group or ""
    if trajectory is not None:
        info.turns, info.sampled_tokens = len(trajectory.turns), trajectory.sampled_tokens
    return info


def queued(job: Job, number: int) -> pb.RolloutInfo:
    """How a rollout stands that has not begun, or is to begin again.

    As long as its task has not been read, its group is told by its place, and its environment is that of the job.
    """
    place, index = divmod(number, job.width)
    task = job.task(place)
    return pb.RolloutInfo(
        id=f"{job.id}/{number}",
        job_id=job.id,
        environment_id=task.environment_id if task else job.info.environment_id,
        group=(task.group if task else "") or str(place),
        index=index,
        stage=pb.ROLLOUT_STAGE_QUEUED,
        attempts=job.attempts.get(number, 0),
    )


def named(record: logging.LogRecord) -> bool:
    """Says in a line of the engine's log which rollout of which job it is about: the engine knows the flight alone.

    It is a filter of `logging`, and lets everything through.
    """
    job, of_job, number = getattr(record, "rollout", "").partition("/")
    if of_job:
        record.job, record.rollout = job, f"{job}/{number.partition('.')[0]}"
    return True


def _waits_for(job: Job) -> str:
    if job.ended or job.paused:
        return ""
    if name := job.missing_agent:
        return f"the service to be started with its agent: --agent {name}=MODULE:CLASS"
    if full := job.full:
        return f"its results to be fetched: {full}"
    if job.pauses and (job.troubled or not job.flights):
        return f"another attempt after a fault: {job.info.last_fault}"
    return "being extended or closed" if job.state == pb.JOB_STATE_WAITING else ""
