"""Environments that a tiny harness plays in their sandbox."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from gymhost.envs import Task, ToolEnv, register, rubric
from gymhost.envs.harness import Harness, HarnessEnv
from gymhost.envs.sandbox import Limits, Sandbox, SandboxSpec, create
from gymhost.envs.shelf.mini_swe_agent import MINI_SWE_AGENT

SOURCE = Path(__file__).with_name("tiny_harness.py").read_text()


class Desk(ToolEnv):
    """Write a file; the reward is 1 where it is right."""

    sandbox_spec = SandboxSpec(limits=Limits(memory=128 * 2**20, processes=64, disk=16 * 2**20))
    sandbox: Sandbox | None = None
    tasks = {"train": [{}]}
    max_turns = 10

    async def setup(self, task: Task) -> None:
        self.sandbox = await create(self.sandbox_spec)
        # What was still running when it was scored.
        self.running = ""

    async def teardown(self) -> None:
        if self.sandbox is not None:
            await self.sandbox.destroy()
            self.sandbox = None

    def prompt(self, task: Task) -> str:
        return "Write {url} to answer.txt."

    @rubric
    async def right(self) -> float:
        assert self.sandbox is not None
        self.running = (await self.sandbox.run("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")).stdout
        return float((await self.sandbox.run("cat answer.txt")).stdout == "{url}\n")


class HarnessedDesk(HarnessEnv, Desk):
    """The same, played by a tiny harness in one of its forms."""

    def __init__(self, form: str = "plain", python: tuple[str, ...] = ("python3", "-I", "-S"), **settings: Any) -> None:
        command = (*python, "{folder}/tiny/harness.py", form, "{prompt}")
        # An instance's own, which elsewhere is the class's.
        self.harness = Harness(command=command, files={"tiny/harness.py": SOURCE}, **settings)
        super().__init__()


# What mini-swe-agent says by itself fills a thousand tokens.
_SHORT = (
    "agent.system_template=Use bash.",
    "agent.instance_template={{task}}",
    "agent.max_consecutive_format_errors=1",
    "model.observation_template={{output.returncode}}",
)


class MiniSweAgentDesk(HarnessEnv, Desk):
    """The same, played by mini-swe-agent with short prompts."""

    harness = replace(
        MINI_SWE_AGENT,
        command=(*MINI_SWE_AGENT.command, *(word for setting in _SHORT for word in ("--config", setting))),
    )


register(id="test/HarnessedDesk-v0", entry_point=HarnessedDesk, mode="async", disable_env_checker=True)
