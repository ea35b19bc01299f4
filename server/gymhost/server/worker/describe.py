"""What a worker tells of its environments."""

import json
import random
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium

from gymhost.envs import registration
from gymhost.envs.tasks import ENDLESS, Tasks
from gymhost.server.worker.terms import replayable
from gymhost.server.worker.vector import Native
from gymhost.v1 import environments_pb2 as pb
from gymhost.wire import errors, spaces, values
from gymhost.wire.chat_spaces import Message

_MODES = {"thread": pb.RUN_MODE_THREAD, "async": pb.RUN_MODE_ASYNC, "inline": pb.RUN_MODE_INLINE}
_ISOLATIONS = {"shared": pb.ISOLATION_SHARED, "process": pb.ISOLATION_PROCESS}


def catalog(problems: list[registration.Problem], patterns: tuple[str, ...]) -> pb.ListEnvironmentsResponse:
    """Every environment that is registered, and what kept others from it; which are replayable by the settings."""
    return pb.ListEnvironmentsResponse(
        environments=[_info(registered, patterns) for registered in registration.catalog().values()],
        problems=[f"{problem.source}: {problem.message}" for problem in problems],
    )


def import_fault(error: ImportError) -> errors.EnvironmentFault:
    """Tells of a module that could not be imported, with the traceback of the module's own code."""
    cause = error.__cause__ or error
    # A module that is not there has none, and the message says so already.
    tells_more = cause.__traceback__ is not None or isinstance(cause, SyntaxError)
    trace = "".join(traceback.format_exception(cause)) if tells_more else ""
    return errors.EnvironmentFault(str(error), exception=type(cause).__qualname__, traceback=trace)


def describe(request: pb.GetEnvironmentRequest, patterns: tuple[str, ...]) -> pb.GetEnvironmentResponse:
    """Makes an instance of the environment and describes it."""
    info = _info(registration.catalog()[request.environment_id], patterns)
    kwargs: Any = values.decode(request.kwargs) if request.HasField("kwargs") else {}
    env = registration.make(request.environment_id, **kwargs)
    try:
        made = created(env, 0)
        info.observation_space.CopyFrom(made.observation_space)
        info.action_space.CopyFrom(made.action_space)
        info.metadata.CopyFrom(made.metadata)
        info.tools.extend(made.tools)
        info.conversational = made.conversational
        for name, tasks in getattr(env.unwrapped, "splits", {}).items():
            info.splits.add(name=name, count=tasks.size)
    finally:
        env.close()
    return pb.GetEnvironmentResponse(environment=info)


def tasks(request: pb.ListTasksRequest) -> pb.ListTasksResponse:
    """Makes an instance of the environment and lists tasks of it, as far as they are public.

    Raises:
        InvalidArgument: There is no such split, or the environment has no tasks.
        EnvironmentFault: A public field can't travel.
    """
    kwargs: Any = values.decode(request.kwargs) if request.HasField("kwargs") else {}
    env = registration.make(request.environment_id, **kwargs)
    try:
        bare: Any = env.unwrapped
        splits: Mapping[str, Tasks] = getattr(bare, "splits", {})
        if not splits:
            raise errors.InvalidArgument(f"{request.environment_id} has no tasks")
        split = request.split or next(iter(splits))
        if split not in splits:
            raise errors.InvalidArgument(f"there is no split {split!r}: the splits are {', '.join(splits)}")
        chosen = splits[split]
        answer = pb.ListTasksResponse(split=split, count=chosen.size)
        for index in _indices(request, chosen.size):
            task = chosen[index]
            shown = {name: task[name] for name in bare.public_fields if name in task}
            values.encode(shown, answer.tasks.add(index=index).fields)
        return answer
    except errors.EncodeError as error:
        raise errors.EnvironmentFault(f"a public field of a task can't travel: {error.message}") from None
    finally:
        env.close()


def _indices(request: pb.ListTasksRequest, size: int | None) -> Sequence[int]:
    limit = request.limit
    if request.HasField("sample_seed"):
        draw = random.Random(request.sample_seed)
        return draw.sample(range(ENDLESS if size is None else size), limit if size is None else min(limit, size))
    end = request.start + limit
    return range(request.start, end if size is None else min(end, size))


def created(
    env: Any, made_ms: int, attributes: Sequence[str] = (), *, is_replayable: bool = False
) -> pb.CreateSessionResponse:
    """What a client needs to know of a new instance, without its id and lanes.

    Args:
        env: The instance.
        made_ms: Milliseconds that making it took.
        attributes: What the client may reach of it.
        is_replayable: Whether the session can be made again from its commands.

    Raises:
        EnvironmentFault: The environment has spaces or metadata that can't travel.
    """
    try:
        made = pb.CreateSessionResponse(
            observation_space=spaces.encode(env.observation_space),
            action_space=spaces.encode(env.action_space),
            metadata=values.encode(env.metadata or {}),
            render_mode=env.render_mode or "",
            made_ms=made_ms,
            tools=[_tool(tool) for tool in getattr(env.unwrapped, "tools", ())],
            conversational=isinstance(env.action_space, Message),
            evaluates=hasattr(env.unwrapped, "evaluate"),
            attributes=attributes,
            replayable=is_replayable,
            spec=_spec(env),
        )
        if isinstance(env, Native):
            native: Any = env.env
            spaces.encode(native.observation_space, made.batched_observation_space)
            spaces.encode(native.action_space, made.batched_action_space)
        return made
    except errors.EncodeError as error:
        raise errors.EnvironmentFault(f"the environment can't be hosted: {error.message}") from None


def _info(registered: registration.Registered, patterns: tuple[str, ...]) -> pb.EnvironmentInfo:
    hosting = registered.hosting
    return pb.EnvironmentInfo(
        environment_id=registered.id,
        description=hosting.description,
        run_mode=_MODES[hosting.mode],
        isolation=_ISOLATIONS[hosting.isolation],
        step_timeout_ms=round((hosting.step_timeout or 0) * 1000),
        reset_timeout_ms=round((hosting.reset_timeout or 0) * 1000),
        source=registered.source,
        licence=registered.licence,
        native_vector=gymnasium.registry[registered.id].vector_entry_point is not None,
        replayable=replayable(registered.id, hosting, patterns),
        memory_limit_bytes=hosting.memory_limit or 0,
    )


def _spec(env: Any) -> pb.SpecInfo:
    spec = getattr(env, "spec", None) or env.unwrapped.spec
    if spec is None:
        return pb.SpecInfo()
    return pb.SpecInfo(
        max_episode_steps=spec.max_episode_steps,
        reward_threshold=spec.reward_threshold,
        nondeterministic=spec.nondeterministic,
    )


def _tool(tool: Any) -> pb.ToolSpec:
    return pb.ToolSpec(name=tool.name, description=tool.description, parameters_json=json.dumps(tool.parameters))
