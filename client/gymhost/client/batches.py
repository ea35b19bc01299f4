"""Batches of observations and actions as Gymnasium makes them: one array a leaf of the space, cut and put together."""

from collections.abc import Sequence
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium import spaces

__all__ = ["join", "split"]

# Where the batch of a space is an array. Of any other but Dict and Tuple it is a tuple with an element a copy.
_ARRAYS = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
_Space = gymnasium.Space[Any]


def split(space: _Space, batch: Any, sizes: Sequence[int]) -> list[Any]:
    """Cuts a batch.

    Args:
        space: The space of one element.
        batch: The batch: of sum(sizes) elements.
        sizes: How many elements each part gets.

    Raises:
        ValueError: The batch has another number of elements.
    """
    if isinstance(space, spaces.Dict):
        return [
            dict(zip(space.spaces, part, strict=True))
            for part in zip(*(split(each, batch[key], sizes) for key, each in space.spaces.items()), strict=True)
        ]
    if isinstance(space, spaces.Tuple):
        if len(batch) != len(space.spaces):
            raise ValueError(f"a batch for a Tuple of {len(space.spaces)} spaces must have as many parts: {len(batch)}")
        return list(
            zip(*(split(each, part, sizes) for each, part in zip(space.spaces, batch, strict=True)), strict=True)
        )
    if not isinstance(batch, (np.ndarray, list, tuple)):
        batch = np.asarray(batch)
    count = sum(sizes)
    whole = cast("Sequence[Any]", batch)
    if len(whole) != count:
        raise ValueError(f"a batch for {count} environments must have {count} elements, not {len(whole)}")
    if len(sizes) == 1:
        return [whole]
    parts: list[Any] = []
    start = 0
    for size in sizes:
        parts.append(whole[start : start + size])
        start += size
    return parts


def join(space: _Space, parts: Sequence[Any]) -> Any:
    """Puts batches together.

    Args:
        space: The space of one element.
        parts: The batches, in order.
    """
    if len(parts) == 1:
        return parts[0]
    if isinstance(space, _ARRAYS):
        return np.concatenate(parts)
    if isinstance(space, spaces.Dict):
        return {key: join(each, [part[key] for part in parts]) for key, each in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple([join(each, [part[i] for part in parts]) for i, each in enumerate(space.spaces)])
    return tuple([element for part in parts for element in part])
