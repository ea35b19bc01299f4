"""What callers ask for, looked at before it is taken: jobs, tasks and quotas."""

import asyncio
import math
import secrets
import time
from collections.abc import Sequence

from gymhost.rollout.service.messages import from_task
from gymhost.server.rollouts.config import RolloutsConfig
from gymhost.server.rollouts.job import Caller, Job
from gymhost.server.rollouts.store import Tasks
from gymhost.v1 import rollouts_pb2 as pb
from gymhost.wire import errors

__all__ = ["check_key", "check_quotas", "make_job", "pack"]

_ID_BYTES = 16
_KEY_LENGTH = 256
_RETRY_AFTER = 10.0


def check_key(key: str) -> None:
    """Sees whether a job may be named so.

    Raises:
        InvalidArgument: It is empty or too long.
    """
    if not 0 < len(key) <= _KEY_LENGTH:
        raise errors.InvalidArgument(f"SubmitJobRequest.key must have 1 to {_KEY_LENGTH} characters")


async def make_job(config: RolloutsConfig, caller: Caller, request: pb.SubmitJobRequest) -> tuple[Job, list[Tasks]]:
    """Makes a job, which has no row yet, and packs its tasks.

    Raises:
        InvalidArgument: Something that is asked for makes no sense.
    """
    grouping = request.grouping
    for name, seconds in (("patience", grouping.patience), ("time_limit", request.time_limit)):
        if not 0 <= seconds < math.inf:
            raise errors.InvalidArgument(f"{name} must be 0 or more, not {seconds}")
    if not request.tasks and not request.open:
        raise errors.InvalidArgument("a job without tasks must be open")
    packed = await pack(request.tasks, 0)
    rest = pb.SubmitJobRequest()
    rest.CopyFrom(request)
    rest.ClearField("tasks")
    info = pb.Job(
        id=secrets.token_hex(_ID_BYTES),
        key=request.key,
        identity=caller.identity,
        label=request.label,
        priority=request.priority,
        created=time.time(),
        environment_id=request.tasks[0].environment_id if request.tasks else "",
        samples=request.samples or 1,
        open=request.open,
        target=grouping.target,
    )
    return Job(0, caller, rest, info, config, len(request.tasks)), packed


async def pack(tasks: Sequence[pb.RolloutTask], first: int) -> list[Tasks]:
    """Packs tasks, each of which can be read; without holding up the event loop, however many they are.

    Raises:
        InvalidArgument: One can't be read; it is named.
    """

    def pack() -> list[Tasks]:
        for place, task in enumerate(tasks, first):
            if not task.environment_id:
                raise errors.InvalidArgument(f"task {place} has no environment_id")
            try:
                from_task(task, place, 0)
            except errors.InvalidArgument as error:
                raise errors.InvalidArgument(f"task {place}: {error.message}") from None
        return Tasks.pack(tasks)

    return await asyncio.to_thread(pack)


def check_quotas(config: RolloutsConfig, job: Job, more: int | None = None) -> None:
    """Sees whether an identity may have another job, or `more` rollouts of one that it has.

    Raises:
        InvalidArgument: It can never have so many rollouts.
        CapacityExhausted: It has its share; the message names the quota.
    """
    caller, identity = job.caller, job.info.identity
    jobs, rollouts, size = (config.quota(name, identity) for name in ("jobs", "rollouts", "bytes"))
    new = job.total if more is None else more
    if rollouts and new > rollouts:
        raise errors.InvalidArgument(f"{new} rollouts at once are more than the {rollouts} of quota_rollouts")
    live = list(caller.live)
    queued = sum(other.queued for other in live)
    if jobs and more is None and len(live) >= jobs:
        full = f"{len(live)} jobs have not ended (quota_jobs)"
    elif rollouts and new and queued + new > rollouts:
        full = f"{queued} rollouts have not begun, of {rollouts} that may be queued (quota_rollouts)"
    elif size and new and caller.unacknowledged_bytes >= size:
        full = f"{caller.unacknowledged_bytes} bytes of results wait to be acknowledged (quota_bytes)"
    else:
        return
    raise errors.CapacityExhausted(f"{identity or 'the caller'} has its share: {full}", retry_after=_RETRY_AFTER)
