"""Gymnasium's vector info: one dict for all copies, with an array and a mask for each key."""

import copy
from typing import Any, cast

import numpy as np
from gymnasium.vector import VectorEnv

# How a value is kept in a vector info: an array's kind, a number's type, or as an object.
_Kind = tuple[str, Any]


class Added:
    """What the copies of a vector session have to tell, in the order in which it is to be added up.

    Args:
        num_envs: The number of copies.
    """

    __slots__ = ("infos", "num_envs")

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.infos: list[tuple[int, dict[str, Any]]] = []

    def add(self, index: int, info: dict[str, Any]) -> None:
        """Adds the info of a copy."""
        self.infos.append((index, info))

    def add_final(self, index: int, observation: Any, info: dict[str, Any]) -> None:
        """Adds what the last step of an episode gave, apart from all that its environment may fill again."""
        self.infos.append((index, copy.deepcopy({"final_obs": observation, "final_info": info})))

    def combined(self) -> dict[str, Any] | None:
        """The vector info of these copies; None where it would depend on what other copies tell.

        The type that the first copy has for a key decides for all; so where copies differ, only whoever knows them
        all can put the infos together.
        """
        kinds: dict[Any, Any] = {}
        if not all(_alike(info, kinds) for _, info in self.infos):
            return None
        adder = _Adder(self.num_envs)
        infos: dict[str, Any] = {}
        for index, info in self.infos:
            infos = adder.add(infos, info, index)
        return infos

    def by_copy(self) -> list[list[dict[str, Any]]]:
        """The infos of each copy, in the order in which they are to be added."""
        each: list[list[dict[str, Any]]] = [[] for _ in range(self.num_envs)]
        for index, info in self.infos:
            each[index].append(info)
        return each


class _Adder:
    """All that Gymnasium's way of adding infos needs of a vector environment."""

    _add_info: Any = cast(Any, VectorEnv)._add_info

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs

    def add(self, infos: dict[str, Any], info: dict[str, Any], index: int) -> dict[str, Any]:
        return self._add_info(infos, info, index)


def _alike(info: dict[str, Any], kinds: dict[Any, Any]) -> bool:
    """Whether each value is of the kind that was there before under its key; notes the kinds of new keys."""
    for key, value in info.items():
        if key == "final_obs":
            continue
        known = kinds.get(key)
        if isinstance(value, dict):
            if known is None:
                known = kinds[key] = {}
            if not isinstance(known, dict) or not _alike(cast(Any, value), cast(Any, known)):
                return False
        else:
            kind = _kind(value)
            if known is None:
                kinds[key] = kind
            elif known != kind:
                return False
    return True


def _kind(value: Any) -> _Kind:
    if isinstance(value, np.ndarray):
        array = cast("np.ndarray[Any, Any]", value)
        return array.dtype.str, array.shape
    kind = cast("Any", type(cast(object, value)))
    if kind in (int, float, bool) or issubclass(kind, cast(type, np.number)):
        return "", kind
    return "", object
