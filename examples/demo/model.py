"""A Qwen3-style model small enough to learn on two CPU cores, with a tokenizer made from the game's own text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from trl.chat_template_utils import qwen3_chat_template

from examples.demo.games import Game

SPECIAL_TOKENS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
]
CONTEXT = 1024


def build_tokenizer(games: Iterable[Game]) -> PreTrainedTokenizerFast:
    """Trains a byte-level BPE tokenizer on what was said in games, so that a whole line of them is a token or two.

    Args:
        games: The games.

    Returns:
        A tokenizer with the chat template of Qwen3. Every number is one token.
    """
    untrained = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), chat_template=qwen3_chat_template)
    pieces = re.compile("|".join(re.escape(token) for token in SPECIAL_TOKENS))
    lines: list[str] = []
    for game in games:
        text = untrained.apply_chat_template(game.messages, tools=list(game.tools), tokenize=False)
        lines += [piece for piece in pieces.split(str(text)) if piece]

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r" ?\d+|\n"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1024,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=64,
        show_progress=False,
    )
    backend.train_from_iterator(lines, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=SPECIAL_TOKENS,
        chat_template=qwen3_chat_template,
        padding_side="left",
    )


def build_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen3ForCausalLM:
    """Makes an untrained model of about 160,000 parameters.

    The embeddings are not tied: vLLM on a CPU reloads the weights of tied float32 models wrongly.
    """
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=False,
        initializer_range=0.1,
        bos_token_id=None,
        eos_token_id=SPECIAL_TOKENS.index("<|im_end|>"),  # the tokenizer numbers them first
        pad_token_id=SPECIAL_TOKENS.index("<|endoftext|>"),
        dtype="float32",
    )
    return Qwen3ForCausalLM(config)


def save(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> str:
    """Writes model and tokenizer where TRL and vLLM can load them, and returns the folder's name."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)
