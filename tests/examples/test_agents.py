"""The example of agents: what it prints, with a stand-in for vLLM that plays well."""

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

from support.completions_server import CompletionsServer, choice
from support.tokenizers import call, decode, encode, qwen3_tokenizer

pytestmark = pytest.mark.heavy


async def test_both_loops_play_and_are_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from trl.chat_template_utils import qwen3_chat_template

    qwen3_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(qwen3_chat_template)
    asked: list[str] = []

    def answer(body: dict[str, Any]) -> Any:
        said = decode(body["prompt"])
        asked.append(said)
        if "How would you" in said:
            return choice(encode("By halves.<|im_end|>"))
        low, high = re.findall(r"from (\d+) to (\d+)", said)[-1]
        return choice(encode(call("guess", f'{{"number": {(int(low) + int(high)) // 2}}}')))

    async with CompletionsServer(answer) as vllm:
        vllm.max_model_len = 4096
        await importlib.import_module("examples.agents").main(str(tmp_path), vllm.url)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert sum("Go about it like this: By halves." in said for said in asked) > 0
    for line, (name, rows) in zip(lines, [("plan-then-act", 2)] * 2 + [("harnessed", 1)] * 2, strict=True):
        assert re.fullmatch(
            rf"{name}, task \d: terminated, reward 1, tokens sampled by row: (\d+ of \d+(, )?){{{rows}}}", line
        )
