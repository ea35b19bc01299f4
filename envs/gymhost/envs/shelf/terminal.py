"""Chores with a shell, made by a generator or loaded from folders of tasks."""

import asyncio
import os
from os import PathLike
from pathlib import Path
from typing import Annotated, Protocol, Self

from pydantic import Field

from gymhost.envs.rubrics import rubric
from gymhost.envs.sandbox import Limits, Sandbox, SandboxSpec, Shell, create
from gymhost.envs.shelf.aftermath import Aftermath
from gymhost.envs.shelf.terminal_checks import Runs, Want
from gymhost.envs.shelf.terminal_chores import Chore, chore
from gymhost.envs.shelf.terminal_folders import FolderTask, folder_tasks
from gymhost.envs.tasks import Task, Tasks
from gymhost.envs.toolenv import ToolEnv
from gymhost.envs.tools import ToolError, tool
from gymhost.envs.turns import Turn
from gymhost.wire.errors import InvalidArgument, Unimplemented

__all__ = ["Terminal"]

_SPEC = SandboxSpec(limits=Limits(memory=256 * 2**20, processes=128, disk=32 * 2**20))
# Seconds that an agent has for a generated chore, and bytes of a command's output that it is shown.
_SECONDS, _OUTPUT = 900.0, 16 * 1024


class Job(Protocol):
    """What a task is about.

    Attributes:
        text: What is asked.
        seconds: How long the agent has.
    """

    text: str
    seconds: float

    async def begin(self) -> Sandbox:
        """Makes the sandbox that the agent works in."""
        ...

    async def score(self, sandbox: Sandbox) -> float:
        """Looks at what was done in it, which ends it, and returns a score from 0 to 1."""
        ...


def _allowed(folder: Path) -> Path:
    """Returns a folder of tasks, without links.

    Raises:
        ValueError: It is none of those that may be loaded.
    """
    named = os.environ.get("TERMINAL_TASK_FOLDERS", "")
    resolved = folder.resolve()
    if not any(resolved.is_relative_to(Path(each).resolve()) for each in named.split(os.pathsep) if each):
        raise ValueError(
            f"tasks may not be loaded from {folder}: set the environment variable TERMINAL_TASK_FOLDERS, where the "
            "environment runs, to the folders that they may be loaded from"
        )
    return resolved


