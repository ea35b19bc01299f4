"""Messages of the contract with anything in their fields, for tests that throw them at servers and workers."""

import functools
import os
from typing import Any

from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from gymhost.wire import values
from support import strategies

# Environments that are made and stepped in no time.
ENVIRONMENTS = ("test/Counter-v0", "test/Picture-v0", "test/Telling-v0", "gymhost/GuessNumber-v0", "CartPole-v1")

_INTEGERS = {
    FieldDescriptor.TYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.TYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_SINT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_SINT32: (-(2**31), 2**31 - 1),
}
_TEXTS = st.text(max_size=12) | st.sampled_from(ENVIRONMENTS) | st.integers(100, 400).map(lambda size: "x" * size)
_BYTES = st.binary(max_size=20) | st.binary(min_size=16, max_size=16) | st.integers(0, 3).map(lambda n: b"\1" * n)


def examples(times: float = 1.0) -> settings:
    """How many examples to try: GYMHOST_FUZZ_EXAMPLES of them, or some for a quick look; `times` as many."""
    wanted = int(os.environ.get("GYMHOST_FUZZ_EXAMPLES", "60"))
    return settings(
        max_examples=max(1, round(wanted * times)),
        deadline=None,
        # What a server does depends on what it was told before: an example alone may not do it again.
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    )


@functools.cache
def python_values() -> st.SearchStrategy[Any]:
    """Small values of Python that travel."""
    return st.recursive(
        strategies.leaves(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=4,
    )


@functools.cache
def messages(descriptor: Descriptor, depth: int = 2) -> st.SearchStrategy[Any]:
    """Messages of a type, with each field as the schema has it, whatever it means; or unset."""

    @st.composite
    def build(draw: st.DrawFn) -> Any:
        message: Any = message_factory.GetMessageClass(descriptor)()
        # One draw for all of them: each costs.
        chosen = draw(st.integers(0, 2 ** len(descriptor.fields) - 1))
        for position, field in enumerate(descriptor.fields):
            if chosen >> position & 1:
                _set(draw, message, field, depth)
        return message

    return build()


def _set(draw: st.DrawFn, message: Any, field: FieldDescriptor, depth: int) -> None:
    if field.message_type is not None and field.message_type.name == "Value" and draw(st.booleans()):
        try:
            encoded = values.encode(draw(python_values()))
        except values.EncodeError:
            return
        target = getattr(message, field.name)
        (target.add() if _is_repeated(field) else target).CopyFrom(encoded)
    elif _is_repeated(field):
        for _ in range(draw(st.integers(0, 3))):
            if field.message_type is None:
                getattr(message, field.name).append(draw(_scalar(field)))
            elif depth:
                getattr(message, field.name).add().CopyFrom(draw(messages(field.message_type, depth - 1)))
    elif field.message_type is not None:
        if depth:
            getattr(message, field.name).CopyFrom(draw(messages(field.message_type, depth - 1)))
    else:
        setattr(message, field.name, draw(_scalar(field)))


@functools.cache
def _scalar(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    if field.type in _INTEGERS:
        low, high = _INTEGERS[field.type]
        return st.sampled_from((0, 1, 2, 3, low, high)) | st.integers(low, high)
    if field.type == FieldDescriptor.TYPE_ENUM:
        return st.integers(0, 30) | st.sampled_from((-1, 1001, 2**31 - 1))
    if field.type == FieldDescriptor.TYPE_BOOL:
        return st.booleans()
    if field.type == FieldDescriptor.TYPE_DOUBLE:
        return st.floats()
    return _TEXTS if field.type == FieldDescriptor.TYPE_STRING else _BYTES


def _is_repeated(field: Any) -> bool:
    return field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED
