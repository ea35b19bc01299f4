"""TextArena: its games behind one tool, their randomness, and what is not played."""

import random
from typing import Any

import pytest

from gymhost.envs.shelf.scripted import call, calls
from gymhost.envs.shelf.textarena import GAMES, TextArena


def answer(env: TextArena, action: str) -> Any:
    return env.step(call("act", action=action))


@pytest.mark.parametrize("game", GAMES)
def test_each_game_starts_in_many_ways_and_never_in_the_same_on_both_sides(game: str) -> None:
    env = TextArena(game=f"{game}-v0")
    starts: dict[str, set[str]] = {"train": set(), "test": set()}
    for split in starts:
        for task in range(8):
            opening, _ = env.reset(options={"split": split, "task": task})
            assert opening[0]["content"].endswith("Move with the tool act.")
            starts[split].add(repr(env._arena.state.game_state))
    assert not starts["train"] & starts["test"]
    assert len(starts["train"]) > 2


def test_an_action_is_answered_and_brackets_may_be_left_out() -> None:
    env = TextArena()
    env.reset(options={"split": "test", "task": 0})
    first = answer(env, "1 2 3 4")[0][0]["content"]
    assert first.startswith("Submitted [1 2 3 4]. Feedback: ")
    second = answer(env, "I think it is [4 3 2 1].")[0][0]["content"]
    assert second.startswith("Submitted [4 3 2 1]. Feedback: ")


def test_a_game_that_is_lost_pays_nothing_unless_a_part_was_asked_for() -> None:
    for partial in (False, True):
        env = TextArena(game="GuessTheNumber-v0", partial=partial)
        env.reset(options={"split": "test", "task": 0})
        hidden = env._arena.state.game_state["game_number"]
        near = hidden - 1 if hidden > 1 else hidden + 1
        answer(env, f"[{near}]")
        assert not answer(env, "nonsense")[2]
        _, reward, terminated, _, info = answer(env, "nonsense")
        assert (terminated, info["won"]) == (True, False)
        assert reward == (pytest.approx(1 - 1 / 19) if partial else 0.0)


def test_an_action_that_the_game_chokes_on_loses_it() -> None:
    env = TextArena(game="GuessTheNumber-v0")
    env.reset(seed=0)
    # More digits than Python makes a number of would be too long an action: so a broken game stands for it.
    env._arena.state.game_state = None
    observation, reward, terminated, _, info = answer(env, "[5]")
    assert "can't play '[5]'" in observation[0]["content"]
    assert (reward, terminated, info["won"]) == (0.0, True, False)


def test_games_draw_from_randomness_of_their_own() -> None:
    def play(*, disturbed: bool) -> list[str]:
        env = TextArena(game="2048-v0")
        env.reset(options={"split": "train", "task": 5})
        said: list[str] = []
        for move in ("[left]", "[right]", "[left]", "[right]", "[up]", "[down]"):
            if disturbed:
                random.seed(said[-1] if said else 0)
                other.step(call("act", action=move))
            said.append(answer(env, move)[0][0]["content"])
        return said

    other = TextArena(game="2048-v0")
    other.reset(options={"split": "train", "task": 6})
    assert play(disturbed=False) == play(disturbed=True)


def test_the_randomness_of_others_stays_as_it_was() -> None:
    before = random.getstate()
    env = TextArena(game="2048-v0")
    env.reset(seed=1)
    answer(env, "[left]")
    assert random.getstate() == before


def test_a_long_action_is_refused() -> None:
    env = TextArena()
    env.reset(seed=0)
    observation, _, terminated, *_ = env.step(calls(("act", {"action": "[1 2 3 4]" * 200})))
    assert "at most 1000 characters" in observation[0]["content"]
    assert not terminated


@pytest.mark.parametrize(
    ("game", "why"),
    [
        ("Wordle-v0", "game is a variant of one of 2048, "),
        ("GuessWho-v0", "game is a variant of one of"),
        ("Chess-v0", "game is a variant of one of"),
        ("Sudoku-v9", "TextArena has no game 'Sudoku-v9'; it has Sudoku-v0, Sudoku-v0-"),
    ],
)
def test_what_is_not_played_is_refused(game: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        TextArena(game=game)
