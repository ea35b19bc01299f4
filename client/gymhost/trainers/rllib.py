"""Environments for RLlib's new API stack: an `AlgorithmConfig` that samples on a server.

    config = configure(PPOConfig(), "CartPole-v1", server="cpu7:50051").env_runners(num_envs_per_env_runner=16)
    config.build_algo().train()

Each env runner connects from its own process: nothing that is live is in the configuration. To RLlib the environments
are as any others, so `fault_tolerance(restart_failed_sub_environments=True)` replaces those that raised, hung beyond
their limit or were lost: it closes their sessions, makes new ones and goes on. Ray starts env runners anew that died,
and the server ends the sessions of the dead when their leases run out.
"""

import functools
import os
from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

from gymnasium.vector import AutoresetMode
from ray.tune.registry import register_env  # pyright: ignore

from gymhost.client import RemoteEnv, RemoteVectorEnv, make, make_vec

__all__ = ["configure"]


class _Configurable(Protocol):
    """What is used of an `AlgorithmConfig`."""

    def environment(self, env: Any, *, env_config: Any) -> Any: ...

    def env_runners(self, *, gym_env_vectorize_mode: Any) -> Any: ...


Config = TypeVar("Config", bound=_Configurable)


def configure(
    config: Config,
    env_id: str,
    /,
    *,
    server: str | None = None,
    token: str | None = None,
    vector: bool = True,
    **options: Any,
) -> Config:
    """Has an algorithm sample from environments on a server.

    A script that connects to several Ray clusters, one after another, calls this after each `ray.init`.

    Args:
        config: An `AlgorithmConfig`.
        env_id: The environment, such as "CartPole-v1".
        server: `HOST:PORT`, as the machines of the env runners know it. None has each env runner start an embedded
            server of its own, for which gymhost[server] must be installed there.
        token: The bearer token; None takes the environment variable GYMHOST_TOKEN of this process, and where it has
            none that of each env runner. It reaches them by Ray's registry, and is in no configuration, checkpoint or
            result.
        vector: Whether an env runner has one vector environment that is stepped as a whole, or an environment a copy.
        **options: What else `gymhost.client.make_vec` takes, or `make` without `vector`, such as `tls`, whose files are
            those of the env runners' machines; and keyword arguments of the environment. This is the `env_config`.

    Returns:
        The same configuration.
    """
    # Tune calls trials and folders so. The server's address is part of it since each server has a token of its own.
    name = f"{env_id}@{server or 'embedded'}"
    token = os.environ.get("GYMHOST_TOKEN") if token is None else token
    register_env(name, functools.partial(_make, token))
    config.environment(name, env_config={"id": env_id, "server": server, **options})
    config.env_runners(gym_env_vectorize_mode="vector_entry_point" if vector else "sync")
    return config


def _make(token: str | None, context: Mapping[str, Any]) -> RemoteEnv | RemoteVectorEnv:
    """Makes an env runner's environment: RLlib adds the number of copies where it wants a vector environment.

    Raises:
        ValueError: RLlib would take the vector environment's steps for what they are not.
    """
    options = dict(context)
    env_id, num_envs = options.pop("id"), options.pop("num_envs", None)
    if num_envs is None:
        return make(env_id, token=token, **options)
    env = make_vec(env_id, num_envs, token=token, **options)
    mode = env.metadata["autoreset_mode"]
    if mode is not AutoresetMode.NEXT_STEP:
        env.close()
        raise ValueError(
            f"RLlib needs environments that reset in the step after an episode's last one, and {env_id} has {mode}: "
            "leave out autoreset_mode, or set vectorization_mode='sync' where its own vector environment has no other"
        )
    return env
