"""Environments whose tools work in a sandbox, for tests of the server: importing this module registers them."""

import base64
from typing import Any

from gymhost.envs import Task, ToolEnv, register, tool
from gymhost.envs.sandbox import (
    CommandResult,
    Limits,
    PythonSession,
    Sandbox,
    SandboxSpec,
    Shell,
    create,
)

MIB = 2**20


class Workbench(ToolEnv):
    """Tools that tell all that there is to tell of a result.

    Args:
        limits: Those that are not the usual ones.
        env: Variables of the sandbox.
        pass_env: Names of variables of the server's that the sandbox gets.
    """

    sandbox: Sandbox | None = None
    shell_session: Shell | None = None
    python_session: PythonSession | None = None

    def __init__(
        self, *, limits: dict[str, Any] | None = None, env: dict[str, str] | None = None, pass_env: tuple[str, ...] = ()
    ) -> None:
        super().__init__()
        self.wanted = SandboxSpec(limits=Limits(**(limits or {})), env=env or {}, pass_env=tuple(pass_env))

    async def setup(self, task: Task) -> None:
        self.sandbox = await create(self.wanted)

    async def teardown(self) -> None:
        if self.sandbox is not None:
            await self.sandbox.destroy()
            self.sandbox = self.shell_session = self.python_session = None

    def prompt(self, task: Task) -> str:
        return "Work."

    @property
    def made(self) -> Sandbox:
        assert self.sandbox is not None
        return self.sandbox

    @tool
    async def run(self, command: str, timeout: float = 60.0) -> dict[str, Any]:
        """Runs a command in a process of its own."""
        return as_dict(await self.made.run(command, timeout=timeout))

    @tool
    async def shell(self, command: str, timeout: float = 60.0) -> dict[str, Any]:
        """Runs a command in a shell that lasts."""
        if self.shell_session is None:
            self.shell_session = await self.made.shell()
        return as_dict(await self.shell_session.run(command, timeout=timeout))

    @tool
    async def python(self, code: str, timeout: float = 60.0) -> dict[str, Any]:
        """Runs Python in a session that lasts."""
        if self.python_session is None:
            self.python_session = await self.made.python()
        result = await self.python_session.run(code, timeout=timeout)
        return {"value": result.value, "stdout": result.stdout, "exception": result.exception, "limit": result.limit}


def as_dict(result: CommandResult) -> dict[str, Any]:
    """Returns a result as JSON can hold it; `raw` is standard output as it was."""
    return {
        "exit_status": result.exit_status,
        "stdout": result.stdout,
        "stderr": result.stderr,
        "limit": result.limit,
        "raw": base64.b64encode(result.stdout_bytes).decode(),
    }


register("test/Workbench-v0", Workbench, mode="async")
register("test/WorkbenchThread-v0", Workbench, mode="thread")
