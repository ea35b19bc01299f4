"""Putting the vector infos of shards together, as if all copies had been asked one after the other."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from gymnasium.vector import VectorEnv

from gymhost.wire.tensors import Array

__all__ = ["add_lost", "combine"]

# Of one shard: a vector info, or a list with the infos of each copy, in the order in which they are to be added.
ShardInfo = dict[str, Any] | list[list[dict[str, Any]]]


def combine(infos: Sequence[ShardInfo], sizes: Sequence[int]) -> dict[str, Any]:
    """The vector info of several shards.

    Args:
        infos: The info of each shard.
        sizes: How many copies each has.

    Raises:
        ValueError: The copies' infos do not go together in one array, just as with Gymnasium's own vector environments.
    """
    if len(infos) == 1 and isinstance(infos[0], dict):
        return infos[0]
    whole = _Whole(sum(sizes))
    start = 0
    for info, size in zip(infos, sizes, strict=True):
        if isinstance(info, dict):
            if info:
                whole.add_shard(whole.infos, info, start, size)
        else:
            for index, added in enumerate(info):
                for each in added:
                    whole.add(each, start + index)
        start += size
    return whole.infos


def add_lost(
    infos: dict[str, Any], num_envs: int, indices: Sequence[int], finals: Sequence[Any] | None
) -> dict[str, Any]:
    """Adds to a vector info that the episodes of some copies were cut off, since they were lost.

    Args:
        infos: The vector info.
        num_envs: How many copies it is of.
        indices: Which were lost.
        finals: Their last observations, where they have been reset already.
    """
    whole = _Whole(num_envs)
    whole.infos = infos
    for position, index in enumerate(indices):
        if finals is not None:
            whole.add({"final_obs": finals[position], "final_info": {"lost": True}}, index)
        whole.add({"lost": True}, index)
    return whole.infos


class _Whole:
    # Gymnasium's own way to add the info of one copy; it needs the number of copies, and itself.
    _add_info: Any = cast(Any, VectorEnv)._add_info

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.infos: dict[str, Any] = {}

    def add(self, info: dict[str, Any], index: int) -> None:
        """Adds the info of one copy."""
        self.infos = self._add_info(self.infos, info, index)

    def add_shard(self, infos: dict[str, Any], info: dict[str, Any], start: int, size: int) -> None:
        """Adds the vector info of a shard, whose copies begin at `start`."""
        rows = slice(start, start + size)
        for key, value in info.items():
            own_mask = info.get(f"_{key}")
            if own_mask is None:
                continue  # a mask itself
            if isinstance(value, dict):
                whole: Any = infos.setdefault(key, {})
                self.add_shard(whole, cast("dict[str, Any]", value), start, size)
            else:
                part = cast(Array, value)
                whole = infos.get(key)
                if whole is None:
                    whole = infos[key] = self._empty(part)
                if whole.dtype == part.dtype:
                    whole[rows] = part
                else:
                    # The type that the first copy has decides, as it does with Gymnasium.
                    whole[rows][own_mask] = part[own_mask]
            mask = infos.get(f"_{key}")
            if mask is None:
                mask = infos[f"_{key}"] = np.zeros(self.num_envs, np.bool_)
            mask[rows] = own_mask

    def _empty(self, part: Array) -> Array:
        shape = (self.num_envs, *part.shape[1:])
        return np.full(shape, None, object) if part.dtype == object else np.zeros(shape, part.dtype)
