"""`make_vec`, and what makes a vector environment again."""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from gymnasium.vector import AutoresetMode

from gymhost.client.api import connect
from gymhost.client.session import SessionOptions
from gymhost.client.tls import TlsLike
from gymhost.client.vector_env import RemoteVectorEnv
from gymhost.wire import errors

__all__ = ["make_remote", "make_vec", "remake"]


def make_vec(
    id: str,
    /,
    num_envs: int = 1,
    *,
    server: str | None = None,
    token: str | None = None,
    tls: TlsLike = None,
    modules: Sequence[str] = (),
    vectorization_mode: Literal["sync", "vector_entry_point"] | None = None,
    autoreset_mode: AutoresetMode | str | None = None,
    shards: int | None = None,
    batch_size: int | None = None,
    on_lost: Literal["raise", "truncate"] = "raise",
    wrappers: Iterable[Any] = (),
    task: int | None = None,
    split: str | None = None,
    create_timeout: float | None = None,
    priority: int = 0,
    direct: bool = True,
    **kwargs: Any,
) -> RemoteVectorEnv:
    """Makes a vector environment on a server; without one, on an embedded server that is stopped with it.

        envs = make_vec("CartPole-v1", 64, server="cpu7:50051")
        observations, infos = envs.reset(seed=0)

    Args:
        id: The environment's id, such as `CartPole-v1`.
        num_envs: The number of copies.
        server: `HOST:PORT` or `unix:PATH`; None starts a server of this process's own.
        token: The bearer token; None takes the environment variable GYMHOST_TOKEN.
        tls: How TLS is spoken with the server, as for `connect`; None takes what GYMHOST_TLS_CA, _CERT and _KEY name.
        modules: For an embedded server: modules that register environments.
        vectorization_mode: `sync` makes copies, `vector_entry_point` the environment's own vector form; None the latter
            where there is one, as Gymnasium does, unless there are wrappers or an autoreset mode.
        autoreset_mode: When a copy is reset that has come to the end of its episode: an `AutoresetMode` or its value;
            None for NEXT_STEP, or what the environment's own vector form has.
        shards: How many sessions share the copies, each on a worker of its own while there are enough; None for one a
            worker.
        batch_size: How many copies `recv` waits for; None for all. Given, it makes each copy a shard.
        on_lost: What is done when a worker dies with copies. `raise` raises `SessionLost`. `truncate` makes them anew
            and ends their episodes: in this step they are truncated, with the reward 0.0 and the last observation that
            they had (in SAME_STEP it is in `final_obs`, as ever), and `infos["lost"]` is True, so that nobody takes it
            for a step that was played; then they are reset as the autoreset mode has it, without a seed. What
            `set_attr` has set is not set again. A shard that is lost a fourth time without having taken a step raises,
            and so does a reset of some of its copies. It costs a copy of the observations a step.
        wrappers: What the server puts around each copy, as for `make`.
        task: The task that resets play unless their options name another.
        split: The split that `task` counts in.
        create_timeout: Seconds to wait for places on a full server.
        priority: Where the server is full, whose turn it is: higher ones come first, from -1000 to 1000.
        direct: Whether steps go past gRPC, straight to the workers, where the server is this user's and on this host.
        **kwargs: Keyword arguments for the environments; `render_mode` is one of them.

    Raises:
        InvalidArgument: The numbers do not go together, or the address, the token or the task can't be one.
        UnknownEnvironment: No such environment is registered on the server.
        ServerUnavailable: The server could not be reached, or started.
        EnvironmentFault: An environment could not be made.
    """
    if "vector_kwargs" in kwargs:
        raise errors.InvalidArgument("there are no vector_kwargs here: autoreset_mode is an argument of its own")
    options = SessionOptions(id, task=task, split=split, priority=priority, kwargs=kwargs, wrappers=wrappers)
    return RemoteVectorEnv(
        connect(server, token=token, tls=tls, modules=modules, direct=direct),
        options,
        num_envs,
        vectorization_mode=vectorization_mode,
        autoreset_mode=autoreset_mode,
        shards=shards,
        batch_size=batch_size,
        on_lost=on_lost,
        create_timeout=create_timeout,
    )


def make_remote(
    *,
    environment_id: str,
    num_envs: int,
    remote_vectorization_mode: Literal["sync", "vector_entry_point"] | None = None,
    remote_wrappers: Iterable[Any] = (),
    **given: Any,
) -> RemoteVectorEnv:
    """What `gymnasium.make_vec("gymhost.client:gymhost/Remote-v0", ...)` calls.

    Args:
        environment_id: The environment on the server.
        num_envs: The number of copies.
        remote_vectorization_mode: How the server makes them; Gymnasium keeps `vectorization_mode` for itself.
        remote_wrappers: What the server puts around each; Gymnasium keeps `wrappers` for itself.
        **given: As for `make_vec`.
    """
    return make_vec(
        environment_id,
        num_envs,
        vectorization_mode=remote_vectorization_mode,
        wrappers=remote_wrappers,
        **given,
    )


def remake(*, num_envs: int, remote: dict[str, Any], **kwargs: Any) -> RemoteVectorEnv:
    """Makes a vector environment again from its spec, as `gymnasium.make_vec(envs.spec)` does.

    Args:
        num_envs: The number of copies.
        remote: How it was made, but for the keyword arguments of the environments.
        **kwargs: Keyword arguments for the environments.
    """
    return RemoteVectorEnv.made_from(remote["server"], {**remote["options"], "kwargs": kwargs}, num_envs, remote["how"])
