"""A game over several turns in which a good policy must use the answers."""

import functools
import hashlib

from gymhost.envs.rubrics import rubric
from gymhost.envs.tasks import Task, Tasks
from gymhost.envs.toolenv import ToolEnv, Turn
from gymhost.envs.tools import tool

_TRAINING_TASKS = 1_000_000
_TEST_TASKS = 500


class GuessNumber(ToolEnv):
    """Find a hidden number: each guess is answered with whether it was too low or too high.

    A turn without a valid call uses up a guess. The reward is 1 for a hit, less 0.5 if any turn had no valid call.
    """

    public_fields = ("game",)
    expert = "gymhost.envs.shelf.guess_number_expert:binary_search"

    def __init__(
        self, *, low: int = 1, high: int = 7, guesses: int = 3, task: int | None = None, split: str | None = None
    ) -> None:
        """Makes the game.

        Args:
            low: The lowest number.
            high: The highest.
            guesses: How many guesses there are.
            task: The task to play unless a reset says otherwise.
            split: The split that it is in.

        Raises:
            ValueError: There is nothing to guess, or no guess.
        """
        super().__init__(task=task, split=split)
        if high < low:
            raise ValueError(f"high ({high}) is below low ({low})")
        if guesses < 1:
            raise ValueError(f"guesses is at least 1, not {guesses}")
        self.low = low
        self.high = high
        self.guesses = guesses

    @classmethod
    def tasks(cls) -> dict[str, Tasks]:
        """Returns the splits: no number of a game is in both."""
        return {
            "train": Tasks.generate(lambda index: {"game": index}, _TRAINING_TASKS),
            "test": Tasks.generate(lambda index: {"game": _TRAINING_TASKS + index}, _TEST_TASKS),
        }

    def setup(self, task: Task) -> None:
        """Hides the number."""
        self._secret = secret(self.low, self.high, task["game"])
        self._from, self._to = self.low, self.high
        self._left = self.guesses
        self._won = False
        self._malformed = 0

    def prompt(self, task: Task) -> str:
        """Tells the rules."""
        guesses = "1 guess" if self.guesses == 1 else f"{self.guesses} guesses"
        return f"Guess the number from {self.low} to {self.high}. You have {guesses}."

    @tool
    def guess(self, number: int) -> str:
        """Guesses the number.

        Args:
            number: The guess.
        """
        self._left -= 1
        if number == self._secret:
            self._won = True
            self.finish(won=True)
            return "Correct."
        if number < self._secret:
            answer = "Too low"
            self._from = max(self._from, number + 1)
        else:
            answer = "Too high"
            self._to = min(self._to, number - 1)
        if self._left == 0:
            self.finish(won=False)
        return f"{answer}, it is from {self._from} to {self._to}."

    def after_turn(self, turn: Turn) -> str | None:
        """Takes a guess for a turn without a valid call."""
        if turn.valid:
            return None
        self._malformed += 1
        self._left -= 1
        if self._left > 0:
            return None
        self.finish(won=False)
        return None

    @rubric
    def win(self) -> float:
        """1 where the number was found."""
        return float(self._won)

    @rubric(weight=0.5, low=-1.0, high=0.0)
    def format(self) -> float:
        """-1 where a turn had no valid call."""
        return -1.0 if self._malformed else 0.0


def secret(low: int, high: int, game: int) -> int:
    """Returns the number of a game: of as many games in a row as there are numbers, each has another one."""
    numbers = _shuffled(low, high)
    return numbers[game % len(numbers)]


def best_possible(low: int, high: int, guesses: int) -> float:
    """Returns how often the best policy wins: it tells 2**guesses - 1 numbers apart."""
    return min(1.0, (2**guesses - 1) / (high - low + 1))


@functools.lru_cache(maxsize=16)
def _shuffled(low: int, high: int) -> list[int]:
    """Returns the numbers in an order that looks random and is the same everywhere."""

    def rank(number: int) -> bytes:
        return hashlib.sha256(f"{low} {high} {number}".encode()).digest()

    return sorted(range(low, high + 1), key=rank)
