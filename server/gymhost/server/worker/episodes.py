"""The episodes of a vector session's copies: how many steps and resets there were, how they ended, what they paid."""

from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from gymhost.wire.tensors import Array

__all__ = ["Episodes"]


class Episodes:
    """Follows the episodes of all copies.

    Args:
        count: How many copies there are.

    Attributes:
        steps: Steps of copies since this was last looked at.
        resets: Resets of copies since then, those within steps included.
        ended: Episodes that have ended since then: whether each has terminated, and its reward where that is known.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self.steps = 0
        self.resets = 0
        self.ended: list[tuple[bool, float | None]] = []
        self._rewards = [0.0] * count
        # Those whose rewards can't be told.
        self._unknown: set[int] = set()
        # Those whose episodes have ended, of a vector environment that resets them itself.
        self._ended = np.zeros(count, np.bool_)

    def clear(self) -> None:
        """Whoever has looked at it has counted what there was."""
        self.steps = self.resets = 0
        self.ended.clear()

    # -- copy by copy --------------------------------------------------------------------------------------------------

    def reset(self, index: int) -> None:
        """A copy is about to be reset."""
        self.resets += 1
        self._rewards[index] = 0.0
        self._unknown.discard(index)

    def step(self) -> None:
        """A copy is about to be stepped."""
        self.steps += 1

    def stepped(self, index: int, reward: float, terminated: bool, truncated: bool, info: Any) -> None:
        """A copy was stepped."""
        self._rewards[index] += reward
        if info and info.get("reward_invalid"):
            self._unknown.add(index)
        if terminated or truncated:
            self._end(index, terminated)

    # -- all at once ---------------------------------------------------------------------------------------------------

    def reset_all(self, mask: Array | None) -> None:
        """All copies are about to be reset, or those that a mask names."""
        for index in range(self._count) if mask is None else np.flatnonzero(mask).tolist():
            self.reset(index)
            self._ended[index] = False

    def stepped_all(self, mode: Any, rewards: Any, terminations: Any, truncations: Any, infos: Any) -> None:
        """All copies were stepped, by a vector environment that resets them itself.

        Args:
            mode: When it resets those whose episodes have ended.
            rewards: The rewards.
            terminations: Which have terminated.
            truncations: Which were truncated.
            infos: Gymnasium's vector info.
        """
        # In the step after its end a copy was not stepped but reset, unless that was done at once.
        waited = self._ended if mode is AutoresetMode.NEXT_STEP else None
        self.steps += self._count
        if waited is not None and waited.any():
            for index in np.flatnonzero(waited).tolist():
                self.steps -= 1
                self.reset(index)
        each = np.asarray(rewards, np.float64).tolist()
        invalid = infos.get("reward_invalid") if infos else None
        for index, reward in enumerate(each):
            self._rewards[index] += reward
        if invalid is not None:
            self._unknown.update(np.flatnonzero(invalid).tolist())
        ended = np.logical_or(terminations, truncations)
        for index in np.flatnonzero(ended).tolist():
            if mode is AutoresetMode.DISABLED and self._ended[index]:
                continue  # it was stepped beyond its end
            self._end(index, bool(terminations[index]))
            if mode is AutoresetMode.SAME_STEP:
                self.reset(index)
        self._ended = ended if mode is not AutoresetMode.SAME_STEP else self._ended

    def _end(self, index: int, terminated: bool) -> None:
        self.ended.append((terminated, None if index in self._unknown else self._rewards[index]))
