"""The examples, run as a reader of the README runs them."""

import subprocess
import sys
from pathlib import Path

import pytest

from support.command import environment, gymhost, serving
from support.server import PATIENCE

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, *arguments: str) -> str:
    result = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env=environment(),
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return result.stdout


def test_ten_lines_play_on_a_server_and_on_one_of_their_own():
    with serving() as server:
        there = run("ten_lines.py", server.address)
    assert there.startswith("Guess the number from 1 to 7.")
    assert "Correct. Reward: 1.0 {'win': 1.0, 'format': 0.0}" in there
    assert run("ten_lines.py") == there


def test_a_search_in_forks_wins_where_chance_does_not():
    said = run("tree_search.py", "--games", "2", "--rounds", "4", "--playouts", "3").splitlines()
    won = [int(line.partition(": ")[2].split()[0]) for line in said]
    assert [line.partition(":")[0] for line in said] == ["at random", "with a search"]
    assert won[0] < won[1]


def test_my_environment_plays_itself():
    assert run("my_environment.py").splitlines() == [
        "user: There are 2 boxes, each with a number in it. What is the sum of the numbers?",
        "tool: Box 1 has 4 in it.",
        "tool: Box 2 has 8 in it.",
        "Reward: 1.1, of {'right': 1.0, 'quick': 1.0}. Ended: True",
    ]


def test_my_environment_is_fit_to_be_hosted():
    said = gymhost("check", "acme/Sum-v0", "--module", "my_environment", cwd=EXAMPLES)
    assert said.returncode == 0, said.stdout
    assert "0 pieces of advice" in said.stdout


def test_coder_plays_itself_in_a_sandbox():
    assert run("coder.py").splitlines() == [
        "system: You work in a Linux sandbox without a network. Say that you are done when you are.",
        "user: Write the sum of the prices in prices.csv to total.txt.",
        "tool: name,price",
        "thing 0,15",
        "thing 1,16",
        "thing 2,23",
        "[exit status 0]",
        "tool: 54",
        "tool: [exit status 0]",
        "Reward: 1.0. Ended: True",
    ]


def test_an_agent_of_somebody_s_plays_in_a_sandbox():
    assert run("harness.py").splitlines() == [
        "The agent offers ['bash'].",
        "system: Use bash.",
        "user: Write the sum of the prices in prices.txt to total.txt.",
        "tool: 15",
        "16",
        "23",
        "",
        "tool: ",
        "Reward: 1.0. Ended: True. Exit status of the agent: 0",
    ]


@pytest.mark.timeout(150)
def test_coder_is_fit_to_be_hosted():
    # A hundred episodes, each with a sandbox.
    said = gymhost("check", "acme/Coder-v0", "--module", "coder", cwd=EXAMPLES, limit=120.0)
    assert said.returncode == 0, said.stdout
    assert "0 pieces of advice" in said.stdout
