# pyright: reportMissingImports=false, reportMissingTypeStubs=false
"""dm-control's suite, hosted and driven by its own API."""

import os

import numpy as np
import pytest

# It chooses what to draw with when it is imported, and takes what needs a screen. The server has this environment too.
os.environ.setdefault("MUJOCO_GL", "egl")
from dm_control import suite

from support.adapters import Host, Make
from support.server import ServerProcess

pytestmark = pytest.mark.adapter("dm")

TASKS = ("cartpole/swingup", "cheetah/run", "reacher/easy", "point_mass/easy")


@pytest.fixture(scope="module")
def server(host: Host) -> ServerProcess:
    return host(*(f"dm:{task}?time_limit=0.4" for task in TASKS), "dm:walker/*?flat_observation=true")


@pytest.mark.parametrize("task", TASKS)
def test_a_task_is_the_suite_s_own(server: ServerProcess, remote: Make, task: str) -> None:
    env = remote(server, f"dm/{task.replace('/', '-')}")
    actions = np.random.default_rng(0)
    for seed in (0, 1, 2):
        own = suite.load(*task.split("/"), task_kwargs={"random": seed, "time_limit": 0.4})
        told = own.reset()
        observation, _ = env.reset(seed=seed)
        bounds, steps = own.action_spec(), 0
        terminated = truncated = False
        while not told.last():
            assert list(observation) == list(told.observation)
            for name, seen in told.observation.items():
                np.testing.assert_array_equal(observation[name], seen)
            action = actions.uniform(bounds.minimum, bounds.maximum, bounds.shape)
            told = own.step(action)
            observation, reward, terminated, truncated, info = env.step(action)
            assert (reward, info) == (told.reward, {"discount": told.discount})
            steps += 1
        assert (terminated, truncated) == (False, True), "the suite's tasks end by their time alone"
        assert steps > 5


def test_options_of_the_environment_and_a_picture(server: ServerProcess, remote: Make) -> None:
    env = remote(server, "dm/walker-walk", render_mode="rgb_array")
    observation, _ = env.reset(seed=3)
    own = suite.load("walker", "walk", task_kwargs={"random": 3}, environment_kwargs={"flat_observation": True})
    np.testing.assert_array_equal(observation["observations"], own.reset().observation["observations"])
    np.testing.assert_array_equal(env.render(), own.physics.render(height=240, width=320, camera_id=0))
