"""GEM's environments: `gem:game:Sudoku-v0-easy`, or `gem:game:*` for several.

An environment that another module registers with `gem.register` can be named too, if the module is named before it.
"""

import functools
from collections.abc import Mapping
from typing import Any

from gymhost.envs import packages
from gymhost.envs.adapters.support import add, chosen, needed, values
from gymhost.envs.adapters.text import Reply, TextEnv
from gymhost.envs.packages import Package
from gymhost.envs.randomness import OwnRandom
from gymhost.envs.shelf.reasoning_gym import EVALUATED
from gymhost.envs.tasks import Task

__all__ = ["Gem", "about", "register"]


class Gem(TextEnv):
    """An environment of GEM.

    Its texts are the messages. An episode of which GEM says that it was both terminated and truncated has terminated.

    Args:
        name: What GEM calls it.
        options: What GEM makes it with.
        task: Nothing: its episodes are chosen by seeds.
        split: Nothing.
    """

    def __init__(
        self, name: str, options: Mapping[str, Any], /, *, task: int | None = None, split: str | None = None
    ) -> None:
        super().__init__(task=task, split=split)
        self._random = OwnRandom()
        with self._random.active():
            self._env: Any = needed("gem", "gem").make(name, **options)

    def begin(self, task: Task, seed: int) -> Reply:
        """Begins an episode, as GEM does with this seed."""
        with self._random.active():
            said, info = self._env.reset(seed=seed)
        return Reply(said, info=info)

    def play(self, text: str) -> Reply:
        """Plays a turn."""
        with self._random.active():
            said, reward, terminated, truncated, info = self._env.step(text)
        return Reply(said, reward, terminated, truncated, info)


def register(name: str, **options: str) -> list[str]:
    """Registers environments of GEM.

    Args:
        name: What GEM calls it; with a `*`, several.
        **options: What GEM makes it with.

    Raises:
        ModuleNotFoundError: gem-llm is not installed.
        ValueError: There is none, or it runs what a model wrote.
    """
    registry: dict[str, Any] = needed("gem", "gem.envs.registration").ENV_REGISTRY
    needed("gem", "gem.envs")
    names = chosen("gem", name, registry)
    safe = [each for each in names if not _runs_code(each)]
    if not safe:
        raise ValueError(f"gem:{name} can't be hosted: it runs what a model wrote, in no sandbox")
    given = values(options)
    return [
        add("gem", each, functools.partial(Gem, each, given), description=f"GEM's {each}.", order_enforce=False)
        for each in safe
    ]


def about() -> Package:
    """Returns GEM's package."""
    return packages.installed("gem-llm")


def _runs_code(name: str) -> bool:
    # Of those with a dataset of reasoning-gym, some have scorers that evaluate answers.
    return name.startswith("code:") or name == "eval:CodeContest" or name.removeprefix("rg:") in EVALUATED
