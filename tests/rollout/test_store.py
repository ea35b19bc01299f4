"""The store: a folder that trajectories are appended to."""

import json
import logging
import resource
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gymhost.rollout import Outcome, RolloutRequest, Store, StoreError, Trajectory, rollout_key
from support.trajectories import trajectories, trajectory

WRITER = """
import sys
from gymhost.rollout import Store, Trajectory
store = Store.create(sys.argv[1])
for index in range(1_000_000):
    store.append(Trajectory(env_id="Guess-v0", index=index, messages=[{"role": "user", "content": "x" * 100_000}]))
    print(index, flush=True)
"""


class Letters:
    """A tokenizer whose ids are characters; `made` are the ids whose texts were asked for."""

    added_tokens_decoder = {0: "<|end|>"}

    def __init__(self) -> None:
        self.made: list[int] = []

    def convert_ids_to_tokens(self, token_id: int) -> str:
        self.made.append(token_id)
        return chr(96 + token_id)

    def decode(self, token_ids: list[int], **_: bool) -> str:
        return "".join(chr(96 + token_id) for token_id in token_ids)


def test_a_store_gives_back_what_was_appended(tmp_path: Path) -> None:
    made = [trajectory(index=0), trajectory(index=1, reward=None), trajectory(index=2)]
    with Store.create(tmp_path / "runs" / "1", settings={"env": "Guess-v0", "limits": {"turns": 4}}) as store:
        for item in made[:2]:
            store.append(item)
        assert [item.id for item in store] == [item.id for item in made[:2]]
    with Store.open(store.path, writing=True) as store:
        store.append(made[2])
    store = Store.open(store.path)
    assert store.settings == {"env": "Guess-v0", "limits": {"turns": 4}}
    assert [(item.id, item.token_rows, item.turns, item.outcome, item.reward) for item in store] == [
        (item.id, item.token_rows, item.turns, item.outcome, item.reward) for item in made
    ]
    assert len(store) == 3


def test_what_was_appended_is_seen_at_once(tmp_path: Path) -> None:
    with Store.create(tmp_path / "run") as store:
        reader = Store.open(store.path)
        assert list(reader) == []
        store.append(trajectory())
        assert len(list(reader)) == 1


def test_done_is_what_need_not_be_made_again(tmp_path: Path) -> None:
    requests = [RolloutRequest("Guess-v0", task=3, seed=5, split="train", group="g", index=i) for i in range(6)]
    long = {"role": "user", "content": "🙂" * 5000}
    made = [
        trajectory(split="train", index=0, messages=[long]),
        trajectory(split="train", index=1, rewards={f"rubric {i}": 1.0 for i in range(500)}),  # a long head
        trajectory(split="train", index=2, outcome=Outcome(kind="failed", fault="environment")),
        trajectory(split="train", index=3, outcome=Outcome(kind="failed", fault="infrastructure")),
        trajectory(split="train", index=4, outcome=Outcome(kind="cancelled")),
    ]
    with Store.create(tmp_path / "run") as store:
        for item in made:
            store.append(item)
        done = store.done()
    assert done == {("Guess-v0", "train", 3, 5, "g", index) for index in (0, 1, 2)}
    assert [request.index for request in requests if rollout_key(request) not in done] == [3, 4, 5]


def test_texts_of_ids_are_kept_as_they_first_occur(tmp_path: Path) -> None:
    tokenizer = Letters()
    with Store.create(tmp_path / "run") as store:
        assert store.pieces == {}
        store.append(trajectory(), tokenizer)
        assert store.pieces == dict(enumerate("abcdefg", 1))
    with Store.open(store.path, writing=True) as store:
        made = trajectory()
        made.token_rows[0].append_environment([9, 0])
        store.append(made, tokenizer)
    assert Store.open(store.path).pieces == dict(enumerate("abcdefg", 1)) | {9: "i", 0: "<|end|>"}
    assert tokenizer.made == [1, 2, 3, 4, 5, 6, 7, 9]


