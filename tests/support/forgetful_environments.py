"""Environments that make sandboxes and never destroy them: what becomes of these is the worker's affair."""

import asyncio
import time
from typing import Any

import gymnasium

from gymhost.envs import Task, ToolEnv, register, tool
from gymhost.envs.sandbox import Sandbox, create
from gymhost.wire.chat_spaces import FreeText
from gymhost.wire.errors import SandboxLost

# So that none is destroyed for being collected.
HELD: list[Sandbox] = []


class Forgetful(ToolEnv):
    """Runs commands in a sandbox that it leaves to itself."""

    sandbox: Sandbox

    async def setup(self, task: Task) -> None:
        self.sandbox = await create()
        HELD.append(self.sandbox)

    def prompt(self, task: Task) -> str:
        return "Run something."

    @tool
    async def run(self, command: str, timeout: float = 600.0) -> str:
        """Runs a command."""
        return (await self.sandbox.run(command, timeout=timeout)).stdout

    @tool
    async def cling(self, command: str) -> str:
        """Runs a command, and goes on for long when it can't."""
        try:
            return (await self.sandbox.run(command, timeout=600.0)).stdout
        except SandboxLost:
            time.sleep(600)  # noqa: ASYNC251 - it is meant to be stuck
            raise


class AtOnce(gymnasium.Env[str, str]):
    """Makes its sandbox when it is made itself, runs a command there, and says what that says; an empty one fails."""

    observation_space = action_space = FreeText()

    def __init__(self, command: str) -> None:
        asyncio.run(self._begin(command))
        if command.endswith("fail"):
            raise RuntimeError("it was to fail")

    async def _begin(self, command: str) -> None:
        sandbox = await create()
        HELD.append(sandbox)
        await sandbox.run(command)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        return "", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return action, 0.0, False, False, {}


register("test/Forgetful-v0", Forgetful, mode="thread")
register("test/ForgetfulAsync-v0", Forgetful, mode="async")
register("test/ForgetfulInline-v0", Forgetful, mode="inline")
register("test/ForgetfulAlone-v0", Forgetful, mode="thread", isolation="process")
register("test/Hasty-v0", Forgetful, mode="thread", step_timeout=1.0)
register("test/AtOnce-v0", AtOnce, mode="thread")
