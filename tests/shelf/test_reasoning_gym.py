"""ReasoningGym: its datasets, its scores, and answers that a scorer would run as code."""

from pathlib import Path
from typing import Any

import pytest
from reasoning_gym.factory import DATASETS

from gymhost.envs.shelf.reasoning_gym import _HARMLESS, MIX, REFUSED, ReasoningGym
from gymhost.envs.shelf.scripted import call


def reward(env: ReasoningGym, task: int, answer: str, split: str = "test") -> float:
    env.reset(options={"split": split, "task": task})
    _, reward, terminated, _, info = env.step(call("answer", answer=answer))
    assert terminated
    assert not info.get("reward_invalid")
    return reward


def test_the_datasets_own_answers_get_full_marks() -> None:
    env = ReasoningGym()
    for split, tasks in env.splits.items():
        played = tasks[:60]
        assert {task["dataset"] for task in played} == set(MIX)
        assert [reward(env, i, task["entry"]["answer"], split) for i, task in enumerate(played)] == [1.0] * 60


@pytest.mark.parametrize("name", ["countdown", "n_queens", "puzzle24", "spiral_matrix", "string_insertion"])
def test_datasets_whose_scorers_evaluate_are_scored_and_run_nothing(name: str, tmp_path: Path) -> None:
    env = ReasoningGym(datasets=name)
    mark = tmp_path / "mark"
    hostile = f"__import__('pathlib').Path({str(mark)!r}).touch()"
    for answer in (hostile, f"[{hostile}]", f"[[{hostile}]]", "9**9**9**9", "(lambda: 24)()"):
        assert reward(env, 0, answer) == 0.0
    assert not mark.exists()
    assert reward(env, 0, env.splits["test"][0]["entry"]["answer"]) == 1.0


def test_scorers_that_evaluate_are_guarded_or_refused() -> None:
    """Tell what to look at when a new version of reasoning-gym has more of them."""
    import reasoning_gym

    root = Path(reasoning_gym.__file__).parent
    evaluating = {
        path.stem
        for path in root.rglob("*.py")
        if any(
            f"{how}(answer" in path.read_text() or f"{how}(user" in path.read_text() for how in ("eval", "parse_expr")
        )
    }
    assert evaluating <= set(_HARMLESS) | set(REFUSED)


@pytest.mark.parametrize(
    ("dataset", "answer"),
    [
        ("coin_flip", "1e99999999"),
        ("prime_factorization", "I can't do this."),
        ("complex_arithmetic", "(" * 4000),
        ("complex_arithmetic", "nan"),
        ("decimal_arithmetic", "1e999999999999"),
        ("knights_knaves", "\x00"),
        ("maze", "9" * 5000),
    ],
)
def test_answers_that_a_scorer_chokes_on_are_wrong(dataset: str, answer: str) -> None:
    assert reward(ReasoningGym(datasets=dataset), 0, answer) == 0.0


def test_a_part_counts_where_it_is_asked_for() -> None:
    for partial, least, most in ((False, 0.0, 0.0), (True, 0.01, 0.99)):
        env = ReasoningGym(datasets="gcd", partial=partial)
        answer = f"It is {env.splits['test'][0]['entry']['answer']}"
        assert least <= reward(env, 0, answer) <= most


def test_options_make_other_tasks() -> None:
    env = ReasoningGym(datasets="chain_sum", options={"chain_sum": {"min_terms": 9, "max_terms": 9}})
    question: str = env.splits["test"][0]["question"]
    assert len([sign for sign in question.split() if sign in "+-"]) == 8


def test_a_long_answer_is_refused() -> None:
    env = ReasoningGym(datasets="gcd")
    env.reset(seed=0)
    observation, _, terminated, *_ = env.step(call("answer", answer="1" * 5001))
    assert "at most 5000 characters" in observation[0]["content"]
    assert not terminated


@pytest.mark.parametrize(
    ("kwargs", "why"),
    [
        ({"datasets": "nonsense"}, "has no dataset 'nonsense'; it has .*chain_sum"),
        ({"datasets": "composite"}, "can't be played: name the datasets"),
        ({"datasets": "simple_integration"}, "can't be played: its scorer runs answers as code"),
        ({"datasets": []}, "options are for datasets that are played"),
        ({"datasets": "gcd", "options": {"lcm": {}}}, "not for lcm"),
        ({"datasets": "gcd", "options": {"gcd": {"colour": 1}}}, "makes no dataset 'gcd' with .*colour"),
        ({"datasets": "gcd", "options": {"gcd": {"min_numbers": -1}}}, "makes no dataset 'gcd'"),
    ],
)
def test_what_can_not_be_played_is_refused(kwargs: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        ReasoningGym(**kwargs)


def test_a_dataset_with_too_few_questions_says_so() -> None:
    env = ReasoningGym(datasets="count_primes", options={"count_primes": {"min_n": 5, "max_n": 6}})
    with pytest.raises(ValueError, match="too few different questions"):
        env.splits["test"][:200]


def test_what_is_refused_is_there_to_be_refused() -> None:
    assert set(REFUSED) <= set(DATASETS)
    assert set(_HARMLESS) <= set(DATASETS) - set(REFUSED)
