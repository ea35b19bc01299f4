"""Where the arrays of a vector session's results lie in one buffer: sent as it is, or shared between processes.

The buffer has the rewards (float64), the terminations and the truncations (bool) of all copies, then the batched
observation with one array for each leaf of the space, in the space's order. All are little-endian and in C order;
each begins, and the buffer ends, at a multiple of 64 bytes. Both sides know the space and the number of copies, and so
the layout.
"""

import math
from typing import Any, NamedTuple, cast

import gymnasium
import numpy as np
from gymnasium import spaces

from gymhost.wire.errors import DecodeError
from gymhost.wire.tensors import Array

__all__ = ["Batch", "Layout"]

_ALIGN = 64
_Leaf = tuple[np.dtype[Any], tuple[int, ...], int]


class Batch(NamedTuple):
    """The arrays in a buffer.

    Attributes:
        rewards: float64, one a copy.
        terminations: bool, one a copy.
        truncations: bool, one a copy.
        observation: The batched observation: an array, or dicts and tuples of arrays as the space has them.
    """

    rewards: Array
    terminations: Array
    truncations: Array
    observation: Any


class Layout:
    """The layout for so many copies of a space.

    Args:
        space: The observation space of one copy.
        count: How many copies.

    Attributes:
        size: Bytes of the buffer.

    Raises:
        TypeError: The space has parts whose batch is no array.
    """

    def __init__(self, space: gymnasium.Space[Any], count: int) -> None:
        self.size = 0
        self._count = count
        self._flags = [self._place(np.dtype(dtype), (count,)) for dtype in ("<f8", "?", "?")]
        self._observation = self._plan(space)
        self.size = _aligned(self.size)

    @classmethod
    def of(cls, space: gymnasium.Space[Any], count: int) -> "Layout | None":
        """The layout; None where the space has parts whose batch is no array."""
        try:
            return cls(space, count)
        except TypeError:
            return None

    def batch(self, buffer: Any) -> Batch:
        """The arrays in a buffer, without a copy.

        Raises:
            DecodeError: The buffer has another size.
        """
        if len(buffer) != self.size:
            raise DecodeError(f"a batch of {len(buffer)} bytes, where the spaces make {self.size}")
        rewards, terminations, truncations = [_view(buffer, leaf) for leaf in self._flags]
        return Batch(rewards, terminations, truncations, _build(buffer, self._observation))

    def _place(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> _Leaf:
        start = _aligned(self.size)
        self.size = start + math.prod(shape) * dtype.itemsize
        return dtype, shape, start

    def _plan(self, space: gymnasium.Space[Any]) -> Any:
        if isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
            # Gymnasium makes the batch of a Discrete one of its dtype, too.
            dtype = cast("np.dtype[Any]", cast(Any, space).dtype)
            if dtype.hasobject or not dtype.itemsize:
                raise TypeError(f"no array of {dtype}")
            return self._place(dtype.newbyteorder("<"), (self._count, *(space.shape or ())))
        if isinstance(space, spaces.Dict):
            return {key: self._plan(each) for key, each in cast("dict[Any, Any]", cast(Any, space).spaces).items()}
        if isinstance(space, spaces.Tuple):
            return [self._plan(each) for each in cast("tuple[Any, ...]", cast(Any, space).spaces)]
        raise TypeError(f"the batch of {space} is no array")


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


def _build(buffer: Any, plan: Any) -> Any:
    if isinstance(plan, dict):
        return {key: _build(buffer, each) for key, each in cast("dict[Any, Any]", plan).items()}
    if isinstance(plan, list):
        return tuple([_build(buffer, each) for each in cast("list[Any]", plan)])
    return _view(buffer, plan)


def _view(buffer: Any, leaf: _Leaf) -> Array:
    dtype, shape, start = leaf
    return np.ndarray(shape, dtype, buffer, start)
