"""How a command becomes a call of the environment, and what comes back becomes a reply."""

import inspect
import json
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import gymnasium

from gymhost.server.worker import attributes
from gymhost.server.worker.terms import Terms
from gymhost.v1 import environments_pb2 as pb
from gymhost.wire import errors, fields, values
from gymhost.wire.attributes import pack, unpack

Environment = gymnasium.Env[Any, Any]


class Call(NamedTuple):
    """One kind of command.

    Attributes:
        limit: The name of the environment's time limit that applies: `reset` or `step`.
        decode: Payload and the session's terms to the argument of the call.
        run: Calls the environment.
        run_async: Calls the coroutine of an asynchronous environment; None where it has none.
        encode: What the environment returned to the payload of the reply.
        kept: Where the arrays of the result stay in the environment's shared memory, if it has some: what tells from
            the payload which batch the client has kept.
    """

    limit: str
    decode: Callable[[bytes, Terms], Any]
    run: Callable[[Any, Any], Any]
    run_async: Callable[[Any, Any], Awaitable[Any]] | None
    encode: Callable[[Any], bytes]
    kept: Callable[[bytes], int] | None = None


def options_of(command: pb.ResetCommand, terms: Terms) -> dict[str, Any] | None:
    """The options of a reset, with the session's defaults where they name nothing else."""
    options: dict[str, Any] | None = values.decode(command.options) if command.HasField("options") else None
    if options is not None and type(options) is not dict:
        raise errors.InvalidArgument(f"options must be a dict or None, not {type(options).__name__}")
    return {**terms.defaults, **(options or {})} if terms.defaults else options


def _reset_arguments(payload: bytes, terms: Terms) -> dict[str, Any]:
    command = pb.ResetCommand.FromString(payload)
    fields.check(command)
    terms.label = command.label
    return {"seed": command.seed if command.HasField("seed") else None, "options": options_of(command, terms)}


def _step_action(payload: bytes, terms: Terms) -> Any:
    return values.decode(pb.StepCommand.FromString(payload).action)