class Terminal(ToolEnv):
    """Do a chore with a shell: with files, texts or processes.

    The chores are made by a generator, or are task folders in Harbor's layout: `make("gymhost/Terminal-v0",
    tasks="/path/to/folder")` loads a folder of them, or one task. Since clients may ask for it, the folder must be one
    that the environment variable TERMINAL_TASK_FOLDERS names where the environment runs, or below one; it has paths
    with a colon between them. What is to be there at the end is not in the sandbox.
    Once the episode has ended, and with it all that the agent left running, its files are looked at in a fresh sandbox.
    Only processes that a chore is about are looked at while they run, before that. The reward is 1 where all is as it
    should be; a task folder's own verifier says what the reward is.

    Args:
        tasks: A folder of task folders, or a task folder; None for generated chores.
        task: See `ToolEnv`.
        split: See `ToolEnv`.

    Raises:
        ValueError: The folder has no tasks, or one that can't be used; the message says why.
    """

    system = (
        "You work in a Linux shell, as an ordinary user, without a network. Do what you are asked with the tool bash, "
        "and call the tool submit when it is done."
    )
    public_fields = ("seed", "name")
    max_turns = 40
    expert = "gymhost.envs.shelf.terminal_expert:reference"
    cheats = tuple(
        f"gymhost.envs.shelf.terminal_expert:{name}"
        for name in ("nothing", "claims", "scores_everywhere", "removes_everything", "rewrites_in_background")
    )
    _job: Job
    _sandbox: Sandbox | None = None
    _shell: Shell | None = None
    _until: float = 0.0

    def __init__(
        self, *, tasks: str | PathLike[str] | None = None, task: int | None = None, split: str | None = None
    ) -> None:
        self._folders: list[FolderTask] = []
        if tasks is not None:
            self._folders = folder_tasks(_allowed(Path(tasks)))
        super().__init__(task=task, split=split)

    def tasks(self) -> dict[str, Tasks]:
        """Returns the splits: chores of other seeds; or one, of the task folders."""
        if self._folders:
            named = [{"name": folder.name, "number": number} for number, folder in enumerate(self._folders)]
            return {"tasks": Tasks(named)}
        return {
            "train": Tasks.generate(lambda index: {"seed": f"train {index}"}, 100_000),
            "test": Tasks.generate(lambda index: {"seed": f"test {index}"}, 500),
        }

    async def setup(self, task: Task) -> None:
        """Makes the sandbox, with what the chore begins with."""
        number: int | None = task.get("number")
        self._job = job = _Generated(chore(task["seed"])) if number is None else self._folders[number]
        self._sandbox = sandbox = await job.begin()
        self._shell = await sandbox.shell()
        self._until = asyncio.get_running_loop().time() + job.seconds

    async def teardown(self) -> None:
        """Removes the sandbox."""
        sandbox, self._sandbox, self._shell = self._sandbox, None, None
        if sandbox is not None:
            await sandbox.destroy()

    def prompt(self, task: Task) -> str:
        """Tells what is asked."""
        return self._job.text

    @tool
    async def bash(self, command: str, timeout: Annotated[float, Field(gt=0, le=600)] = 60.0) -> str:
        """Runs a command in a bash whose variables and folder last, and shows its output and exit status.

        Args:
            command: The command.
            timeout: Seconds after which it is stopped.
        """
        assert self._shell is not None
        left = max(0.1, self._until - asyncio.get_running_loop().time())
        result = await self._shell.run(command, timeout=min(timeout, left), output_limit=_OUTPUT)
        how = [f"exit status {result.exit_status}" if result.limit is None else f"ended by its limit of {result.limit}"]
        if result.restarted:
            how.append("the shell was started anew")
        parts = [result.stdout.rstrip("\n"), result.stderr.rstrip("\n"), f"[{'; '.join(how)}]"]
        return "\n".join(part for part in parts if part)

    @tool
    async def write(self, path: str, content: str) -> str:
        """Writes a file as a whole; folders on the way are made.

        Args:
            path: Its path, absolute or from the working folder that the shell began in.
            content: What it holds then.
        """
        assert self._sandbox is not None
        try:
            await self._sandbox.write(path, content)
        except (InvalidArgument, OSError) as error:
            raise ToolError(str(error)) from None
        return f"{path} has {len(content.encode())} bytes now."

    @tool
    def submit(self) -> str:
        """Says that it is done, which ends the episode."""
        self.finish()
        return "Handed in."

    def after_turn(self, turn: Turn) -> None:
        """Ends the episode where its time is up."""
        if asyncio.get_running_loop().time() >= self._until:
            self.finish(limit="agent_timeout")

    @rubric
    async def right(self) -> float:
        """1 where all is as it should be."""
        assert self._sandbox is not None
        return await self._job.score(self._sandbox)


class _Generated:
    """A chore that was made by the generator."""

    def __init__(self, of: Chore) -> None:
        self.text = of.text
        self.seconds = _SECONDS
        self._start = of.start

    def __deepcopy__(self, memo: object) -> Self:
        # Nothing changes it but what a chore about processes knows of those that run.
        if any(want.live for want in self._start.wants):
            raise Unimplemented("this chore is about processes that run in its sandbox: they are no part of a fork")
        return self

    async def begin(self) -> Sandbox:
        start = self._start
        sandbox = await create(_SPEC)
        try:
            await sandbox.upload({**start.files, **start.binary})
            for mode in set(start.modes.values()):
                paths = [path for path, its in start.modes.items() if its == mode]
                await sandbox.run(["chmod", f"{mode:o}", "--", *paths])
            for want in start.wants:
                if isinstance(want, Runs):
                    await want.begin(sandbox, start.command, start.names)
        except BaseException:
            await sandbox.destroy()
            raise
        return sandbox

    async def score(self, sandbox: Sandbox) -> float:
        wants = self._start.wants
        if not await _all_met([want for want in wants if want.live], sandbox):
            return 0.0
        rest = [want for want in wants if not want.live]
        async with await Aftermath.of(sandbox) as left:
            return float(await left.look(lambda fresh: _all_met(rest, fresh), otherwise=False))


async def _all_met(wants: list[Want], sandbox: Sandbox) -> bool:
    for want in wants:
        if not await want.met(sandbox):
            return False
    return True
