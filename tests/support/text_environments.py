"""A game of words in which a model that knows nothing can learn: importing this module registers it."""

from typing import Any

from gymhost.envs import Task, ToolEnv, register, rubric

TURNS = 2


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


register("test/Letters-v0", Letters, mode="inline")
