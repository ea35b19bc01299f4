"""Small random models that are made on the spot."""

from pathlib import Path
from typing import Any

from support.tokenizers import qwen3_tokenizer


def tiny_qwen3(seed: int = 0) -> Any:
    """A random Qwen3 in float32 with the vocabulary of the test tokenizer.

    Its embeddings are not tied: vLLM on a CPU can't reload tied ones.
    """
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(qwen3_tokenizer()),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        initializer_range=0.1,
        eos_token_id=qwen3_tokenizer().eos_token_id,
        pad_token_id=qwen3_tokenizer().pad_token_id,
        dtype="float32",
    )
    return Qwen3ForCausalLM(config).float().eval()


def save_tiny_qwen3(folder: Path, seed: int = 0) -> Any:
    """Saves the model with its tokenizer, and returns it."""
    model = tiny_qwen3(seed)
    model.save_pretrained(folder)
    qwen3_tokenizer().save_pretrained(folder)
    return model


def logprobs_of(model: Any, prompt_ids: list[int], token_ids: list[int]) -> list[float]:
    """The log-probs of `token_ids` after a prompt, at temperature 1, in one forward pass."""
    import torch

    with torch.no_grad():
        logits = model(torch.tensor([prompt_ids + token_ids])).logits[0].float()
    table = logits.log_softmax(-1)
    return [table[len(prompt_ids) + i - 1, token].item() for i, token in enumerate(token_ids)]
