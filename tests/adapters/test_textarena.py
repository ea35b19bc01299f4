"""TextArena's games, hosted and played by TextArena itself."""

import random
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import textarena

from gymhost.envs.adapters.textarena import TextArena
from gymhost.wire.errors import EnvironmentFault, InvalidArgument
from support import adapter_players as players
from support.adapters import Host, Make
from support.server import ServerProcess

OPPONENTS = f"?players=2&opponent={players.__name__}"


@pytest.fixture(scope="module")
def server(host: Host) -> ServerProcess:
    return host(
        "textarena:GuessTheNumber-v0",
        "textarena:GuessTheNumber-v0-hardcore?max_turns=3",
        "textarena:2048-v0*",
        "textarena:FrozenLake-v0-train",
        "textarena:Mastermind-v0-raw",
        f"textarena:TicTacToe-v0{OPPONENTS}:first_free",
        f"textarena:ConnectFour-v0{OPPONENTS}:Counting",
        f"textarena:WildTicTacToe-v0{OPPONENTS}:broken",
    )


def moves(seed: int) -> Callable[[str], str]:
    """A player that knows several games a little, and makes up nothing."""
    draw = random.Random(seed)

    def move(seen: str) -> str:
        if "2048" in seen:
            return draw.choice(["[Up]", "[Down]", "[Left]", "[Right]"])
        if "Lake" in seen:
            return draw.choice(["right", "[down]"])  # what wrappers mend
        if "Master" in seen:
            return f"[{' '.join(str(digit) for digit in draw.sample(range(1, 7), 4))}]"
        if "Connect" in seen:
            return f"[col {draw.randrange(7)}]"
        if "Tac" in seen:
            return draw.choice(re.findall(r"'(\[\d\])'", seen.rpartition("Available Moves:")[2]))
        return f"I guess [{draw.randint(1, 20)}]."

    return move


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("GuessTheNumber-v0", {}),
        ("GuessTheNumber-v0-hardcore", {"max_turns": 3}),
        ("2048-v0-super-easy", {}),
        ("Mastermind-v0-raw", {}),
    ],
)
def test_a_game_for_one_is_the_one_that_textarena_plays(
    server: ServerProcess, remote: Make, name: str, options: dict[str, Any]
) -> None:
    env = remote(server, f"textarena/{name}")
    for seed in (1, 2, 3):
        own = textarena.make(name.removesuffix("-raw"), **options)
        own.reset(num_players=1, seed=seed)
        observation, info = env.reset(seed=seed)
        assert (len(observation), info) == (1, {})
        move, told = moves(seed), "\n" + observation[0]["content"]
        reward, terminated = 0.0, False
        for _ in range(60):
            _, seen = own.get_observation()
            assert told == seen, "the conversation is what TextArena shows, own actions and all"
            action = move(seen)
            done, _ = own.step(action)
            observation, reward, terminated, truncated, info = env.step(action)
            assert (terminated, truncated) == (done, False)
            if done:
                break
            assert reward == 0.0
            told += f"\n[{own.state.role_mapping[0]}] {action}\n{observation[0]['content']}"
        if terminated:
            rewards, about = own.close()
            assert reward == rewards[0]
            assert info["game"] == about[0]


def test_other_forms_of_a_game_are_told_as_they_are(server: ServerProcess, remote: Make) -> None:
    env, own = remote(server, "textarena/FrozenLake-v0-train"), textarena.make("FrozenLake-v0-train")
    for seed in (4, 5):
        own.reset(num_players=1, seed=seed)
        own.full_observations.clear()
        observation, _ = env.reset(seed=seed)
        move, done, reward = moves(seed), False, 0.0
        while not done:
            _, seen = own.get_observation()
            if seed == 4:
                assert observation[0]["content"] == seen
            action = move(seen)
            done, _ = own.step(action)
            observation, reward, terminated, _, _ = env.step(action)
            assert terminated == done
        assert reward == own.close()[0][0]


