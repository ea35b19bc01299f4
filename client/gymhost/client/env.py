"""`make`: an environment on a server as a plain Gymnasium environment, usable from any thread."""

import contextlib
import threading
import weakref
from collections.abc import Sequence
from typing import Any, Literal

import gymnasium
from gymnasium.envs.registration import EnvSpec

from gymhost.client.api import RemoteServer, connect
from gymhost.client.pending import ThreadPending
from gymhost.client.session import (
    Made,
    SessionOptions,
    decode_render,
    decode_reset,
    decode_step,
    encode_reset,
    encode_step,
    release,
)
from gymhost.v1 import environments_pb2 as pb
from gymhost.wire import errors

__all__ = ["RemoteEnv", "make", "remake"]


class RemoteEnv(gymnasium.Env[Any, Any]):
    """An environment on a server behind Gymnasium's API.

    Calls from several threads take turns. It pickles as how it was made: the copy makes a session of its own.

    Args:
        server: The server; the environment holds it open until it is closed.
        options: What to make.
        create_timeout: Seconds to wait for a place on a full server; None for the server's default.
    """

    def __init__(self, server: RemoteServer, options: SessionOptions, *, create_timeout: float | None = None) -> None:
        self._server = server
        self._options = options
        self._create_timeout = create_timeout
        self._turn = threading.Lock()
        self._connection = server.open().connection
        try:
            reply = self._connection.call(pb.COMMAND_KIND_CREATE, options.request(), timeout=create_timeout)
        except BaseException:
            server.close()
            raise
        response = pb.CreateSessionResponse.FromString(reply)
        self._lane = self._connection.lane(response.lanes[0])
        self._release = weakref.finalize(self, _release, self._lane, server)
        self._release.atexit = False  # at exit the connection itself is closed
        made = Made(response)
        self.observation_space = made.observation_space
        self.action_space = made.action_space
        self.metadata = made.metadata
        self.render_mode = made.render_mode
        self.tools = made.tools
        self.spec = _spec(server, options, create_timeout)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts an episode, as in Gymnasium.

        Raises:
            EnvironmentFault: The environment raised; the remote traceback is part of the message.
            SessionError: The session has ended; its subclass says how.
        """
        super().reset(seed=seed)
        return decode_reset(self._command(pb.COMMAND_KIND_RESET, encode_reset(seed, options)))

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Takes a step, as in Gymnasium.

        Raises:
            EnvironmentFault: The environment raised; the remote traceback is part of the message.
            SessionError: The session has ended; its subclass says how.
        """
        return decode_step(self._command(pb.COMMAND_KIND_STEP, encode_step(action)))

    def render(self) -> Any:
        """Renders, as in Gymnasium."""
        return decode_render(self._command(pb.COMMAND_KIND_RENDER, b""))

    def close(self) -> None:
        """Closes the session and lets go of the server. Twice is no error."""
        if self._release.detach() is None:
            return
        try:
            if self._lane.ended is None:
                self._lane.ended = errors.SessionClosed("the environment was closed")
                with contextlib.suppress(errors.ServerUnavailable):
                    self._connection.call(pb.COMMAND_KIND_CLOSE, None, lane=self._lane.number)
        finally:
            self._server.close()

    def __exit__(self, *exc: object) -> Literal[False]:
        # What Gymnasium's does; but type checkers see that it lets exceptions pass.
        self.close()
        return False

    def _command(self, kind: int, payload: bytes) -> bytes:
        lane, connection = self._lane, self._connection
        if len(payload) > connection.max_payload:
            raise connection.too_large(payload)
        with self._turn:
            if lane.pending is not None:
                lane.until_free().result()
            pending = ThreadPending(lane, lane.number, kind, payload)
            lane.begin(pending)
            connection.submit_from_thread(pending, lane)
            try:
                return pending.wait()
            except KeyboardInterrupt:
                connection.forget(pb.COMMAND_KIND_CANCEL, lane.number)
                raise

    def __reduce__(self) -> tuple[Any, ...]:
        server = self._server.arguments
        return _remake, (server, vars(self._options), self._create_timeout)

    def __str__(self) -> str:
        return f"<RemoteEnv<{self._options.environment_id} on {self._connection.address}>>"


def make(
    id: str,
    /,
    *,
    server: str | None = None,
    token: str | None = None,
    modules: Sequence[str] = (),
    task: int | None = None,
    split: str | None = None,
    create_timeout: float | None = None,
    direct: bool = True,
    **kwargs: Any,
) -> RemoteEnv:
    """Makes an environment on a server; without one, on an embedded server that is stopped with its last environment.

    Args:
        id: The environment's id, such as `gymhost/Echo-v0` or `CartPole-v1`.
        server: `HOST:PORT` or `unix:PATH`; None starts a server of this process's own.
        token: The bearer token; None takes the environment variable GYMHOST_TOKEN.
        modules: For an embedded server: modules that register environments.
        task: The task that resets play unless their options name another.
        split: The split that `task` counts in.
        create_timeout: Seconds to wait for a place on a full server.
        direct: Whether steps go past gRPC, straight to the workers, where the server is this user's and on this host.
        **kwargs: Keyword arguments for the environment; `render_mode` is one of them.

    Raises:
        InvalidArgument: The address, the token or the task can't be one, or `modules` goes with an address.
        UnknownEnvironment: No such environment is registered on the server.
        ServerUnavailable: The server could not be reached, or started.
        EnvironmentFault: The environment could not be made.
    """
    options = SessionOptions(id, task=task, split=split, kwargs=kwargs)
    return RemoteEnv(
        connect(server, token=token, modules=modules, direct=direct), options, create_timeout=create_timeout
    )


def remake(*, remote: dict[str, Any], **kwargs: Any) -> RemoteEnv:
    """Makes an environment again from its spec, as `gymnasium.make(env.spec)` does.

    Args:
        remote: How the environment was made, but for its keyword arguments.
        **kwargs: Keyword arguments for the environment.
    """
    return _remake(remote["server"], {**remote["options"], "kwargs": kwargs}, remote["create_timeout"])


def _release(lane: Any, server: RemoteServer) -> None:
    """What happens to an environment that is garbage-collected: its session is closed."""
    release(lane)
    # The collector may run anywhere, a lock of the connection's held or not: closing is left to another thread.
    threading.Thread(target=server.close, daemon=True).start()


def _remake(server: dict[str, Any], options: dict[str, Any], create_timeout: float | None) -> RemoteEnv:
    remade = SessionOptions(options["environment_id"], **{k: v for k, v in options.items() if k != "environment_id"})
    return RemoteEnv(connect(**server), remade, create_timeout=create_timeout)


def _spec(server: RemoteServer, options: SessionOptions, create_timeout: float | None) -> EnvSpec:
    # Specs are printed and written to files: a token of the process's environment stays out of them.
    remote = {
        "server": server.arguments | {"token": server.given_token},
        "options": {name: value for name, value in vars(options).items() if name != "kwargs"},
        "create_timeout": create_timeout,
    }
    return EnvSpec(
        id=options.environment_id,
        entry_point="gymhost.client.env:remake",
        kwargs={**options.kwargs, "remote": remote},
        disable_env_checker=True,
        order_enforce=False,
    )
