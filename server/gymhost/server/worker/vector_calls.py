"""How commands become calls of a vector session, and what comes back becomes replies."""

from typing import Any

import numpy as np

from gymhost.server.worker import attributes
from gymhost.server.worker.calls import Asked, Call, asked, fill, nothing, options_of, render_result
from gymhost.server.worker.terms import Terms
from gymhost.server.worker.vector import Infos, VectorSessionEnv
from gymhost.server.worker.vector_infos import Added
from gymhost.v1 import environments_pb2 as pb
from gymhost.wire import errors, fields, tensors, values
from gymhost.wire.attributes import pack, unpack
from gymhost.wire.layout import Batch


def _reset_arguments(payload: bytes, terms: Terms) -> tuple[Any, Any, dict[str, Any] | None]:
    command = pb.ResetCommand.FromString(payload)
    fields.check(command)
    terms.label = command.label
    seeds: Any = values.decode(command.seeds) if command.HasField("seeds") else None
    mask = np.frombuffer(command.mask, np.bool_) if command.mask else None
    return seeds, mask, options_of(command, terms)


def _reset(env: VectorSessionEnv, given: tuple[Any, Any, dict[str, Any] | None]) -> Any:
    observation, infos = env.reset(*given)
    return None if env.memory is not None else observation, infos


def _reset_result(returned: tuple[Any, Infos]) -> bytes:
    observation, infos = returned
    result = pb.ResetResult()
    if observation is not None:
        fill(observation, result.observation, "observation")
    _fill_infos(infos, result)
    return result.SerializeToString()


def _actions(payload: bytes, terms: Terms) -> Any:
    return values.decode(pb.StepCommand.FromString(payload).action)


def _step(env: VectorSessionEnv, actions: Any) -> Any:
    batch, infos = env.step(actions)
    return None if env.memory is not None else batch, infos


def _step_result(returned: tuple[Batch | None, Infos]) -> bytes:
    batch, infos = returned
    result = pb.StepResult()
    if batch is not None:
        fill(batch.observation, result.observation, "observation")
        tensors.encode_array(np.asarray(batch.rewards), result.rewards)
        tensors.encode_array(np.asarray(batch.terminations), result.terminations)
        tensors.encode_array(np.asarray(batch.truncations), result.truncations)
    _fill_infos(infos, result)
    return result.SerializeToString()


def _kept_at_reset(payload: bytes) -> int:
    return pb.ResetCommand.FromString(payload).kept


def _kept_at_step(payload: bytes) -> int:
    return pb.StepCommand.FromString(payload).kept


def _fill_infos(infos: Infos, result: pb.ResetResult | pb.StepResult) -> None:
    if isinstance(infos, Added):
        if not infos.infos:
            return
        combined = infos.combined()
        if combined is None:
            fill(infos.by_copy(), result.infos, "info")
            return
        infos = combined
    if infos:
        fill(infos, result.info, "info")


def _no_tools(payload: bytes, terms: Terms) -> Any:
    raise errors.Unimplemented("the copies of a vector session are stepped together: no tool can be called on its own")


def _render(env: Any, _: None) -> Any:
    return env.render()


def _write(env: VectorSessionEnv, given: Asked) -> Any:
    each = given.value
    if type(each) is not list or len(each) != len(env):  # pyright: ignore[reportUnknownArgumentType]
        raise errors.InvalidArgument(f"an attribute of a vector session is set by a list of {len(env)} values")
    env.each(lambda env, index: attributes.write(env, given.name, unpack(each[index])))
    return given.name, ()


def _call(env: VectorSessionEnv, given: Asked) -> Any:
    mask = given.mask or bytes([1] * len(env))
    if len(mask) != len(env):
        raise errors.InvalidArgument(f"a mask of {len(mask)} bytes does not go with {len(env)} copies")
    return given.name, env.each(lambda env, index: _call_one(env, given) if mask[index] else None)


def _call_one(env: Any, given: Asked) -> Any:
    returned = attributes.call(env, given.name, given.arguments, given.keyword_arguments)
    return attributes.refuse_coroutine(given.name, returned)


def _attribute_result(returned: tuple[str, tuple[Any, ...]]) -> bytes:
    name, each = returned
    result = pb.AttributeResult()
    fill(tuple([pack(value) for value in each]), result.value, name)
    return result.SerializeToString()


VECTOR_CALLS: dict[int, Call] = {
    pb.COMMAND_KIND_RESET: Call("reset", _reset_arguments, _reset, None, _reset_result, _kept_at_reset),
    pb.COMMAND_KIND_STEP: Call("step", _actions, _step, None, _step_result, _kept_at_step),
    pb.COMMAND_KIND_CALL_TOOL: Call("step", _no_tools, _step, None, _step_result),
    pb.COMMAND_KIND_RENDER: Call("step", nothing, _render, None, render_result),
    pb.COMMAND_KIND_SET_ATTR: Call("step", asked, _write, None, _attribute_result),
    pb.COMMAND_KIND_CALL: Call("step", asked, _call, None, _attribute_result),
}