@settings(max_examples=40)
@given(made=st.lists(trajectories(), min_size=1, max_size=3), data=st.data())
def test_a_line_that_a_crash_cut_is_cut_off(
    tmp_path_factory: pytest.TempPathFactory, made: list[Trajectory], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("store") / "run"
    with Store.create(path) as store:
        for item in made:
            store.append(item)
    file = path / "trajectories.jsonl"
    written = file.read_bytes()
    kept = data.draw(st.integers(0, len(written)))
    file.write_bytes(written[:kept])
    whole = made[: written[:kept].count(b"\n")]
    assert list(Store.open(path)) == whole  # a reader leaves the file alone, since a writer may be at it
    assert file.stat().st_size == kept
    with Store.open(path, writing=True) as store:
        store.append(made[0])
    assert list(store) == [*whole, made[0]]


def test_cutting_off_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Store.create(tmp_path / "run").close()
    (tmp_path / "run" / "trajectories.jsonl").write_bytes(b'{"env_id"')
    with caplog.at_level(logging.WARNING):
        Store.open(tmp_path / "run", writing=True).close()
    assert "trajectories.jsonl ended in half a line, which a crash left: 9 bytes are cut off" in caplog.text


def test_a_killed_writer_loses_nothing_that_it_had_appended(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True) as writer:
        try:
            assert writer.stdout is not None
            for line in writer.stdout:
                if int(line) == 20:
                    break
            with pytest.raises(StoreError, match=rf"written by another run \(process {writer.pid}\)"):
                Store.open(path, writing=True)
            assert len(list(Store.open(path))) > 20
        finally:
            writer.send_signal(signal.SIGKILL)
    with Store.open(path, writing=True) as store:
        store.append(trajectory(index=-1))
    indices = [item.index for item in store]
    assert indices == [*range(len(indices) - 1), -1]
    assert len(indices) > 21


def test_a_full_disk_leaves_whole_lines(tmp_path: Path) -> None:
    made = trajectory(messages=[{"role": "user", "content": "x" * 1000}], info={})
    with Store.create(tmp_path / "run") as store:
        store.append(made)
        with _room(1500), pytest.raises(OSError, match="too large"):
            store.append(made)
        assert len(list(Store.open(store.path, writing=False))) == 1
        store.append(made)
    assert list(store) == [made, made]


@contextmanager
def _room(size: int) -> Generator[None]:
    """Lets no file grow beyond so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_one_at_a_time_writes(tmp_path: Path) -> None:
    with Store.create(tmp_path / "run") as store:
        with pytest.raises(StoreError, match="is being written by another run"):
            Store.open(store.path, writing=True)
        with pytest.raises(StoreError, match="open it with writing=True"):
            Store.open(store.path).append(trajectory())
    Store.open(store.path, writing=True).close()
    with pytest.raises(StoreError, match="open it with writing=True"):
        store.append(trajectory())


def test_a_store_is_not_made_over_anything(tmp_path: Path) -> None:
    Store.create(tmp_path / "run").close()
    with pytest.raises(StoreError, match="holds a store already: resume it, or name another folder"):
        Store.create(tmp_path / "run")
    with pytest.raises(StoreError, match="is not empty, and holds no store"):
        Store.create(tmp_path)
    (tmp_path / "file").write_text("text")
    with pytest.raises(StoreError, match="is a file: name a folder"):
        Store.create(tmp_path / "file")
    with pytest.raises(StoreError, match="is no store of rollouts"):
        Store.open(tmp_path / "file")


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (None, r"is no store of rollouts: it has no run\.json"),
        ("nonsense", r"its run\.json can't be read"),
        ("[]", r"its run\.json can't be read"),
        ('{"schema": 1}', r"its run\.json can't be read"),
        ('{"schema": 99, "settings": {}}', r"has schema 99, this version of gymhost reads up to \d+: update it"),
    ],
)
def test_what_is_no_store_is_refused(tmp_path: Path, run: str | None, message: str) -> None:
    if run is not None:
        (tmp_path / "run.json").write_text(run)
    before = sorted(tmp_path.iterdir())
    for writing in (False, True):
        with pytest.raises(StoreError, match=message):
            Store.open(tmp_path, writing=writing)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("line", ["nonsense", "[]", "{}", '{"env_id": "Guess-v0", "outcome": null}'])
def test_a_line_that_is_no_trajectory_is_named(tmp_path: Path, line: str) -> None:
    with Store.create(tmp_path / "run") as store:
        store.append(trajectory())
    with (store.path / "trajectories.jsonl").open("a") as file:
        file.write(line + "\n")
    for read in (list, Store.done):
        with pytest.raises(StoreError, match=r"trajectories\.jsonl, line 2: this is no trajectory"):
            read(store)


def test_settings_are_kept_as_json(tmp_path: Path) -> None:
    with Store.create(tmp_path / "run", {"path": tmp_path, "top_p": float("nan"), "name": "ü"}) as store:
        pass
    kept = json.loads((store.path / "run.json").read_text(encoding="utf-8"))["settings"]
    assert kept == store.settings == {"path": str(tmp_path), "top_p": "nan", "name": "ü"}
