"""EnvPool's environments, hosted as they are: a pool is a vector environment, with EnvPool's own threads beneath it.

    gymhost serve gymhost.envs.envpool
    envs = make_vec("envpool/CartPole-v1", 64, server=...)

Importing this module registers all that EnvPool has, under its own names in the namespace `envpool`; where such a name
has a namespace already, a dot stands for the slash: `envpool/phys2d.CartPole-v1`.
"""

import os
from collections.abc import Sequence
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

try:
    import envpool
except ModuleNotFoundError as error:
    if error.name != "envpool":
        raise
    raise ModuleNotFoundError("gymhost.envs.envpool needs EnvPool: pip install envpool", name=error.name) from None

__all__ = ["EnvPoolVectorEnv"]

NAMESPACE = "envpool"

# EnvPool's seeds are 32-bit numbers with a sign; it gives each copy the next one.
_SEEDS = 2**31
# What EnvPool ends the process for, or takes all of the machine.
_COUNTS = {
    "num_envs": 2**16,
    "num_threads": 4 * (os.cpu_count() or 1),
    "stack_num": 64,
    "frame_skip": 1000,
    "max_episode_steps": 2**30,
}


class EnvPoolVectorEnv(VectorEnv[Any, Any, Any]):
    """A pool of EnvPool as a Gymnasium vector environment, with its observations, rewards and infos untouched.

    EnvPool starts the next episode of a copy with the step after its last, as `AutoresetMode.NEXT_STEP` has it. It
    takes seeds only when a pool is made: a reset with a seed makes another pool. Without one the first pool's seed is
    random, unless `seed` is among the arguments.

    Args:
        task_id: EnvPool's name of the environment.
        num_envs: The number of copies.
        render_mode: None or `rgb_array`.
        **kwargs: What else `envpool.make` takes for it, such as `num_threads` or `max_episode_steps`.

    Raises:
        ValueError: An argument can't be, since it makes a pool that is no vector environment.
    """

    metadata = {"render_modes": ["rgb_array"], "autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(self, task_id: str, num_envs: int = 1, render_mode: str | None = None, **kwargs: Any) -> None:
        if kwargs.get("batch_size", num_envs) != num_envs:
            raise ValueError("EnvPool's batch_size must be that of all copies: a step is one of all of them")
        for name, value in {"num_envs": num_envs, **kwargs}.items():
            if name in _COUNTS and not 1 <= int(value) <= _COUNTS[name]:
                raise ValueError(f"{name} must be from 1 to {_COUNTS[name]}, not {value}")
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode is None or 'rgb_array', not {render_mode!r}")
        self.num_envs = num_envs
        self.render_mode = render_mode
        self._task_id = task_id
        self._kwargs = kwargs | {"num_envs": num_envs}
        spec = cast(Any, envpool.make_spec(task_id, **self._kwargs))
        if spec.config.max_num_players > 1:
            raise ValueError(f"{task_id} has several players in a copy, which no vector environment has")
        self.single_observation_space = spec.gymnasium_observation_space
        self.single_action_space = spec.gymnasium_action_space
        self.observation_space = batch_space(spec.gymnasium_observation_space, num_envs)
        self.action_space = batch_space(spec.gymnasium_action_space, num_envs)
        actions = batch_space(spec.gymnasium_action_space, num_envs)
        self._actions: tuple[Any, Any] = actions.shape, actions.dtype
        if render_mode is not None:
            self._kwargs["render_mode"] = render_mode
        self._pool: Any = None
        # What the last reset or step returned, which a reset of some copies leaves as it is for the others.
        self._last: tuple[Any, dict[str, Any]] = (None, {})

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Starts an episode in all copies, or in those of the option `reset_mask`.

        Raises:
            ValueError: Some copies only are to be seeded, or there is an option that EnvPool does not know.
        """
        some = options is not None and options.get("reset_mask") is not None
        if some and (seed is not None or self._pool is None):
            raise ValueError("EnvPool takes seeds only for all copies at once, and so the first reset is one of all")
        if seed is not None or self._pool is None:
            self._pool = self._make(seed)
        observations, infos = self._pool.reset(options=options)
        if some:
            assert options is not None
            copies = np.flatnonzero(options["reset_mask"])
            last_observations, last_infos = self._last
            observations = _replaced(last_observations, copies, observations)
            infos = _replaced(last_infos, copies, infos)
        self._last = observations, infos
        return observations, infos

    def _make(self, seed: int | Sequence[int] | None) -> Any:
        if seed is None:
            seed = self._kwargs.get("seed", int(self.np_random.integers(_SEEDS - self.num_envs)))
        elif isinstance(seed, Sequence):
            seed = [int(one) for one in seed]
        return cast(Any, envpool.make)(self._task_id, env_type="gymnasium", **self._kwargs | {"seed": seed})

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Takes a step in all copies.

        Raises:
            ValueError: The actions are no batch for them: EnvPool ends the process for that.
        """
        if self._pool is None:
            raise gymnasium.error.ResetNeeded("the first call is reset")
        shape, dtype = self._actions
        actions = np.asarray(actions)
        if actions.shape != shape or not np.can_cast(actions.dtype, dtype, "same_kind"):
            raise ValueError(f"actions must be {dtype} of shape {shape}, not {actions.dtype} of shape {actions.shape}")
        actions = actions.astype(dtype, copy=False)
        observations, rewards, terminations, truncations, infos = self._pool.step(actions)
        self._last = observations, infos
        return observations, rewards, terminations, truncations, infos

    def render(self) -> tuple[Any, ...] | None:
        """Renders each copy."""
        if self.render_mode is None:
            return None
        if self._pool is None:
            raise gymnasium.error.ResetNeeded("the first call is reset")
        return tuple(self._pool.render(env_ids=np.arange(self.num_envs)))

    def close_extras(self, **kwargs: Any) -> None:
        """Ends the pool's threads."""
        self._pool = None


def _replaced(old: Any, copies: Any, new: Any) -> Any:
    """The batch `old` with what some of its copies have now."""
    if isinstance(old, dict):
        return {key: _replaced(value, copies, new[key]) for key, value in cast(dict[str, Any], old).items()}
    old = old.copy()
    old[copies] = new
    return old


def _register() -> None:
    for task_id in envpool.list_all_envs():
        gymnasium.register(  # pyright: ignore[reportUnknownMemberType]
            f"{NAMESPACE}/{task_id.replace('/', '.')}",
            vector_entry_point=EnvPoolVectorEnv,
            kwargs={"task_id": task_id},
        )


_register()
