"""Environments for Stable-Baselines3: a vector environment on a server as a `VecEnv`.

    env = make_vec_env("CartPole-v1", n_envs=8, server="cpu7:50051")
    PPO("MlpPolicy", env).learn(100_000)

A step is one exchange with the server for all copies, and one pass of NumPy here; Python goes through the copies only
for what they say in their infos, and for those whose episode ended.
"""

import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv, VecMonitor
from stable_baselines3.common.vec_env.util import obs_space_info  # pyright: ignore[reportUnknownVariableType]

from gymhost.client import EnvironmentFault, PermissionDenied, make_vec
from gymhost.client.tls import TlsLike
from gymhost.client.wrapping import normalise

__all__ = ["RemoteVecEnv", "make_vec_env"]

Indices = int | Iterable[int] | None


class RemoteVecEnv(VecEnv):
    """A Gymnasium vector environment as Stable-Baselines3 wants it, and one on a server above all.

    Differs from `DummyVecEnv` in what vector environments say less of: scalars in infos are NumPy's.

    Args:
        vector_env: Resets a copy in the step that ends its episode (`AutoresetMode.SAME_STEP`), and hands out
            observations that are the caller's to keep (`copy=True`).
        wrappers: Those that the server put around each copy, as `gymhost.client.make_vec` takes them: `env_is_wrapped`
            knows of these.

    Raises:
        ValueError: The vector environment resets its copies at other times.
        NotImplementedError: Its observation space is one that Stable-Baselines3 does not take.
    """

    def __init__(self, vector_env: VectorEnv[Any, Any, Any], *, wrappers: Iterable[Any] = ()) -> None:
        mode = vector_env.metadata.get("autoreset_mode")
        if mode is not AutoresetMode.SAME_STEP:
            raise ValueError(
                f"{vector_env} has {mode}, and Stable-Baselines3 needs copies that are reset in the step that ends an"
                " episode: make it with autoreset_mode='SameStep', and vectorization_mode='sync' if it has none other"
            )
        # Not every vector environment has the methods of all that are used here.
        self.vector_env: Any = vector_env
        self.spec = vector_env.spec
        self._wrappers = [name for name, _ in normalise(wrappers)]
        # What needs no question to the server, so that it need not be declared there.
        self._known: dict[str, Any] = {
            "action_space": self.vector_env.single_action_space,
            "metadata": vector_env.metadata,
            "observation_space": self.vector_env.single_observation_space,
            "render_mode": vector_env.render_mode,
            "spec": vector_env.spec,
        }
        obs_space_info(self._known["observation_space"])
        self._step_async: Any = getattr(vector_env, "step_async", None)
        self._actions: Any = None
        self._was_reset = False
        super().__init__(  # pyright: ignore[reportUnknownMemberType]
            vector_env.num_envs, self._known["observation_space"], self._known["action_space"]
        )
        self.metadata = vector_env.metadata

    # -- episodes ------------------------------------------------------------------------------------------------------

    def reset(self) -> Any:
        """Starts an episode in every copy, with the seeds and options that were set for it."""
        seeds = self._seeds if any(seed is not None for seed in self._seeds) else None
        *before, (options, mask) = self._resets()
        for its_options, its_mask in before:
            self._reset_some(seeds, its_options, its_mask)
        observation = self._reset_some(seeds, options, mask)
        self._reset_seeds()
        self._reset_options()
        return observation

    def _resets(self) -> list[tuple[dict[str, Any], NDArray[np.bool_]]]:
        """Which options go to which copies."""
        resets: dict[int, tuple[dict[str, Any], NDArray[np.bool_]]] = {}
        for index, options in enumerate(self._options):
            _, mask = resets.setdefault(id(options) if options else 0, (options, np.zeros(self.num_envs, np.bool_)))
            mask[index] = True
        return list(resets.values())

    def _reset_some(self, seeds: Any, options: dict[str, Any], mask: NDArray[np.bool_]) -> Any:
        # The first reset is of all copies, whatever it is for: before it some would have nothing to observe.
        some = self._was_reset and not mask.all()
        options = {**options, "reset_mask": mask} if some else options
        observation, infos = self.vector_env.reset(seed=seeds, options=dict(options) or None)
        self._was_reset = True
        for index, info in enumerate(_infos_of_copies(infos, self.num_envs)):
            if mask[index]:
                self.reset_infos[index] = info
        return observation

    def step_async(self, actions: NDArray[Any]) -> None:
        """Sends the actions."""
        if self._step_async is None:
            self._actions = actions
        else:
            self._step_async(actions)

    def step_wait(self) -> tuple[Any, NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]:
        """Waits for all copies."""
        sent = self._step_async is not None
        result = self.vector_env.step_wait() if sent else self.vector_env.step(self._actions)
        observation, rewards, terminations, truncations, vector_infos = result
        dones = terminations | truncations
        infos = _infos_of_copies(vector_infos, self.num_envs)
        for index in np.flatnonzero(dones).tolist():
            reset_info = infos[index]
            infos[index] = reset_info.pop("final_info", {})
            infos[index]["terminal_observation"] = reset_info.pop("final_obs")
            self.reset_infos[index] = reset_info
        for info, truncated in zip(infos, (truncations & ~terminations).tolist(), strict=True):
            info["TimeLimit.truncated"] = truncated
        return observation, rewards.astype(np.float32), dones, infos

    def close(self) -> None:
        """Closes the environments. Twice is no error."""
        self.vector_env.close()

    # -- rendering -----------------------------------------------------------------------------------------------------

    def get_images(self) -> Sequence[Any]:
        """A picture of each copy, if they were made with `render_mode="rgb_array"`."""
        if self.render_mode != "rgb_array":
            warnings.warn(f"the render mode is {self.render_mode}, and pictures need rgb_array", stacklevel=2)
            return [None] * self.num_envs
        return self.vector_env.render() or ()

    # -- attributes ----------------------------------------------------------------------------------------------------

    def has_attr(self, attr_name: str) -> bool:
        """Whether every copy has an attribute that may be reached. It is read to find out; a method is called."""
        try:
            self.get_attr(attr_name)
        except (AttributeError, PermissionDenied):
            return False
        except EnvironmentFault:
            pass  # there is one, though it would not be read
        return True

    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        """An attribute of the copies."""
        if attr_name in self._known:
            return [self._known[attr_name] for _ in self._get_indices(indices)]
        values = self.vector_env.get_attr(attr_name)
        return [values[index] for index in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Indices = None) -> None:
        """Sets an attribute of the copies, where they have it: on the environment itself or on a wrapper of it."""
        values = [value] * self.num_envs if indices is None else list(self.vector_env.get_attr(attr_name))
        for index in self._get_indices(indices):
            values[index] = value
        self.vector_env.set_attr(attr_name, values)

    def env_method(
        self, method_name: str, *method_args: Any, indices: Indices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Calls a method of the copies."""
        if indices is None:
            return list(self.vector_env.call(method_name, *method_args, **method_kwargs))
        return list(self.vector_env.call_some(self._get_indices(indices), method_name, *method_args, **method_kwargs))

    def env_is_wrapped(
        self, wrapper_class: type[gymnasium.Wrapper[Any, Any, Any, Any]], indices: Indices = None
    ) -> list[bool]:
        """Whether the server was asked to put a wrapper around each copy."""
        wrapped = any(_is_a(name, wrapper_class) for name in self._wrappers)
        return [wrapped for _ in self._get_indices(indices)]


def make_vec_env(
    env_id: str,
    n_envs: int = 1,
    seed: int | None = None,
    *,
    server: str | None = None,
    token: str | None = None,
    tls: TlsLike = None,
    wrappers: Sequence[Any] = (),
    monitor: bool = True,
    monitor_dir: str | Path | None = None,
    info_keywords: tuple[str, ...] = (),
    **kwargs: Any,
) -> VecEnv:
    """Makes copies of an environment on a server, as Stable-Baselines3's function of this name does in this process.

    Args:
        env_id: The environment, such as `CartPole-v1`.
        n_envs: How many copies.
        seed: The seed of the first copy; the others count on from it.
        server: `HOST:PORT` or `unix:PATH`; None starts a server of this process's own.
        token: The bearer token; None takes the environment variable GYMHOST_TOKEN.
        tls: How TLS is spoken with the server, as for `gymhost.client.connect`.
        wrappers: Wrappers that the server puts around each copy, the innermost first: a name, a class, or either with
            keyword arguments.
        monitor: Whether infos say at the end of an episode what its return and length were; the training's log has its
            figures from there.
        monitor_dir: The folder for a file with these figures.
        info_keywords: What else of an episode's last info goes into them.
        **kwargs: The other arguments of `gymhost.client.make_vec`, such as `modules` and `shards`, and those of the
            environment, such as `render_mode`.

    Raises:
        UnknownEnvironment: No such environment is registered on the server.
        ServerUnavailable: The server could not be reached, or started.
        EnvironmentFault: The environment could not be made.
        ValueError: It was to be made by its vector entry point, and that resets copies at other times.
        NotImplementedError: Its observation space is one that Stable-Baselines3 does not take.
    """
    how: dict[str, Any] = {"vectorization_mode": "sync", "autoreset_mode": AutoresetMode.SAME_STEP} | kwargs
    vector_env = make_vec(env_id, n_envs, server=server, token=token, tls=tls, wrappers=wrappers, **how)
    try:
        env = RemoteVecEnv(vector_env, wrappers=wrappers)
    except BaseException:
        vector_env.close()
        raise
    env.seed(seed)
    if seed is not None:
        env.get_attr("action_space")[0].seed(seed)
    if not monitor:
        return env
    if monitor_dir is not None:
        Path(monitor_dir).mkdir(parents=True, exist_ok=True)
    monitored = VecMonitor(env, None if monitor_dir is None else str(monitor_dir), info_keywords)
    monitored.reset_infos = env.reset_infos  # which wrappers do not hand on
    return monitored


def _infos_of_copies(infos: Any, number: int) -> list[Any]:
    """Takes the info of a vector environment apart: a dict for each copy, with what is its own."""
    apart: list[Any] = [{} for _ in range(number)]
    masks = {f"_{key}" for key in infos}
    for key, values in infos.items():
        if key in masks:
            continue
        mask = infos.get(f"_{key}")
        if isinstance(values, dict):
            values = _infos_of_copies(values, number)
        elif mask is None and np.shape(values)[:1] != (number,):
            values = [values] * number  # what the vector environment says of itself, or of all
        if mask is None or mask.all():
            for info, value in zip(apart, values, strict=True):
                info[key] = value
        else:
            for index in np.flatnonzero(mask).tolist():
                apart[index][key] = values[index]
    return apart


def _is_a(name: str, wrapper_class: type[Any]) -> bool:
    """Whether a wrapper on the server, by its name there, is of a class."""
    known = vars(gymnasium.wrappers).get(name)
    if known is not None:
        return issubclass(known, wrapper_class)
    return name == f"{wrapper_class.__module__}:{wrapper_class.__qualname__}"
