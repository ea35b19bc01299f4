"""The board of Connect Four, as two sets of bits."""

from collections.abc import Iterable
from typing import Self

COLUMNS = 7
ROWS = 6

# A column takes one bit more than it has rows, so that no line goes on in the next one.
_HEIGHT = ROWS + 1
_DIRECTIONS = (1, _HEIGHT - 1, _HEIGHT, _HEIGHT + 1)


class Board:
    """Discs in columns: `X` and `O` players' take turns, but that is not enforced.

    Attributes:
        discs: How many there are.
    """

    __slots__ = ("_bits", "_heights", "discs")

    def __init__(self) -> None:
        self._bits = {"X": 0, "O": 0}
        self._heights = [0] * COLUMNS
        self.discs = 0

    @classmethod
    def read(cls, lines: Iterable[str]) -> Self:
        """Reads a board from its rows as `str` writes them, the highest first."""
        board = cls()
        for line in reversed(list(lines)):
            for column, player in enumerate(line.split()):
                if player in board._bits:
                    board.drop(column, player)
        return board

    def free(self) -> list[int]:
        """Returns the columns that are not full, counted from 0."""
        return [column for column in range(COLUMNS) if self._heights[column] < ROWS]

    def drop(self, column: int, player: str) -> None:
        """Adds a disc to a column that is not full."""
        self._bits[player] |= 1 << (column * _HEIGHT + self._heights[column])
        self._heights[column] += 1
        self.discs += 1

    def take(self, column: int, player: str) -> None:
        """Takes the highest disc of a column away, which is the player's."""
        self._heights[column] -= 1
        self._bits[player] ^= 1 << (column * _HEIGHT + self._heights[column])
        self.discs -= 1

    def wins(self, player: str) -> bool:
        """Whether the player has four in a line."""
        return _has_four(self._bits[player])

    def would_win(self, column: int, player: str) -> bool:
        """Whether a disc in a column that is not full makes four in a line."""
        return _has_four(self._bits[player] | 1 << (column * _HEIGHT + self._heights[column]))

    def __str__(self) -> str:
        rows = [" ".join(self._at(column, row) for column in range(COLUMNS)) for row in reversed(range(ROWS))]
        return "\n".join([*rows, " ".join(str(column + 1) for column in range(COLUMNS))])

    def _at(self, column: int, row: int) -> str:
        bit = 1 << (column * _HEIGHT + row)
        return next((player for player, bits in self._bits.items() if bits & bit), ".")


def _has_four(bits: int) -> bool:
    for step in _DIRECTIONS:
        pairs = bits & (bits >> step)
        if pairs & (pairs >> 2 * step):
            return True
    return False
