"""How a command becomes a call of the environment, and what comes back becomes a reply."""

import json
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import gymnasium

from gymhost.v1 import environments_pb2 as pb
from gymhost.wire import errors, values

Environment = gymnasium.Env[Any, Any]
# What a reset falls back on where its options name no task.
Defaults = dict[str, Any]


class Call(NamedTuple):
    """One kind of command.

    Attributes:
        limit: The name of the environment's time limit that applies: `reset` or `step`.
        decode: Payload and the session's defaults to the argument of the call.
        run: Calls the environment.
        run_async: Calls the coroutine of an asynchronous environment; None where it has none.
        encode: What the environment returned to the payload of the reply.
    """

    limit: str
    decode: Callable[[bytes, Defaults], Any]
    run: Callable[[Environment, Any], Any]
    run_async: Callable[[Any, Any], Awaitable[Any]] | None
    encode: Callable[[Any], bytes]


def _reset_arguments(payload: bytes, defaults: Defaults) -> dict[str, Any]:
    command = pb.ResetCommand.FromString(payload)
    options: dict[str, Any] | None = values.decode(command.options) if command.HasField("options") else None
    if options is not None and type(options) is not dict:
        raise errors.InvalidArgument(f"options must be a dict or None, not {type(options).__name__}")
    if defaults:
        options = {**defaults, **(options or {})}
    return {"seed": command.seed if command.HasField("seed") else None, "options": options}


def _step_action(payload: bytes, defaults: Defaults) -> Any:
    return values.decode(pb.StepCommand.FromString(payload).action)


def _tool_action(payload: bytes, defaults: Defaults) -> Any:
    """The assistant message that makes the call."""
    command = pb.CallToolCommand.FromString(payload)
    try:
        arguments = json.loads(command.arguments or "{}")
    except ValueError as error:
        raise errors.InvalidArgument(f"the arguments of {command.name!r} are no JSON: {error}") from None
    call = {"id": "call_0", "type": "function", "function": {"name": command.name, "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def _reset_result(returned: Any) -> bytes:
    try:
        observation, info = returned
    except (TypeError, ValueError):
        raise errors.EnvironmentFault(f"reset must return (observation, info), not {_kind(returned)}") from None
    result = pb.ResetResult()
    _encode(observation, result.observation, "observation")
    if info:
        _encode(info, result.info, "info")
    return result.SerializeToString()


def _step_message(returned: Any) -> pb.StepResult:
    try:
        observation, reward, terminated, truncated, info = returned
    except (TypeError, ValueError):
        wanted = "(observation, reward, terminated, truncated, info)"
        raise errors.EnvironmentFault(f"step must return {wanted}, not {_kind(returned)}") from None
    try:
        result = pb.StepResult(reward=reward, terminated=terminated, truncated=truncated)
    except TypeError:
        # NumPy's scalars and the like, which protobuf does not take as they are.
        try:
            result = pb.StepResult(reward=float(reward), terminated=bool(terminated), truncated=bool(truncated))
        except (TypeError, ValueError):
            got = ", ".join(_kind(each) for each in (reward, terminated, truncated))
            raise errors.EnvironmentFault(f"step must return a number and two flags, not {got}") from None
    _encode(observation, result.observation, "observation")
    if info:
        result.reward_invalid = bool(info.get("reward_invalid"))
        _encode(info, result.info, "info")
    return result


def _render_result(returned: Any) -> bytes:
    result = pb.RenderResult()
    _encode(returned, result.frame, "frame")
    return result.SerializeToString()


def _encode(value: Any, into: Any, what: str) -> None:
    try:
        values.encode(value, into)
    except errors.EncodeError as error:
        raise errors.EnvironmentFault(f"the environment's {what} can't travel: {error.message}") from None


def _kind(value: Any) -> str:
    return f"a tuple of {len(value)}" if type(value) is tuple else type(value).__name__  # pyright: ignore[reportUnknownArgumentType]


def _reset(env: Environment, given: dict[str, Any]) -> Any:
    return env.reset(**given)


def _areset(env: Any, given: dict[str, Any]) -> Awaitable[Any]:
    return env.areset(**given)


def _step(env: Environment, action: Any) -> Any:
    return env.step(action)


def _astep(env: Any, action: Any) -> Awaitable[Any]:
    return env.astep(action)


def _step_result(returned: Any) -> bytes:
    return _step_message(returned).SerializeToString()


def _tool_result(returned: Any) -> bytes:
    return pb.CallToolResult(result=_step_message(returned)).SerializeToString()


def _nothing(payload: bytes, defaults: Defaults) -> None:
    return None


def _render(env: Environment, nothing: None) -> Any:
    return env.render()


CALLS: dict[int, Call] = {
    pb.COMMAND_KIND_RESET: Call("reset", _reset_arguments, _reset, _areset, _reset_result),
    pb.COMMAND_KIND_STEP: Call("step", _step_action, _step, _astep, _step_result),
    pb.COMMAND_KIND_CALL_TOOL: Call("step", _tool_action, _step, _astep, _tool_result),
    pb.COMMAND_KIND_RENDER: Call("step", _nothing, _render, None, _render_result),
}
