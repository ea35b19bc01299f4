"""Connect Four: its board, its rules, and its opponent."""

from random import Random

import pytest

from gymhost.envs.shelf.connect_four import ConnectFour, opponent
from gymhost.envs.shelf.connect_four_board import Board
from gymhost.envs.shelf.scripted import call, calls


def board(*rows: str) -> Board:
    """Returns a board whose lowest rows are these, the highest of them first."""
    return Board.read(" ".join(row) for row in rows)


@pytest.mark.parametrize(
    "rows",
    [
        ("XXXX...",),
        ("...XXXX",),
        ("X......", "X......", "X......", "X......"),
        ("X......", "OX.....", "OOX....", "OOOX..."),
        ("......X", ".....XO", "....XOO", "...XOOO"),
    ],
)
def test_four_in_a_line_win(rows: tuple[str, ...]) -> None:
    assert board(*rows).wins("X")
    assert not board(*rows).wins("O")


@pytest.mark.parametrize(
    "rows",
    [
        ("XXX.XXX",),
        # The end of a column does not go on in the next one.
        (".X.....", ".X.....", "OO.....", "XO.....", "XO.....", "XO....."),
        ("XXXOXXX", "OOOXOOO"),
    ],
)
def test_less_does_not(rows: tuple[str, ...]) -> None:
    assert not board(*rows).wins("X")


def test_a_board_is_read_as_it_is_written() -> None:
    written = str(board("X......", "O..X..."))
    assert written.splitlines()[-3:] == ["X . . . . . .", "O . . X . . .", "1 2 3 4 5 6 7"]
    assert str(Board.read(written.splitlines()[:-1])) == written


def test_the_opponent_wins_where_it_can_and_else_prevents_a_loss() -> None:
    for seed in range(20):
        assert opponent(board("XXX....", "OOO...."), Random(seed)) == 3
        assert opponent(board("XXX.OO."), Random(seed)) == 3
        assert opponent(board("OOO.XXX"), Random(seed)) == 3
    assert {opponent(Board(), Random(seed)) for seed in range(100)} == set(range(7))


def game(task: int) -> ConnectFour:
    env = ConnectFour()
    env.reset(options={"task": task, "split": "train"})
    return env


def test_every_other_game_is_begun_by_the_opponent() -> None:
    env = ConnectFour()
    for task in range(6):
        opening, _ = env.reset(options={"task": task})
        rules, _, shown = opening[0]["content"].partition("\n\n")
        assert rules.endswith("Your opponent has begun." if task % 2 else "You begin.")
        assert (shown.count("O"), shown.count("X")) == (task % 2, 0)


def test_the_same_moves_are_answered_in_the_same_way() -> None:
    one, other = (game(4) for _ in range(2))
    for column in (1, 3, 3, 7):
        assert one.step(call("drop", column=column))[:2] == other.step(call("drop", column=column))[:2]
    openings = {game(task).step(call("drop", column=1))[0][0]["content"] for task in range(0, 60, 2)}
    assert len(openings) > 3


def test_the_third_fault_loses() -> None:
    env = game(0)
    observation, *_ = env.step(call("drop", column=8))
    assert observation[0]["content"] == "Error: column 8 does not exist."
    assert not env.step("I think.")[2]
    observation, reward, terminated, _, info = env.step(call("drop", column=0))
    assert "You lose" in observation[0]["content"]
    assert (reward, terminated, info["won"]) == (0.0, True, False)


def test_calls_after_the_last_fault_are_not_played() -> None:
    observation, reward, terminated, *_ = game(0).step(calls(*(("drop", {"column": 9}),) * 3, ("drop", {"column": 4})))
    assert (reward, terminated) == (0.0, True)
    assert "Not run" in observation[-1]["content"]


def test_a_full_column_is_refused() -> None:
    env = game(0)
    for _ in range(6):
        observation, _, terminated, *_ = env.step(call("drop", column=1))
        assert not terminated
        if "is full" in observation[0]["content"]:
            return
    raise AssertionError("the column takes more than six discs")


def test_a_draw_is_worth_half() -> None:
    env = game(0)
    # Two discs wide and one high at a time: no line of four anywhere, and one place is left.
    rows = ["XXOOXXO", "OOXXOOX", "XXOOXXO", "OOXXOOX", "XXOOXXO", "OOXXOO."]
    env._board = board(*rows[::-1])
    assert not env._board.wins("X")
    assert not env._board.wins("O")
    _, reward, terminated, _, info = env.step(call("drop", column=7))
    assert (reward, terminated, info["won"]) == (0.5, True, False)
