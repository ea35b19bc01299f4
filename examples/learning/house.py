"""A text game small enough for a very small model: something is to be found in a house whose plan nobody tells.

`gymhost serve examples.learning.house` hosts it.
"""

from __future__ import annotations

from typing import Literal

from gymhost.envs import Task, Tasks, ToolEnv, Turn, register, rubric, tool

MOVES = 6
PLAN = [
    ["attic", "study", "tower"],
    ["kitchen", "hall", "library"],
    ["cellar", "garden", "stable"],
]
"""The rooms as they lie, north on top. There are doors between all neighbours but those of `WALLS`."""

WALLS = [{"attic", "kitchen"}, {"hall", "library"}, {"garden", "stable"}]
THINGS = {"crown": "attic", "lamp": "cellar", "saddle": "stable"}
DIRECTIONS = {"north": (-1, 0), "south": (1, 0), "west": (0, -1), "east": (0, 1)}

_PLACES = {room: (y, x) for y, row in enumerate(PLAN) for x, room in enumerate(row)}
_ROOMS = {place: room for room, place in _PLACES.items()}
_WAYS: list[Task] = [{"start": room, "thing": thing} for room in _PLACES for thing in THINGS if THINGS[thing] != room]


class House(ToolEnv):
    """Find a thing in a house of nine rooms.

    Each turn tells the room and its doors. The reward is 1 if the thing is found within 6 moves, less 0.5 if any turn
    had no valid call.
    """

    public_fields = ("start", "thing")

    @classmethod
    def tasks(cls) -> dict[str, Tasks]:
        """Returns the splits: in both come all ways from a room to a thing, again and again.

        Held out are games, not ways: which way leads to a thing can't be known of a room that one was never in.
        """
        return {
            "train": Tasks.generate(lambda index: _WAYS[index % len(_WAYS)], 100_000),
            "test": Tasks.generate(lambda index: _WAYS[index % len(_WAYS)], 1_000),
        }

    def setup(self, task: Task) -> None:
        """Begins a game."""
        self.room, self.thing = task["start"], task["thing"]
        self.left = MOVES
        self.found = self.malformed = False

    def prompt(self, task: Task) -> str:
        """Tells where the player is."""
        return f"Find the {self.thing} within {MOVES} moves.\n{self._where()}"

    @tool
    def go(self, direction: Literal["north", "south", "west", "east"]) -> str:
        """Goes through a door.

        Args:
            direction: Where to.
        """
        room = doors(self.room).get(direction)
        self.room = room or self.room
        self.found = THINGS[self.thing] == self.room
        self._one_less()
        if self.found:
            return f"You have found the {self.thing}."
        return f"{'' if room else 'There is no door. '}{self._where()}"

    def after_turn(self, turn: Turn) -> None:
        """Takes a move for a turn without a valid call."""
        if not turn.valid:
            self.malformed = True
            self._one_less()

    def _one_less(self) -> None:
        self.left -= 1
        if self.found or self.left <= 0:
            self.finish(won=self.found)

    def _where(self) -> str:
        return f"You look for the {self.thing} in the {self.room}. Doors: {', '.join(doors(self.room))}."

    @rubric
    def win(self) -> float:
        """1 where the thing was found."""
        return float(self.found)

    @rubric(weight=0.5, low=-1.0, high=0.0)
    def format(self) -> float:
        """-1 where a turn had no valid call."""
        return -1.0 if self.malformed else 0.0


def doors(room: str) -> dict[str, str]:
    """Returns the rooms beside one, by the directions of its doors."""
    y, x = _PLACES[room]
    beside = {direction: _ROOMS.get((y + dy, x + dx)) for direction, (dy, dx) in DIRECTIONS.items()}
    return {direction: other for direction, other in beside.items() if other and {room, other} not in WALLS}


def distance(room: str, to: str) -> int:
    """Returns how many moves there are between two rooms."""
    moves, reached = 0, {room}
    while to not in reached:
        reached |= {beside for one in reached for beside in doors(one).values()}
        moves += 1
    return moves


register("examples/House-v0", House, mode="inline", description="Find a thing in a house whose plan nobody tells.")
