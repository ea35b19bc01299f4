"""Batches as a model is given them: what it says of a packed row is what it says of the row alone."""

from random import Random
from typing import Any

import numpy as np
import pytest
import torch

from gymhost.rollout import Row, as_tensors, pack, pad
from support.models import tiny_qwen3
from support.tokenizers import qwen3_tokenizer
from support.trajectories import row

pytestmark = pytest.mark.heavy

PAD = qwen3_tokenizer().pad_token_id


def _rows(count: int) -> list[Row]:
    luck = Random(0)

    def some() -> list[int]:
        return [luck.randrange(300) for _ in range(luck.randint(1, 12))]

    return [row(some(), some(), some(), some()) for _ in range(count)]


def _logprobs(model: Any, batch: dict[str, Any], **given: Any) -> torch.Tensor:
    """The log-prob of each token, at its own place, as the docstring of the module says it."""
    with torch.no_grad():
        output = model(batch["input_ids"], use_cache=False, **given).logits[:, :-1].log_softmax(-1)
    said = output.gather(-1, batch["input_ids"][:, 1:, None]).squeeze(-1)
    return torch.nn.functional.pad(said, (1, 0))


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_a_model_says_of_packed_rows_what_it_says_of_padded_ones(attention: str) -> None:
    model = tiny_qwen3()
    model.set_attn_implementation(attention)
    rows = _rows(12)
    padded, packed = as_tensors(pad(rows, PAD)), as_tensors(pack(rows, 100, PAD))
    assert len(packed["input_ids"]) < len(rows) / 2
    alone = _logprobs(model, padded, attention_mask=padded["attention_mask"])
    together = _logprobs(model, packed, position_ids=packed["position_ids"])
    mixed = _logprobs(model, packed)
    for number in range(len(rows)):
        there = packed["sequence_ids"] == number
        wanted = alone[number][padded["loss_mask"][number]]
        torch.testing.assert_close(together[there & packed["loss_mask"]], wanted, atol=1e-4, rtol=0.0)
    # The rows do see each other where the model is not told of them, so that this compares what it is to compare.
    assert (mixed - together)[packed["loss_mask"]].abs().max() > 0.01


def test_the_labels_make_the_loss_of_the_sampled_tokens() -> None:
    model = tiny_qwen3()
    packed = as_tensors(pack(_rows(6), 100, PAD))
    given = {"position_ids": packed["position_ids"]}
    with torch.no_grad():
        loss = model(packed["input_ids"], labels=packed["labels"], use_cache=False, **given).loss
    wanted = -_logprobs(model, packed, **given)[packed["loss_mask"]].mean()
    torch.testing.assert_close(loss, wanted, atol=1e-5, rtol=0.0)


def test_tensors_share_the_memory_of_the_arrays() -> None:
    arrays = pack(_rows(2), 100, PAD, advantages=[1.0, -1.0])
    tensors = as_tensors(arrays)
    assert tensors.keys() == arrays.keys()
    for name, tensor in tensors.items():
        assert np.shares_memory(tensor.numpy(), arrays[name])
    assert (tensors["loss_mask"].dtype, tensors["logprobs"].dtype) == (torch.bool, torch.float32)
    assert as_tensors(arrays, "meta")["input_ids"].device.type == "meta"
