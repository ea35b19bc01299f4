"""Plays a remote vector environment beside a local one, and finds whatever tells them apart."""

import copy
from typing import Any

import gymnasium
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from gymhost import client
from support import spaces_environments
from support.compare import assert_same, assert_same_space

MODES = list(AutoresetMode)
MODULES = ["ale_py", spaces_environments.__name__]


def local_vector(id: str, num_envs: int, mode: AutoresetMode = AutoresetMode.NEXT_STEP, **kwargs: Any) -> SyncVectorEnv:
    """Makes Gymnasium's own vector of copies."""
    how = {"autoreset_mode": mode}
    made = gymnasium.make_vec(id, num_envs, vectorization_mode="sync", vector_kwargs=how, **kwargs)
    assert isinstance(made, SyncVectorEnv)
    return made


class Remote:
    """Makes vector environments on an embedded server.

    Args:
        direct: Whether steps go past gRPC.
    """

    def __init__(self, direct: bool) -> None:
        self.direct = direct

    def make_vec(self, id: str, num_envs: int, **kwargs: Any) -> client.RemoteVectorEnv:
        """As in `gymhost.client`, in two shards of copies unless told otherwise."""
        how: dict[str, Any] = {"vectorization_mode": "sync", "shards": 2} | kwargs
        return client.make_vec(id, num_envs, modules=MODULES, direct=self.direct, **how)


class Twins:
    """A remote vector environment and a local one that get the same seeds and actions.

    Args:
        remote: The one under test; it may be wrapped.
        local: What it has to be like.
    """

    def __init__(self, remote: Any, local: Any) -> None:
        self.remote = remote
        self.local = local
        self.mode = local.metadata["autoreset_mode"]
        self._kept: list[tuple[Any, Any]] = []

    def __enter__(self) -> "Twins":
        return self

    def __exit__(self, *_: object) -> None:
        self.remote.close()
        self.local.close()

    def compare_descriptions(self) -> None:
        """Compares what is known before the first reset."""
        remote, local = self.remote, self.local
        for name in ("observation_space", "action_space", "single_observation_space", "single_action_space"):
            assert_same_space(getattr(remote, name), getattr(local, name), name)
        for name in ("num_envs", "metadata", "render_mode", "closed"):
            assert_same(getattr(remote, name), getattr(local, name), name)
        for name in ("id", "reward_threshold", "nondeterministic"):
            assert getattr(remote.spec, name) == getattr(local.spec, name), name
        assert remote.unwrapped is remote

    def reset(self, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        """Resets both, and returns what they both gave."""
        there, here = [env.reset(seed=seed, options=copy.deepcopy(options)) for env in (self.remote, self.local)]
        return self._compare(there, here, "reset")

    def step(self, actions: Any, where: str = "step") -> Any:
        """Steps both, and returns what they both gave."""
        return self._compare(self.remote.step(actions), self.local.step(actions), where)

    def render(self) -> None:
        """Compares what both show."""
        assert_same(self.remote.render(), self.local.render(), "render")

    def play(self, steps: int, *, seed: int = 0, render: bool = False) -> int:
        """Plays both with sampled actions, and returns how many episodes ended."""
        self.local.action_space.seed(seed)
        self.reset(seed)
        ended = 0
        for number in range(steps):
            actions = self.local.action_space.sample()
            _, _, terminations, truncations, _ = self.step(actions, f"step {number}")
            done = terminations | truncations
            ended += int(done.sum())
            if render:
                self.render()
            if self.mode is AutoresetMode.DISABLED and done.any():
                # Some copies go on with the generator that they have.
                seeds = [None if index % 2 else number + index for index in range(len(done))]
                self.reset(seeds, {"reset_mask": done})
        self.compare_kept()
        return ended

    def compare_kept(self) -> None:
        """Finds whether anything that was returned before has changed since."""
        for kept, as_it_was in self._kept:
            assert_same(kept, as_it_was, "a result that was kept")

    def _compare(self, actual: Any, expected: Any, where: str) -> Any:
        assert_same(actual, expected, where)
        self._kept.append((actual, copy.deepcopy(actual)))
        return actual


def ids_of(kind: str) -> list[str]:
    """The ids of Gymnasium's own environments of a kind, such as `toy_text`."""
    return [
        id
        for id, spec in gymnasium.registry.items()
        if isinstance(spec.entry_point, str) and spec.entry_point.startswith(f"gymnasium.envs.{kind}.")
    ]
