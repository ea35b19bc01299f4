"""Wordle: what guesses are told, and which words there are."""

from typing import Any

import pytest

from gymhost.envs.shelf.scripted import call, calls
from gymhost.envs.shelf.wordle import Wordle, feedback
from gymhost.envs.shelf.wordle_expert import narrowing
from gymhost.envs.shelf.wordle_words import ANSWERS, GUESSES
from gymhost.envs.trials import conversation, play


@pytest.mark.parametrize(
    ("guess", "word", "marks"),
    [
        ("crane", "crane", "GGGGG"),
        ("crane", "moist", "-----"),
        ("stare", "tears", "YYGGY"),
        ("least", "stale", "YYGYY"),
        # A letter guessed twice that is there once is marked once: at its place where it is there, else from the left.
        ("eerie", "great", "Y-Y--"),
        ("sassy", "glass", "YY-G-"),
        ("level", "lemon", "GG---"),
        ("allow", "label", "YYY--"),
        ("speed", "erase", "Y-YY-"),
        ("geese", "eight", "YY---"),
    ],
)
def test_letters_are_marked_as_often_as_the_word_has_them(guess: str, word: str, marks: str) -> None:
    assert feedback(guess, word) == marks


def test_words_have_five_letters_and_come_once() -> None:
    assert all(len(word) == 5 and word.isascii() and word.islower() for word in GUESSES)
    assert len(ANSWERS) == len(set(ANSWERS)) >= 500
    assert set(ANSWERS) < GUESSES
    assert list(ANSWERS) == sorted(ANSWERS)


def test_no_word_is_in_both_splits() -> None:
    splits = Wordle().splits
    words = {split: {task["word"] for task in tasks} for split, tasks in splits.items()}
    assert not words["train"] & words["test"]
    assert len(words["train"]) >= 200
    assert words["train"] | words["test"] == set(ANSWERS)


def game(word: str, **kwargs: Any) -> Wordle:
    """Returns a game with this word, reset."""
    env = Wordle(**kwargs)
    for split, tasks in env.splits.items():
        for index, task in enumerate(tasks):
            if task["word"] == word:
                env.reset(options={"split": split, "task": index})
                return env
    raise AssertionError(word)


def test_a_guess_is_answered_and_the_right_one_wins() -> None:
    env = game("great")
    observation, reward, terminated, *_ = env.step(call("guess", word="Eerie"))
    assert observation[0]["content"] == "eerie Y-Y--, 5 guesses left"
    assert (reward, terminated) == (0.0, False)
    observation, reward, terminated, _, info = env.step(call("guess", word="great"))
    assert observation[0]["content"] == "great GGGGG"
    assert (reward, terminated, info["won"]) == (1.0, True, True)


@pytest.mark.parametrize("word", ["abcde", "greats", "", "gr3at", "ÀÉÎÕÜ", "gre at"])
def test_what_is_no_word_is_refused_and_takes_no_guess(word: str) -> None:
    env = game("great")
    assert env.step(call("guess", word=word))[0][0]["content"].startswith("Error: ")
    assert env.step(call("guess", word="horse"))[0][0]["content"].endswith("5 guesses left")


def test_the_last_guess_ends_it_and_does_not_tell_the_word() -> None:
    env = game("great", guesses=2)
    observation, reward, terminated, _, info = env.step(
        calls(("guess", {"word": "horse"}), ("guess", {"word": "glass"}), ("guess", {"word": "great"}))
    )
    assert "Not run" in observation[2]["content"]
    assert "great" not in repr((observation, info))
    assert (reward, terminated, info["won"]) == (0.0, True, False)


def test_turns_without_a_word_end_it_too() -> None:
    env = game("great", guesses=2)
    for _ in range(3):
        assert not env.step("great")[3]
    *_, truncated, info = env.step("great")
    assert truncated
    assert info["limit"] == "max_turns"
    with pytest.raises(ValueError, match="guesses is at least 1"):
        Wordle(guesses=0)


def test_the_expert_finds_every_held_out_word() -> None:
    env = Wordle()
    size = env.splits["test"].size
    assert size is not None
    for task in range(size):
        assert play(env, lambda episode: narrowing(conversation(episode)), split="test", task=task).reward == 1.0
