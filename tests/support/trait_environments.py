"""Environments for what clients reach beyond step and reset, and with faults for checkers to find.

Importing this module registers them.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from gymhost.envs import register

Info = dict[str, Any]


class _Base(gymnasium.Env[Any, Any]):
    observation_space = Box(-1.0, 1.0, (3,), np.float32)
    action_space = Discrete(2)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Info]:
        return self.observe(), 0.5, False, False, {}

    def observe(self) -> Any:
        return self.np_random.uniform(-1.0, 1.0, 3).astype(np.float32)


class Knobs(_Base):
    """Has attributes of many kinds, and methods."""

    def __init__(self) -> None:
        self.gravity = 9.8
        self.table = {"names": ("a", "b"), "weights": np.arange(6, dtype=np.float32).reshape(2, 3)}
        self.rng = np.random.Generator(np.random.MT19937(5))
        self.engine = object()
        self.hidden = "not declared"
        self._private = 1

    @property
    def broken(self) -> int:
        """Can't be computed."""
        raise ValueError("this property was told to raise")

    @property
    def fixed(self) -> int:
        """Can't be set."""
        return 3

    def add(self, first: Any, *, second: Any = 1) -> Any:
        """Adds."""
        return first + second

    def told(self, **said: Any) -> list[str]:
        """Gives the types of what it was given."""
        return [type(value).__name__ for value in said.values()]

    def fail(self) -> None:
        """Raises."""
        raise ValueError("this method was told to raise")

    async def wait(self) -> str:
        """Is a coroutine function."""
        return "waited"


class AsyncKnobs(Knobs):
    """The same with coroutines."""

    async def areset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        return super().reset(seed=seed, options=options)

    async def astep(self, action: Any) -> tuple[Any, Any, Any, Any, Info]:
        return super().step(action)


class Unseeded(_Base):
    """Has no generator of Gymnasium's."""

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Info]:
        return np.zeros(3, np.float32), 0.5, False, False, {}


class FirstSeedOnly(_Base):
    """Is repeatable for the reset that has a seed alone (S26)."""

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        observation, info = super().reset(seed=seed, options=options)
        if seed is None:
            observation = np.random.default_rng().uniform(-1.0, 1.0, 3).astype(np.float32)
        return observation, info


class Outside(_Base):
    """Observes what is outside its space."""

    def observe(self) -> Any:
        return super().observe() + np.float32(3.0)


class Deprecated(_Base):
    """Still has the `seed` method of old, which checkers warn of."""

    def seed(self, seed: int | None = None) -> list[int | None]:
        """Does nothing."""
        return [seed]


class Noise(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper that Gymnasium does not have: adds to rewards.

    Args:
        env: The environment.
        by: What to add.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], by: float = 1.0) -> None:
        super().__init__(env)
        self.by = by

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, Info]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, float(reward) + self.by, terminated, truncated, info


class Failing(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper that can't be put around anything."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        raise ValueError("this wrapper was told to raise")


_REACHED = ("add", "broken", "engine", "fail", "fixed", "gravity", "missing", "rng", "table", "told", "wait")

for _trait in (Unseeded, FirstSeedOnly, Outside, Deprecated):
    register(f"test/{_trait.__name__}-v0", f"{__name__}:{_trait.__name__}")
register("test/Knobs-v0", f"{__name__}:Knobs", attributes=_REACHED)
register("test/InlineKnobs-v0", f"{__name__}:Knobs", attributes=_REACHED, mode="inline")
register("test/AsyncKnobs-v0", f"{__name__}:AsyncKnobs", attributes=_REACHED, mode="async")
