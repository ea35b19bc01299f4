"""A game of words in which a model that knows nothing can learn: importing this module registers it."""

import asyncio
from typing import Any

from gymhost.envs import Task, ToolEnv, register, rubric

TURNS = 2
THINKING_SECONDS = 0.4


class Letters(ToolEnv):
    """Asks twice for small letters, and pays for their share in what was said."""

    tasks = {"train": [{"word": word} for word in ("a", "b", "c", "d")], "test": [{"word": "e"}, {"word": "f"}]}

    def setup(self, task: Task) -> None:
        """Begins an episode."""
        self.shares: list[float] = []

    def prompt(self, task: Task) -> str:
        """Returns what the model is asked."""
        return f"Say {task['word']}."

    def on_text(self, text: str) -> Any:
        """Asks again, or ends."""
        self.shares.append(sum("a" <= letter <= "z" for letter in text) / max(len(text), 1))
        if len(self.shares) == TURNS:
            self.finish()
            return None
        return "More."

    @rubric
    def letters(self) -> float:
        """The mean share of small letters in a turn."""
        return sum(self.shares) / TURNS


class SlowLetters(Letters):
    """The same, which thinks about what was said: a batch of it takes long enough to be disturbed."""

    async def on_text(self, text: str) -> Any:
        """Asks again after a while, or ends."""
        await asyncio.sleep(THINKING_SECONDS)
        return super().on_text(text)


class BrittleLetters(Letters):
    """The same, which breaks when it is shouted at."""

    def on_text(self, text: str) -> Any:
        """Asks again, or ends, or fails."""
        if "!" in text:
            raise ValueError("it was shouted at")
        return super().on_text(text)


register("test/Letters-v0", Letters, mode="inline")
register("test/BrittleLetters-v0", BrittleLetters, mode="inline")
register("test/SlowLetters-v0", SlowLetters, mode="async")
