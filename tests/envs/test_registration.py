"""Registering environments with how they run, and making them as workers do."""

import functools
import gc
import importlib
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium.wrappers import OrderEnforcing, TimeLimit

from gymhost.envs import Hosting, Task, ToolEnv, catalog, hosted, load, make, register
from gymhost.envs.packages import Package, installed
from gymhost.envs.registration import credit
from gymhost.envs.shelf.echo import Echo
from gymhost.wire.errors import InvalidArgument


class Talk(ToolEnv):
    max_turns = 7

    def __init__(self, mood: str = "good", words: list[str] | None = None) -> None:
        super().__init__()
        self.mood = mood
        self.words = words

    def prompt(self, task: Task) -> str:
        return self.mood


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    """Keeps what a test registers from the others."""
    before = dict(gymnasium.registry)
    yield
    gymnasium.registry.clear()
    gymnasium.registry.update(before)


def test_how_it_runs_is_kept_beside_gymnasiums_registry() -> None:
    register(
        "mine/Talk-v0",
        Talk,
        mode="async",
        isolation="process",
        step_timeout=1.5,
        reset_timeout=None,
        description="""Talks.

            Of this and that.
        """,
    )
    assert hosted("mine/Talk-v0") == Hosting("async", "process", 1.5, None, "Talks.\n\nOf this and that.")
    assert gymnasium.spec("mine/Talk-v0").entry_point is Talk


def test_the_attributes_that_clients_may_reach_are_declared() -> None:
    register("mine/Talk-v0", Talk, attributes=(name for name in ("mood", "words")))
    assert hosted("mine/Talk-v0").attributes == ("mood", "words")
    for wrong in ("mood", ["_mood"], ["mood.words"], [3]):
        with pytest.raises(ValueError, match="attributes are public names"):
            register("mine/Other-v0", Talk, attributes=wrong)  # pyright: ignore[reportArgumentType]
    assert "mine/Other-v0" not in gymnasium.registry


def test_windows_are_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"gymnasium\.wrappers\.HumanRendering"):
        make("CartPole-v1", render_mode="human")


def test_what_gymnasium_alone_knows_has_the_defaults() -> None:
    assert hosted("CartPole-v1") == Hosting("thread", "shared", 300.0, 300.0, "")
    register("mine/Talk-v0", Talk, mode="inline")
    del gymnasium.registry["mine/Talk-v0"]
    gymnasium.register("mine/Talk-v0", f"{__name__}:Talk")
    assert hosted("mine/Talk-v0").mode == "thread", "how another environment of this id ran is not this one's"


def test_an_unknown_id_is_told_with_what_is_near() -> None:
    with pytest.raises(gymnasium.error.UnregisteredEnv, match="did you mean gymhost/Echo-v0"):
        hosted("gymhost/Ecko-v0")
    with pytest.raises(gymnasium.error.UnregisteredEnv):
        make("antigravity:gymhost/Echo-v0")
    assert "antigravity" not in sys.modules, "an id must not import code"


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ({"mode": "fiber"}, "mode is one of thread, async, inline, not 'fiber'"),
        ({"isolation": "none"}, "isolation is one of shared, process"),
        ({"step_timeout": 0}, "step_timeout is a number of seconds above 0"),
        ({"reset_timeout": float("nan")}, "reset_timeout"),
        ({"step_timeout": "3"}, "step_timeout is a number of seconds above 0, or None for no limit, not '3'"),
    ],
)
def test_a_setting_that_can_not_be_is_refused(setting: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        register("mine/Talk-v0", Talk, **setting)
    assert "mine/Talk-v0" not in gymnasium.registry


def test_the_catalog_has_all_with_where_it_comes_from() -> None:
    register("mine/Talk-v0", Talk, mode="inline")
    listed = catalog()
    assert listed["mine/Talk-v0"].hosting.mode == "inline"
    assert listed["gymhost/Echo-v0"].source.startswith("gymhost ")
    assert listed["CartPole-v1"].source == f"gymnasium {gymnasium.__version__}"
    assert listed["mine/Talk-v0"].source == ""
    assert (listed["gymhost/Echo-v0"].licence, listed["mine/Talk-v0"].licence) == ("Apache-2.0", "")
    # The client's, which may have been imported by now, would have the server connect elsewhere.
    assert list(listed) == sorted(gymnasium.registry.keys() - {"gymhost/Remote-v0"})


def test_what_an_environment_comes_from_can_be_said() -> None:
    register("mine/Talk-v0", Talk)
    credit("mine/Talk-v0", Package("talks", "1.0", "MIT"))
    told = catalog()["mine/Talk-v0"]
    assert (told.source, told.licence) == ("talks 1.0", "MIT")
    del gymnasium.registry["mine/Talk-v0"]
    register("mine/Talk-v0", Talk)
    assert catalog()["mine/Talk-v0"].source == "", "another environment of this id comes from elsewhere"


def test_a_package_tells_its_licence_in_several_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for name, told in {
        "expression": "License-Expression: MIT\nLicense: no\nHome-page: http://here\n",
        "whole-text": "License: Permission is\n        granted\nClassifier: License :: OSI Approved :: MIT License\n",
        "silent": "Project-URL: Docs, http://docs\nProject-URL: Source, http://there\n",
    }.items():
        folder = tmp_path / f"licence_{name.replace('-', '_')}-1.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.4\nName: licence-{name}\nVersion: 1\n{told}")
    assert installed("licence-expression") == Package("licence-expression", "1", "MIT", "http://here")
    assert installed("licence-whole-text") == Package("licence-whole-text", "1", "MIT License")
    assert installed("licence-silent") == Package("licence-silent", "1", "", "http://there")


