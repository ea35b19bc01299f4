"""Environments that tell what they ran, so that whoever reads it can see what ran twice, or not at all."""

import os
import uuid
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from gymhost.envs import ToolEnv, register, rubric, tool
from gymhost.envs.sandbox import Limits, Sandbox, SandboxSpec, create

Info = dict[str, Any]
Observation = NDArray[np.int64]

NUMBERS = 2**31


def draw(generator: np.random.Generator) -> int:
    """What each step adds to the sum: replays come to the same only with the generator in the same state."""
    return int(generator.integers(1000))


class Counter(gymnasium.Env[Observation, Any]):
    """Counts its steps, echoes the action, and sums up random numbers: observations are the three of them.

    Args:
        log: The file to which each step adds a line before it answers; lines of processes don't mix.
    """

    observation_space = Box(0, 2**62, (3,), np.int64)
    action_space = Discrete(NUMBERS)

    def __init__(self, log: str) -> None:
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._instance = uuid.uuid4().hex
        self._episode = ""
        self._count = self._sum = 0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Observation, Info]:
        super().reset(seed=seed)
        self._episode = (options or {})["episode"]
        self._count = self._sum = 0
        return self._observe(0), {}

    def step(self, action: int) -> tuple[Observation, float, bool, bool, Info]:
        self._count += 1
        self._sum += draw(self.np_random)
        os.write(self._log, f"{self._episode} {self._count} {action} {self._instance}\n".encode())
        return self._observe(int(action)), float(self._count), False, False, {}

    def _observe(self, action: int) -> Observation:
        return np.array([self._count, action, self._sum], np.int64)

    def close(self) -> None:
        if self._log >= 0:
            os.close(self._log)
            self._log = -1


class Files(ToolEnv):
    """Has a sandbox, in which a file counts the calls of its tool."""

    _sandbox: Sandbox | None = None

    async def setup(self, task: Any) -> None:
        await self.teardown()
        self._sandbox = await create(SandboxSpec(limits=Limits(memory=2**26, processes=16, disk=2**20)))

    def prompt(self, task: Any) -> str:
        return "Write."

    @tool
    async def write(self, text: str) -> str:
        """Adds to the file, and tells how many lines it has."""
        assert self._sandbox is not None
        result = await self._sandbox.run(["sh", "-c", 'echo "$1" >>lines && wc -l <lines', "sh", text], timeout=20)
        return result.stdout.strip() if result.ok else f"failed: {result.stderr.strip()}"

    @rubric
    def nothing(self) -> float:
        return 0.0

    async def teardown(self) -> None:
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            await sandbox.destroy()


register(id="chaos/Counter-v0", entry_point=Counter, replayable=True)
register(id="chaos/Fragile-v0", entry_point=Counter)
register(id="chaos/Files-v0", entry_point=Files, mode="async")
