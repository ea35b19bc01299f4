"""Environments that are forked, or can't be: importing this module registers them."""

import asyncio
import copy
import time
from pathlib import Path
from typing import Any, Self

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, Space

from gymhost.envs import register
from gymhost.envs.sandbox import Container, SandboxSpec, Snapshot, backend
from support.broken_sandboxes import Broken

Info = dict[str, Any]


class Walk(gymnasium.Env[Any, Any]):
    """Observes where random steps and actions have led, and what it holds.

    Args:
        folder: Where a file is for each copy that was made and each instance that was closed; None for none.
        slow: Seconds that a copy takes.
        fails: The copy that can't be made, counted over all from 1.
    """

    observation_space: Space[Any] = Box(-np.inf, np.inf, (4,), np.float64)
    action_space: Space[Any] = Discrete(5)

    def __init__(self, folder: str | None = None, slow: float = 0.0, fails: int = 0) -> None:
        self.folder = None if folder is None else Path(folder)
        self.slow = slow
        self.fails = fails
        self.held: dict[str, list[int]] = {"taken": []}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        self.held["taken"] = []
        self.place = self.np_random.normal(size=3)
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        self.held["taken"].append(int(action))
        self.place += self.np_random.normal(size=3) + action
        return self._observe(), float(action), len(self.held["taken"]) == 1000, False, {}

    def close(self) -> None:
        self._note("closed")

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        number = self._note("copied")
        time.sleep(self.slow)
        if number and number == self.fails:
            raise LookupError("this copy was told to fail")
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        vars(twin).update(copy.deepcopy(vars(self), memo))
        return twin

    def _observe(self) -> Any:
        return np.append(self.place, sum(self.held["taken"]))

    def _note(self, what: str) -> int:
        if self.folder is None:
            return 0
        with open(self.folder / what, "ab", buffering=0) as file:
            file.write(b".")
            return file.tell()


class AsyncWalk(Walk):
    """The same with coroutines."""

    async def areset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Info]:
        return self.reset(seed=seed, options=options)

    async def astep(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        return self.step(action)


class Reluctant(Broken):
    """Makes so many sandboxes with bubblewrap, and then takes for ever over the next one.

    Args:
        room: How many.
    """

    name = "reluctant"

    def __init__(self, room: str) -> None:
        super().__init__(backend("bubblewrap"))
        self._room = int(room)

    async def create(self, spec: SandboxSpec, snapshot: Snapshot | None = None) -> Container:
        if self._room == 0:
            await asyncio.sleep(3600.0)
        self._room -= 1
        return await super().create(spec, snapshot)


for name, of, how in (
    ("Walk", Walk, {}),
    ("WalkInline", Walk, {"mode": "inline"}),
    ("WalkAsync", AsyncWalk, {"mode": "async"}),
    ("WalkApart", Walk, {"isolation": "process"}),
    ("WalkReplayable", Walk, {"replayable": True}),
):
    register(id=f"test/{name}-v0", entry_point=f"{__name__}:{of.__name__}", **how)  # pyright: ignore[reportArgumentType]
