"""Who plays the other seats in the tests of adapters."""

import re


def first_free(seen: str) -> str:
    """Plays the first move that a game of TextArena says is available."""
    return re.findall(r"'(\[\w+\])'", seen.rpartition("Available Moves:")[2])[0]


def broken(seen: str) -> str:
    """Plays nothing."""
    raise LookupError(f"no move after {len(seen)} characters")


class Counting:
    """Drops into one column of Connect Four after the other: an instance for each episode."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, seen: str) -> str:
        self.asked += 1
        return f"[col {self.asked % 7}]"
