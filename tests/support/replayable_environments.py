"""Environments whose sessions are recovered when they are lost, and some that only say so.

Importing this module registers them.
"""

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Space

from gymhost.envs import Task, ToolEnv, register, rubric, tool
from gymhost.wire.chat_spaces import FreeText

Info = dict[str, Any]


class Tally(gymnasium.Env[Any, Any]):
    """Observes how many steps there were since the reset, the sum of what it was given, and a random number.

    Args:
        notes: A file where each thing that is begun is noted: what, and by which process.
        slow_again: Seconds that it takes to be made when there are notes already.
    """

    observation_space: Space[Any] = Box(-(2**31), 2**31, (3,), np.int64)
    action_space: Space[Any] = Dict({"add": Discrete(100), "sleep": Box(0.0, 60.0, (), np.float64)})
    gain = 1

    def __init__(self, notes: str | None = None, slow_again: float = 0.0) -> None:
        self.notes = None if notes is None else Path(notes)
        self.count = self.sum = 0
        if slow_again and self.notes is not None and self.notes.exists():
            self._note("make")
            time.sleep(slow_again)
            self._note("made")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Info]:
        self._note("reset")
        options = options or {}
        if options.get("raise"):
            raise ValueError("this reset was told to raise")
        super().reset(seed=seed)
        time.sleep(options.get("sleep", 0.0))
        self.count = self.sum = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Info]:
        self._note("step")
        time.sleep(float(action.get("sleep", 0.0)))
        if action.get("raise"):
            raise ValueError("this step was told to raise")
        self.count += 1
        self.sum += int(action["add"]) * self.gain
        return self._observe(), float(self.sum), False, False, {"count": self.count}

    def increase(self, by: int) -> int:
        """Increases what the numbers that it is given count, for good."""
        self.gain += by
        return self.gain

    def _observe(self) -> Any:
        return np.array([self.count, self.sum, self.np_random.integers(2**31)], np.int64)

    def _note(self, what: str) -> None:
        if self.notes is not None:
            with self.notes.open("a") as file:
                file.write(f"{what} {os.getpid()}\n")


class Awaiting(Tally):
    """The same, by coroutines: a step that is cancelled stops at once."""

    async def areset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Info]:
        return super().reset(seed=seed, options=options)

    async def astep(self, action: Any) -> tuple[Any, Any, Any, Any, Info]:
        self._note("begin")
        await asyncio.sleep(float(action.get("sleep", 0.0)))
        return super().step({**action, "sleep": 0.0})


class Fickle(Tally):
    """Says that it is replayable, and observes from its third step on which process it runs in."""

    def _observe(self) -> Any:
        observation = super()._observe()
        if self.count >= 3:
            observation[2] = os.getpid()
        return observation


class Lasting(Tally):
    """Says that it is replayable, and counts its steps beyond its resets."""

    ever = 0

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Info]:
        self.ever += 1
        observation, reward, terminated, truncated, _ = super().step(action)
        return observation, reward, terminated, truncated, {"ever": self.ever}


class Deadly(Tally):
    """Ends its process, when it is told to, in a way that leaves no word."""

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Info]:
        if action["add"] == 99:
            self._note("die")
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


class Says(gymnasium.Env[Any, Any]):
    """Takes any text, and says how long it is."""

    observation_space: Space[Any] = Discrete(2**31)
    action_space: Space[Any] = FreeText()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        return 0, {}

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Info]:
        return len(action), 0.0, False, False, {"process": 0}


class Episodes(gymnasium.Env[Any, Any]):
    """Ends each episode in its fourth step, and its process when it is told 1.

    Each observation is the number of steps, and a random number; each info has the process.
    """

    observation_space: Space[Any] = Box(0.0, 100.0, (2,), np.float32)
    action_space: Space[Any] = Discrete(2)
    length: ClassVar[int] = 4

    def __init__(self) -> None:
        self.count = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        self.count = 0
        return self._observe(), {"process": os.getpid()}

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Info]:
        if action == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        self.count += 1
        return self._observe(), 1.0, self.count == self.length, False, {"process": os.getpid()}

    def _observe(self) -> Any:
        return np.array([self.count, self.np_random.uniform(0.0, 100.0)], np.float32)


class Walk(gymnasium.Env[Any, Any]):
    """A random walk of five steps."""

    observation_space: Space[Any] = Discrete(1000)
    action_space: Space[Any] = Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        self.steps = 0
        self.at = int(self.np_random.integers(100, 200))
        return self.at, {}

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Info]:
        self.steps += 1
        self.at += int(self.np_random.integers(3)) + int(action)
        return self.at, float(self.at), self.steps == 5, False, {}


class Forgets(Walk):
    """Tells in its third step how many episodes it has played."""

    episodes = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Info]:
        self.episodes += 1
        return super().reset(seed=seed)

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Info]:
        *result, info = super().step(action)
        return *result, info | ({"episodes": self.episodes} if self.steps == 3 else {})


class Repeats(ToolEnv):
    """Has to be told the five numbers that it says.

    Args:
        notes: A file where each call is noted, with the process.
    """

    def __init__(self, notes: str) -> None:
        super().__init__()
        self.notes = Path(notes)

    def setup(self, task: Task) -> None:
        self.wanted = [int(self.np_random.integers(1000)) for _ in range(5)]
        self.told: list[int] = []

    def prompt(self, task: Task) -> str:
        return f"Say {self.wanted[0]}."

    @tool
    def say(self, number: int) -> str:
        """Says a number.

        Args:
            number: The number.
        """
        with self.notes.open("a") as file:
            file.write(f"say {os.getpid()}\n")
        self.told.append(number)
        if len(self.told) == 5:
            self.finish()
            return "Thank you."
        return f"Now say {self.wanted[len(self.told)]}."

    @rubric
    def obeyed(self) -> float:
        """1 where all was said."""
        return float(self.told == self.wanted)


def _register(name: str, of: type[gymnasium.Env[Any, Any]], **how: Any) -> None:
    how = {"replayable": True, "attributes": ("*",), **how}
    register(id=f"test/{name}-v0", entry_point=f"{__name__}:{of.__name__}", **how)


_register("Tally", Tally)
_register("TallyInline", Tally, mode="inline")
_register("TallyLimited", Tally, step_timeout=0.5)
_register("TallyLost", Tally, replayable=False)
_register("Awaiting", Awaiting, mode="async")
_register("Fickle", Fickle)
_register("Lasting", Lasting)
_register("Deadly", Deadly)
_register("Says", Says)
_register("Episodes", Episodes)
_register("Repeats", Repeats)
_register("Walk", Walk)
_register("WalkUnsaid", Walk, replayable=False)
_register("Forgets", Forgets)
