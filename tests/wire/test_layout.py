"""The layout of a batch in one buffer."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, create_empty_array

from gymhost.wire.errors import DecodeError
from gymhost.wire.layout import Layout
from support.compare import assert_same

NESTED = spaces.Dict(
    {
        "picture": spaces.Box(0, 255, (3, 5), np.uint8),
        "parts": spaces.Tuple((spaces.Discrete(4, start=2), spaces.MultiBinary(3), spaces.MultiDiscrete([2, 3]))),
        "deep": spaces.Dict({"x": spaces.Box(-1, 1, (), np.float16), "n": spaces.Discrete(3)}),
    }
)


@pytest.mark.parametrize("space", [*NESTED.spaces.values(), NESTED], ids=str)
def test_its_arrays_are_those_of_gymnasiums_batch(space: gymnasium.Space[Any]) -> None:
    layout = Layout(space, 7)
    buffer = bytearray(layout.size)
    batch = layout.batch(buffer)
    assert_same(batch.observation, create_empty_array(space, 7, fn=np.zeros))
    assert (batch.rewards.dtype, batch.terminations.dtype, batch.truncations.dtype) == (np.float64, np.bool_, np.bool_)
    assert layout.size % 64 == 0
    # What is written at one end is read at the other.
    sample = batch_space(space, 7).sample()
    _copy_to(sample, batch.observation)
    batch.rewards[:] = range(7)
    batch.truncations[3] = True
    arrived = layout.batch(bytes(buffer))
    assert_same(arrived.observation, sample)
    assert_same(arrived.rewards, np.arange(7.0))
    assert arrived.truncations.tolist() == [False] * 3 + [True] + [False] * 3
    assert not arrived.terminations.any()


def _copy_to(values: Any, arrays: Any) -> None:
    if isinstance(values, dict):
        for key, value in values.items():
            _copy_to(value, arrays[key])
    elif isinstance(values, tuple):
        for value, array in zip(values, arrays, strict=True):
            _copy_to(value, array)
    else:
        arrays[...] = values


@pytest.mark.parametrize(
    "space",
    [spaces.Text(5), spaces.Sequence(spaces.Discrete(2)), spaces.Tuple([spaces.Discrete(2), spaces.Text(5)])],
    ids=str,
)
def test_where_a_batch_is_no_array_there_is_none(space: gymnasium.Space[Any]) -> None:
    assert Layout.of(space, 3) is None


@pytest.mark.parametrize("more", [-64, 64])
def test_a_buffer_of_another_size_is_refused(more: int) -> None:
    layout = Layout(NESTED, 3)
    with pytest.raises(DecodeError, match=f"{layout.size + more} bytes, where the spaces make {layout.size}"):
        layout.batch(bytes(layout.size + more))
