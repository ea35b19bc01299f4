"""`gymhost play`: a person's turns at the keyboard, by tools or as actions of a space."""

import subprocess
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from gymhost.cli.playing import NotUnderstoodError, read_action, read_arguments
from support.command import COMMAND, environment

GAME = """
from gymhost.envs import ToolEnv, register, rubric, tool

class Shop(ToolEnv):
    tasks = {"train": [{"goods": "tea"}, {"goods": "milk"}]}
    max_turns = 4

    def setup(self, task):
        self.goods, self.bought = task["goods"], None

    def prompt(self, task):
        return f"Buy {task['goods']}."

    def on_text(self, text):
        return f"You said {text!r}."

    @tool
    def buy(self, goods: str, number: int = 1) -> str:
        '''Buys goods.'''
        self.bought = goods
        self.finish()
        return f"{number} x {goods}"

    @tool
    def break_down(self) -> str:
        '''Raises.'''
        raise RuntimeError("the till is stuck")

    @rubric
    def right(self) -> float:
        return self.bought == self.goods

register("test/Shop-v0", Shop)
"""


def play(*arguments: str, typed: str, cwd: Path) -> str:
    (cwd / "shop.py").write_text(GAME)
    done = subprocess.run(
        [*COMMAND, "play", *arguments],
        input=typed,
        cwd=cwd,
        env=environment(),
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_game_with_tools_is_played(tmp_path: Path) -> None:
    typed = "/tools\ngood morning\nbuy goods='green tea' number=2\nhello\n/new 0\nbuy tea\n/history\n/quit\n"
    said = play("test/Shop-v0", "-m", "shop", "--task", "1", typed=typed, cwd=tmp_path)
    for words in (
        "(split train, task 1)",
        "user: Buy milk.",
        "buy goods number: Buys goods.",
        "user: You said 'good morning'.",
        "tool: 2 x green tea",
        "The episode has ended after 2 turns. Reward in all: 0\n  right: 0",
        "the episode has ended: /new begins another",
        "(split train, task 0)",
        "Reward in all: 1\n  right: 1",
        'assistant: buy {"goods": "tea"}',
    ):
        assert words in said


def test_a_fault_is_shown_and_another_episode_can_begin(tmp_path: Path) -> None:
    said = play("test/Shop-v0", "-m", "shop", typed="break_down\n/new 0\nbuy tea", cwd=tmp_path)
    assert "the till is stuck" in said
    assert "Reward in all: 1" in said


def test_a_task_that_is_not_there_is_refused_in_a_line(tmp_path: Path) -> None:
    said = play("test/Shop-v0", "-m", "shop", typed="/new 9\n/new 0\nbuy tea", cwd=tmp_path)
    assert "there is no task 9: they are 0 to 1: /new begins another episode" in said
    assert "Traceback" not in said
    assert "Reward in all: 1" in said


def test_a_budget_that_is_spent_is_named(tmp_path: Path) -> None:
    said = play("test/Shop-v0", "-m", "shop", typed="a\nb\nc\nd\n", cwd=tmp_path)
    assert "Cut off by max_turns after 4 turns" in said


def test_an_environment_without_messages_is_played(tmp_path: Path) -> None:
    said = play("FrozenLake-v1", "--kwargs", "render_mode=ansi", "--seed", "1", typed="2\n\n9\n/space\n", cwd=tmp_path)
    assert said.count("SFFF") == 3
    assert "actions are of Discrete(4): '9' is none" in said


ARGUMENTS = {"properties": {"text": {"type": "string"}, "number": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("typed", "arguments"),
    [
        ("", {}),
        ("one two", {"text": "one two"}),
        ("a = b", {"text": "a = b"}),
        ("text='a = b' number=3", {"text": "a = b", "number": 3}),
        ("number=x", {"number": "x"}),
        ('{"number": 1}', {"number": 1}),
    ],
)
def test_arguments_are_read(typed: str, arguments: dict[str, object]) -> None:
    assert read_arguments(ARGUMENTS, typed) == arguments


@pytest.mark.parametrize("typed", ['{"number"', "text='a", "number=1 2"])
def test_what_are_no_arguments_is_refused(typed: str) -> None:
    with pytest.raises(NotUnderstoodError):
        read_arguments(ARGUMENTS, typed)


@pytest.mark.parametrize(
    ("space", "typed", "action"),
    [
        (spaces.Discrete(3), "2", 2),
        (spaces.Discrete(3), "3", None),
        (spaces.Discrete(3), "1.5", None),
        (spaces.Discrete(3), "left", None),
        (spaces.Box(-1, 1, (2,)), "[0.5, -0.5]", np.array([0.5, -0.5], np.float32)),
        (spaces.Box(-1, 1, (1,)), "0.5", np.array([0.5], np.float32)),
        (spaces.Box(-1, 1, (2,)), "[0.5]", None),
        (spaces.MultiBinary(2), "[1, 0]", np.array([1, 0], np.int8)),
        (spaces.MultiDiscrete([2, 300]), "[1, 299]", np.array([1, 299])),
        (spaces.Text(5), "abc", "abc"),
        (spaces.Dict(a=spaces.Tuple([spaces.Discrete(2)])), '{"a": [0]}', {"a": (0,)}),
        (spaces.Dict(a=spaces.Discrete(2)), '{"b": 1}', None),
    ],
)  # fmt: skip
def test_actions_are_read(space: gymnasium.Space[object], typed: str, action: object) -> None:
    if action is None:
        with pytest.raises(NotUnderstoodError, match="is none"):
            read_action(space, typed)
    else:
        np.testing.assert_equal(read_action(space, typed), action)
        assert space.contains(read_action(space, typed))
