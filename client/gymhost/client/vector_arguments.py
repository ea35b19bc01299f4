"""What vector environments are given: numbers that go together, seeds, masks."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from gymnasium.vector import AutoresetMode

from gymhost.wire import errors
from gymhost.wire.tensors import Array

__all__ = ["mode", "reset_mask", "seeds", "sizes"]


def mode(given: AutoresetMode | str) -> AutoresetMode:
    """An autoreset mode, given as itself or as its value.

    Raises:
        InvalidArgument: It is none.
    """
    try:
        return AutoresetMode(given)
    except ValueError:
        names = ", ".join(repr(each.value) for each in AutoresetMode)
        raise errors.InvalidArgument(f"autoreset_mode is an AutoresetMode or one of {names}, not {given!r}") from None


def sizes(num_envs: int, shards: int | None, batch_size: int | None, workers: int) -> list[int]:
    """How many copies each shard gets.

    Raises:
        InvalidArgument: The numbers do not go together.
    """
    if num_envs < 1:
        raise errors.InvalidArgument(f"num_envs must be at least 1, not {num_envs}")
    if shards is None:
        shards = num_envs if batch_size is not None else min(num_envs, max(workers, 1))
    if not 1 <= shards <= num_envs:
        raise errors.InvalidArgument(f"shards must be from 1 to num_envs={num_envs}, not {shards}")
    if batch_size is not None and (num_envs % shards or batch_size % (num_envs // shards)):
        raise errors.InvalidArgument(
            f"recv takes whole shards, and {shards} shards of {num_envs} copies can't make batch_size={batch_size}"
        )
    if batch_size is not None and not 1 <= batch_size <= num_envs:
        raise errors.InvalidArgument(f"batch_size must be from 1 to num_envs={num_envs}, not {batch_size}")
    each, more = divmod(num_envs, shards)
    return [each + (index < more) for index in range(shards)]


def seeds(seed: int | Sequence[int | None] | None, count: int) -> list[int | None] | None:
    """A seed for each copy; None where there is none at all.

    Raises:
        ValueError: There are more or fewer than there are copies.
    """
    if seed is None:
        return None
    if isinstance(seed, (int, np.integer)):
        return [int(seed) + index for index in range(count)]
    if len(seed) != count:
        raise ValueError(f"a list of seeds must have one for each of the {count} copies, not {len(seed)}")
    return [None if each is None else int(each) for each in seed]


def reset_mask(options: dict[str, Any] | None, count: int) -> tuple[dict[str, Any] | None, Array | None]:
    """The options without Gymnasium's mask, and the mask."""
    if options is None or "reset_mask" not in options:
        return options, None
    mask = options["reset_mask"]
    if not isinstance(mask, np.ndarray):
        raise TypeError(f"options['reset_mask'] must be an array of booleans, not {type(mask).__name__}")
    given = cast(Array, mask)
    if given.dtype != np.bool_:
        raise TypeError(f"options['reset_mask'] must be an array of booleans, not of {given.dtype}")
    if given.shape != (count,) or not given.any():
        raise ValueError(f"options['reset_mask'] must have shape ({count},) and name a copy at least: {given}")
    return {name: value for name, value in options.items() if name != "reset_mask"}, given
