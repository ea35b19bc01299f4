"""What is asked of the rollout service and what comes of it, to and from the messages of the contract.

Values that only Python has, such as the keyword arguments of an environment, travel as `gymhost.wire.values` has them.
A trajectory travels as its JSON without the token rows, and these packed: log-probs come out with every bit that they
had.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, cast

from pydantic import ValidationError

from gymhost.rollout.generators.base import Sampling
from gymhost.rollout.plain import text
from gymhost.rollout.requests import Limits, RolloutRequest
from gymhost.rollout.trajectory import SCHEMA, Row, Trajectory
from gymhost.v1 import rollouts_pb2 as pb
from gymhost.v1.values_pb2 import Value
from gymhost.wire import values
from gymhost.wire.errors import DecodeError, InvalidArgument

__all__ = [
    "GroupRules",
    "LimitsLike",
    "SamplingLike",
    "from_limits",
    "from_result",
    "from_sampling",
    "from_task",
    "to_grouping",
    "to_limits",
    "to_result",
    "to_sampling",
    "to_task",
]

SamplingLike = Sampling | Mapping[str, Any]
"""How to sample: a `Sampling`, or some of its fields as a dict, which leaves the others as the service is set up."""

LimitsLike = Limits | Mapping[str, Any]
"""What ends a rollout: `Limits`, or some of them as a dict, which leaves the others as the service is set up."""

Keep = Literal["all", "variance"]

_KEEP: dict[Keep, pb.KeepGroups.ValueType] = {"all": pb.KEEP_GROUPS_ALL, "variance": pb.KEEP_GROUPS_WITH_VARIANCE}
# What a request may say to an engine, but a task of a job not: all tasks of a job have it in common.
_COMMON = ("sampling", "limits", "agent", "agent_options")


@dataclass(frozen=True, slots=True)
class GroupRules:
    """How the groups of a job are made, and how many are wanted. The results of a group are there all at once.

    Args:
        extra: Rollouts of a group that are begun beyond those that were asked for. As soon as there are enough with a
            reward the rest is cancelled, and has no results.
        patience: Seconds after half of a group has ended upon which the rest is cancelled; None for none.
        keep: Which groups: "all", or those with "variance": their rewards differ, so there is something to learn.
        target: How many groups are wanted; None for one of each request. For a group that is not kept the next request
            is played. When it is reached the rest is cancelled; in an open job it is carried over, with its tokens,
            and goes towards the target when `extend` raises it.
        max_staleness: How many policy versions the oldest token of a group may be behind when its results are there;
            beyond that it is played again. None for any number.

    Raises:
        ValueError: A number makes no sense.
    """

    extra: int = 0
    patience: float | None = None
    keep: Keep = "all"
    target: int | None = None
    max_staleness: int | None = None

    def __post_init__(self) -> None:
        if self.extra < 0 or (self.max_staleness is not None and self.max_staleness < 0):
            raise ValueError("extra and max_staleness are 0 or more")
        if (self.patience is not None and self.patience <= 0) or (self.target is not None and self.target < 1):
            raise ValueError("patience is above 0, and a target 1 or more; None is for none")
        if self.keep not in _KEEP:
            raise ValueError(f"keep is one of {', '.join(_KEEP)}, not {self.keep!r}")


# -- what is asked -----------------------------------------------------------------------------------------------------


def to_task(request: RolloutRequest) -> pb.RolloutTask:
    """A request as a task of a job.

    Raises:
        InvalidArgument: It says what all tasks of a job have in common, or what is the service's to say, or a field
            can't travel.
    """
    for name in _COMMON:
        if getattr(request, name):
            raise InvalidArgument(
                f"{name} is the same for all rollouts of a job: give it to the job, not to its requests; what differs "
                "goes into a job of its own"
            )
    if request.id is not None:
        raise InvalidArgument("the service makes the ids of rollouts: a request that is a task of a job has none")
    if request.index:
        raise InvalidArgument(
            f"a request with the index {request.index}: groups are made by the service, of samples= rollouts of each "
            "request, so give each request once"
        )
    try:
        task = pb.RolloutTask(
            environment_id=request.env_id,
            task=request.task,
            seed=request.seed,
            split=request.split or "",
            group=text(request.group or ""),
        )
    except ValueError as error:  # a number that is too large, or halves of surrogate pairs
        raise InvalidArgument(f"a request that can't travel: {error}") from None
    for name, given, into in (
        ("kwargs", request.kwargs, task.kwargs),
        ("options", request.options, task.options),
        ("labels", request.labels, task.labels),
    ):
        if given:
            values.encode(dict(given), into, name=name)
    return task


def from_task(task: pb.RolloutTask, place: int, index: int) -> RolloutRequest:
    """A rollout of a task.

    Args:
        task: The task.
        place: Its place in the job: the group's name and the seed where the task has none.
        index: The place of the rollout within the group.

    Raises:
        InvalidArgument: A field can't be read.
    """
    return RolloutRequest(
        task.environment_id,
        task=task.task if task.HasField("task") else None,
        seed=task.seed if task.HasField("seed") else place,
        split=task.split or None,
        kwargs=map_of(task.kwargs, "kwargs"),
        options=map_of(task.options, "options"),
        group=task.group or str(place),
        index=index,
        labels=map_of(task.labels, "labels"),
    )


def map_of(value: Value, name: str) -> dict[str, Any]:
    """What a field holds that is named by texts, empty where it is unset.

    Raises:
        InvalidArgument: It holds something else.
    """
    found = values.decode(value)
    if found is None:
        return {}
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in cast(dict[object, Any], found)):
        raise InvalidArgument(f"{name} must be a map that is named by texts")
    return cast(dict[str, Any], found)


def to_sampling(sampling: SamplingLike) -> pb.RolloutSampling:
    """How to sample, as the contract has it.

    Raises:
        InvalidArgument: There is no such field, or it can't hold the value.
    """
    given = _given(sampling, Sampling)
    ids = given.pop("stop_token_ids", ())
    try:
        return pb.RolloutSampling(stop_token_ids=ids, **given)
    except (ValueError, TypeError) as error:
        raise InvalidArgument(f"sampling that can't travel: {error}") from None


def from_sampling(message: pb.RolloutSampling, default: Sampling) -> Sampling:
    """How to sample: `default`, but for what is said.

    Raises:
        InvalidArgument: A setting makes no sense.
    """
    said = _said(message, Sampling)
    if message.stop_token_ids:
        said["stop_token_ids"] = tuple(message.stop_token_ids)
    return _changed(default, said)


def to_limits(limits: LimitsLike) -> pb.RolloutLimits:
    """What ends a rollout, as the contract has it; a limit of None is as the service is set up.

    Raises:
        InvalidArgument: There is no such limit, or it can't hold the value.
    """
    given = _given(limits, Limits)
    retries = given.pop("retries", None)
    try:
        return pb.RolloutLimits(attempts=None if retries is None else retries + 1, **given)
    except (ValueError, TypeError) as error:
        raise InvalidArgument(f"limits that can't travel: {error}") from None


def from_limits(message: pb.RolloutLimits, default: Limits) -> Limits:
    """What ends a rollout: `default`, but for what is said.

    Raises:
        InvalidArgument: A limit makes no sense.
    """
    said = _said(message, Limits)
    if message.HasField("attempts"):
        said["retries"] = message.attempts - 1
    return _changed(default, said)


def to_grouping(rules: GroupRules | None) -> pb.RolloutGrouping:
    """How groups are made, as the contract has it; None for results that come as their rollouts end.

    Raises:
        InvalidArgument: A number is too large.
    """
    if rules is None:
        return pb.RolloutGrouping()
    try:
        return pb.RolloutGrouping(
            extra=rules.extra,
            patience=rules.patience or 0.0,
            keep=_KEEP[rules.keep],
            target=rules.target or 0,
            max_staleness=rules.max_staleness,
            whole=True,
        )
    except ValueError as error:
        raise InvalidArgument(f"grouping that can't travel: {error}") from None


def _given(given: Any, kind: type[Sampling] | type[Limits]) -> dict[str, Any]:
    """The fields that are given, by name."""
    names = [field.name for field in fields(kind)]
    if isinstance(given, kind):
        found: dict[str, Any] = {name: getattr(given, name) for name in names}
    elif isinstance(given, Mapping):
        found = dict(cast(Mapping[str, Any], given))
        if unknown := found.keys() - set(names):
            raise InvalidArgument(
                f"{kind.__name__} has no {', '.join(sorted(map(str, unknown)))}, but {', '.join(names)}"
            )
    else:
        raise InvalidArgument(f"this is neither a {kind.__name__} nor some of its fields: {given!r}")
    return {name: value for name, value in found.items() if value is not None}


def _said(message: Any, kind: type[Sampling] | type[Limits]) -> dict[str, Any]:
    """The fields that a message says, of those that have the same name in both."""
    named = {field.name for field in fields(kind)}
    return {field.name: value for field, value in message.ListFields() if field.name in named and field.has_presence}


def _changed(default: Any, said: dict[str, Any]) -> Any:
    try:
        return replace(default, **said)
    except ValueError as error:
        raise InvalidArgument(str(error)) from None


# -- what comes of it --------------------------------------------------------------------------------------------------


def to_result(trajectory: Trajectory) -> pb.Result:
    """A trajectory as a result: id, record and rows; which job it is of, and its cursor, are the service's to say."""
    result = pb.Result(
        rollout_id=trajectory.id,
        schema=SCHEMA,
        record=trajectory.model_dump_json(exclude={"token_rows"}).encode(),
    )
    for row in trajectory.token_rows:
        result.rows.add(
            prompt_ids=row.prompt_ids,
            completion_ids=row.completion_ids,
            mask=[bool(sampled) for sampled in row.mask],
            logprobs=row.logprobs,
            policy_versions=row.policy_versions,
        )
    return result


