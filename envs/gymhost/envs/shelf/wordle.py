"""Wordle: find a word of five letters from what each guess tells of its letters."""

import functools
import hashlib
from collections import Counter

from gymhost.envs.rubrics import rubric
from gymhost.envs.shelf.wordle_words import ANSWERS, GUESSES
from gymhost.envs.tasks import Task, Tasks
from gymhost.envs.toolenv import ToolEnv
from gymhost.envs.tools import ToolError, tool

_TEST_TASKS = 150
_PROMPT = """\
Find a hidden English word of five letters. You have {guesses}. Each is answered with a sign for each of its letters:
G: it is in the word, at this place.
Y: it is in the word, at another place.
-: it is not in the word, or not as often as you guessed it.
Call the tool guess."""


class Wordle(ToolEnv):
    """Find a hidden word of five letters: each guess is answered letter by letter.

    A guess that is no word of the list is refused and costs a turn, not a guess. The reward is 1 for a word that was
    found, else 0. The words of the splits differ.
    """

    public_fields = ("game",)
    max_turns = 12
    expert = "gymhost.envs.shelf.wordle_expert:narrowing"
    cheats = (
        "gymhost.envs.shelf.wordle_expert:everything_at_once",
        "gymhost.envs.shelf.wordle_expert:wildcards",
        "gymhost.envs.shelf.wordle_expert:claimed_victory",
    )

    def __init__(self, *, guesses: int = 6, task: int | None = None, split: str | None = None) -> None:
        """Makes the game.

        Args:
            guesses: How many guesses there are.
            task: The task to play unless a reset says otherwise.
            split: The split that it is in.

        Raises:
            ValueError: There is no guess.
        """
        super().__init__(task=task, split=split)
        if guesses < 1:
            raise ValueError(f"guesses is at least 1, not {guesses}")
        self.guesses = guesses
        self.max_turns = 2 * guesses

    @classmethod
    def tasks(cls) -> dict[str, Tasks]:
        """Returns the splits: no word is in both."""
        count = len(ANSWERS) - _TEST_TASKS
        return {
            "train": Tasks.generate(lambda index: _task(index), count),
            "test": Tasks.generate(lambda index: _task(count + index), _TEST_TASKS),
        }

    def setup(self, task: Task) -> None:
        """Hides the word."""
        self._word: str = task["word"]
        self._left = self.guesses
        self._won = False

    def prompt(self, task: Task) -> str:
        """Tells the rules."""
        return _PROMPT.format(guesses=_guesses(self.guesses))

    @tool
    def guess(self, word: str) -> str:
        """Guesses the word.

        Args:
            word: An English word of five letters.
        """
        word = word.strip().lower()
        if len(word) != len(self._word) or not word.isalpha():
            raise ToolError("a guess is a word of five letters")
        if word not in GUESSES:
            raise ToolError(f"{word!r} is not in the list of words; guess another one")
        self._left -= 1
        marks = feedback(word, self._word)
        if word == self._word:
            self._won = True
        if self._won or self._left == 0:
            self.finish(won=self._won)
        return f"{word} {marks}" if self._won else f"{word} {marks}, {_guesses(self._left)} left"

    @rubric
    def win(self) -> float:
        """1 where the word was found."""
        return float(self._won)


def feedback(guess: str, word: str) -> str:
    """Returns what a guess tells of a word: G, Y or - for each letter.

    A letter that was guessed more often than the word has it is marked as often as the word has it: first where it is
    at its place, then from the left.
    """
    hidden = Counter(letter for letter, own in zip(word, guess, strict=True) if letter != own)
    marks: list[str] = []
    for letter, own in zip(word, guess, strict=True):
        if letter == own:
            marks.append("G")
        elif hidden[own] > 0:
            hidden[own] -= 1
            marks.append("Y")
        else:
            marks.append("-")
    return "".join(marks)


def _task(number: int) -> Task:
    return {"game": number, "word": _shuffled()[number]}


@functools.cache
def _shuffled() -> list[str]:
    """Returns the words in an order that looks random and is the same everywhere."""
    return sorted(ANSWERS, key=lambda word: hashlib.sha256(f"wordle {word}".encode()).digest())


def _guesses(count: int) -> str:
    return "1 guess" if count == 1 else f"{count} guesses"
