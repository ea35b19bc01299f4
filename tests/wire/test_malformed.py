"""Decoding of what no gymhost would send: nothing but DecodeError, nothing run, nothing allocated that was not sent."""

import os
import pickle
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces as gs
from hypothesis import given, settings
from hypothesis import strategies as st

from gymhost.v1 import values_pb2 as pb
from gymhost.wire import spaces, values
from gymhost.wire.chat_spaces import FreeText
from gymhost.wire.errors import DecodeError
from support import strategies


def tensor(dtype: str, shape: tuple[int, ...], data: bytes) -> pb.Value:
    return pb.Value(tensor=pb.Tensor(dtype=dtype, shape=shape, data=data))


def scalar(dtype: str, data: bytes, shape: tuple[int, ...] = ()) -> pb.Value:
    return pb.Value(scalar=pb.Tensor(dtype=dtype, shape=shape, data=data))


ONE = pb.Value(integer=1)
LIST = pb.Value(list=pb.ListValue())
MALFORMED = {
    "too few bytes": tensor("f4", (3,), bytes(8)),
    "too many bytes": tensor("f4", (3,), bytes(16)),
    "bytes for no element": tensor("f4", (0,), bytes(4)),
    "no byte for one element": tensor("f4", (), b""),
    "a negative dimension": tensor("f4", (-1,), bytes(4)),
    "two negative dimensions": tensor("f4", (-1, -1), bytes(4)),
    "a negative and an empty dimension": tensor("f4", (-1, 0), b""),
    "a huge shape": tensor("u1", (1 << 62,), bytes(8)),
    "a shape that overflows to nothing": tensor("u1", (1 << 32, 1 << 32), b""),
    "a huge shape of nothing": tensor("u4", (0, 1 << 62), b""),
    "a huge shape of empty strings": tensor("U0", (1 << 40,), b""),
    "empty strings": tensor("S0", (3,), b""),
    "empty strings, as many as there are": tensor("U0", (-1,), b""),  # NumPy divides by the size
    "more dimensions than NumPy has": tensor("u1", (1,) * 65, bytes(1)),
    "an unset tensor": pb.Value(tensor=pb.Tensor()),
    "objects": tensor("O", (1,), bytes(8)),
    "objects, as a character": tensor("O8", (1,), bytes(8)),
    "void": tensor("V8", (1,), bytes(8)),
    "a structure": tensor("i4,f4", (1,), bytes(8)),
    "a subarray": tensor("(2,)f4", (1,), bytes(8)),
    "a byte order": tensor(">f4", (1,), bytes(4)),
    "a long double": tensor("f16", (1,), bytes(16)),
    "an unknown size": tensor("f3", (1,), bytes(3)),
    "the name of a class": tensor("object", (1,), bytes(8)),
    "variable strings": tensor("T16", (1,), bytes(16)),
    "a string of a huge size": tensor("U999999999", (1,), bytes(4)),
    "a string of no size": tensor("U", (1,), bytes(4)),
    "a date of no such unit": tensor("M8[fortnight]", (1,), bytes(8)),
    "a date of zero units": tensor("M8[0s]", (1,), bytes(8)),
    "a date of too many units": tensor("M8[999999999as]", (1,), bytes(9)),
    "a boolean of 2": tensor("b1", (2,), b"\1\2"),
    "a character beyond Unicode": tensor("U1", (2,), b"a\0\0\0\xff\xff\xff\xff"),
    "a scalar with a shape": scalar("f4", bytes(4), (1,)),
    "a scalar of too few bytes": scalar("f4", bytes(3)),
    "a scalar of no bytes": scalar("f4", b""),
    "a scalar object": scalar("O", bytes(8)),
    "a scalar boolean of 2": scalar("b1", b"\2"),
    "a scalar beyond Unicode": scalar("U1", b"\xff\xff\xff\xff"),
    "a scalar string of other length": scalar("U2", bytes(4)),
    "more values than names": pb.Value(map=pb.MapValue(names=["a"], values=[ONE, ONE])),
    "more names than values": pb.Value(map=pb.MapValue(names=["a", "b"], values=[ONE])),
    "names without values": pb.Value(map=pb.MapValue(names=["a"])),
    "values without keys": pb.Value(map=pb.MapValue(values=[ONE])),
    "more keys than values": pb.Value(map=pb.MapValue(keys=[ONE, LIST], values=[ONE])),
    "names and keys": pb.Value(map=pb.MapValue(names=["a"], keys=[ONE], values=[ONE, ONE])),
    "a repeated name": pb.Value(map=pb.MapValue(names=["a", "a"], values=[ONE, ONE])),
    "keys that are equal": pb.Value(map=pb.MapValue(keys=[ONE, pb.Value(boolean=True)], values=[ONE, ONE])),
    "a list as a key": pb.Value(map=pb.MapValue(keys=[LIST], values=[ONE])),
    "an array as a key": pb.Value(map=pb.MapValue(keys=[tensor("u1", (1,), b"a")], values=[ONE])),
    "fewer objects than the shape": pb.Value(object_array=pb.ObjectArray(shape=[2], items=[ONE])),
    "more objects than the shape": pb.Value(object_array=pb.ObjectArray(shape=[1], items=[ONE, ONE])),
    "objects of an unknown dimension": pb.Value(object_array=pb.ObjectArray(shape=[-1], items=[ONE])),
    "a huge shape of objects": pb.Value(object_array=pb.ObjectArray(shape=[1 << 62], items=[ONE])),
    "text that is no UTF-8": pb.Value(surrogate_text=b"\xff"),
    "something malformed deep within": pb.Value(list=pb.ListValue(items=[pb.Value(surrogate_text=b"\xff")])),
}


