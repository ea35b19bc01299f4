"""An environment of dm_env for the tests of its adapter."""

from typing import Any

import dm_env
import numpy as np
from dm_env import specs


class Corridor(dm_env.Environment):
    """A corridor with all kinds of specs; it ends at its end, and is cut off after some steps."""

    def __init__(self, length: int = 3, most: int = 5, seed: int = 0) -> None:
        self._length = length
        self._most = most
        self._random = np.random.RandomState(seed)
        self.closed = False

    def reset(self) -> dm_env.TimeStep:
        self._place = int(self._random.randint(self._length))
        self._steps = 0
        return dm_env.restart(self._seen())

    def step(self, action: Any) -> dm_env.TimeStep:
        assert action["move"].dtype == np.int64
        assert action["push"].dtype == np.float32
        self._steps += 1
        self._place += int(action["move"]) - 1
        if self._place < 0:
            raise ArithmeticError("fell out of the corridor")
        reward = float(action["push"].sum())
        if self._place >= self._length:
            return dm_env.termination(reward, self._seen())
        if self._steps >= self._most:
            return dm_env.truncation(reward, self._seen())
        return dm_env.transition(reward, self._seen(), discount=0.5)

    def observation_spec(self) -> Any:
        return {
            "place": specs.DiscreteArray(100, name="place"),
            "steps": specs.BoundedArray((), np.int32, 0, 100, name="steps"),
            "ahead": [specs.Array((2,), np.float64, name="ahead"), specs.Array((), bool, name="free")],
            "sign": specs.StringArray((), name="sign"),
        }

    def action_spec(self) -> Any:
        move = specs.DiscreteArray(3, np.dtype(np.int64))  # pyright: ignore[reportArgumentType] - declared too narrowly
        return {"move": move, "push": specs.BoundedArray((2,), np.float32, -1, [1, 2])}

    def close(self) -> None:
        self.closed = True

    def _seen(self) -> Any:
        ahead = [np.array([self._place, self._length], float), self._place < self._length]
        return {"place": self._place, "steps": self._steps, "ahead": ahead, "sign": f"at {self._place}"}
