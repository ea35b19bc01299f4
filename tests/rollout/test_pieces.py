"""The texts of single token ids."""

import copy
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from gymhost.rollout import Store
from gymhost.rollout.pieces import piece, pieces
from support.tokenizers import encode, qwen3_tokenizer, smollm2_tokenizer
from support.trajectories import row, trajectory

pytestmark = pytest.mark.heavy


def sentencepiece() -> Any:
    """A tokenizer whose decoder drops the space at the beginning of a text, as that of Llama 2 does."""
    vocabulary = ["<unk>", "<s>", "<0xF0>", "<0x9F>", "<0x99>", "<0x82>", "▁the", "▁", "h", "Ġ"]
    tokenizer = Tokenizer(
        models.BPE({token: i for i, token in enumerate(vocabulary)}, [], unk_token="<unk>", byte_fallback=True)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken("<s>", special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>")


def test_pieces_of_a_byte_level_tokenizer() -> None:
    tokenizer = qwen3_tokenizer()
    text = "Guess a number.\n<tool_call> 4<|im_end|>"
    assert "".join(piece(tokenizer, token_id) for token_id in encode(text)) == text
    assert [piece(tokenizer, token_id) for token_id in encode("🙂")] == ["\\xf0", "\\x9f", "\\x99", "\\x82"]
    for unknown in (len(tokenizer) + 5, 2**40, -1):
        assert piece(tokenizer, unknown) == f"[{unknown}]"


def test_pieces_of_a_tokenizer_that_drops_spaces() -> None:
    tokenizer = sentencepiece()
    assert tokenizer.decode([6, 6]) == "the the"
    assert list(pieces(tokenizer, range(1, 10)).values()) == [
        "<s>", "\\xf0", "\\x9f", "\\x99", "\\x82", " the", " ", "h", "Ġ",
    ]  # fmt: skip


def test_pieces_of_a_real_tokenizer() -> None:
    tokenizer = smollm2_tokenizer()
    text = "The quick brown fox,  42 times: naïve\n"
    ids = tokenizer.encode(text)
    assert "".join(pieces(tokenizer, [token_id]).popitem()[1] for token_id in ids) == text
    assert all(pieces(tokenizer, range(len(tokenizer))).values())


def test_a_store_keeps_the_pieces_of_its_tokens(tmp_path: Path) -> None:
    ids = encode("Guess 🙂<|im_end|>")
    tokenizer = copy.deepcopy(qwen3_tokenizer())
    with Store.create(tmp_path / "run") as store:
        store.append(trajectory(token_rows=[row(ids[:2], ids[2:], [], [])]), tokenizer)
        assert store.pieces == pieces(tokenizer, set(ids))
