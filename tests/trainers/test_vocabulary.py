"""What other trainers say, in this project's words."""

import pytest

from gymhost.rollout import RolloutRequest, Sampling
from gymhost.trainers.vocabulary import parameters_of, request_of, sampling_of

pytestmark = pytest.mark.heavy


def test_a_row_is_a_request() -> None:
    row = {"task": 3, "split": "test", "kwargs": {"low": 1, "of_other_rows": None}, "data_source": "game"}
    request = request_of(row, "gymhost/GuessNumber-v0", group="g", index=2)
    expected = RolloutRequest("gymhost/GuessNumber-v0", 3, 3, "test", {"low": 1}, group="g", index=2)
    assert request == expected
    assert request_of({"seed": 5}, "Env-v0") == RolloutRequest("Env-v0", seed=5)
    assert request_of({}, "Env-v0") == RolloutRequest("Env-v0")


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.7, top_p=0.9, top_k=5, min_p=0.1, max_tokens=64)])
def test_parameters_go_there_and_back(sampling: Sampling) -> None:
    assert sampling_of(parameters_of(sampling), max_tokens=512) == sampling


def test_what_rollouts_do_not_know_is_refused() -> None:
    assert sampling_of({"repetition_penalty": 1.0, "top_k": -1, "max_tokens": 900}, max_tokens=64) == Sampling(
        max_tokens=64
    )
    for wrong in ({"repetition_penalty": 1.1}, {"stop": ["</answer>"]}, {"min_tokens": 4}):
        with pytest.raises(ValueError, match=f"rollouts .*{next(iter(wrong))}"):
            sampling_of(wrong, max_tokens=64)
