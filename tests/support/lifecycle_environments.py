"""Environments that grow, kill their workers, or start processes: importing this module registers them."""

import os
import signal
import subprocess
from typing import Any

import gymnasium
import numpy as np

from gymhost.envs import register
from gymhost.wire.chat_spaces import FreeText

MIB = 2**20


class Hoard(gymnasium.Env[Any, Any]):
    """Takes so many MiB of memory as the action says, and keeps them."""

    observation_space = gymnasium.spaces.Discrete(10_000)
    action_space = gymnasium.spaces.Discrete(10_000)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        self.kept: list[Any] = []
        return 0, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.kept.append(np.ones(int(action) * MIB, np.uint8))
        return len(self.kept), 0.0, False, False, {}


class Killer(gymnasium.Env[str, str]):
    """Kills its process at the action `kill`, and as it is made where it is told so.

    Args:
        when_made: It is.
    """

    observation_space = action_space = FreeText()

    def __init__(self, when_made: bool = False) -> None:
        if when_made:
            os.kill(os.getpid(), signal.SIGKILL)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        return "", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        return action, 0.0, False, False, {}


class Parent(gymnasium.Env[Any, Any]):
    """Starts a program in its reset, and observes its process id; it never ends it."""

    observation_space = gymnasium.spaces.Discrete(2**31)
    action_space = FreeText()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        self.child = subprocess.Popen(["sleep", "1000"])
        return self.child.pid, {}

    def step(self, action: str) -> tuple[int, float, bool, bool, dict[str, Any]]:
        return self.child.pid, 0.0, False, False, {}


register("test/Hoard-v0", Hoard)
register("test/HoardApart-v0", Hoard, isolation="process", memory_limit=400 * MIB)
register("test/Killer-v0", Killer)
register("test/KillerWhenMade-v0", Killer, kwargs={"when_made": True})
register("test/Parent-v0", Parent)