def test_one_whose_class_is_given_arguments_is_made_as_lean() -> None:
    register("mine/Talk-v0", functools.partial(Talk, "bad"), order_enforce=False)
    env = make("mine/Talk-v0", words=["a"], max_episode_steps=3)
    assert isinstance(env, Talk)
    assert (env.mood, env.words, env.max_turns) == ("bad", ["a"], 3)


def test_modules_are_loaded_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_environments.py").write_text(
        "from gymhost.envs import register\n"
        "register(id='loaded/Echo-v0', entry_point='gymhost.envs.shelf.echo:Echo', kwargs={'length': 3})\n"
    )
    (tmp_path / "broken_environments.py").write_text("raise KeyError('oh')\n")
    load(["my_environments"])
    assert make("loaded/Echo-v0").unwrapped.length == 3  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ImportError, match="can't import the environments of 'broken_environments': KeyError: 'oh'"):
        load(["broken_environments"])
    with pytest.raises(ImportError, match="no_such_module"):
        load(["no_such_module"])


def test_entry_points_are_loaded_and_a_broken_one_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "acme_maze-1.2.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-maze\nVersion: 1.2\n")
    (package / "entry_points.txt").write_text(
        "[gymhost.envs]\na_broken = acme_broken\nmaze = acme_labyrinth\nmore = acme_labyrinth:more\n"
    )
    (tmp_path / "acme_broken.py").write_text("import no_such_module\n")
    (tmp_path / "acme_labyrinth.py").write_text(
        "from gymhost.envs import register\n"
        "register('acme/Maze-v0', 'gymhost.envs.shelf.echo:Echo')\n"
        "def more():\n    register('acme/More-v0', 'gymhost.envs.shelf.echo:Echo')\n"
    )
    importlib.invalidate_caches()
    (problem,) = load()
    assert problem.source == "a_broken = acme_broken (acme-maze 1.2)"
    assert problem.message == "ModuleNotFoundError: No module named 'no_such_module'"
    assert "acme_broken.py" in problem.traceback
    listed = catalog()
    assert [listed[id].source for id in ("acme/Maze-v0", "acme/More-v0")] == ["acme-maze 1.2"] * 2


def test_a_tool_environment_is_made_bare_with_its_own_limit_of_turns() -> None:
    register("mine/Talk-v0", Talk, max_episode_steps=5, kwargs={"mood": "bad"})
    env = make("mine/Talk-v0")
    assert isinstance(env, Talk)
    assert (env.mood, env.max_turns) == ("bad", 5)
    assert make("mine/Talk-v0", max_episode_steps=9).unwrapped.max_turns == 7  # pyright: ignore[reportAttributeAccessIssue]
    assert isinstance(gymnasium.make("mine/Talk-v0"), TimeLimit), "Gymnasium's own make works too"


def test_another_environment_keeps_what_gymnasium_wraps_it_in() -> None:
    env = make("CartPole-v1")
    assert isinstance(env, TimeLimit)
    assert isinstance(env.env, OrderEnforcing)
    register("mine/Bare-v0", "gymhost.envs.shelf.echo:Echo", order_enforce=False)
    assert isinstance(make("mine/Bare-v0"), Echo)


def test_instances_share_a_spec_but_no_arguments() -> None:
    register("mine/Talk-v0", Talk, kwargs={"words": ["hello"]})
    first, second, other = make("mine/Talk-v0"), make("mine/Talk-v0"), make("mine/Talk-v0", mood="bad")
    assert first.spec is second.spec is gymnasium.spec("mine/Talk-v0")
    assert isinstance(first.unwrapped, Talk)
    assert isinstance(second.unwrapped, Talk)
    assert first.unwrapped.words is not None
    first.unwrapped.words.append("spoilt")
    assert second.unwrapped.words == ["hello"]
    assert other.spec is not None
    assert other.spec.kwargs == {"words": ["hello"], "mood": "bad"}
    assert other.spec.make().unwrapped.mood == "bad"  # pyright: ignore[reportAttributeAccessIssue]
    assert gymnasium.spec("mine/Talk-v0").kwargs == {"words": ["hello"]}


def test_an_entry_point_that_makes_no_environment_is_refused() -> None:
    register("mine/Wrong-v0", lambda: object(), order_enforce=False)
    with pytest.raises(TypeError, match=r"made object, which is no gymnasium\.Env"):
        make("mine/Wrong-v0")


@pytest.mark.parametrize("id", ["gymhost/Echo-v0", "gymhost/GuessNumber-v0"])
def test_an_idle_instance_is_small(id: str) -> None:
    def measure(count: int) -> int:
        kept = [make(id) for _ in range(count)]
        for number, env in enumerate(kept):
            env.reset(seed=number)
        return tracemalloc.get_traced_memory()[0] - start

    make(id).reset(seed=0)
    gc.collect()
    tracemalloc.start()
    try:
        start = tracemalloc.get_traced_memory()[0]
        assert measure(200) / 200 < 2048
    finally:
        tracemalloc.stop()
