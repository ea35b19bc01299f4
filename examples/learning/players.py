"""Scripted players that are often careless: from their games the models learn how a tool is called."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from typing import Any

from examples.learning.chores import NAMES
from examples.learning.house import THINGS, distance, doors

_WHERE = re.compile(r"look for the (\w+) in the (\w+)\.")
_CHORE = re.compile(r"^(Rename|Copy|Remove) (\w+)(?: to (\w+))?\.$", re.MULTILINE)
_PROGRAMS = {"Rename": "mv", "Copy": "cp", "Remove": "rm"}


def call(tool: str, **arguments: Any) -> dict[str, Any]:
    """Returns the assistant message that calls a tool."""
    made = {"id": "call_0", "type": "function", "function": {"name": tool, "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [made]}


@dataclass
class Guide:
    """Knows the house, and goes the shortest way or, when careless, through any door.

    Args:
        rng: Where its luck comes from.
        careless: The share of careless moves.
    """

    rng: random.Random
    careless: float

    def act(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        """Answers what was told last with a call of the tool `go`."""
        ((thing, room),) = _WHERE.findall(str(messages[-1]["content"]))
        ways = doors(room)
        if self.rng.random() >= self.careless:
            far = {direction: distance(beyond, THINGS[thing]) for direction, beyond in ways.items()}
            return call("go", direction=min(far, key=far.__getitem__))
        return call("go", direction=self.rng.choice(list(ways)))


@dataclass
class Helper:
    """Does what it is told in the sandbox or, when careless, any chore.

    Args:
        rng: Where its luck comes from.
        careless: The share of careless commands.
    """

    rng: random.Random
    careless: float

    def act(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        """Answers the chore that was given last with a call of the tool `sh`."""
        chore, old, new = _CHORE.findall(str(messages[-1]["content"]))[-1]
        if self.rng.random() < self.careless:
            chore = self.rng.choice(list(_PROGRAMS))
            old, new = self.rng.sample(NAMES, 2)
        names = [old] if chore == "Remove" else [old, new]
        return call("sh", command=" ".join([_PROGRAMS[chore], *names]))
