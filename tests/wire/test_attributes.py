"""What attributes of environments are called, and how random generators travel."""

import numpy as np
import pytest

from gymhost.wire import values
from gymhost.wire.attributes import is_public, pack, unpack
from gymhost.wire.errors import DecodeError

KINDS = [np.random.PCG64, np.random.PCG64DXSM, np.random.MT19937, np.random.Philox, np.random.SFC64]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_generator_arrives_where_it_was(kind: type[np.random.BitGenerator]):
    generator = np.random.Generator(kind(7))
    generator.integers(10, dtype=np.uint32)  # half of a draw is kept
    there = unpack(values.loads(values.dumps(pack(generator))))
    assert type(there.bit_generator) is kind
    assert np.array_equal(
        there.integers(1000, size=9, dtype=np.uint32), generator.integers(1000, size=9, dtype=np.uint32)
    )
    assert np.array_equal(there.normal(size=9), generator.normal(size=9))


@pytest.mark.parametrize("value", [None, 3, {}, {"bit_generator": "PCG64"}, [np.float32(1)], {"a": 1, "b": 2}], ids=str)
def test_all_else_is_left_as_it_is(value: object):
    assert pack(value) is value
    assert unpack(value) is value


@pytest.mark.parametrize(
    "state",
    [
        None,
        "PCG64",
        {},
        {"bit_generator": "system"},
        {"bit_generator": ["PCG64"]},
        {"bit_generator": "PCG64", "state": {}},
        {"bit_generator": "PCG64", "state": {"state": "first", "inc": 1}, "has_uint32": 0, "uinteger": 0},
        {"bit_generator": "MT19937", "state": {"key": np.zeros(3, np.uint32), "pos": 0}},
        {"bit_generator": "MT19937", "state": {"key": np.zeros(624, np.uint32), "pos": "first"}},
        {"bit_generator": "MT19937", "state": {"key": np.zeros(624, np.uint32), "pos": 10**6}},
        {"bit_generator": "MT19937", "state": {"key": np.zeros(624, np.uint32), "pos": -1}},
        np.random.Philox(0).state | {"buffer_pos": -(10**6)},
        np.random.Philox(0).state | {"buffer_pos": 5},
        np.random.Philox(0).state | {"buffer": np.zeros(2, np.uint64)},
    ],
    ids=str,
)
def test_what_is_no_state_is_refused(state: object):
    with pytest.raises(DecodeError, match="not the state of a random generator"):
        unpack({"random_generator": state})


def test_names_that_can_be_reached():
    for name in ("gravity", "np_random", "A1", "*"):
        assert is_public(name)
    for name in ("", "_x", "__class__", "a.b", "a b", "1a", "**", None, 3):
        assert not is_public(name)
