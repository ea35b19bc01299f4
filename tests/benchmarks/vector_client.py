"""W2's clients: `python -m tests.benchmarks.vector_client VARIANT ID ADDRESS N SECS`.

N copies of an environment are stepped together, or one alone with `lone`, with random actions that were drawn
beforehand. Peers run this in environments of their own, so all that not everybody has is imported where it is used.
"""

import contextlib
import itertools
import sys
from typing import Any

import numpy as np
from tests.benchmarks.driver import drive_steps

# Batches of actions that are drawn.
_BATCHES = 1024


def vector(variant: str, id: str, address: str, n: int, seconds: float) -> None:
    """Steps what has `reset`, `step` with a batch of actions, and `close`."""
    envs, actions = _make(variant, id, address, n)
    batches = itertools.cycle(np.random.default_rng(0).integers(0, actions, size=(_BATCHES, n)))

    def step() -> bool:
        envs.step(next(batches))
        return False

    drive_steps(envs.reset, step, n, seconds)
    # EnvPool's have nothing to close.
    getattr(envs, "close", lambda: None)()


def lone(variant: str, id: str, address: str, seconds: float) -> None:
    """Steps one environment, episode after episode."""
    from gymhost.client import make

    with make(id, server=address, direct="grpc" not in variant) as env:
        actions = itertools.cycle(np.random.default_rng(0).integers(0, _count(env.action_space), size=_BATCHES))

        def step() -> bool:
            _, _, terminated, truncated, _ = env.step(next(actions))
            return terminated or truncated

        drive_steps(env.reset, step, 1, seconds)


def _make(variant: str, id: str, address: str, n: int) -> tuple[Any, int]:
    """The vector environment, and how many actions a copy has."""
    how = variant.split("-")
    if how[0] == "envpool":
        import envpool  # pyright: ignore[reportMissingTypeStubs]

        envs: Any = envpool.make(id, env_type="gymnasium", num_envs=n)
        return envs, _count(envs.action_space)
    if how[0] == "sb3":
        from stable_baselines3.common.env_util import make_vec_env
        from stable_baselines3.common.vec_env import SubprocVecEnv

        # Its default imports torch in each process: 64 of them do not fit into 24 GiB.
        envs = make_vec_env(id, n, vec_env_cls=SubprocVecEnv, vec_env_kwargs={"start_method": "fork"})
        return envs, _count(envs.action_space)
    if how[0] == "gymhost":
        from gymhost.client import make_vec

        mode = "vector_entry_point" if "native" in how else "sync"
        envs = make_vec(id, n, server=address, vectorization_mode=mode, direct="grpc" not in how)
        return envs, _count(envs.single_action_space)
    import gymnasium

    if id.startswith("ALE/"):
        import ale_py

        gymnasium.register_envs(ale_py)
    envs = gymnasium.make_vec(id, n, vectorization_mode="vector_entry_point" if how[0] == "native" else how[0])
    return envs, _count(envs.single_action_space)


def _count(space: Any) -> int:
    return int(space.n)


def main(variant: str, id: str, address: str, n: int, seconds: float) -> None:
    if variant.startswith("lone"):
        lone(variant, id, address, seconds)
    else:
        vector(variant, id, address, n, seconds)


# Processes that start by importing this again must not run it.
if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), float(sys.argv[5]))
