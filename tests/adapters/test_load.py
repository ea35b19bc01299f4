"""Naming environments of other packages beside modules: what is registered, and what is told where that fails."""

import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import gymnasium
import pytest

from gymhost.client import connect
from gymhost.envs import Hosting, catalog, hosted, load, make
from gymhost.envs.adapters import KINDS
from gymhost.wire.errors import ServerUnavailable
from support.command import gymhost


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    """Keeps what a test registers from the others."""
    before = dict(gymnasium.registry)
    yield
    gymnasium.registry.clear()
    gymnasium.registry.update(before)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nope:x", "there is no kind 'nope' of environments: the kinds are "),
        ("textarena:", "textarena:NAME, where NAME is a game of TextArena"),
        ("textarena:TicTacTo-v0", r"no environment 'TicTacTo-v0'; did you mean TicTacToe-v0"),
        ("textarena:Nothing*", r"no environment 'Nothing\*'"),
        ("textarena:TicTacToe-v0?players", "'players' is no option: it is to be OPTION=VALUE"),
        ("textarena:TicTacToe-v0?players=2", r"\?opponent=MODULE:FUNCTION names who the others are"),
        ("textarena:TicTacToe-v0?opponent=no_such_module:f", "'no_such_module:f' is to be MODULE:NAME"),
        ("reasoning-gym:chain_sum?prompt=nice", "prompt is one of DeepSeekZero, default, "),
        ("dm:support.adapter_corridor:Nothing", "has no attribute 'Nothing'"),
    ],
)
def test_what_can_not_be_is_refused_like_a_module(name: str, says: str) -> None:
    with pytest.raises(ImportError, match=says) as raised:
        load([name])
    assert str(raised.value).startswith(f"can't import the environments of {name!r}: ")
    assert raised.value.__cause__ is not None


@pytest.mark.parametrize("kind", ["dm", "gem", "pettingzoo", "reasoning-gym", "skyrl-gym", "textarena"])
def test_a_package_that_is_missing_is_told_with_its_extra(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("dm_control", "gem", "pettingzoo", "reasoning_gym", "skyrl_gym", "textarena"):
        for module in [name for name in sys.modules if name.partition(".")[0] == package]:
            monkeypatch.delitem(sys.modules, module)
        monkeypatch.setitem(sys.modules, package, None)
    extra = KINDS[kind].extra
    with pytest.raises(ImportError, match=rf"pip install 'gymhost\[{extra}\]', or.*another interpreter.*--python"):
        load([f"{kind}:some/thing"])


def test_the_later_options_count_and_patterns_take_several() -> None:
    load(["textarena:GuessTheNumber-v0*", "textarena:GuessTheNumber-v0?max_number=30"])
    ids = {id for id in catalog() if id.startswith("textarena/")}
    assert {"textarena/GuessTheNumber-v0", "textarena/GuessTheNumber-v0-hardcore-raw"} <= ids
    opening, _ = make("textarena/GuessTheNumber-v0").reset(seed=0)
    assert "between 1 and 30" in opening[0]["content"]


def test_options_say_how_it_runs() -> None:
    load(
        [
            "textarena:2048-v0?isolation=process&memory_limit=1000000000&replayable=true&step_timeout=2.5&reset_timeout=null"
        ]
    )
    how = hosted("textarena/2048-v0")
    assert how == Hosting("thread", "process", 2.5, None, "TextArena's 2048-v0.", (), 1_000_000_000, True)
    for wrong in ("isolation=none", "step_timeout=soon", "memory_limit=5", "isolation=process&memory_limit=much"):
        with pytest.raises(ImportError, match=r"ValueError: (isolation|step_timeout|memory_limit) is"):
            load([f"textarena:2048-v0?{wrong}"])


async def test_an_embedded_server_is_told_them_as_modules(capfd: pytest.CaptureFixture[str]) -> None:
    async with connect(modules=["textarena:Mastermind-v0"]) as server:
        (one,) = await server.environments("textarena/")
        assert (one.source, one.licence) == (f"TextArena {version('textarena')}", "MIT")
    with pytest.raises(ServerUnavailable):
        await connect(modules=["nope:x"]).__aenter__()
    assert "can't import the environments of 'nope:x': ValueError: there is no kind 'nope'" in capfd.readouterr().err


def test_the_command_takes_them_as_modules(tmp_path: Path) -> None:
    said = gymhost("envs", "textarena/Mastermind-v0", "--module", "textarena:Mastermind-v0", cwd=tmp_path)
    assert f"Source:       TextArena {version('textarena')}, MIT" in said.stdout
