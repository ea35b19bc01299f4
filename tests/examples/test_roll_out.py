"""The example that rolls out a model: what it prints, with a stand-in for vLLM that wins every other game."""

import asyncio
import itertools
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from support.command import environment
from support.completions_server import CompletionsServer, choice
from support.server import PATIENCE
from support.tokenizers import call, decode, encode, qwen3_tokenizer

pytestmark = pytest.mark.heavy

EXAMPLE = Path(__file__).parents[2] / "examples/roll_out.py"


async def test_it_packs_groups_that_have_something_to_teach(tmp_path: Path) -> None:
    from trl.chat_template_utils import qwen3_chat_template

    qwen3_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(qwen3_chat_template)
    games = itertools.count()

    def answer(body: dict[str, Any]) -> Any:
        said = decode(body["prompt"])
        if len(re.findall("Guess the number", said)) == 1 and "<tool_response>" not in said and next(games) % 2:
            return choice(encode("I give up.<|im_end|>"))
        low, high = re.findall(r"from (\d+) to (\d+)", said)[-1]
        return choice(encode(call("guess", f'{{"number": {(int(low) + int(high)) // 2}}}')))

    async with CompletionsServer(answer) as vllm:
        vllm.max_model_len = 4096
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(EXAMPLE), str(tmp_path), vllm.url),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment(),
        )
        async with asyncio.timeout(PATIENCE):
            said, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    lines = said.decode().splitlines()
    assert len(lines) == 4
    for line in lines:
        rewards, tokens = re.fullmatch(r"task \d+: rewards \[(.+)\], (\d+) tokens to train on", line).groups()  # pyright: ignore[reportOptionalMemberAccess]
        assert len(rewards.split(", ")) == 8
        assert len(set(rewards.split(", "))) > 1
        assert int(tokens) > 0