@pytest.mark.parametrize("value", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_values_are_refused(value: pb.Value):
    with pytest.raises(DecodeError):
        values.loads(value.SerializeToString())


def test_a_kind_of_a_later_version_is_refused_and_not_taken_for_none():
    with pytest.raises(DecodeError, match="this version does not know"):
        values.loads(b"\xfa\x07\x01a")  # field 127
    with pytest.raises(DecodeError, match="this version knows"):
        spaces.loads(b"\xfa\x07\x01a")


def box(dtype: str = "f4", shape: tuple[int, ...] = (2,), low: Any = -1.0, high: Any = 1.0) -> pb.Space:
    bounds = (values.encode(np.asarray(bound, dtype)).tensor for bound in (low, high))
    return pb.Space(box=pb.BoxSpace(dtype=dtype, shape=shape, **dict(zip(("low", "high"), bounds, strict=True))))


def discrete(n: Any, start: Any) -> pb.Space:
    return pb.Space(discrete=pb.DiscreteSpace(n=values.encode(n).scalar, start=values.encode(start).scalar))


FLAT = discrete(np.int64(2), np.int64(0))
NO_SPACE = pb.Space()


def of_dtype(space: pb.Space, dtype: str) -> pb.Space:
    space.box.dtype = dtype
    return space


MALFORMED_SPACES = {
    "nothing": NO_SPACE,
    "a box without bounds": pb.Space(box=pb.BoxSpace(dtype="f4", shape=[2])),
    "a box of objects": of_dtype(box(), "O"),
    "a box of bounds of another dtype": of_dtype(box(), "f8"),
    "a box of integers with bounds of floats": of_dtype(box("f4"), "i4"),
    "bounds of another shape": box(low=[-1.0, -1.0, -1.0]),
    "low above high": box(low=2.0),
    "low not a number": box(low=np.nan),
    "unsigned without a bound": of_dtype(box("f8", low=-np.inf), "u1"),
    "a negative dimension": box(shape=(-2,)),
    "a huge box": box(shape=(1 << 40,)),
    "a box that overflows": box(shape=(1 << 62, 1 << 62)),
    "many large boxes": pb.Space(tuple=pb.TupleSpace(spaces=[box(shape=(1 << 24,))] * 2)),
    "a large box, stacked": pb.Space(
        sequence=pb.SequenceSpace(
            stack=True, feature_space=pb.Space(graph=pb.GraphSpace(node_space=box(shape=(1 << 23,))))
        )
    ),
    "no element": discrete(np.int64(0), np.int64(0)),
    "fewer than no elements": discrete(np.int64(-3), np.int64(0)),
    "a part of an element": discrete(np.float64(2.5), np.float64(0)),
    "two dtypes": discrete(np.int64(2), np.int32(0)),
    "no n": pb.Space(discrete=pb.DiscreteSpace()),
    "no bits": pb.Space(multi_binary=pb.MultiBinarySpace(shape=[0])),
    "a negative number of bits": pb.Space(multi_binary=pb.MultiBinarySpace(shape=[-1], scalar_n=True)),
    "one number for two dimensions": pb.Space(multi_binary=pb.MultiBinarySpace(shape=[1, 2], scalar_n=True)),
    "no nvec": pb.Space(multi_discrete=pb.MultiDiscreteSpace()),
    "a shorter start": pb.Space(
        multi_discrete=pb.MultiDiscreteSpace(
            nvec=values.encode(np.array([2, 2])).tensor, start=values.encode(np.array([0])).tensor
        )
    ),
    "a zero in nvec": pb.Space(
        multi_discrete=pb.MultiDiscreteSpace(
            nvec=values.encode(np.array([2, 0])).tensor, start=values.encode(np.array([0, 0])).tensor
        )
    ),
    "text longer at least than at most": pb.Space(text=pb.TextSpace(min_length=3, max_length=2, charset="a")),
    "a repeated character": pb.Space(text=pb.TextSpace(max_length=2, charset="aa")),
    "nothing within": pb.Space(tuple=pb.TupleSpace(spaces=[NO_SPACE])),
    "one of none": pb.Space(one_of=pb.OneOfSpace()),
    "more keys than spaces": pb.Space(dict=pb.DictSpace(keys=[ONE])),
    "more spaces than keys": pb.Space(dict=pb.DictSpace(spaces=[FLAT])),
    "a repeated key": pb.Space(dict=pb.DictSpace(keys=[ONE, ONE], spaces=[FLAT, FLAT])),
    "a list as a key": pb.Space(dict=pb.DictSpace(keys=[LIST], spaces=[FLAT])),
    "a sequence of nothing": pb.Space(sequence=pb.SequenceSpace(stack=True)),
    "a graph of nothing": pb.Space(graph=pb.GraphSpace()),
    "edges of nothing": pb.Space(graph=pb.GraphSpace(node_space=FLAT, edge_space=NO_SPACE)),
    "an unknown role": pb.Space(message=pb.MessageSpace(roles=["wizard"])),
    "unknown roles": pb.Space(messages=pb.MessagesSpace(roles=["user", "wizard"])),
}


@pytest.mark.parametrize("space", MALFORMED_SPACES.values(), ids=MALFORMED_SPACES.keys())
def test_malformed_spaces_are_refused(space: pb.Space):
    with pytest.raises(DecodeError):
        spaces.loads(space.SerializeToString())


def test_spaces_nested_too_deep_are_refused():
    message = inner = pb.Space()
    for _ in range(41):
        inner = inner.tuple.spaces.add()
    inner.free_text.SetInParent()
    with pytest.raises(DecodeError, match="nested more than 40 deep"):
        spaces.decode(message)


def test_spaces_whose_making_would_take_for_ever_are_refused():
    message = inner = pb.Space()
    for _ in range(30):
        inner.sequence.stack = True
        inner = inner.sequence.feature_space
    inner.free_text.SetInParent()
    with pytest.raises(DecodeError, match="stacked Sequence"):
        spaces.decode(message)


def test_huge_limits_cost_nothing():
    """A space says what is allowed, which may be large, as long as nothing of the size is made for it."""
    assert spaces.decode(pb.Space(free_text=pb.FreeTextSpace(max_length=2**64 - 1))) == FreeText(2**64 - 1)
    assert spaces.decode(pb.Space(text=pb.TextSpace(max_length=2**64 - 1, charset="a"))) == gs.Text(
        2**64 - 1, charset="a", min_length=0
    )
    assert spaces.decode(pb.Space(multi_binary=pb.MultiBinarySpace(shape=[1 << 40]))).shape == (1 << 40,)


def test_no_more_is_allocated_than_was_sent():
    messages = [value.SerializeToString() for value in MALFORMED.values()]
    tracemalloc.start()
    try:
        for message in messages:
            with pytest.raises(DecodeError):
                values.loads(message)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4_000_000


Loads = Callable[[bytes], Any]
BOTH: list[Loads] = [values.loads, spaces.loads]


@pytest.mark.parametrize("loads", BOTH)
@given(st.binary())
def test_random_bytes_are_a_value_or_refused(loads: Loads, data: bytes):
    try:
        loads(data)
    except DecodeError:
        pass


def mutated(messages: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Messages with a few bytes changed, taken out or put in."""

    @st.composite
    def mutate(draw: st.DrawFn) -> bytes:
        data = bytearray(draw(messages))
        for _ in range(draw(st.integers(1, 4))):
            start = draw(st.integers(0, len(data)))
            data[start : start + draw(st.integers(0, 3))] = draw(st.binary(max_size=3))
        return bytes(data)

    return mutate()


@given(mutated(strategies.values().map(values.dumps)))
@settings(max_examples=300)
def test_what_is_made_of_a_damaged_value_can_travel_again(data: bytes):
    try:
        value = values.loads(data)
    except DecodeError:
        return
    values.loads(values.dumps(value))


@given(mutated(strategies.spaces().map(spaces.dumps)))
@settings(max_examples=300)
def test_what_is_made_of_a_damaged_space_can_travel_again(data: bytes):
    try:
        space = spaces.loads(data)
    except DecodeError:
        return
    assert repr(spaces.loads(spaces.dumps(space))) == repr(space)


DTYPES = st.sampled_from(("b1", "u1", "i8", "f2", "f8", "c16", "U1", "U0", "S2", "S0", "M8[s]", "m8", "O", "V1", "f16"))
TENSORS = st.builds(
    pb.Tensor,
    dtype=DTYPES | st.text(max_size=6),
    shape=st.lists(st.integers(-1, 3) | st.integers(-(2**63), 2**63 - 1), max_size=4),
    data=st.sampled_from([bytes(n) for n in (0, 1, 2, 4, 8, 16, 24, 32, 64)]) | st.binary(max_size=24),
)


@given(TENSORS)
@settings(max_examples=500)
def test_random_tensors_are_an_array_or_refused(message: pb.Tensor):
    for value in (pb.Value(tensor=message), pb.Value(scalar=message)):
        try:
            decoded = values.decode(value)
        except DecodeError:
            continue
        values.dumps(decoded)
        repr(decoded)


@given(DTYPES, st.lists(st.integers(-1, 3) | st.integers(-(2**63), 2**63 - 1), max_size=4), TENSORS, TENSORS)
@settings(max_examples=300)
def test_random_boxes_are_a_space_or_refused(dtype: str, shape: list[int], low: pb.Tensor, high: pb.Tensor):
    try:
        spaces.decode(pb.Space(box=pb.BoxSpace(dtype=dtype, shape=shape, low=low, high=high)))
    except DecodeError:
        pass


class Evil:
    """Makes a marker file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.marker),)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_in_any_field_does_nothing(protocol: int, tmp_path: Path):
    marker = tmp_path / "marker"
    evil = pickle.dumps(Evil(marker), protocol)
    payloads: list[tuple[Loads, bytes]] = [(loads, evil) for loads in BOTH]
    for dtype in ("O", "O8", "|O", "V1", "object", f"V{len(evil)}", "O,O", "b1", "u1", f"S{len(evil)}", "U1"):
        for shape in ((), (1,), (len(evil),)):
            part = pb.Tensor(dtype=dtype, shape=shape, data=evil)
            payloads += [(values.loads, pb.Value(tensor=part).SerializeToString())]
            payloads += [(values.loads, pb.Value(scalar=part).SerializeToString())]
            made = pb.Space(box=pb.BoxSpace(dtype=dtype, shape=shape, low=part, high=part))
            payloads += [(spaces.loads, made.SerializeToString())]
    for value in (pb.Value(data=evil), pb.Value(big_integer=evil), pb.Value(surrogate_text=evil)):
        payloads += [(values.loads, value.SerializeToString())]
    for loads, payload in payloads:
        try:
            loads(payload)
        except DecodeError:
            pass
    assert not marker.exists()
    assert values.loads(pb.Value(data=evil).SerializeToString()) == evil

    pickle.loads(evil)  # the marker would have been seen
    assert marker.exists()
