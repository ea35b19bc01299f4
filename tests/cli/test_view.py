"""`gymhost view`: a page from a store, and clear words where there is none."""

import json
import re
from pathlib import Path

import pytest

from gymhost.rollout.parquet import write_parquet
from gymhost.rollout.store import Store
from support.command import gymhost
from support.varied_rollouts import HOSTILE, varied_store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "first"
    varied_store(path, tasks=2)
    return path


def rollouts(page: Path) -> list[dict[str, object]]:
    match = re.search(r'id="index">(.*?)</script>', page.read_text(encoding="utf-8"))
    assert match is not None
    return json.loads(match[1])["rollouts"]


def test_the_page_is_beside_the_store(store: Path):
    said = gymhost("view", str(store))
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout == f"{store / 'view.html'}\n"
    assert len(rollouts(store / "view.html")) == 2 * 4 + 6
    assert "<title>first · gymhost view</title>" in (store / "view.html").read_text(encoding="utf-8")


def test_a_browser_opens_it(store: Path, tmp_path: Path):
    opener = tmp_path / "opener"
    opener.write_text(f'#!/bin/sh\necho "$1" >{tmp_path}/opened\n')
    opener.chmod(0o755)
    said = gymhost("view", str(store), "--open", BROWSER=f"{opener} %s")
    assert (said.returncode, said.stderr) == (0, "")
    assert (tmp_path / "opened").read_text() == f"{(store / 'view.html').as_uri()}\n"


@pytest.mark.heavy
def test_a_parquet_file(store: Path, tmp_path: Path):
    path = tmp_path / "rollouts.parquet"
    write_parquet(path, Store.open(store))
    said = gymhost("view", str(path))
    assert said.stdout == f"{tmp_path / 'rollouts.html'}\n"
    assert len(rollouts(tmp_path / "rollouts.html")) == 14
    path.write_bytes(b"not this")
    said = gymhost("view", str(path))
    assert said.returncode == 1
    assert said.stderr == f"gymhost: {path} is no Parquet file\n"


def test_choosing(store: Path, tmp_path: Path):
    out = tmp_path / "some.html"

    def chosen(*options: str) -> list[dict[str, object]]:
        assert gymhost("view", str(store), "--out", str(out), *options).stdout == f"{out}\n"
        return rollouts(out)

    assert {one["outcome"] for one in chosen("--outcome", "failed", "--outcome", "cancelled")} == {
        "failed",
        "cancelled",
    }
    assert [one["id"] for one in chosen("--max-reward", "0.3", "--min-reward", "0.1")] == [f"hostile {HOSTILE}"]
    assert [one["id"] for one in chosen("--env", "gymhost/Look-v0")] == ["picture"]
    assert {one["group"] for one in chosen("--group", "g1")} == {"g1"}
    assert {one["task"] for one in chosen("--task", "0")} == {0}


def test_what_is_left_out_is_said(store: Path, tmp_path: Path):
    out = ("--out", str(tmp_path / "page.html"))
    said = gymhost("view", str(store), *out, "--limit", "5")
    assert said.stderr == "9 rollouts are left out, beyond --limit 5\n"
    said = gymhost("view", str(store), *out, "--max-size", "0.01")
    left = 14 - len(rollouts(tmp_path / "page.html"))
    assert said.stderr == (
        f"{left} rollouts are left out, more than 0.01 MB have room for: "
        "choose with --outcome, --min-reward, --task or --limit, or raise --max-size\n"
    )
    said = gymhost("view", str(store), *out, "--task", "12345")
    assert said.returncode == 0
    assert "no rollout is in it" in said.stderr


def test_what_is_no_store(store: Path, tmp_path: Path):
    for path, words in (
        (tmp_path / "nothing", "is not there: name the folder of a run"),
        (tmp_path, "is no store of rollouts: it has no run.json"),
        (store / "trajectories.jsonl", "is neither the folder of a run nor a .parquet file"),
    ):
        said = gymhost("view", str(path))
        assert (said.returncode, said.stdout) == (1, "")
        assert said.stderr.startswith(f"gymhost: {path}")
        assert words in said.stderr
        assert "Traceback" not in said.stderr


def test_a_broken_line_is_named_and_no_page_is_left(store: Path, tmp_path: Path):
    copy = tmp_path / "broken"
    copy.mkdir()
    for name in ("run.json", "trajectories.jsonl"):
        (copy / name).write_bytes((store / name).read_bytes())
    with (copy / "trajectories.jsonl").open("a") as file:
        file.write("{}\n")
    said = gymhost("view", str(copy))
    assert said.returncode == 1
    assert "line 15: this is no trajectory" in said.stderr
    assert not (copy / "view.html").exists()


def test_a_page_that_can_t_be_written(store: Path, tmp_path: Path):
    said = gymhost("view", str(store), "--out", str(tmp_path / "nowhere" / "page.html"))
    assert said.returncode == 1
    assert "can't be written: No such file or directory; name another file (--out)" in said.stderr
