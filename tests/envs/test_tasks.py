"""Tasks: lists, generators and files, by index."""

from itertools import islice
from pathlib import Path

import pytest

from gymhost.envs import Tasks, ToolEnv


def test_a_list_of_tasks() -> None:
    tasks = Tasks([{"n": 0}, {"n": 1}, {"n": 2}])
    assert len(tasks) == tasks.size == 3
    assert [task["n"] for task in tasks] == [0, 1, 2]
    assert tasks[-1] == {"n": 2}
    assert tasks[1:] == [{"n": 1}, {"n": 2}]
    assert {"n": 1} in tasks
    with pytest.raises(IndexError, match="there is no task 3: they are 0 to 2"):
        tasks[3]
    with pytest.raises(IndexError, match="there is none"):
        Tasks([])[0]


def test_tasks_made_on_demand() -> None:
    made: list[int] = []

    def task(index: int) -> dict[str, int]:
        made.append(index)
        return {"square": index * index}

    tasks = Tasks.generate(task, 1_000_000)
    assert tasks[999_999] == {"square": 999_999**2}
    assert made == [999_999]
    with pytest.raises(IndexError):
        tasks[1_000_000]


def test_tasks_without_end() -> None:
    tasks = Tasks.generate(lambda index: {"n": index})
    assert tasks.size is None
    assert tasks[10**15] == {"n": 10**15}
    assert [task["n"] for task in islice(tasks, 3)] == [0, 1, 2]
    assert tasks[2:4] == [{"n": 2}, {"n": 3}]
    with pytest.raises(TypeError, match="no end"):
        len(tasks)
    with pytest.raises(IndexError, match="they begin at 0"):
        tasks[-1]


def test_tasks_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"question": "1 + 1?"}\n\n{"question": "zwölf?"}\n', encoding="utf-8")
    assert list(Tasks.jsonl(file)) == [{"question": "1 + 1?"}, {"question": "zwölf?"}]
    file.write_text('{"question": "1 + 1?"}\n{"question"\n', encoding="utf-8")
    with pytest.raises(ValueError, match="line 2"):
        Tasks.jsonl(file)
    file.write_text("[1]\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"tasks\.jsonl, line 1: a task is a JSON object"):
        Tasks.jsonl(file)


def test_tasks_of_an_instance_count_where_those_of_its_class_are_known() -> None:
    class Given(ToolEnv):
        tasks = {"train": [{"n": 0}]}

    assert list(Given().splits) == ["train"]
    one = Given()
    one.tasks = {"own": [{"n": 1}]}
    assert list(one.splits) == ["own"]
    assert list(Given().splits) == ["train"]
