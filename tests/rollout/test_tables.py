"""Trajectories in Parquet files and in datasets of Hugging Face, and a trainer that takes these."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trl.chat_template_utils import qwen3_chat_template
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from gymhost.rollout import (
    Outcome,
    Store,
    Trajectory,
    read_parquet,
    sft_dataset,
    sft_rows,
    sft_token_rows,
    to_dataset,
    write_parquet,
)
from support.models import tiny_qwen3
from support.tokenizers import encode, with_template
from support.trajectories import GOOD, row, trajectories, trajectory

pytestmark = pytest.mark.heavy

SAY = {"id": "call_0", "type": "function", "function": {"name": "say", "arguments": {"text": "abab", "loud": True}}}
TOOLS = [
    {"name": "guess", "description": "Guesses.", "parameters": {"properties": {"number": {"type": "integer"}}}},
    {"name": "say", "description": "Says.", "parameters": {"properties": {"text": {"type": "string"}}}},
]


@settings(max_examples=40)
@given(st.lists(trajectories(), max_size=4))
def test_a_table_gives_back_what_was_written(tmp_path_factory: pytest.TempPathFactory, made: list[Trajectory]) -> None:
    path = tmp_path_factory.mktemp("tables") / "rollouts.parquet"
    assert write_parquet(path, iter(made)) == len(made)
    assert list(read_parquet(path)) == made
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_table_has_the_columns_that_one_looks_for(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.parquet"
    with Store.create(tmp_path / "run") as store:
        for index in range(300):  # more than a row group
            store.append(trajectory(index=index, reward=None if index == 1 else 0.5))
        assert store.to_parquet(path) == 300
    table = pq.read_table(path)
    assert table["index"].to_pylist() == list(range(300))
    first, second = table.slice(0, 2).to_pylist()
    assert (first["reward"], second["reward"]) == (0.5, None)
    assert (first["env_id"], first["outcome_kind"], first["timings_init"]) == ("Guess-v0", "terminated", 0.0)
    assert (first["prompt_ids"], first["completion_ids"]) == ([[1, 2]], [[3, 4, 5, 6, 7]])
    assert first["logprobs"] == [[-0.5, 0.0, 0.0, -0.25, -0.25]]
    assert [turn["tokens"] for turn in first["turns"]] == [1, 2]
    assert first["rewards"] == '{"won": 1.0, "style": null}'
    assert pq.ParquetFile(path).metadata.num_row_groups == 2


def test_a_table_is_there_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.parquet"
    write_parquet(path, [trajectory()])

    def failing() -> Any:
        yield trajectory()
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        write_parquet(path, failing())
    assert len(list(read_parquet(path))) == 1
    assert list(tmp_path.iterdir()) == [path]


def test_other_tables_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.parquet"
    table = pa.table({"text": ["a"]})
    pq.write_table(table, path)
    with pytest.raises(ValueError, match="holds no trajectories of gymhost"):
        list(read_parquet(path))
    pq.write_table(table.replace_schema_metadata({"gymhost.rollout.schema": "99"}), path)
    with pytest.raises(ValueError, match="has schema 99, this version of gymhost reads up to"):
        list(read_parquet(path))
    path.write_text("text")
    with pytest.raises(ValueError, match="is no Parquet file"):
        list(read_parquet(path))


def test_a_dataset_shows_what_was_said_and_how_it_ended() -> None:
    failed = trajectory(
        messages=[], reward=None, outcome=Outcome(kind="failed", fault="environment"), turns=[], token_rows=[]
    )
    made = to_dataset([trajectory(), failed])
    assert made[0]["messages"][1]["tool_calls"][0] == GOOD
    assert made[0]["messages"][0] == {"role": "user", "content": "Guess."}  # with no keys of the other messages
    assert made["outcome"][:] == ["terminated", "failed"]
    assert made["fault"][:] == [None, "environment"]
    assert made["reward"][:] == [1.0, None]
    assert made[0]["rewards"] == {"won": 1.0, "style": None}
    assert (made[0]["turns"], made[0]["sampled_tokens"], made[0]["newest_version"]) == (2, 3, 2)
    assert made[0]["info"]["grid"] == [0.0, 0.0]
    assert made.filter(lambda item: item["reward"] == 1.0).num_rows == 1
    assert to_dataset([]).column_names == made.column_names


def _learnable() -> list[Trajectory]:
    """Two rollouts whose calls and tools have different keys."""
    made: list[Trajectory] = []
    for call, tool in zip((GOOD, SAY), TOOLS, strict=True):
        messages = [
            {"role": "user", "content": "abab"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_0", "content": "abab"},
            {"role": "assistant", "content": "done"},
        ]
        rows = [row(encode("abab"), encode("ab<|im_end|>"), encode("x"), encode("done<|im_end|>"))]
        made.append(trajectory(messages=messages, tools=[tool], token_rows=rows))
    return made


def test_a_dataset_to_learn_from_adds_no_keys() -> None:
    made = list(sft_rows(_learnable()))
    assert list(sft_dataset(made)) == made
    tokens = list(sft_token_rows(_learnable()))
    assert list(sft_dataset(tokens)) == tokens
    assert sft_dataset([]).column_names == ["messages", "tools"]


@pytest.mark.filterwarnings("ignore")  # what TRL and torch warn of is not ours to mend
@pytest.mark.parametrize("rows", [sft_rows, sft_token_rows])
def test_trl_learns_from_it(tmp_path: Path, rows: Any) -> None:
    tokenizer = with_template(qwen3_chat_template)
    seen: list[Any] = []

    class Trainer(SFTTrainer):
        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            seen.append({name: value.clone() for name, value in inputs.items()})
            return super().compute_loss(model, inputs, *args, **kwargs)

    config = SFTConfig(
        output_dir=str(tmp_path),
        max_steps=1,
        per_device_train_batch_size=2,
        report_to="none",
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
        save_strategy="no",
    )
    dataset = sft_dataset(rows(_learnable()))
    Trainer(tiny_qwen3(), args=config, train_dataset=dataset, processing_class=tokenizer).train()
    [batch] = seen
    if rows is sft_token_rows:
        learned = [labels[labels != -100].tolist() for labels in batch["labels"]]
        assert learned == [encode("ab<|im_end|>done<|im_end|>")] * 2
        return
    guessing, saying = sorted(tokenizer.batch_decode(batch["input_ids"]))
    assert '{"name": "guess", "arguments": {"number": 4}}' in guessing
    assert '{"name": "say", "arguments": {"text": "abab", "loud": true}}' in saying
    assert '"function": {"name": "guess", "description": "Guesses.", "parameters": {"prop' in guessing
