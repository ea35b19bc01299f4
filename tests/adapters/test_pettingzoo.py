# pyright: reportMissingImports=false, reportMissingTypeStubs=false
"""Seats in PettingZoo's environments, hosted and driven by PettingZoo's own API."""

from typing import Any

import numpy as np
import pettingzoo
import pytest
from gymnasium.error import ResetNeeded

from gymhost.envs import make
from gymhost.envs.adapters import load
from gymhost.envs.fork_check import forks_go_on
from gymhost.wire.errors import EnvironmentFault
from support import adapter_agents as agents
from support.adapters import Host, Make
from support.server import ServerProcess

pytestmark = pytest.mark.adapter("pettingzoo")


@pytest.fixture(scope="module")
def server(host: Host) -> ServerProcess:
    where = agents.__name__
    return host(
        f"pettingzoo:classic/connect_four_v3?opponent={where}:lowest",
        f"pettingzoo:classic/tictactoe_v3?opponent={where}:Highest",
        f"pettingzoo:classic/rps_v2?opponent={where}:Highest&max_cycles=4",
        f"pettingzoo:classic/leduc_holdem_v4?opponent={where}:lowest&seat=player_1",
        f"pettingzoo:{where}:rock_paper_scissors?max_cycles=3&opponent={where}:broken",
        "pettingzoo:classic/texas_holdem_v4",
    )


def legal(observation: Any, info: dict[str, Any], draw: np.random.Generator, choices: int) -> int:
    mask = info.get("action_mask", observation["action_mask"] if isinstance(observation, dict) else np.ones(choices))
    return int(draw.choice(np.flatnonzero(mask)))


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return np.array_equal(one, other) and np.asarray(one).dtype == np.asarray(other).dtype


@pytest.mark.parametrize(
    ("name", "opponent", "options", "seats"),
    [
        ("classic/connect_four-v3", lambda: agents.lowest, {}, ("player_0", "player_1")),
        ("classic/tictactoe-v3", agents.Highest, {}, ("player_1", "player_2")),
        ("classic/rps-v2", agents.Highest, {"max_cycles": 4}, ("player_0", "player_1")),
        ("classic/leduc_holdem-v4", lambda: agents.lowest, {}, ("player_1",)),
    ],
)
def test_a_seat_sees_and_gets_what_pettingzoo_tells_it(
    server: ServerProcess, remote: Make, name: str, opponent: Any, options: dict[str, Any], seats: tuple[str, ...]
) -> None:
    for seat in seats:
        # The registered seat needs no naming.
        env = remote(server, f"pettingzoo/{name.replace('/', '-')}", **({"seat": seat} if len(seats) > 1 else {}))
        own = pettingzoo.make("aec", name, **options)
        assert env.action_space == own.action_space(seat)
        assert env.observation_space == own.observation_space(seat)
        rewards: list[float] = []
        for seed in (1, 2, 3):
            draw = np.random.default_rng(seed)
            own.reset(seed=seed)
            other, told = opponent(), env.reset(seed=seed)
            told = (told[0], 0.0, False, False, told[1])
            for agent in own.agent_iter():
                observation, reward, terminated, truncated, info = own.last()
                over = terminated or truncated
                if agent == seat:
                    assert same(told[0], observation)
                    assert told[1:4] == (reward, terminated, truncated)
                    assert same(told[4], info)
                    if over:
                        rewards.append(reward)
                        break
                    action = legal(observation, info, draw, own.action_space(agent).n)
                    own.step(action)
                    told = env.step(action)
                else:
                    own.step(None if over else other(agent, observation, info, own.action_space(agent)))
        assert len(rewards) == 3
        with pytest.raises(ResetNeeded):
            env.step(0)


def test_the_others_play_at_random_by_what_is_allowed_and_by_the_seed(server: ServerProcess, remote: Make) -> None:
    def play(env: Any, seed: int) -> list[Any]:
        told, draw = [env.reset(seed=seed)], np.random.default_rng(0)
        while len(told[-1]) == 2 or not (told[-1][2] or told[-1][3]):
            told.append(env.step(legal(told[-1][0], told[-1][-1], draw, 4)))
        return [repr(step) for step in told]

    one, other = (remote(server, "pettingzoo/classic-texas_holdem-v4") for _ in range(2))
    first = [play(one, seed) for seed in (1, 2, 3, 4)]
    assert first == [play(other, seed) for seed in (1, 2, 3, 4)]
    assert first[0] != first[1]


@pytest.mark.parametrize("name", ["chess", "connect_four", "leduc_holdem", "rps", "tictactoe"])
def test_it_can_be_forked(name: str) -> None:
    (id,) = load(f"pettingzoo:classic/{name}*")
    assert [finding.level for finding in forks_go_on(lambda: make(id))] == ["ok"]


def test_what_an_opponent_raises_is_a_fault_and_no_reward(server: ServerProcess, remote: Make) -> None:
    env = remote(server, "pettingzoo/support.adapter_agents-rock_paper_scissors")
    env.reset(seed=0)
    with pytest.raises(EnvironmentFault, match="LookupError: player_1 has no move"):
        env.step(0)
    with pytest.raises(EnvironmentFault, match="seat is one of player_0, player_1, not 'me'"):
        remote(server, "pettingzoo/classic-rps-v2", seat="me")
