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
        each = _parts(space)
        cut = [split(part, batch[key], sizes) for key, part in each.items()]
        return [dict(zip(each, parts, strict=True)) for parts in zip(*cut, strict=True)]
    if isinstance(space, spaces.Tuple):
        each = _parts(space)
        if len(batch) != len(each):
            raise ValueError(f"a batch for a Tuple of {len(each)} spaces must have as many parts, not {len(batch)}")
        return list(zip(*[split(part, batch[key], sizes) for key, part in each.items()], strict=True))
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


def join(space: _Space, parts: Sequence[Any], *, own: bool) -> Any:
    """Puts batches together.

    Args:
        space: The space of one element.
        parts: The batches, in order.
        own: Whether they are the caller's own, so that a single one may be returned as it is.
    """
    if len(parts) == 1 and own:
        return parts[0]
    if isinstance(space, _ARRAYS):
        return np.concatenate(parts)
    if isinstance(space, spaces.Dict):
        return {key: join(each, [part[key] for part in parts], own=own) for key, each in _parts(space).items()}
    if isinstance(space, spaces.Tuple):
        return tuple([join(each, [part[i] for part in parts], own=own) for i, each in _parts(space).items()])
    return tuple([element for part in parts for element in part])


def _parts(space: Any) -> dict[Any, _Space]:
    """The spaces within a Dict or a Tuple, by what picks their batches."""
    if isinstance(space, spaces.Dict):
        return cast("dict[Any, _Space]", cast(Any, space).spaces)
    return dict(enumerate(cast("tuple[_Space, ...]", space.spaces)))
