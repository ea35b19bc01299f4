"""The environments that come with gymhost."""

from collections import Counter
from random import Random
from typing import Any

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

from gymhost.envs import make
from gymhost.envs.shelf.guess_number import GuessNumber, best_possible, secret
from gymhost.envs.shelf.guess_number_expert import binary_search, blind, call, consistent
from gymhost.envs.trials import conversation, play


@pytest.mark.parametrize(
    "id",
    [
        "gymhost/ConnectFour-v0",
        "gymhost/Echo-v0",
        "gymhost/GuessNumber-v0",
        "gymhost/Math-v0",
        "gymhost/ReasoningGym-v0",
        "gymhost/Search-v0",
        "gymhost/TextArena-v0",
        "gymhost/Wordle-v0",
    ],
)
def test_gymnasiums_checker_passes_without_a_warning(id: str) -> None:
    check_env(gymnasium.make(id).unwrapped)


def test_gymnasium_alone_can_make_it() -> None:
    env = gymnasium.make("gymhost.envs:gymhost/GuessNumber-v0", high=3)
    assert env.reset(seed=1)[0][0]["content"] == "Guess the number from 1 to 3. You have 3 guesses."
    assert env.step(call(2))[0][0]["role"] == "tool"


def test_echo_answers_with_the_same_text_and_ends() -> None:
    env = make("gymhost/Echo-v0", length=2)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step("early")
    assert env.reset() == ("", {})
    assert env.step("hállo\n") == ("hállo\n", 1.0, False, False, {})
    with pytest.raises(gymnasium.error.InvalidAction):
        env.step(3)
    assert env.step("") == ("", 1.0, True, False, {})
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step("late")
    with pytest.raises(ValueError, match="length is at least 1"):
        make("gymhost/Echo-v0", length=0)


def game(number: int, **kwargs: Any) -> GuessNumber:
    """Returns a game with this secret, reset."""
    env = GuessNumber(**kwargs)
    task = next(i for i in range(1000) if secret(env.low, env.high, i) == number)
    env.reset(options={"task": task})
    return env


def said(env: GuessNumber, number: int) -> str:
    return env.step(call(number))[0][0]["content"]


def test_a_guess_is_answered_with_what_is_left() -> None:
    env = GuessNumber()
    observation, info = env.reset(options={"task": 5})
    assert observation == [{"role": "user", "content": "Guess the number from 1 to 7. You have 3 guesses."}]
    assert info == {"task": 5, "split": "train"}
    env = game(5)
    assert said(env, 3) == "Too low, it is from 4 to 7."
    assert said(env, 6) == "Too high, it is from 4 to 5."
    observation, reward, terminated, truncated, info = env.step(call(5))
    assert observation[0]["content"] == "Correct."
    assert (reward, terminated, truncated, info["won"]) == (1.0, True, False, True)
    assert info["rewards"] == {"win": 1.0, "format": 0.0}


def test_a_guess_from_outside_narrows_nothing() -> None:
    env = game(5)
    assert said(env, -3) == "Too low, it is from 1 to 7."
    assert said(env, 100) == "Too high, it is from 1 to 7."


def test_the_last_guess_ends_the_game_and_the_secret_stays_hidden() -> None:
    env = game(5)
    said(env, 1)
    said(env, 2)
    observation, reward, terminated, truncated, info = env.step(call(3))
    assert (reward, terminated, truncated, info["won"]) == (0.0, True, False, False)
    assert observation[0]["content"] == "Too low, it is from 4 to 7."


@pytest.mark.parametrize(
    "action",
    [
        "seven",
        {"content": "", "tool_calls": [{}]},
        {"content": "", "tool_calls": [{"function": {"name": "guess", "arguments": "7"}}]},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"function": {"name": "guess", "arguments": {"number": "5"}}}],
        },
    ],
)
def test_a_turn_without_a_valid_call_costs_a_guess_and_half_a_point(action: Any) -> None:
    env = game(5)
    observation, reward, terminated, *_ = env.step(action)
    assert (len(observation), reward, terminated) == (1, 0.0, False)
    said(env, 4)
    _, reward, terminated, _, info = env.step(call(5))
    assert (reward, terminated, info["rewards"]) == (0.5, True, {"win": 1.0, "format": -1.0})
    env = game(5, guesses=1)
    _, reward, terminated, _, info = env.step(action)
    assert (reward, terminated, info["won"]) == (-0.5, True, False)


@pytest.mark.parametrize(("low", "high"), [(1, 7), (1, 15), (-3, 1), (4, 4)])
def test_every_number_comes_once_in_as_many_games(low: int, high: int) -> None:
    width = high - low + 1
    for first in (0, 1, 5, 1_000_003):
        assert sorted(secret(low, high, first + i) for i in range(width)) == list(range(low, high + 1))
    if width > 4:
        assert [secret(low, high, i) for i in range(width)] != list(range(low, high + 1))


def test_the_games_are_the_same_everywhere() -> None:
    assert [secret(1, 7, i) for i in range(7)] == [1, 4, 5, 7, 2, 3, 6]


def test_training_and_test_games_have_nothing_in_common() -> None:
    splits = GuessNumber().splits
    assert list(splits) == ["train", "test"]
    train, test = ({tasks[i]["game"] for i in (0, 1, tasks.size - 1)} for tasks in splits.values() if tasks.size)
    assert not train & test
    assert min(splits["test"][i]["game"] for i in range(500)) > splits["train"][-1]["game"]
    assert splits["test"].size == 500


def test_the_expert_wins_whenever_it_can_be_done_and_others_less_often() -> None:
    random = Random(0)
    policies = {
        "expert": binary_search,
        "consistent": lambda messages: consistent(random, messages),
        "blind": lambda messages: blind(random, messages),
    }
    wins: Counter[str] = Counter()
    env = GuessNumber()
    for name, policy in policies.items():
        for task in range(140):
            episode = play(env, lambda episode, policy=policy: policy(conversation(episode)), task=task, split="test")
            wins[name] += episode.steps[-1][4]["won"]
    assert wins["expert"] == 140
    assert 0.55 < wins["consistent"] / 140 < 0.8
    assert 0.25 < wins["blind"] / 140 < 0.5


@pytest.mark.parametrize(("high", "guesses", "best"), [(7, 3, 1.0), (15, 3, 7 / 15), (8, 3, 7 / 8), (1, 5, 1.0)])
def test_the_best_possible_is_what_binary_search_reaches(high: int, guesses: int, best: float) -> None:
    env = GuessNumber(high=high, guesses=guesses)
    assert best_possible(1, high, guesses) == pytest.approx(best)
    won = [
        play(env, lambda episode: binary_search(conversation(episode)), task=task).steps[-1][4]["won"]
        for task in range(high)
    ]
    assert sum(won) / high == pytest.approx(best)


def test_a_game_that_can_not_be_is_refused() -> None:
    with pytest.raises(ValueError, match=r"high \(0\) is below low \(1\)"):
        GuessNumber(high=0)
    with pytest.raises(ValueError, match="guesses is at least 1"):
        GuessNumber(guesses=0)
