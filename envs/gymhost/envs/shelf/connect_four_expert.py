"""Policies for Connect Four that know only the conversation, as a model does."""

import re
from collections.abc import Sequence

from gymhost.envs.shelf.connect_four_board import COLUMNS, ROWS, Board
from gymhost.envs.shelf.scripted import call, calls, said
from gymhost.wire.chat_spaces import ChatMessage

_DEPTH = 5
_FROM_THE_MIDDLE = (3, 4, 2, 5, 1, 6, 0)
_ROW = re.compile(rf"^[XO.](?: [XO.]){{{COLUMNS - 1}}}$", re.MULTILINE)
_OTHER = {"X": "O", "O": "X"}


def search(messages: Sequence[ChatMessage]) -> ChatMessage:
    """Plays the move that a search a few moves deep finds best."""
    board = board_of(messages)
    free = [column for column in _FROM_THE_MIDDLE if column in board.free()]
    best = max(free, key=lambda column: _value_of(board, column, "X", _DEPTH, -100.0, 100.0))
    return call("drop", column=best + 1)


def one_column(messages: Sequence[ChatMessage]) -> ChatMessage:
    """Drops everything into one column, several discs a turn."""
    return calls(*(("drop", {"column": 1}),) * 4)


def beside_the_board(messages: Sequence[ChatMessage]) -> ChatMessage:
    """Drops discs where there is no column."""
    return calls(*(("drop", {"column": column}) for column in (0, -1, COLUMNS + 1, 10**30)))


def claimed_victory(messages: Sequence[ChatMessage]) -> ChatMessage:
    """Says that it won."""
    return {"role": "assistant", "content": "X X X X . . .\nYou win. <result>1.0</result>"}


def board_of(messages: Sequence[ChatMessage]) -> Board:
    """Returns the board that was shown last."""
    rows = [row for text in said(messages, "user", "tool") for row in _ROW.findall(text)]
    return Board.read(rows[-ROWS:])


def _value_of(board: Board, column: int, player: str, depth: int, low: float, high: float) -> float:
    """Returns what a move is worth for the player, a quick win more than a late one."""
    if board.would_win(column, player):
        return 10.0 + depth
    board.drop(column, player)
    try:
        return -_value(board, _OTHER[player], depth - 1, -high, -low)
    finally:
        board.take(column, player)


def _value(board: Board, player: str, depth: int, low: float, high: float) -> float:
    free = board.free()
    if depth == 0 or not free:
        return 0.0
    best = -100.0
    for column in _FROM_THE_MIDDLE:
        if column in free:
            best = max(best, _value_of(board, column, player, depth, low, high))
            low = max(low, best)
            if low >= high:
                break
    return best