def _tool_action(payload: bytes, terms: Terms) -> Any:
    """The assistant message that makes the call."""
    command = pb.CallToolCommand.FromString(payload)
    fields.check(command)
    try:
        arguments = json.loads(command.arguments or "{}")
    except ValueError as error:
        raise errors.InvalidArgument(f"the arguments of {command.name!r} are no JSON: {error}") from None
    call = {"id": "call_0", "type": "function", "function": {"name": command.name, "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def _evaluation_limit(payload: bytes, terms: Terms) -> str | None:
    command = pb.EvaluateCommand.FromString(payload)
    fields.check(command)
    return command.limit or None


class Asked(NamedTuple):
    """What is asked of an attribute.

    Attributes:
        name: Its name.
        value: What it is to be set to.
        arguments: What it is to be called with.
        keyword_arguments: The same, by name.
        mask: For a vector session: which copies are to be called, a byte each; empty for all.
    """

    name: str
    value: Any
    arguments: tuple[Any, ...]
    keyword_arguments: dict[str, Any]
    mask: bytes


def asked(payload: bytes, terms: Terms) -> Asked:
    """Reads an AttributeCommand.

    Raises:
        PermissionDenied: The attribute may not be reached.
        InvalidArgument: The arguments are no tuple and map.
    """
    command = pb.AttributeCommand.FromString(payload)
    fields.check(command)
    terms.attributes.check(command.name)
    arguments: Any = values.decode(command.arguments) if command.HasField("arguments") else ()
    named: Any = values.decode(command.keyword_arguments) if command.HasField("keyword_arguments") else {}
    if type(arguments) is not tuple or type(named) is not dict:
        raise errors.InvalidArgument("the arguments of a call are a tuple and a map")
    return Asked(command.name, unpack(values.decode(command.value)), arguments, named, command.mask)


def _reset_result(returned: Any) -> bytes:
    try:
        observation, info = returned
    except (TypeError, ValueError):
        raise errors.EnvironmentFault(f"reset must return (observation, info), not {_kind(returned)}") from None
    result = pb.ResetResult()
    fill(observation, result.observation, "observation")
    if info:
        fill(info, result.info, "info")
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
    fill(observation, result.observation, "observation")
    if info:
        result.reward_invalid = bool(info.get("reward_invalid"))
        fill(info, result.info, "info")
    return result


def render_result(returned: Any) -> bytes:
    """The payload for what a render returned."""
    result = pb.RenderResult()
    fill(returned, result.frame, "frame")
    return result.SerializeToString()


def fill(value: Any, into: Any, what: str) -> None:
    """Encodes a part of what the environment returned.

    Raises:
        EnvironmentFault: It can't travel.
    """
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


def _evaluate(env: Environment, limit: str | None) -> Any:
    return evaluator(env).evaluate(limit)


def _aevaluate(env: Environment, limit: str | None) -> Awaitable[Any]:
    return evaluator(env).aevaluate(limit)


def evaluator(env: Environment) -> Any:
    """What scores the episodes of an environment.

    Raises:
        Unimplemented: It scores its steps alone.
    """
    innermost: Any = env.unwrapped
    if not hasattr(innermost, "evaluate"):
        raise errors.Unimplemented(f"{type(innermost).__name__} has no `evaluate`: what it pays it pays with its steps")
    return innermost


def _step_result(returned: Any) -> bytes:
    return _step_message(returned).SerializeToString()


def _tool_result(returned: Any) -> bytes:
    return pb.CallToolResult(result=_step_message(returned)).SerializeToString()


def _evaluation_result(returned: Any) -> bytes:
    return pb.EvaluateResult(result=_step_message(returned)).SerializeToString()


def nothing(payload: bytes, terms: Terms) -> None:
    """The argument of a command without one."""


def _render(env: Environment, nothing: None) -> Any:
    return env.render()


def _read(env: Environment, given: Asked) -> tuple[str, Any, bool]:
    return given.name, *attributes.read(env, given.name)


def _write(env: Environment, given: Asked) -> tuple[str, Any, bool]:
    attributes.write(env, given.name, given.value)
    return given.name, None, False


def _call(env: Environment, given: Asked) -> tuple[str, Any, bool]:
    returned = attributes.call(env, given.name, given.arguments, given.keyword_arguments)
    return given.name, attributes.refuse_coroutine(given.name, returned), False


async def _acall(env: Environment, given: Asked) -> tuple[str, Any, bool]:
    returned = attributes.call(env, given.name, given.arguments, given.keyword_arguments)
    return given.name, await returned if inspect.isawaitable(returned) else returned, False


def _attribute_result(returned: tuple[str, Any, bool]) -> bytes:
    name, value, is_method = returned
    result = pb.AttributeResult(is_method=is_method)
    if not is_method:
        fill(pack(value), result.value, name)
    return result.SerializeToString()


CALLS: dict[int, Call] = {
    pb.COMMAND_KIND_RESET: Call("reset", _reset_arguments, _reset, _areset, _reset_result),
    pb.COMMAND_KIND_STEP: Call("step", _step_action, _step, _astep, _step_result),
    pb.COMMAND_KIND_CALL_TOOL: Call("step", _tool_action, _step, _astep, _tool_result),
    pb.COMMAND_KIND_RENDER: Call("step", nothing, _render, None, render_result),
    pb.COMMAND_KIND_GET_ATTR: Call("step", asked, _read, None, _attribute_result),
    pb.COMMAND_KIND_SET_ATTR: Call("step", asked, _write, None, _attribute_result),
    pb.COMMAND_KIND_CALL: Call("step", asked, _call, _acall, _attribute_result),
    pb.COMMAND_KIND_EVALUATE: Call("step", _evaluation_limit, _evaluate, _aevaluate, _evaluation_result),
}