@pytest.mark.parametrize("seat", [0, 1])
@pytest.mark.parametrize(
    ("name", "opponent"), [("TicTacToe-v0", lambda: players.first_free), ("ConnectFour-v0", players.Counting)]
)
def test_another_plays_the_other_seat(
    server: ServerProcess, remote: Make, name: str, opponent: Callable[[], Callable[[str], str]], seat: int
) -> None:
    env = remote(server, f"textarena/{name}", seat=seat)
    for seed in (6, 7):
        own, other, move = textarena.make(name), opponent(), moves(seed)
        own.reset(num_players=2, seed=seed)
        observation, _ = env.reset(seed=seed)
        said = [observation[0]["content"]]
        done, ended, reward, info = False, False, 0.0, dict[str, Any]()
        while not done:
            player, seen = own.get_observation()
            if player != seat:
                done, _ = own.step(other(seen))
                continue
            assert not ended
            assert seen.endswith(said[-1])
            action = move(seen)
            done, _ = own.step(action)
            observation, reward, ended, _, info = env.step(action)
            said += [message["content"] for message in observation]
        assert ended
        rewards, about = own.close()
        assert (reward, info["game"]) == (rewards[seat], about[seat])


def test_sessions_of_a_worker_keep_their_randomness_apart(server: ServerProcess, remote: Make) -> None:
    cycle = ["[Up]", "[Left]", "[Down]", "[Right]"]

    def alone(seed: int) -> str:
        game = textarena.make("2048-v0")
        game.reset(num_players=1, seed=seed)
        seen = ""
        for turn in range(40):
            _, seen = game.get_observation()
            if game.step(cycle[turn % 4])[0]:
                break
        return seen

    def hosted(seed: int) -> str:
        env = remote(server, "textarena/2048-v0")
        told = "\n" + env.reset(seed=seed)[0][0]["content"]
        for turn in range(40):
            observation, _, terminated, _, _ = env.step(cycle[turn % 4])
            if terminated or turn == 39:
                break
            told += f"\n[Player] {cycle[turn % 4]}\n{observation[0]['content']}"
        return told

    seeds = (11, 12, 13)
    with ThreadPoolExecutor(len(seeds)) as threads:
        together = list(threads.map(hosted, seeds))
    assert together == [alone(seed) for seed in seeds]
    assert min(len(told) for told in together) > 2_000


def test_a_call_of_a_tool_plays_nothing(server: ServerProcess, remote: Make) -> None:
    env = remote(server, "textarena/GuessTheNumber-v0-hardcore")
    env.reset(seed=1)
    call = {"id": "call_0", "type": "function", "function": {"name": "guess", "arguments": {}}}
    for _ in range(4):
        observation, reward, terminated, _, _ = env.step({"role": "assistant", "content": "[1]", "tool_calls": [call]})
        assert observation[0]["content"] == "Error: there is no tool 'guess'; there are no tools"
        assert (reward, terminated) == (0.0, False)
    assert "higher" in env.step("[1]")[0][0]["content"]


def test_an_episode_that_is_scored_apart_is_paid_then() -> None:
    env = TextArena("GuessTheNumber-v0", {"max_turns": 3}, 1, None)
    paid: list[float] = []
    for apart in (False, True):
        env.reset(seed=1, options={"evaluate_apart": apart})
        reward, info = 0.0, dict[str, Any]()
        for guess in range(1, 5):
            _, reward, terminated, _, info = env.step(f"[{guess}]")
            if terminated:
                break
        if apart:
            assert (reward, info["evaluation_due"]) == (0.0, True)
            reward = env.evaluate()[1]
        paid.append(reward)
    assert paid[0] == paid[1] != 0.0


def test_what_the_package_raises_is_a_fault_and_no_reward(server: ServerProcess, remote: Make) -> None:
    env = remote(server, "textarena/WildTicTacToe-v0")
    env.reset(seed=1)
    with pytest.raises(EnvironmentFault, match="LookupError: no move after"):
        env.step("[X 0]")


def test_a_seat_that_there_is_not(server: ServerProcess, remote: Make) -> None:
    with pytest.raises((EnvironmentFault, InvalidArgument), match="are 0 to 1, not 2"):
        remote(server, "textarena/TicTacToe-v0", seat=2)
