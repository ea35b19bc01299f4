"""Small repositories with a behaviour to repair."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from importlib import resources
from typing import Annotated, cast

from pydantic import Field

from gymhost.envs.rubrics import rubric
from gymhost.envs.sandbox import Limits, Sandbox, SandboxSpec, create
from gymhost.envs.shelf.aftermath import Aftermath
from gymhost.envs.shelf.repo_repair_bugs import Repair, repair
from gymhost.envs.tasks import Task, Tasks
from gymhost.envs.toolenv import ToolEnv
from gymhost.envs.tools import ToolError, tool
from gymhost.wire.errors import CommandTimeout, TooLarge

__all__ = ["RepoRepair"]

_RUNNER = resources.files("gymhost.envs.shelf").joinpath("repo_repair_runner.py").read_text(encoding="utf-8")
# Seconds for all hidden tests, and bytes of what they tell.
_TESTS, _ANSWERS = 60.0, 2**20
# Characters that a command's output and a view may have, and bytes of a file that can be viewed and edited.
_SHOWN, _FILE = 16_000, 2**20


class RepoRepair(ToolEnv):
    """Repair a behaviour of a small Python package that an issue tells of.

    The tests in the repository pass: they do not test it. The hidden ones are asked of the repository as it is at the
    end, in a fresh sandbox, by a program that is told what to ask and no answers: those are compared here, with those
    of the package without the bug. The reward is 1 where all are the same.
    """

    system = (
        "You repair a Python package in /workspace. Look around with run, read files with view, change them with edit, "
        "and call submit when the issue is solved. Hidden tests check the behaviour that it tells of, and the rest."
    )
    public_fields = ("seed",)
    max_turns = 40
    expert = "gymhost.envs.shelf.repo_repair_expert:reference"
    cheats = tuple(
        f"gymhost.envs.shelf.repo_repair_expert:{name}"
        for name in (
            "nothing",
            "edits_tests",
            "deletes_tests",
            "forges_results",
            "stands_in_for_the_library",
            "scores_everywhere",
            "rewrites_in_background",
        )
    )
    sandbox_spec = SandboxSpec(limits=Limits(memory=256 * 2**20, processes=64, disk=32 * 2**20))
    sandbox: Sandbox | None = None

    @classmethod
    def tasks(cls) -> dict[str, Tasks]:
        """Returns the splits: repositories of other seeds."""
        return {
            "train": Tasks.generate(lambda index: {"seed": f"train {index}"}, 10_000),
            "test": Tasks.generate(lambda index: {"seed": f"test {index}"}, 200),
        }

    async def setup(self, task: Task) -> None:
        """Makes the repository in a sandbox."""
        self._repair: Repair = repair(task["seed"])
        self._passed: float | None = None
        self.sandbox = await create(self.sandbox_spec)
        await self.sandbox.upload(self._repair.files)

    async def teardown(self) -> None:
        """Removes the sandbox."""
        sandbox, self.sandbox = self.sandbox, None
        if sandbox is not None:
            await sandbox.destroy()

    def prompt(self, task: Task) -> str:
        """Tells the issue."""
        return f"An issue of the package {self._repair.package} says:\n\n{self._repair.issue}\n\nPlease repair it."

    @tool(output_limit=_SHOWN)
    async def view(
        self, path: str, start: Annotated[int, Field(ge=1)] = 1, end: Annotated[int, Field(ge=1)] | None = None
    ) -> str:
        """Shows a file with numbers of lines, or what is in a folder.

        Args:
            path: Its path.
            start: The first line.
            end: The last line; all to the end where there is none.
        """
        assert self.sandbox is not None
        try:
            lines = (await self.sandbox.read_text(path, limit=_FILE)).splitlines()
        except IsADirectoryError:
            found = await self.sandbox.list(path, depth=2)
            return "\n".join(f"{info.path}/" if info.kind == "directory" else info.path for info in found)
        except (OSError, TooLarge, CommandTimeout) as error:
            raise ToolError(str(error)) from None
        last = len(lines) if end is None else end
        return "\n".join(f"{number:>5}  {line}" for number, line in enumerate(lines, 1) if start <= number <= last)

    @tool
    async def edit(self, path: str, old: str, new: str) -> str:
        """Replaces a text that a file has exactly once; without an old text it makes a new file.

        Args:
            path: Its path.
            old: The text to replace, with all white space as it is.
            new: What is there then.
        """
        assert self.sandbox is not None
        try:
            if not old:
                if (await self.sandbox.run(["test", "-e", path])).ok:
                    raise ToolError(f"{path} is there: say what to replace")
                text = new
            else:
                text = (await self.sandbox.read(path, limit=_FILE)).decode()
                if (count := text.count(old)) != 1:
                    raise ToolError(f"{path} has the old text {count} times, not once")
                text = text.replace(old, new)
            await self.sandbox.write(path, text)
        except UnicodeDecodeError:
            raise ToolError(f"{path} is no text") from None
        except (OSError, TooLarge, CommandTimeout) as error:
            raise ToolError(str(error)) from None
        return f"{path} is changed."

    @tool(output_limit=_SHOWN)
    async def run(self, command: str, timeout: Annotated[float, Field(gt=0, le=120)] = 30.0) -> str:
        """Runs a command with bash in the repository, and shows its output and exit status.

        Args:
            command: The command.
            timeout: Seconds after which it is stopped.
        """
        assert self.sandbox is not None
        result = await self.sandbox.run(command, timeout=timeout, output_limit=_SHOWN)
        how = f"exit status {result.exit_status}" if result.limit is None else f"ended by its limit of {result.limit}"
        return "\n".join(part.rstrip("\n") for part in (result.stdout, result.stderr, f"[{how}]") if part)

    @tool
    def submit(self) -> str:
        """Says that the issue is solved, which ends the episode."""
        self.finish()
        return "Handed in."

    @rubric
    async def right(self) -> float:
        """1 where all hidden tests pass."""
        return float(await self._share() == 1.0)

    @rubric(weight=0.0)
    async def share(self) -> float:
        """The share of hidden tests that pass."""
        return await self._share()

    async def _share(self) -> float:
        if self._passed is None:
            assert self.sandbox is not None
            # Whatever the agent's own sandbox had besides is no part of the tests.
            spec = type(self).sandbox_spec
            async with await Aftermath.of(self.sandbox) as left:
                mine, wanted = await asyncio.gather(
                    left.look(self._answers, [], spec=spec), _fresh_answers(spec, self._repair.repaired, self._answers)
                )
            if len(wanted) != len(self._repair.checks):
                raise RuntimeError(f"the package without a bug answered {wanted!r:.200}")
            equal = sum(one == other for one, other in zip(mine, wanted, strict=False))
            self._passed = equal / len(self._repair.checks)
        return self._passed

    async def _answers(self, sandbox: Sandbox) -> list[str]:
        """Returns what a repository answers to the hidden tests; nothing where it makes no sense."""
        modules = list(self._repair.bug.package.modules)
        asked = {"package": self._repair.package, "modules": modules, "checks": self._repair.checks}
        command = ["python3", "-I", "-S", "-c", _RUNNER]
        result = await sandbox.run(command, stdin=json.dumps(asked), timeout=_TESTS, output_limit=_ANSWERS)
        try:
            answers: object = json.loads(result.stdout_bytes.rpartition(b"\n")[2])
        except ValueError:
            return []
        return cast("list[str]", answers) if isinstance(answers, list) else []


async def _fresh_answers(
    spec: SandboxSpec, files: Mapping[str, str], ask: Callable[[Sandbox], Awaitable[list[str]]]
) -> list[str]:
    """Returns what the package answers that has no bug, in a sandbox of its own."""
    async with await create(spec) as sandbox:
        await sandbox.upload(files)
        return await ask(sandbox)
