"""Tasks from Parquet files and Hugging Face datasets, which need pyarrow and datasets."""

from pathlib import Path

import datasets
import pytest

from gymhost.envs import Tasks

pytestmark = pytest.mark.heavy

ROWS = [
    {"question": "1 + 1?", "tests": ["2"]},
    {"question": "zwölf?", "tests": []},
    {"question": None, "tests": ["a", "b"]},
]


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    path = tmp_path / "tasks.parquet"
    datasets.Dataset.from_list(ROWS).to_parquet(path)
    return path


def test_tasks_of_a_parquet_file(parquet: Path) -> None:
    tasks = Tasks.parquet(parquet)
    assert len(tasks) == 3
    assert tasks[2] == ROWS[2]
    assert list(tasks) == ROWS
    with pytest.raises(IndexError, match="they are 0 to 2"):
        tasks[3]
    parquet.write_text("no parquet")
    with pytest.raises(ValueError, match=r"[Pp]arquet"):
        Tasks.parquet(parquet)


def test_tasks_of_a_dataset(parquet: Path, tmp_path: Path) -> None:
    tasks = Tasks.dataset("parquet", split="train", data_files=str(parquet), cache_dir=str(tmp_path / "cache"))
    assert list(tasks) == ROWS
    assert type(tasks[0]) is dict
    assert list(Tasks.of(datasets.Dataset.from_list(ROWS))) == ROWS
