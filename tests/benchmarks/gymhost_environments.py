"""What `gymhost serve tests.benchmarks.gymhost_environments` hosts: the environment of W1, and Atari where it is."""

import contextlib
from typing import Any

import gymnasium
from tests.benchmarks.driver import EchoEpisode

from gymhost.envs import register
from gymhost.wire.chat_spaces import FreeText


class Echo(gymnasium.Env[str, str]):
    observation_space = FreeText()
    action_space = FreeText()

    def __init__(self) -> None:
        self._episode = EchoEpisode()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        return self._episode.reset(), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated = self._episode.step(action)
        return observation, reward, terminated, False, {}


with contextlib.suppress(ModuleNotFoundError):
    import ale_py

    gymnasium.register_envs(ale_py)
register("benchmarks/Echo-v0", Echo, mode="inline")
register("benchmarks/EchoThread-v0", Echo, mode="thread")
