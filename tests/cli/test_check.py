"""`gymhost check`: what is fit passes, what is not is told what to mend."""

from pathlib import Path

import pytest

from support.command import gymhost

BAD = """
import random

import gymnasium
from gymnasium.spaces import Discrete

from gymhost.envs import register


class Bad(gymnasium.Env):
    observation_space = Discrete(1000)
    action_space = Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return random.randrange(1000), {}

    def step(self, action):
        self.steps += 1
        return random.randrange(1000), 0.0, self.steps == 3, False, {"seen": {1, 2}}


register("test/Bad-v0", Bad)
"""


@pytest.mark.parametrize("id", ["gymhost/Echo-v0", "gymhost/GuessNumber-v0", "CartPole-v1"])
def test_fit_environments_pass(id: str):
    said = gymhost("check", id)
    assert said.returncode == 0, said.stdout
    assert said.stdout.startswith(f"{id}\n")
    assert "It plays the same over the wire" in said.stdout
    assert said.stdout.splitlines()[-1].startswith("Fit to be hosted")
    assert "Over the wire ..." in said.stderr


def test_an_unfit_environment_fails_and_is_told_what_to_mend(tmp_path: Path):
    (tmp_path / "bad.py").write_text(BAD)
    said = gymhost("check", "test/Bad-v0", "--module", "bad", cwd=tmp_path)
    assert said.returncode == 1
    assert "Take every random number from self.np_random" in said.stdout
    assert "does not travel" in said.stdout or "can't travel" in said.stdout
    assert said.stdout.splitlines()[-1].startswith("Not fit to be hosted")
    assert "Traceback" not in said.stderr


def test_keyword_arguments_reach_the_environment():
    said = gymhost("check", "gymhost/Echo-v0", "--kwargs", '{"length": 1}', "--kwargs", "length=0")
    assert said.returncode == 1
    assert "length is at least 1, not 0" in said.stdout


def test_an_unknown_id_is_answered_with_those_that_are_like_it():
    said = gymhost("check", "gymhost/Ecko-v0")
    assert said.returncode == 1
    assert "did you mean gymhost/Echo-v0" in said.stderr
    assert "--module" in said.stderr
    assert "Traceback" not in said.stderr


def test_a_module_that_fails_is_shown_with_its_own_traceback(tmp_path: Path):
    (tmp_path / "broken.py").write_text("raise RuntimeError('not today')\n")
    said = gymhost("check", "test/Any-v0", "--module", "broken", cwd=tmp_path)
    assert said.returncode == 1
    assert "can't import the environments of 'broken': RuntimeError: not today" in said.stderr
    assert said.stderr.count('File "') == 1
