"""`gymhost envs`: what there is, here and on a server."""

import importlib.metadata
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gymhost.envs import catalog, load
from support.command import Serving, gymhost, serving

load()
SHELF = [id for id in catalog() if id.startswith("gymhost/")]

MODULE = """
from gymhost.envs import register

register("test/Mine-v0", "gymhost.envs.shelf.echo:Echo", mode="inline", description="One of\\nmy own.")
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A server with a module of environments."""
    folder = tmp_path_factory.mktemp("modules")
    (folder / "mine.py").write_text(MODULE)
    with serving("mine", cwd=folder) as server:
        yield server


def test_a_server_s_environments_are_listed_but_for_gymnasium_s(running: Serving):
    said = gymhost("envs", "--server", running.address)
    head, *lines = said.stdout.splitlines()
    assert head.split() == ["ID", "MODE", "ISOLATION", "SOURCE", "LICENCE", "DESCRIPTION"]
    assert [line.split()[0] for line in lines] == [*SHELF, "test/Mine-v0"]
    source = f"gymhost {importlib.metadata.version('gymhost')}"
    assert re.split(" {2,}", lines[-1]) == ["test/Mine-v0", "inline", "shared", source, "Apache-2.0", "One of my own."]
    assert "--all lists them" in said.stderr


def test_all_of_them_and_a_prefix(running: Serving):
    everything = gymhost("envs", "--all", "--server", running.address)
    assert "\nCartPole-v1 " in everything.stdout
    assert "--all" not in everything.stderr
    some = gymhost("envs", "CartPole", "--server", running.address).stdout.splitlines()[1:]
    assert [line.split()[0] for line in some] == ["CartPole-v0", "CartPole-v1"]


def test_an_exact_id_is_described(running: Serving):
    said = gymhost("envs", "gymhost/GuessNumber-v0", "--server", running.address).stdout
    for words in (
        "mode inline, isolation shared",
        "a step 10 s, a reset 10 s",
        "train (1,000,000), test (500)",
        "assistant messages",
        "Tool guess(number)",
        "- number (integer): The guess.",
    ):
        assert words in said
    assert "Discrete(2)" in gymhost("envs", "CartPole-v1", "--server", running.address).stdout


def test_json(running: Serving):
    listed = json.loads(gymhost("envs", "--json", "--server", running.address).stdout)
    assert [one["id"] for one in listed] == [*SHELF, "test/Mine-v0"]
    assert "tools" not in listed[0]
    one = json.loads(gymhost("envs", "gymhost/GuessNumber-v0", "--json", "--server", running.address).stdout)
    assert one["splits"] == {"train": 1000000, "test": 500}
    assert [tool["name"] for tool in one["tools"]] == ["guess"]
    assert one["step_timeout"] == 10.0


def test_keyword_arguments_reach_the_environment_that_is_described(running: Serving):
    ask = ("envs", "gymhost/Echo-v0", "--server", running.address)
    assert gymhost(*ask, "--kwargs", "length=3").returncode == 0
    refused = gymhost(*ask, "--kwargs", "length=0")
    assert refused.returncode == 1
    assert "length is at least 1, not 0" in refused.stderr


def test_nothing_found_is_an_error(running: Serving):
    said = gymhost("envs", "nothing/", "--server", running.address)
    assert said.returncode == 1
    assert said.stderr == "gymhost: no environment's id begins with 'nothing/'\n"


def test_without_a_server_those_of_this_machine(tmp_path: Path):
    (tmp_path / "mine.py").write_text(MODULE)
    said = gymhost("envs", "--module", "mine", cwd=tmp_path)
    assert [line.split()[0] for line in said.stdout.splitlines()[1:]] == [*SHELF, "test/Mine-v0"]


def test_a_module_that_fails_is_shown(tmp_path: Path):
    (tmp_path / "broken.py").write_text("raise RuntimeError('not today')\n")
    said = gymhost("envs", "--module", "broken", cwd=tmp_path)
    assert said.returncode == 1
    assert "can't import the environments of 'broken': RuntimeError: not today" in said.stderr
    assert "/gymhost/" not in said.stderr, "no traceback of gymhost's own"
