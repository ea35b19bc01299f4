"""SkyRL-Gym's environments, with rows of a dataset: `skyrl-gym:gsm8k?tasks=train.parquet`."""

import copy
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gymhost.envs import packages
from gymhost.envs.adapters.support import add, chosen, needed, values
from gymhost.envs.adapters.text import Reply, TextEnv
from gymhost.envs.packages import Package
from gymhost.envs.tasks import Task, Tasks

__all__ = ["SkyRLGym", "about", "register"]

_RUN_CODE = ("lcb", "searchcode")


class SkyRLGym(TextEnv):
    """An environment of SkyRL-Gym.

    Each row of the dataset is a task: its `prompt` opens the conversation, the rest is given to the environment, as
    SkyRL's generator does. What a step has in `metadata` goes into its info, with `postprocessed_action` where there is
    one; the last one's info has the environment's `metrics`.

    Args:
        name: What SkyRL-Gym calls it.
        rows: The file of the dataset.
        config: What the environment is configured with.
        max_turns: How many turns its episodes may have; None leaves that to the environment.
        task: The row to play unless a reset says otherwise.
        split: Its split: there is `train` alone.
    """

    public_fields = ("prompt",)

    def __init__(
        self,
        name: str,
        rows: str,
        config: Mapping[str, Any],
        max_turns: int | None,
        /,
        *,
        task: int | None = None,
        split: str | None = None,
    ) -> None:
        super().__init__(task=task, split=split)
        self._name = name
        self._rows = rows
        self._config = dict(config)
        self._turns = {} if max_turns is None else {"max_turns": max_turns}
        self._env: Any = None

    def tasks(self) -> dict[str, Tasks]:
        """Returns the rows of the dataset."""
        return {"train": _tasks(self._rows)}

    def begin(self, task: Task, seed: int) -> Reply:
        """Makes an environment for the row."""
        row = copy.deepcopy(task)
        prompt = row.pop("prompt")
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        config = needed("skyrl-gym", "omegaconf").OmegaConf.create(self._config)
        gym = needed("skyrl-gym", "skyrl_gym")
        self._env = gym.make(self._name, env_config=config, extras={**row, **self._turns})
        said, info = self._env.init(messages)
        return Reply(said, info=info)

    def play(self, text: str) -> Reply:
        """Plays a turn."""
        step = self._env.step(text)
        info: dict[str, Any] = dict(step["metadata"] or {})
        if step.get("postprocessed_action") is not None:
            info["postprocessed_action"] = step["postprocessed_action"]
        if step["done"]:
            info["metrics"] = self._env.get_metrics()
        return Reply(step["observations"], step["reward"], terminated=step["done"], info=info)

    def teardown(self) -> None:
        """Closes the environment."""
        env, self._env = self._env, None
        if env is not None:
            env.close()


def register(name: str, *, tasks: str = "", max_turns: str = "", **options: str) -> list[str]:
    """Registers environments of SkyRL-Gym.

    Args:
        name: What SkyRL-Gym calls it; with a `*`, several.
        tasks: The file with the rows, as SkyRL's generator reads them: `.parquet`, or `.jsonl` with an object on each
            line.
        max_turns: How many turns an episode may have.
        **options: What the environment is configured with, such as `search_url`.

    Raises:
        ModuleNotFoundError: skyrl-gym is not installed.
        ValueError: There is none, no file is named, or the environment runs what a model wrote.
    """
    known: dict[str, Any] = needed("skyrl-gym", "skyrl_gym").registry
    names = [each for each in chosen("skyrl-gym", name, known) if each not in _RUN_CODE]
    if not names:
        raise ValueError(f"skyrl-gym:{name} can't be hosted: it runs what a model wrote, in no sandbox")
    if not Path(tasks).is_file():
        raise ValueError(f"skyrl-gym:{name} takes its tasks from a file: ?tasks=PATH names it; {tasks!r} is none")
    given = values(options)
    turns = int(max_turns) if max_turns else None
    return [
        add(
            "skyrl-gym",
            each,
            functools.partial(SkyRLGym, each, str(Path(tasks).absolute()), given, turns),
            description=f"SkyRL-Gym's {each}, with the tasks of {Path(tasks).name}.",
            order_enforce=False,
        )
        for each in names
    ]


def about() -> Package:
    """Returns SkyRL-Gym's package."""
    return packages.installed("skyrl-gym")


@functools.cache
def _tasks(rows: str) -> Tasks:
    return Tasks.parquet(rows) if rows.endswith(".parquet") else Tasks.jsonl(rows)
