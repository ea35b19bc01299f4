"""What `gymhost serve tests.benchmarks.sandbox_environments` hosts: an environment that runs what it is told."""

from typing import Any

from gymhost.envs import Task, ToolEnv, register
from gymhost.envs.sandbox import Sandbox, SandboxSpec, create


class Commands(ToolEnv):
    """The text of a turn is a command of a shell that lasts, and is answered by what the command wrote."""

    sandbox: Sandbox | None = None

    async def setup(self, task: Task) -> None:
        self.sandbox = await create(SandboxSpec())
        self.shell = await self.sandbox.shell()

    async def teardown(self) -> None:
        if self.sandbox is not None:
            await self.sandbox.destroy()

    def prompt(self, task: Task) -> str:
        return "Commands?"

    async def on_text(self, text: str) -> Any:
        return (await self.shell.run(text)).stdout


register("benchmarks/Commands-v0", Commands, mode="async")