def from_result(result: pb.Result) -> Trajectory:
    """The trajectory of a result.

    Raises:
        DecodeError: It is of a later schema, or can't be read.
    """
    if result.schema > SCHEMA:
        raise DecodeError(
            f"the service's trajectories are of schema {result.schema}, this version of gymhost reads up to {SCHEMA}: "
            "update it"
        )
    try:
        trajectory = Trajectory.model_validate_json(result.record)
    except ValidationError as error:
        raise DecodeError(f"the result {result.rollout_id} holds no trajectory: {error}") from None
    trajectory.token_rows = [_row(row, result.rollout_id) for row in result.rows]
    return trajectory


def _row(row: pb.TokenRow, rollout_id: str) -> Row:
    # Slices are how protobuf makes lists of numbers fastest; the wire's types are the check that pydantic would make.
    completion, mask, logprobs, versions = (
        row.completion_ids[:],
        [int(sampled) for sampled in row.mask[:]],
        row.logprobs[:],
        row.policy_versions[:],
    )
    if not len(completion) == len(mask) == len(logprobs) == len(versions):
        raise DecodeError(f"the result {rollout_id} has a row whose lists are of different lengths")
    return Row.model_construct(
        prompt_ids=row.prompt_ids[:],
        completion_ids=completion,
        mask=mask,
        logprobs=logprobs,
        policy_versions=versions,
    )
