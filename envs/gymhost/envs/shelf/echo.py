"""An environment that answers with what it was told."""

from typing import Any

import gymnasium
from gymnasium.error import InvalidAction, ResetNeeded

from gymhost.wire.chat_spaces import FreeText


class Echo(gymnasium.Env[str, str]):
    """Answers every text with the same text, at reward 1, for a number of steps.

    Thousands of idle ones fit on a small server: an instance holds three numbers.
    """

    # All instances share their spaces.
    observation_space = FreeText()
    action_space = FreeText()

    def __init__(self, length: int = 10) -> None:
        """Makes the environment.

        Args:
            length: The number of steps in an episode.

        Raises:
            ValueError: `length` is below 1.
        """
        if length < 1:
            raise ValueError(f"length is at least 1, not {length}")
        self.length = length
        self._left = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begins an episode with an empty text."""
        super().reset(seed=seed)
        self._left = self.length
        return "", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Returns the action as the observation.

        Raises:
            ResetNeeded: The episode has not begun or has ended.
            InvalidAction: The action is no text.
        """
        if self._left == 0:
            raise ResetNeeded("call reset before step: the episode has not begun or has ended")
        if not isinstance(action, str):  # pyright: ignore[reportUnnecessaryIsInstance] - it may come from anywhere
            raise InvalidAction(f"an action is a text, not {type(action).__name__}")
        self._left -= 1
        return action, 1.0, self._left == 0, False, {}
