"""ReasoningGym: the tasks of the package `reasoning-gym`."""

import ast
import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from gymhost.envs.rubrics import rubric
from gymhost.envs.shelf.calculator import CalculatorError, calculate
from gymhost.envs.shelf.extra import needed
from gymhost.envs.tasks import Task, Tasks
from gymhost.envs.toolenv import ToolEnv
from gymhost.envs.tools import ToolError, tool

__all__ = ["EVALUATED", "MIX", "REFUSED", "RUN", "ReasoningGym", "is_harmless"]

MIX = (
    "base_conversion",
    "basic_arithmetic",
    "caesar_cipher",
    "calendar_arithmetic",
    "chain_sum",
    "complex_arithmetic",
    "count_primes",
    "family_relationships",
    "fraction_simplification",
    "gcd",
    "knights_knaves",
    "lcm",
    "letter_counting",
    "number_sequence",
    "prime_factorization",
    "products",
    "simple_equations",
    "spell_backward",
    "time_intervals",
    "word_sorting",
)
"""The datasets that are played where none are named."""

REFUSED = {
    "acre": "it makes all of its tasks before the first is played",
    "composite": "name the datasets themselves",
    "game_of_life_halting": "its scorer pays for any answer",
    "intermediate_integration": "its scorer runs answers as code",
    "list_functions": "its tasks differ each time",
    "polynomial_multiplication": "its scorer runs answers as code",
    "pool_matrix": "it seeds the random generator that all share",
    "simple_integration": "its scorer runs answers as code",
    "word_ladder": "it has too few tasks for two splits",
}
"""The datasets that can't be played, and why."""

RUN = ("intermediate_integration", "polynomial_multiplication", "simple_integration")
"""The datasets whose scorers run answers as code."""

_TRAINING_TASKS = 2_000
_TEST_TASKS = 200
_SEED = 20_000
_HELD_OUT = 4
_MOST_TRIES = 64
_LONGEST_ANSWER = 5_000


class ReasoningGym(ToolEnv):
    """Solve a task of one of reasoning-gym's datasets.

    The reward is 1 for an answer to which the dataset's own scorer gives full marks. Its part for another one counts
    only where that is asked for: some scorers pay a little for any text, or for one with the answer somewhere in it.
    What a question says decides whether it is one to train or to test on.
    """

    public_fields = ("dataset", "question")
    max_turns = 5
    expert = "gymhost.envs.shelf.reasoning_gym_expert:solving"
    cheats = (
        "gymhost.envs.shelf.reasoning_gym_expert:everything_at_once",
        "gymhost.envs.shelf.reasoning_gym_expert:nothing",
        "gymhost.envs.shelf.reasoning_gym_expert:question_repeated",
        "gymhost.envs.shelf.reasoning_gym_expert:claimed_victory",
        "gymhost.envs.shelf.reasoning_gym_expert:code",
    )

    def __init__(
        self,
        *,
        datasets: str | Sequence[str] = MIX,
        options: Mapping[str, Mapping[str, Any]] | None = None,
        partial: bool = False,
        task: int | None = None,
        split: str | None = None,
    ) -> None:
        """Makes the environment.

        Args:
            datasets: The name of a dataset, or several that take turns.
            options: Options of the datasets by their names, such as `{"chain_sum": {"min_terms": 4}}`.
            partial: Whether the scorer's part for an answer that is not right counts.
            task: The task to play unless a reset says otherwise.
            split: The split that it is in.

        Raises:
            ModuleNotFoundError: reasoning-gym is not installed.
            ValueError: There is no such dataset, it can't be played, or has no such options.
        """
        super().__init__(task=task, split=split)
        needed("reasoning_gym", "gymhost/ReasoningGym-v0")
        self.datasets = (datasets,) if isinstance(datasets, str) else tuple(datasets)
        self.partial = partial
        options = options or {}
        strange = [name for name in options if name not in self.datasets]
        if strange or not self.datasets:
            raise ValueError(f"options are for datasets that are played, not for {', '.join(strange) or 'none'}")
        self._made = _Datasets()
        for name in self.datasets:
            self._made[name] = _dataset(name, options[name]) if options.get(name) else _usual_dataset(name)

    def tasks(self) -> dict[str, Tasks]:
        """Returns the splits: no question is in both."""

        def of(held_out: bool, size: int) -> Tasks:
            return Tasks.generate(lambda index: self._task(index, held_out), size)

        return {"train": of(False, _TRAINING_TASKS), "test": of(True, _TEST_TASKS)}

    def setup(self, task: Task) -> None:
        """Forgets what was answered."""
        self._dataset: str = task["dataset"]
        self._entry: dict[str, Any] = task["entry"]
        self._answer: str | None = None

    def prompt(self, task: Task) -> str:
        """Asks the question."""
        return f"{task['question']}\n\nCall the tool answer with the answer and nothing else: the first one counts."

    @tool
    def answer(self, answer: str) -> str:
        """Gives the answer, which ends the episode.

        Args:
            answer: The answer, in the form that the question asks for.
        """
        if len(answer) > _LONGEST_ANSWER:
            raise ToolError(f"an answer has at most {_LONGEST_ANSWER} characters")
        self._answer = answer
        self.finish()
        return "Thank you."

    @rubric
    def score(self) -> float:
        """1 for what the dataset's scorer gives full marks."""
        if self._answer is None:
            return 0.0
        if self._answer != self._entry["answer"] and not is_harmless(self._dataset, self._answer):
            return 0.0
        try:
            marks = float(self._made[self._dataset].score_answer(self._answer, self._entry))
        except Exception:  # noqa: BLE001 - a scorer that chokes on an answer has not found it right
            return 0.0
        return min(1.0, max(0.0, marks)) if self.partial else float(marks >= 1.0)

    def _task(self, index: int, held_out: bool) -> Task:
        """Returns the first of the entries kept for an index that belongs to the split."""
        name = self.datasets[index % len(self.datasets)]
        step = _TRAINING_TASKS + _TEST_TASKS
        for attempt in range(_MOST_TRIES):
            entry = self._made[name][index + attempt * step]
            question: str = entry["question"]
            if (hashlib.sha256(question.encode()).digest()[0] % _HELD_OUT == 0) == held_out:
                return {"dataset": name, "question": question, "entry": entry}
        raise ValueError(f"the dataset {name!r} has too few different questions for two splits")


