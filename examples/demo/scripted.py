"""A scripted player of GuessNumber that knows no more than the messages say, and is often careless."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field
from typing import Any

RANGE = re.compile(r"from (\d+) to (\d+)")


@dataclass
class ScriptedPlayer:
    """Guesses at random: among what the answers leave open or, when careless, among all the numbers.

    Args:
        rng: Where its luck comes from.
        blind: The share of careless guesses.
    """

    rng: random.Random
    blind: float
    ranges: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])

    def act(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        """Reads the new messages and answers with a call of the tool `guess`."""
        for message in messages:
            self.ranges += [(int(low), int(high)) for low, high in RANGE.findall(str(message["content"]))]
        low, high = self.ranges[0] if self.rng.random() < self.blind else self.ranges[-1]
        call = {"name": "guess", "arguments": {"number": self.rng.randint(low, high)}}
        return {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "call_0", "type": "function", "function": call}],
        }
