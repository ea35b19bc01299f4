import collections
import enum
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from gymnasium.spaces import GraphInstance
from hypothesis import given
from hypothesis import strategies as st

from gymhost.v1 import environments_pb2, values_pb2
from gymhost.wire import values
from gymhost.wire.errors import DecodeError, EncodeError
from support import strategies
from support.compare import assert_same

CONVERSATION: list[dict[str, Any]] = [
    {"role": "system", "content": "Guess."},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "call_0", "type": "function", "function": {"name": "guess", "arguments": {"number": 4}}}],
    },
    {"role": "tool", "tool_call_id": "call_0", "content": "Too low 😀\x00"},
]


@given(strategies.values())
def test_whatever_can_travel_comes_back_as_it_was(value: Any):
    assert_same(values.loads(values.dumps(value)), value)


@given(strategies.values())
def test_a_field_of_a_larger_message_is_filled_in_place(value: Any):
    result = environments_pb2.StepResult(reward=1.0)
    assert values.encode(value, result.observation) is result.observation
    assert_same(values.decode(environments_pb2.StepResult.FromString(result.SerializeToString()).observation), value)


@pytest.mark.parametrize(
    "value",
    [
        CONVERSATION,
        {"reward": 1.5, "steps": 3, "done": False, "name": "", "limit": None},
        2**63,
        -(2**63) - 1,
        10**500,
        math.nan,
        -0.0,
        complex(-0.0, math.inf),
        "\ud800 alone",
        np.str_(""),
        np.bytes_(b""),
        np.bool_(False),
        np.float32(0.1),
        np.datetime64("NaT", "s"),
        np.datetime64("2020-01-01T00:00:00.5", "25ms"),
        np.timedelta64(3, "Y"),
        np.zeros((), np.float32),
        np.zeros((3, 0, 2), np.uint8),
        np.arange(12).reshape(3, 4)[::-1, ::2],
        np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        np.arange(3, dtype=">i4"),
        np.array(["a", "\ud800\U0010ffff"]),
        np.array(["NaT", "NaT"], "M8[D]"),
        np.array([None, [1], np.zeros(())], dtype=object),
        np.array(np.zeros(2), dtype=object),
        np.empty((0, 3), dtype=object),
        [],
        (),
        {},
        {1: "int", "1": "str", b"1": "bytes", (1, None): "tuple", np.int64(2): "scalar", 2.5: "float"},
        {"\ud800": 1, "plain": 2},
        {True: {False: ({}, [[]], ((),))}},
        GraphInstance(np.zeros((2, 3)), None, None),
        GraphInstance(np.zeros((2, 3)), np.ones(1), np.array([[0, 1]], np.int32)),
    ],
)
def test_hard_cases_come_back_as_they_were(value: Any):
    assert_same(values.loads(values.dumps(value)), value)


@given(strategies.arrays())
def test_decoded_arrays_are_the_callers_own(array: np.ndarray[Any, Any]):
    decoded = values.loads(values.dumps(array))
    assert decoded.flags.writeable
    assert decoded.flags.owndata
    assert decoded.flags.c_contiguous


def test_later_changes_to_a_decoded_array_do_not_reach_the_message():
    message = values.encode([np.zeros(3), np.array([[1]], object)])
    first: Any = values.decode(message)
    first[0][:] = 7
    first[1][0, 0] = 7
    assert_same(values.decode(message), [np.zeros(3), np.array([[1]], object)])


class Move(enum.IntEnum):
    LEFT = 3


class Colour(enum.StrEnum):
    RED = "red"


def test_types_that_equal_a_plain_one_come_back_as_that(tmp_path: Path):
    counts = collections.defaultdict(int, a=1)
    mapped = np.memmap(tmp_path / "array", np.float32, "w+", shape=(2,))
    mapped[:] = (1, 2)
    sent = [collections.OrderedDict(b=1, a=2), counts, Move.LEFT, Colour.RED, mapped, {Move.LEFT: Colour.RED}]
    received = [{"b": 1, "a": 2}, {"a": 1}, 3, "red", np.array([1, 2], np.float32), {3: "red"}]
    assert_same(values.loads(values.dumps(sent)), received)


