"""An environment in a sandbox, with chores small enough for a very small model: files that a shell is to move about.

`gymhost serve examples.learning.chores` hosts it.
"""

from __future__ import annotations

import hashlib
from random import Random

from gymhost.envs import Task, Tasks, ToolEnv, Turn, register, rubric, tool
from gymhost.envs.sandbox import Limits, Sandbox, SandboxSpec, create

NAMES = ["blue", "green", "red", "white"]
SPEC = SandboxSpec(limits=Limits(memory=64 * 2**20, processes=16, disk=8 * 2**20))


class Chores(ToolEnv):
    """Two chores, one after the other, with two files: to rename one, to copy one, to remove one.

    The model has a shell in a sandbox, and a turn for each chore. The reward is 1 if all files are as they should be in
    the end, less 0.5 if any turn had no valid call.
    """

    sandbox: Sandbox | None = None

    @classmethod
    def tasks(cls) -> dict[str, Tasks]:
        """Returns the splits: no chores of one are in the other."""
        return {
            "train": Tasks.generate(lambda index: _task(index, held_out=False), 100_000),
            "test": Tasks.generate(lambda index: _task(index, held_out=True), 1_000),
        }

    async def setup(self, task: Task) -> None:
        """Begins in a sandbox of its own, with the files in it."""
        self.task = task
        self.left = list(task["chores"])
        self.done = self.malformed = False
        self.sandbox = await create(SPEC)
        await self.sandbox.upload({name: f"{name}\n" for name in task["files"]})

    async def teardown(self) -> None:
        """Ends all that runs in the sandbox, and removes it."""
        if self.sandbox is not None:
            await self.sandbox.destroy()

    def prompt(self, task: Task) -> str:
        """Tells what is there, and what to do first."""
        return f"There are the files {' and '.join(task['files'])}.\n{self.left[0]}"

    @tool
    async def sh(self, command: str) -> str:
        """Runs a command in a shell.

        Args:
            command: The command.
        """
        assert self.sandbox is not None
        result = await self.sandbox.run(command, timeout=10, output_limit=1024)
        ended = f"exit status {result.exit_status}" if result.limit is None else f"ended by its limit of {result.limit}"
        return f"{result.stdout}{result.stderr}[{ended}]{await self._go_on()}"

    async def after_turn(self, turn: Turn) -> str | None:
        """Goes on to the next chore after a turn without a valid call."""
        if turn.valid:
            return None
        self.malformed = True
        return (await self._go_on()).strip() or None if self.left else None

    async def _go_on(self) -> str:
        """Returns the next chore; after the last one the episode ends."""
        self.left.pop(0)
        if self.left:
            return f"\n{self.left[0]}"
        assert self.sandbox is not None
        self.done = await _are_there(self.task["wanted"], self.sandbox)
        self.finish(won=self.done)
        return ""

    @rubric
    def win(self) -> float:
        """1 where all files are as they should be."""
        return float(self.done)

    @rubric(weight=0.5, low=-1.0, high=0.0)
    def format(self) -> float:
        """-1 where a turn had no valid call."""
        return -1.0 if self.malformed else 0.0


async def _are_there(wanted: dict[str, str], sandbox: Sandbox) -> bool:
    """Whether the working folder holds these files, each with its one line, and no others."""
    found = await sandbox.run(["grep", "-rZ", "", "."], timeout=10, output_limit=1024)
    return sorted(found.stdout.splitlines()) == sorted(f"./{name}\0{line}" for name, line in wanted.items())


def _task(index: int, *, held_out: bool) -> Task:
    """Makes chores: the first ones of an index that belong to its split."""
    random = Random(f"chores {index}")
    while True:
        files = sorted(random.sample(NAMES, 2))
        holds = {name: name for name in files}
        chores = [_chore(holds, random), _chore(holds, random)]
        if (hashlib.sha256(f"{files} {chores}".encode()).digest()[0] % 4 == 0) == held_out:
            return {"files": files, "chores": chores, "wanted": holds}


def _chore(holds: dict[str, str], random: Random) -> str:
    """Makes a chore, and does it."""
    old, new = random.choice(sorted(holds)), random.choice([name for name in NAMES if name not in holds])
    match random.choice(("rename", "copy", "remove")):
        case "remove" if len(holds) > 1:
            del holds[old]
            return f"Remove {old}."
        case "copy":
            holds[new] = holds[old]
            return f"Copy {old} to {new}."
        case _:
            holds[new] = holds.pop(old)
            return f"Rename {old} to {new}."


register("examples/Chores-v0", Chores, mode="async", description="Rename, copy and remove files, in a sandbox.")
