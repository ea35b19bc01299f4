"""Environments of dm_env: `dm:cartpole/swingup` of dm-control's suite, or `dm:module:factory` of anything else."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded

from gymhost.envs import packages
from gymhost.envs.adapters.support import add, chosen, imported, needed, values
from gymhost.envs.packages import Package
from gymhost.wire.chat_spaces import FreeText

__all__ = ["DmEnv", "about", "conform", "register", "space_of"]

# What dm-control's environments take, where the rest goes to their tasks.
_OF_ENVIRONMENT = ("control_timestep", "flat_observation", "legacy_step", "n_sub_steps")


class DmEnv(gymnasium.Env[Any, Any]):
    """An environment of dm_env behind Gymnasium's API: its specs are the spaces.

    The last step of an episode has terminated where its discount is 0, and was truncated where it is not; `discount` is
    in each step's info. A seed goes to what the environment draws from, as dm-control's have it (`task.random` of the
    suite, `random_state` of the composer), or to the factory's argument `seed`, which then makes another environment.

    Args:
        factory: Makes the environment.
        render_mode: `rgb_array` renders the physics of dm-control; on a machine without a screen the environment
            variable MUJOCO_GL is to be `egl`.
    """

    def __init__(self, factory: Callable[..., Any], /, *, render_mode: str | None = None) -> None:
        self._factory = factory
        self._env: Any = factory()
        self.metadata = {"render_modes": ["rgb_array"]} if hasattr(self._env, "physics") else {}
        self.render_mode = render_mode
        self._action_spec: Any = self._env.action_spec()
        self.observation_space = space_of(self._env.observation_spec())
        self.action_space = space_of(self._action_spec)
        self._ended = True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begins an episode."""
        super().reset(seed=seed)
        if seed is not None:
            self._seed(seed)
        told = self._env.reset()
        self._ended = False
        return conform(self.observation_space, told.observation), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Acts.

        Raises:
            ResetNeeded: There is no episode: dm_env would begin one, and ignore the action.
        """
        if self._ended:
            raise ResetNeeded("call reset before step")
        self._ended = True  # until the step is through
        told = self._env.step(_action(self._action_spec, action))
        self._ended = last = bool(told.last())
        discount = np.asarray(told.discount, dtype=float)
        terminated = last and not discount.any()
        info = {"discount": float(discount) if discount.ndim == 0 else discount}
        observation = conform(self.observation_space, told.observation)
        return observation, float(told.reward), terminated, last and not terminated, info

    def render(self) -> Any:
        """Returns a picture of dm-control's physics."""
        return self._env.physics.render(height=240, width=320, camera_id=0)

    def close(self) -> None:
        """Closes the environment."""
        self._env.close()

    def _seed(self, seed: int) -> None:
        random = getattr(self._env, "random_state", None) or getattr(getattr(self._env, "task", None), "random", None)
        if random is not None:
            random.seed(seed)
        elif "seed" in inspect.signature(self._factory).parameters:
            self._env.close()
            self._env = self._factory(seed=seed)


def space_of(spec: Any) -> gymnasium.Space[Any]:
    """Returns the space of a spec, which may be of arrays in dicts, lists and tuples.

    Raises:
        TypeError: It is none that there is a space for.
    """
    if isinstance(spec, Mapping):
        return spaces.Dict({name: space_of(part) for name, part in cast("Mapping[str, Any]", spec).items()})
    if isinstance(spec, (list, tuple)):
        return spaces.Tuple([space_of(part) for part in cast("Sequence[Any]", spec)])
    dtype: np.dtype[Any] = np.dtype(getattr(spec, "dtype", "O"))
    if hasattr(spec, "num_values"):
        return spaces.Discrete(int(spec.num_values))
    if hasattr(spec, "string_type") and not spec.shape:
        return FreeText()
    if dtype.kind == "b":
        return spaces.MultiBinary(spec.shape) if spec.shape else spaces.Discrete(2)
    if dtype.kind not in "fiu":
        raise TypeError(f"there is no space for {spec!r}")
    least, most = (-np.inf, np.inf) if dtype.kind == "f" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    low = np.broadcast_to(getattr(spec, "minimum", least), spec.shape)
    high = np.broadcast_to(getattr(spec, "maximum", most), spec.shape)
    return spaces.Box(low.astype(dtype), high.astype(dtype), spec.shape, dtype.type)


def conform(space: gymnasium.Space[Any], value: Any) -> Any:
    """Returns an observation in the form of its space: dm_env's may be numbers where the spec has arrays."""
    if isinstance(space, spaces.Dict):
        parts: dict[str, gymnasium.Space[Any]] = cast(Any, space).spaces
        return {name: conform(part, value[name]) for name, part in parts.items()}
    if isinstance(space, spaces.Tuple):
        items: tuple[gymnasium.Space[Any], ...] = cast(Any, space).spaces
        return tuple(conform(part, each) for part, each in zip(items, value, strict=True))
    if isinstance(space, spaces.Discrete):
        return int(value)
    if isinstance(space, FreeText):
        return str(value)
    return np.array(value, dtype=space.dtype)


def _action(spec: Any, action: Any) -> Any:
    """Returns an action in the form of its spec."""
    if isinstance(spec, Mapping):
        return {name: _action(part, action[name]) for name, part in cast("Mapping[str, Any]", spec).items()}
    if isinstance(spec, (list, tuple)):
        parts = [_action(part, each) for part, each in zip(cast("Sequence[Any]", spec), action, strict=True)]
        return parts if isinstance(spec, list) else tuple(parts)
    return action if hasattr(spec, "string_type") else np.asarray(action, dtype=spec.dtype)


def register(name: str, **options: str) -> list[str]:
    """Registers environments of dm_env.

    Args:
        name: `domain/task` of dm-control's suite; with a `*`, several. Or `module:factory`, what makes one.
        **options: What the task, or the factory, is given.

    Raises:
        ModuleNotFoundError: dm-control, or dm-env, is not installed.
        ValueError: There is none.
    """
    given = values(options)
    package = None
    if ":" in name:
        needed("dm", "dm_env")
        factories: dict[str, Callable[..., Any]] = {name: functools.partial(imported(name), **given)}
        package = packages.of_module(name.partition(":")[0]) or Package("")
    else:
        suite = needed("dm", "dm_control.suite")
        for_environment = {option: given.pop(option) for option in _OF_ENVIRONMENT if option in given}
        factories = {
            each: functools.partial(suite.load, *each.split("/"), given, for_environment or None)
            for each in chosen("dm", name, ("/".join(task) for task in suite.ALL_TASKS))
        }
    return [
        add(
            "dm",
            each,
            functools.partial(DmEnv, factory),
            description=f"{'dm_env' if package else 'dm-control'}'s {each}.",
            package=package,
        )
        for each, factory in factories.items()
    ]


def about() -> Package:
    """Returns dm-control's package."""
    return packages.installed("dm-control")
