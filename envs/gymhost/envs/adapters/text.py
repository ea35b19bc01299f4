"""What environments of packages that play in texts have in common."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from gymhost.envs.messages import CallRequest
from gymhost.envs.rubrics import rubric
from gymhost.envs.tasks import Task
from gymhost.envs.toolenv import Observation, ToolEnv
from gymhost.envs.turns import Turn
from gymhost.wire.chat_spaces import ChatMessage

__all__ = ["Reply", "TextEnv"]


@dataclass(frozen=True, slots=True)
class Reply:
    """What a package's environment answers.

    Attributes:
        said: What is new: a user's text, or messages.
        reward: The reward of the turn.
        terminated: Whether the episode has ended.
        truncated: Whether it was cut off.
        info: What goes into the info.
    """

    said: str | Iterable[ChatMessage]
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    info: dict[str, Any] = field(default_factory=dict[str, Any])


class TextEnv(ToolEnv):
    """An environment that is played by plain texts: each turn's text goes to the package, which pays each turn.

    Adapters override `begin` and `play`. What the package raises there is a fault of the environment.
    """

    _reply = Reply("")

    def begin(self, task: Task, seed: int) -> Reply:
        """Begins an episode.

        Args:
            task: The task, where the environment has tasks.
            seed: What the package is to seed itself with: that of the reset, or one that goes on from the last.
        """
        raise NotImplementedError

    def play(self, text: str) -> Reply:
        """Plays a turn."""
        raise NotImplementedError

    def setup(self, task: Task) -> None:
        """Begins the package's episode."""
        seed = int(self.np_random.integers(2**31)) if self.reset_seed is None else self.reset_seed
        self._reply = self.begin(task, seed)

    def prompt(self, task: Task) -> str | Iterable[ChatMessage]:
        """Tells what the package says first."""
        return self._reply.said

    def on_text(self, text: str) -> str | Iterable[ChatMessage] | None:
        """Has the package play a turn."""
        self._reply = self.play(text)
        if self._reply.terminated:
            self.finish()
        return self._reply.said or None

    @rubric(per_turn=True, low=-math.inf, high=math.inf)
    def package(self) -> float:
        """What the package pays for the turn."""
        return self._reply.reward

    async def _respond(self, turn: Turn, requests: list[CallRequest]) -> tuple[Observation, dict[str, Any]]:
        # A turn with calls of tools, of which there are none, plays nothing.
        self._reply = Reply("")
        observation, info = await super()._respond(turn, requests)
        return observation, info | self._reply.info

    def _place_info(self) -> dict[str, Any]:
        return super()._place_info() | self._reply.info

    def _spent_budget(self) -> str | None:
        return "environment" if self._reply.truncated else super()._spent_budget()