class Point(NamedTuple):
    x: int


class Custom:
    pass


class Shade(enum.Enum):
    DARK = 1


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({1}, "info: a set can't travel; None, bool, numbers, str"),
        ({"a": [0, 1, 2, {1}]}, "info['a'][3]: a set can't travel"),
        ([lambda: None], "info[0]: a function can't travel"),
        ((1, {2: Custom()}), "info[1][2]: a Custom can't travel"),
        ({"a": int}, "info['a']: a type can't travel"),
        ([Shade.DARK], "info[0]: a Shade can't travel"),
        ([Point(1)], "info[0]: a Point can't travel, as it would come back as a plain tuple"),
        ([collections.Counter("a")], "info[0]: a Counter can't travel, as it would come back as a plain dict"),
        ([np.ma.zeros(2)], "info[0]: a MaskedArray can't travel, as it would come back as a plain ndarray"),
        ([bytearray(2)], "info[0]: a bytearray can't travel"),
        ([np.longdouble(1)], "info[0]: dtype float128 can't travel"),
        ([np.zeros(2, np.clongdouble)], "info[0]: dtype complex256 can't travel"),
        ([np.zeros(2, "i4,f4")], "info[0]: a structured dtype can't travel"),
        ([np.void(b"a")], "info[0]: dtype |V1 can't travel"),
        (np.array([[1, 2], [{3}, 4]], dtype=object), "info[1, 0]: a set can't travel"),
        ({"a": {frozenset({1}): 2}}, "info['a'][frozenset({1})]: the key frozenset({1}) can't travel: a frozenset"),
        ({(1, Custom): 2}, "can't travel: a type can't travel"),
        ({Unprintable(): 1}, "info[<Unprintable>]: the key <Unprintable> can't travel"),
        (GraphInstance(np.zeros(2), {1}, None), "info.edges: a set can't travel"),
        ({"x" * 500: {1}}, "...]: a set can't travel"),
    ],
    ids=lambda x: x if isinstance(x, str) else type(x).__name__,
)
def test_what_cannot_travel_is_refused_with_its_path(value: Any, message: str):
    if "float128" in message or "complex256" in message:
        message = message.split(" dtype")[0]  # the name of a long double is the platform's
    with pytest.raises(EncodeError) as caught:
        values.dumps(value, name="info")
    assert message in str(caught.value)


def nested(depth: int, wrap: Any) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = wrap(value)
    return value


def one_object(item: Any) -> np.ndarray[Any, Any]:
    array = np.empty(1, dtype=object)
    array[0] = item
    return array


@pytest.mark.parametrize(
    "wrap",
    [
        lambda inner: [inner],
        lambda inner: (inner,),
        lambda inner: {"a": inner},
        lambda inner: {1: inner},
        lambda inner: GraphInstance(inner, None, None),
        one_object,
    ],
)
def test_nesting_is_bounded_on_both_sides(wrap: Any):
    deepest = nested(40, wrap)
    result = environments_pb2.StepRequest()
    values.encode(deepest, result.command.action)
    again = environments_pb2.StepRequest.FromString(result.SerializeToString())
    assert_same(values.decode(again.command.action), deepest)
    with pytest.raises(EncodeError, match="nested more than 40 deep"):
        values.dumps(wrap(deepest))

    message = values_pb2.Value()
    inner = message
    for _ in range(41):
        inner = inner.list.items.add()
    with pytest.raises(DecodeError, match="nested more than 40 deep"):
        values.decode(message)


def test_a_value_that_holds_itself_is_refused():
    cycle: list[Any] = []
    cycle.append({"again": cycle})
    with pytest.raises(EncodeError, match="it holds itself"):
        values.dumps(cycle)


@given(st.lists(strategies.keys(), max_size=5, unique_by=repr))
def test_dicts_keep_their_order(keys: list[Any]):
    sent = dict.fromkeys(keys, 0)
    assert_same(list(values.loads(values.dumps(sent))), list(sent))
