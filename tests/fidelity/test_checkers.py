"""Gymnasium's checker says of a remote environment what it says of the local one (S26, S27)."""

import warnings
from collections.abc import Callable
from typing import Any

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

from gymhost.client import RemoteEnv, make
from support.server import ServerProcess
from support.vectors import ids_of

Make = Callable[..., RemoteEnv]

FAULTY = ["Unseeded", "FirstSeedOnly", "Outside", "Deprecated"]


def verdict(env: gymnasium.Env[Any, Any], monkeypatch: pytest.MonkeyPatch) -> tuple[str, list[str]]:
    """What the checker raised of an environment, and what it warned of."""
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    raised = ""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            check_env(env)
        except Exception as error:  # noqa: BLE001 - whatever it says
            raised = f"{type(error).__name__}: {error}"
        finally:
            env.close()
    return raised, [str(each.message) for each in warned]


@pytest.mark.filterwarnings("ignore:.*The environment .* is out of date")
@pytest.mark.parametrize("id", [*ids_of("classic_control"), *ids_of("toy_text"), "LunarLander-v3", "ALE/Pong-v5"])
def test_of_the_environments_of_others(remote: Make, id: str, monkeypatch: pytest.MonkeyPatch):
    said = verdict(remote(id), monkeypatch)
    assert said == verdict(gymnasium.make(id).unwrapped, monkeypatch)
    assert said[0] == ""


@pytest.mark.parametrize("name", FAULTY)
@pytest.mark.parametrize("direct", [True, False], ids=["direct", "grpc"])
def test_of_environments_with_faults(knobs: ServerProcess, name: str, direct: bool, monkeypatch: pytest.MonkeyPatch):
    there = make(f"test/{name}-v0", server=knobs.address, direct=direct)
    said = verdict(there, monkeypatch)
    assert said == verdict(gymnasium.make(f"test/{name}-v0").unwrapped, monkeypatch)
    assert said != ("", [])


def test_of_types_there_is_nothing_to_say(knobs: ServerProcess, monkeypatch: pytest.MonkeyPatch):
    assert verdict(make("test/Types-v0", server=knobs.address), monkeypatch) == ("", [])
