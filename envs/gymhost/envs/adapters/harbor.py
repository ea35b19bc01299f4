"""Harbor's task folders: `harbor:PATH`, where PATH is a task's folder or a folder of them, a dataset.

Harbor itself is not needed. What a task's verifier gives as its reward is the reward, whatever numbers it uses.
"""

import functools
import math
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gymhost.envs.adapters.support import add
from gymhost.envs.packages import Package
from gymhost.envs.rubrics import rubric
from gymhost.envs.shelf.terminal import Terminal
from gymhost.envs.shelf.terminal_folders import FolderTask, folder_tasks, the_reward
from gymhost.envs.tasks import Task
from gymhost.envs.toolenv import Action, Step

__all__ = ["Harbor", "about", "register"]

# Seconds that a step, which may run a task's verifier, and a reset, which may build its image, take at most.
_STEP = 4000.0


class Harbor(Terminal):
    """Task folders in Harbor's layout, each a task. The agent has a shell in a sandbox of the task's environment.

    `tests/` is there when the verifier runs, in a fresh sandbox with the files that the agent left, and `solution/`
    never. No sandbox reaches a network. The last step's info has all rewards of the verifier as `verifier`.

    Args:
        folders: The task folders.
        task: See `ToolEnv`.
        split: See `ToolEnv`.
    """

    public_fields = ("name",)
    max_turns = None
    expert = None
    cheats = ()

    _verifier: dict[str, float] | None = None

    def __init__(self, folders: Sequence[FolderTask], /, *, task: int | None = None, split: str | None = None) -> None:
        super().__init__(task=task, split=split)
        self._folders = list(folders)

    async def setup(self, task: Task) -> None:
        """Makes the sandbox."""
        self._verifier = None
        await super().setup(task)

    @rubric(low=-math.inf, high=math.inf)
    async def right(self) -> float:
        """What the task's verifier says."""
        assert self._sandbox is not None
        job = self._job
        assert isinstance(job, FolderTask)
        self._verifier = await job.rewards(self._sandbox)
        return the_reward(self._verifier, job.name)

    async def astep(self, action: Action) -> Step:
        """Plays a turn, as `step` does."""
        return self._told(await super().astep(action))

    async def aevaluate(self, limit: str | None = None) -> Step:
        """Scores the episode, as `evaluate` does."""
        return self._told(await super().aevaluate(limit))

    def _told(self, step: Step) -> Step:
        if self._verifier is not None:
            step[-1]["verifier"] = self._verifier
        return step


def register(name: str, **options: str) -> list[str]:
    """Registers the tasks of a folder as an environment.

    Args:
        name: The folder.
        **options: `image`: an image for all of its tasks, or `none` for the system that the sandboxes' backend has by
            itself, in which what a task's Dockerfile says is done as far as it can be; `max_turns`: after how many
            turns an episode is truncated.

    Raises:
        ValueError: It has no tasks, or one that can't be used; the message says what of it.
    """
    image, turns = options.pop("image", None), options.pop("max_turns", None)
    if options:
        raise ValueError(f"harbor has no option {next(iter(options))!r}: there are image and max_turns")
    if turns is not None and not turns.isdecimal():
        raise ValueError(f"max_turns is a number of turns, not {turns!r}")
    folder = Path(name).expanduser().resolve()
    folders = folder_tasks(folder)
    if image is not None:
        folders = [
            replace(task, plain=True) if image == "none" else replace(task, image=image, dockerfile=None)
            for task in folders
        ]
    id = add(
        "harbor",
        folder.name,
        functools.partial(Harbor, folders),
        description=f"Harbor's task {folder.name}." if _is_task(folder) else f"{len(folders)} tasks of Harbor's.",
        package=_package(folder),
        mode="async",
        order_enforce=False,
        step_timeout=_STEP,
        reset_timeout=_STEP,
        max_episode_steps=None if turns is None else int(turns),
    )
    return [id]


def about() -> Package:
    """Returns whose layout it is; the package is not needed."""
    return Package("harbor", licence="Apache-2.0", url="https://harborframework.com")


def _is_task(folder: Path) -> bool:
    return (folder / "task.toml").exists()


def _package(folder: Path) -> Package | None:
    """Returns the package that a task says it is."""
    if not _is_task(folder):
        return None
    said: Any = tomllib.loads((folder / "task.toml").read_text(encoding="utf-8")).get("task", {})
    return Package(str(said["name"]), str(said.get("version", ""))) if "name" in said else None
