"""Training on two ranks: processes that learn one model together, each of which plays rollouts of its own."""

import re
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from support.models import save_tiny_qwen3
from support.ranks import run_ranks
from support.trl_trainers import check_ratios

pytestmark = pytest.mark.heavy
patient = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]

Ranks = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def ranks(tmp_path: Path) -> Ranks:
    """Runs the script on two ranks, and returns what each of them saw."""
    return lambda *options: run_ranks(tmp_path, *options)


class TestRanks:
    pytestmark = patient

    def test_each_has_the_completions_that_it_asked_for_and_nobody_waits_in_a_rollout(self, ranks: Ranks) -> None:
        """S03 with two ranks, one of which can't play before the other has done so."""
        seen = ranks("--marked")
        for rank, own in enumerate(seen):
            numbers = list(range(4 * rank, 4 * rank + 4))
            assert own["outcomes"] == [["terminated"] * 4]
            assert sorted(own["rewards"][0]) == numbers
            markers = {int(number): advantage for text, advantage in own["learned"] for number in _markers(text)}
            # The mean is that of the whole group, of which each rank has a half.
            assert markers == {number: pytest.approx(number - 3.5) for number in numbers}
            for text, _ in own["learned"]:  # what is said in two turns is said by one rollout
                (number,) = set(_markers(text))
                assert len(_markers(text)) == (2 if int(number) % 2 == 0 else 1)
        assert seen[0]["log"][0]["reward"] == 3.5

    def test_each_plays_with_the_model_that_they_share(self, ranks: Ranks) -> None:
        seen = ranks()
        for own in seen:
            assert own["versions"] == [[0], [1], [2]]
            assert [len(batch) for batch in own["rewards"]] == [4, 4, 4]
            assert not any(outcome.startswith("failed") for batch in own["outcomes"] for outcome in batch)
        for step in range(3):
            rewards = [reward for own in seen for reward in own["rewards"][step]]
            assert seen[0]["log"][step]["reward"] == pytest.approx(fmean(rewards), abs=1e-5)
            said = [tuple(ids) for own in seen for ids in own["said"][step]]
            assert len(set(said)) == 8  # luck of its own
            # A group of eight on two ranks, no two rollouts of which may have the same place in it.
            places = [place for own in seen for place in own["places"][step]]
            task, seed, _ = places[0]
            assert places == [[task, seed, index] for index in range(8)]

    def test_each_may_have_a_vllm_of_its_own(self, ranks: Ranks, tmp_path: Path) -> None:
        model = tmp_path / "model"
        save_tiny_qwen3(model)
        seen = ranks("--colocate", str(model))
        check_ratios(seen[0]["log"])
        for own in seen:
            assert own["versions"] == [[0], [1], [2]]
            assert not any(outcome.startswith("failed") for batch in own["outcomes"] for outcome in batch)
        assert len({tuple(ids) for own in seen for ids in own["said"][0]}) == 8


def _markers(text: str) -> list[str]:
    return re.findall(r"M(\d+)M", text)
