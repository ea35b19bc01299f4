"""The datasets of reasoning-gym: `reasoning-gym:chain_sum`, or `reasoning-gym:*` for all that can be hosted."""

import functools
from typing import Any

from gymhost.envs import packages
from gymhost.envs.adapters.support import add, chosen, needed, value
from gymhost.envs.adapters.text import Reply, TextEnv
from gymhost.envs.packages import Package
from gymhost.envs.randomness import OwnRandom
from gymhost.envs.shelf.reasoning_gym import RUN, is_harmless
from gymhost.envs.tasks import Task, Tasks

__all__ = ["ReasoningGym", "about", "register"]

_Options = tuple[tuple[str, str], ...]


class ReasoningGym(TextEnv):
    """A dataset of reasoning-gym: each entry is a task, and the first answer ends the episode.

    The reward is what the dataset's scorer gives, parts of the marks included. Some scorers evaluate what they are
    given: an answer that they can't be given is not right.

    Args:
        name: The dataset.
        options: What it is made with.
        prompt: Which of reasoning-gym's system prompts is given; the answer is then read from its `<answer>` tags.
            Where it is empty there is none, and the whole text is the answer.
        task: The task to play unless a reset says otherwise.
        split: Its split: there is `train` alone.
    """

    public_fields = ("question",)

    def __init__(
        self, name: str, options: _Options, prompt: str, /, *, task: int | None = None, split: str | None = None
    ) -> None:
        super().__init__(task=task, split=split)
        # What is shared with other sessions is no attribute: a fork would copy it.
        self._dataset = functools.partial(_dataset, name, options)
        self._name = name
        self._tagged = bool(prompt)
        if prompt:
            self.system = needed("reasoning-gym", "reasoning_gym.utils").SYSTEM_PROMPTS[prompt]

    def tasks(self) -> dict[str, Tasks]:
        """Returns the entries of the dataset."""
        return {"train": Tasks.generate(self._task, len(self._dataset()))}

    def begin(self, task: Task, seed: int) -> Reply:
        """Asks the question."""
        self._entry: dict[str, Any] = task["entry"]
        return Reply(task["question"])

    def play(self, text: str) -> Reply:
        """Scores the answer."""
        answer = needed("reasoning-gym", "reasoning_gym.utils").extract_answer(text) if self._tagged else text
        if answer is not None and answer != self._entry["answer"] and not is_harmless(self._name, answer):
            return Reply("", 0.0, terminated=True)
        return Reply("", self._dataset().score_answer(answer, self._entry), terminated=True)

    def _task(self, index: int) -> Task:
        # Some datasets draw from, or seed, the generators that all share.
        with OwnRandom(index).active():
            entry: dict[str, Any] = self._dataset()[index]
        return {"question": entry["question"], "entry": entry}


def register(name: str, *, prompt: str = "default", **options: str) -> list[str]:
    """Registers datasets of reasoning-gym.

    Args:
        name: The dataset's name; with a `*`, several.
        prompt: Which of its system prompts is given, such as `default`, `simple` or `direct`; empty for none.
        **options: What the dataset is made with, such as `size` and `seed`; without them 500 and 0.

    Raises:
        ModuleNotFoundError: reasoning-gym is not installed.
        ValueError: There is no such dataset or prompt, or the dataset's scorer runs answers as code.
    """
    known: dict[str, Any] = needed("reasoning-gym", "reasoning_gym.factory").DATASETS
    prompts: dict[str, str] = needed("reasoning-gym", "reasoning_gym.utils").SYSTEM_PROMPTS
    if prompt and prompt not in prompts:
        raise ValueError(f"prompt is one of {', '.join(prompts)}, or empty, not {prompt!r}")
    names = [each for each in chosen("reasoning-gym", name, known) if each not in RUN]
    if not names:
        raise ValueError(f"reasoning-gym:{name} can't be hosted: its scorer runs answers as code")
    given = tuple(sorted(options.items()))
    return [
        add(
            "reasoning-gym",
            each,
            functools.partial(ReasoningGym, each, given, prompt),
            description=f"The dataset {each} of reasoning-gym.",
            order_enforce=False,
        )
        for each in names
    ]


def about() -> Package:
    """Returns reasoning-gym's package."""
    return packages.installed("reasoning-gym")


@functools.cache
def _dataset(name: str, options: _Options) -> Any:
    """Returns a dataset, which all sessions of a process share: nothing changes it."""
    given: dict[str, Any] = {"seed": 0, **{option: value(text) for option, text in options}}
    return needed("reasoning-gym", "reasoning_gym.factory").create_dataset(name, **given)
