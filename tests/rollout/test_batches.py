"""Rows as padded and as packed arrays."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymhost.rollout import Row, pack, pad
from support.trajectories import row, rows, trajectory


def test_rows_become_padded_arrays() -> None:
    two = trajectory(token_rows=[row([1], [2], [], [3]), Row(prompt_ids=[9] * 8)])
    arrays = pad([trajectory(), trajectory(token_rows=[]), two], pad_id=0, advantages=[2.0, 1.0, -1.0])
    assert arrays["input_ids"].tolist() == [[1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 0, 0, 0, 0]]
    assert arrays["attention_mask"].sum(axis=1).tolist() == [7, 3]
    assert arrays["position_ids"].tolist() == [[0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 0, 0, 0, 0]]
    assert arrays["loss_mask"].astype(int).tolist() == [[0, 0, 1, 0, 0, 1, 1], [0, 1, 1, 0, 0, 0, 0]]
    assert arrays["labels"].tolist() == [[-100, -100, 3, -100, -100, 6, 7], [-100, 2, 3, -100, -100, -100, -100]]
    assert arrays["logprobs"].tolist() == [[0, 0, -0.5, 0, 0, -0.25, -0.25], [0, -0.5, -0.25, 0, 0, 0, 0]]
    assert arrays["policy_versions"].tolist() == [[-1, -1, 1, -1, -1, 2, 2], [-1, 1, 2, -1, -1, -1, -1]]
    assert arrays["advantages"].tolist() == [[0, 0, 2, 0, 0, 2, 2], [0, -1, -1, 0, 0, 0, 0]]
    assert arrays["trajectory"].tolist() == [0, 2]
    assert pad([], pad_id=0)["input_ids"].shape == (0, 0)


def test_rows_become_packed_arrays() -> None:
    made = [row([1], [2], [], [3]), row([4], [5], [6], [7, 8]), row([9], [10], [], [])]
    arrays = pack(made, 6, pad_id=0, advantages=[1.0, 2.0, 3.0])
    assert arrays["input_ids"].tolist() == [[4, 5, 6, 7, 8], [1, 2, 3, 9, 10]]
    assert arrays["position_ids"].tolist() == [[0, 1, 2, 3, 4], [0, 1, 2, 0, 1]]
    assert arrays["sequence_ids"].tolist() == [[1] * 5, [0, 0, 0, 2, 2]]
    assert arrays["cu_seqlens"].tolist() == [0, 5, 8, 10]
    assert arrays["loss_mask"].astype(int).tolist() == [[0, 1, 0, 1, 1], [0, 1, 1, 0, 1]]
    assert arrays["labels"].tolist() == [[-100, 5, -100, 7, 8], [-100, 2, 3, -100, 10]]
    assert arrays["logprobs"].tolist() == [[0, -0.5, 0, -0.25, -0.25], [0, -0.5, -0.25, 0, -0.5]]
    assert arrays["policy_versions"].tolist() == [[-1, 1, -1, 2, 2], [-1, 1, 2, -1, 1]]
    assert arrays["advantages"].tolist() == [[0, 2, 0, 2, 2], [0, 1, 1, 0, 3]]
    assert arrays["trajectory"].tolist() == [0, 1, 2]
    assert {name: array.shape for name, array in pack([], 6, 0).items() if array.size} == {"cu_seqlens": (1,)}


def test_what_fills_a_line_up_is_a_sequence_of_its_own() -> None:
    arrays = pack([row([1, 2], [3], [], [4]), row([5], [6], [], [])], 5, pad_id=9)
    assert arrays["input_ids"].tolist() == [[1, 2, 3, 4], [5, 6, 9, 9]]
    assert arrays["position_ids"].tolist() == [[0, 1, 2, 3], [0, 1, 0, 1]]
    assert arrays["sequence_ids"].tolist() == [[0] * 4, [1, 1, -1, -1]]
    assert arrays["cu_seqlens"].tolist() == [0, 4, 6, 8]


@pytest.mark.parametrize("how", [pad, lambda items, fill: pack(items, 8, fill)], ids=["padded", "packed"])
def test_the_first_token_of_a_row_is_never_learned(how: Any) -> None:
    """Nothing stands before it; in a packed line, the row before would."""
    bare = row([], [1, 2], [], [])  # without a prompt, so that its first token was sampled
    arrays = how([bare, bare], 0)
    assert arrays["loss_mask"].ravel().astype(int).tolist() == [0, 1, 0, 1]
    assert arrays["labels"].ravel().tolist() == [-100, 2, -100, 2]


@given(st.lists(rows().filter(len), max_size=8), st.integers(0, 20))
def test_a_packed_batch_holds_what_a_padded_one_does(items: list[Row], spare: int) -> None:
    advantages = np.arange(len(items)) + 1.0
    length = max((len(item) for item in items), default=0) + spare
    padded = pad(items, 0, advantages=advantages)
    packed = pack(items, length, 0, advantages=advantages)
    assert packed["trajectory"].tolist() == padded["trajectory"].tolist()
    assert packed["input_ids"].shape[1] <= length
    for number, kept in enumerate(items):
        there = packed["sequence_ids"] == number
        assert there.any(axis=1).sum() == 1
        for name in ("input_ids", "position_ids", "loss_mask", "labels", "logprobs", "policy_versions", "advantages"):
            assert packed[name][there].tolist() == padded[name][number, : len(kept)].tolist(), name
    ends = packed["cu_seqlens"].tolist()
    assert (ends[0], ends[-1]) == (0, packed["input_ids"].size)
    for start, end in pairwise(ends):
        assert packed["position_ids"].ravel()[start:end].tolist() == list(range(end - start))
        assert len(set(packed["sequence_ids"].ravel()[start:end])) == 1


def test_lines_are_filled_well() -> None:
    made = [row([1], [2] * (size - 1), [], []) for size in (7, 6, 5, 5, 4, 3) * 20]
    arrays = pack(made, 10, pad_id=0)
    assert arrays["input_ids"].shape == (60, 10)  # 600 tokens, and not one to fill up


def test_a_row_that_is_too_long_is_named() -> None:
    with pytest.raises(ValueError, match=r"a row of item 1 has 7 tokens, more than a line's 6: raise length"):
        pack([row([1], [2], [], [3]), trajectory()], 6, pad_id=0)


@pytest.mark.parametrize(
    ("advantages", "message"), [([1.0], r"2 items came with .* \(1,\)"), ([1.0, float("inf")], r"item 1 is infinite")]
)
def test_advantages_that_do_not_fit_are_refused(advantages: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pad([trajectory(), trajectory()], 0, advantages=advantages)
