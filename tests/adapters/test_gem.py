# pyright: reportMissingImports=false, reportMissingTypeStubs=false
"""GEM's environments, hosted and driven by GEM's own API."""

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gem
import pytest

from gymhost.envs.adapters import load
from gymhost.wire.errors import EnvironmentFault
from support import adapter_gem
from support.adapters import Host, Make
from support.server import ServerProcess

pytestmark = pytest.mark.adapter("gem")

NAMES = (
    "game:GuessTheNumber-v0-easy",
    "game:GuessTheNumber-v0-random",
    "game:Mastermind-v0-easy",
    "game:Minesweeper-v0-easy",
    "game:Game2048-v0-easy",
    "game:Sudoku-v0-easy",
    "game:TowerofHanoi-v0-easy",
    "rg:basic_arithmetic",
    "rg:word_sorting",
)


@pytest.fixture(scope="module")
def server(host: Host) -> ServerProcess:
    return host(
        *(f"gem:{name}" for name in NAMES),
        "gem:game:FifteenPuzzle-v0-random",
        "gem:game:Sokoban-v0-*?max_turns=3",
        adapter_gem.__name__,
        "gem:made:Patience-v0?turns=3",
    )


def episode(name: str, seed: int, **options: Any) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Plays by GEM's own random actions, or nonsense, as GEM does it; returns the actions and what came of each."""
    env = gem.make(name, **options)
    told: list[tuple[Any, ...]] = [env.reset(seed=seed)]
    actions: list[str] = []
    draw = random.Random(seed)
    while len(actions) < 12 and not (len(told) > 1 and (told[-1][2] or told[-1][3])):
        state = random.getstate()
        try:
            action = env.sample_random_action()
        except NotImplementedError:
            action = f"It is \\boxed{{{draw.randrange(9)}}}."
        random.setstate(state)
        actions.append("nonsense" if draw.random() < 0.1 else action)
        told.append(env.step(actions[-1]))
    return actions, told


def hosted(server: ServerProcess, remote: Make, name: str, seed: int, actions: list[str]) -> list[tuple[Any, ...]]:
    env = remote(server, f"gem/{name.replace(':', '-')}")
    observation, info = env.reset(seed=seed)
    told: list[tuple[Any, ...]] = [(observation[0]["content"], info)]
    for action in actions:
        observation, reward, terminated, truncated, info = env.step(action)
        said = "".join(message["content"] for message in observation)
        told.append((said, reward, terminated, truncated, {key: info[key] for key in info if key in ("suffix",)}))
    return told


def same(own: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """GEM's steps as gymhost tells them: what has terminated was not cut off, too."""
    return [own[0], *((said, reward, end, cut and not end, info) for said, reward, end, cut, info in own[1:])]


@pytest.mark.parametrize("name", NAMES)
def test_an_environment_is_gems_own(server: ServerProcess, remote: Make, name: str) -> None:
    for seed in (1, 2, 3):
        actions, own = episode(name, seed)
        assert hosted(server, remote, name, seed, actions) == same(own)


def test_options_reach_it_and_it_is_cut_off(server: ServerProcess, remote: Make) -> None:
    actions, own = episode("game:Sokoban-v0-easy", 4, max_turns=3)
    assert hosted(server, remote, "game:Sokoban-v0-easy", 4, actions) == same(own)


def test_one_that_another_module_registers_is_cut_off_where_it_says_so(server: ServerProcess, remote: Make) -> None:
    actions, own = episode("made:Patience-v0", 5, turns=3)
    assert [step[2:4] for step in own[1:]] == [(False, False), (False, False), (False, True)]
    assert hosted(server, remote, "made:Patience-v0", 5, actions) == own
    env = remote(server, "gem/made-Patience-v0")
    env.reset(seed=1)
    assert [env.step("four")[4].get("limit") for _ in range(3)] == [None, None, "environment"]


def test_sessions_of_a_worker_keep_their_randomness_apart(server: ServerProcess, remote: Make) -> None:
    name, seeds = "game:Game2048-v0-easy", (11, 12, 13)
    alone = [episode(name, seed) for seed in seeds]
    with ThreadPoolExecutor(len(seeds)) as threads:
        together = list(threads.map(lambda seed, own: hosted(server, remote, name, seed, own[0]), seeds, alone))
    assert together == [same(own) for _, own in alone]


def test_what_gem_raises_is_a_fault_and_no_reward(server: ServerProcess, remote: Make) -> None:
    with pytest.raises(EnvironmentFault, match="TypeError"):
        remote(server, "gem/game-FifteenPuzzle-v0-random").reset(seed=1)


def test_what_runs_code_of_models_is_refused() -> None:
    for name in ("code:Taco8k", "rg:simple_integration", "rg:n_queens"):
        with pytest.raises(ValueError, match="it runs what a model wrote, in no sandbox"):
            load(f"gem:{name}")
    ids = load("gem:rg:*")
    assert "gem/rg-gcd" in ids
    assert not {"gem/rg-n_queens", "gem/rg-simple_integration"} & set(ids)
