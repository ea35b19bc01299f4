"""Environments for tests that flood a server: importing this module registers them."""

from typing import Any

import gymnasium
from gymnasium.spaces import Discrete, Space

from gymhost.envs import register
from gymhost.wire.chat_spaces import FreeText

_TEXT: Space[Any] = FreeText()
_NUMBER: Space[Any] = Discrete(2**28)


class Heap(gymnasium.Env[Any, Any]):
    """Returns as many characters as the action says."""

    observation_space: Space[Any] = _TEXT
    action_space: Space[Any] = _NUMBER

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return "", {}

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        return "x" * int(action), 1.0, False, False, {}


register(id="test/Heap-v0", entry_point=f"{__name__}:Heap", mode="inline")
