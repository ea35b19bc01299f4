# pyright: reportMissingImports=false, reportMissingTypeStubs=false
"""Who plays the other seats in the tests of PettingZoo's adapter, and a factory of an environment."""

from typing import Any

import gymnasium
import numpy as np


def _allowed(observation: Any, info: dict[str, Any], space: gymnasium.Space[Any]) -> list[int]:
    mask = info.get("action_mask")
    if mask is None and isinstance(observation, dict):
        mask = observation["action_mask"]
    return list(range(space.n)) if mask is None else np.flatnonzero(mask).tolist()  # pyright: ignore


def lowest(agent: str, observation: Any, info: dict[str, Any], space: gymnasium.Space[Any]) -> int:
    """Plays the first action that is allowed."""
    return _allowed(observation, info, space)[0]


class Highest:
    """Plays the last action that is allowed, and another one every third time."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, agent: str, observation: Any, info: dict[str, Any], space: gymnasium.Space[Any]) -> int:
        self.asked += 1
        return _allowed(observation, info, space)[-1 if self.asked % 3 else 0]


def broken(agent: str, observation: Any, info: dict[str, Any], space: gymnasium.Space[Any]) -> int:
    """Plays nothing."""
    raise LookupError(f"{agent} has no move")


def rock_paper_scissors(**options: Any) -> Any:
    """Makes PettingZoo's smallest environment."""
    from pettingzoo.classic import rps_v2

    return rps_v2.env(**options)