class _Datasets(dict[str, Any]):
    """Datasets by their names. A fork has the same ones: nothing changes them."""

    def __deepcopy__(self, memo: object) -> Self:
        return self


@functools.cache
def _usual_dataset(name: str) -> Any:
    """Returns a dataset without options, which all sessions share: some are large, and nothing changes them."""
    return _dataset(name, {})


def _dataset(name: str, options: Mapping[str, Any]) -> Any:
    """Makes a dataset.

    Raises:
        ValueError: There is none, it can't be played, or has no such options.
    """
    factory: Any = needed("reasoning_gym", "gymhost/ReasoningGym-v0").factory
    if name in REFUSED:
        raise ValueError(f"the dataset {name!r} can't be played: {REFUSED[name]}")
    if name not in factory.DATASETS:
        raise ValueError(f"reasoning-gym has no dataset {name!r}; it has {', '.join(sorted(factory.DATASETS))}")
    size = (_TRAINING_TASKS + _TEST_TASKS) * _MOST_TRIES
    try:
        return factory.create_dataset(name, **{"seed": _SEED, "size": size, **options})
    except (AssertionError, TypeError, ValueError) as error:
        raise ValueError(f"reasoning-gym makes no dataset {name!r} with {dict(options)}: {error}") from None


def _literal(answer: str) -> bool:
    """Whether an answer is plain data, which can be evaluated without running anything."""
    try:
        ast.literal_eval(answer)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return False
    return True


def _arithmetic(answer: str) -> bool:
    """Whether an answer is arithmetic that is worked out in no time."""
    try:
        calculate(answer)
    except CalculatorError:
        return False
    return True


def _finite(answer: str) -> bool:
    """Whether an answer has nothing of "nan" or "inf" in it, which no tolerance tells from a number."""
    return "n" not in answer.lower()


# Scorers that evaluate what is given to them, may reckon for ever with it, or take what is no number for the right one.
_HARMLESS: dict[str, Callable[[str], bool]] = {
    "binary_matrix": _literal,
    "coin_flip": _arithmetic,
    "complex_arithmetic": _finite,
    "countdown": _arithmetic,
    "n_queens": _literal,
    "puzzle24": _arithmetic,
    "spiral_matrix": _literal,
    "string_insertion": _literal,
}

EVALUATED = (*RUN, *_HARMLESS)
"""The datasets whose scorers evaluate answers, or take what is none for right, in one way or another."""


def is_harmless(dataset: str, answer: str) -> bool:
    """Whether a dataset's scorer may be given an answer: one that is not is not right either."""
    harmless = _HARMLESS.get(dataset)
    return harmless is None or harmless(answer)
