"""How jobs are submitted: in pieces that are no larger than a message may be, each safe to repeat."""

import asyncio
import random
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypedDict

from gymhost.rollout.requests import RolloutRequest
from gymhost.rollout.service.link import Link
from gymhost.rollout.service.messages import (
    GroupRules,
    LimitsLike,
    SamplingLike,
    to_grouping,
    to_limits,
    to_sampling,
    to_task,
)
from gymhost.v1 import rollouts_pb2 as pb
from gymhost.wire import values
from gymhost.wire.errors import CapacityExhausted, InvalidArgument

__all__ = ["QUOTA_TIMEOUT", "JobSettings", "ask", "first_message", "pieces"]

# Seconds that a submission waits where a quota is used up.
QUOTA_TIMEOUT = 600.0
# What one message of a submission holds at most; a task that is larger travels alone.
_PIECE_BYTES = 2 * 1024 * 1024
_PIECE_TASKS = 8192


class JobSettings(TypedDict, total=False):
    """What a job is told beside what it plays; each may be left out.

    Attributes:
        samples: Rollouts of each request, which are a group; 1 without it.
        sampling: How to sample; what is left out is as the service is set up.
        limits: What ends a rollout; what is left out is as the service is set up.
        grouping: How groups are made, and how many are wanted. Then the results of a group are there all at once;
            without it each is there as its rollout ends.
        priority: Higher goes first; 0 without it.
        time_limit: Seconds after which the job ends, whatever is in flight.
        agent: The loop that is played, by its name among the service's; without it the built-in one.
        agent_options: What the agent is told.
        open: Whether `Job.extend` will give it more; it then goes on until it is closed.
        key: Names the job among those of the caller. Submitting again with the same key gives the same job.
        label: For people, shown in lists.
        timeout: Seconds to wait while a quota is used up, after which CapacityExhausted is raised; 600 without it.
    """

    samples: int
    sampling: SamplingLike | None
    limits: LimitsLike | None
    grouping: GroupRules | None
    priority: int
    time_limit: float | None
    agent: str | None
    agent_options: Mapping[str, Any]
    open: bool
    key: str | None
    label: str
    timeout: float


def first_message(settings: JobSettings, key: str) -> pb.SubmitJobRequest:
    """The message that submits a job, but for its tasks and whether it is open.

    Raises:
        InvalidArgument: A setting makes no sense, or can't travel.
    """
    if unknown := sorted(settings.keys() - JobSettings.__annotations__.keys()):
        known = ", ".join(JobSettings.__annotations__)
        raise InvalidArgument(f"a job has no {', '.join(unknown)}, but {known}")
    samples = settings.get("samples", 1)
    if samples < 1:
        raise InvalidArgument(f"samples is how many rollouts of each request, 1 or more, not {samples}")
    try:
        message = pb.SubmitJobRequest(
            key=key,
            samples=samples,
            sampling=to_sampling(settings.get("sampling") or {}),
            limits=to_limits(settings.get("limits") or {}),
            grouping=to_grouping(settings.get("grouping")),
            priority=settings.get("priority", 0),
            time_limit=settings.get("time_limit") or 0.0,
            agent=settings.get("agent") or "",
            label=settings.get("label", ""),
        )
    except InvalidArgument:
        raise
    except (ValueError, TypeError) as error:
        raise InvalidArgument(f"a job that can't travel: {error}") from None
    if options := settings.get("agent_options"):
        values.encode(dict(options), message.agent_options, name="agent_options")
    return message


def pieces(requests: Iterable[RolloutRequest]) -> Iterator[list[pb.RolloutTask]]:
    """The tasks of requests in pieces that are each no larger than a message may be; the same each time.

    Raises:
        InvalidArgument: A request can't be a task of a job.
    """
    piece: list[pb.RolloutTask] = []
    size = 0
    for request in requests:
        task = to_task(request)
        weight = task.ByteSize() + 8
        if piece and (size + weight > _PIECE_BYTES or len(piece) == _PIECE_TASKS):
            yield piece
            piece, size = [], 0
        piece.append(task)
        size += weight
    if piece:
        yield piece


async def ask(link: Link, method: str, request: Any, timeout: float) -> Any:
    """Makes a call that a quota may refuse, and asks again when it is worth it.

    Args:
        link: The connection.
        method: The call.
        request: Its message.
        timeout: Seconds to wait.

    Raises:
        CapacityExhausted: The quota was used up all that time.
        Error: The call failed.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    while True:
        try:
            return await link.call(method, request)
        except CapacityExhausted as error:
            pause = (error.retry_after or 1.0) * random.uniform(1.0, 1.25)
            if loop.time() + pause > deadline:
                raise
        await asyncio.sleep(pause)
