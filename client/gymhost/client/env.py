"""`make`: an environment on a server as a plain Gymnasium environment, usable from any thread."""

import contextlib
import copy
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec

from gymhost.client.api import RemoteServer, connect
from gymhost.client.attributes import (
    decode_attribute,
    encode_call,
    encode_get,
    encode_set,
    missing_as_usual,
    reaches,
)
from gymhost.client.connection import RECOVERY_TIMEOUT
from gymhost.client.forks import encode_fork
from gymhost.client.pending import Lane
from gymhost.client.recovery import arrange, why_not
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
from gymhost.client.thread_link import ThreadLane
from gymhost.client.tls import TlsLike
from gymhost.v1 import environments_pb2 as pb
from gymhost.wire import errors, spaces, values
from gymhost.wire.attributes import is_public, state_of

__all__ = ["RemoteEnv", "make", "make_remote", "remake"]

# What an instance keeps for itself: setting one of these changes nothing on the server.
_OWN = frozenset({"action_space", "metadata", "observation_space", "render_mode", "tools"})


class RemoteEnv(gymnasium.Env[Any, Any]):
    """An environment on a server behind Gymnasium's API.

    Calls from several threads take turns. It pickles as how it was made: the copy makes a session of its own.

    Attributes that it does not have itself are those of the environment on the server, as far as they are declared for
    clients (`gymhost.envs.register(..., attributes=...)`, `gymhost serve --attributes`): they can be read, set, and
    called, here and through wrappers.

    Args:
        server: The server; the environment holds it open until it is closed.
        options: What to make.
        create_timeout: Seconds to wait for a place on a full server; None for the server's default.
    """

    def __init__(self, server: RemoteServer, options: SessionOptions, *, create_timeout: float | None = None) -> None:
        self._server = server
        self._options = options
        self._create_timeout = create_timeout
        self._connection = server.open().connection
        try:
            reply = self._connection.call(pb.COMMAND_KIND_CREATE, options.request(), timeout=create_timeout)
        except BaseException:
            server.close()
            raise
        response = pb.CreateSessionResponse.FromString(reply)
        lane, made = self._connection.lane(response.lanes[0]), Made(response)
        arrange(lane, made, options, create_timeout)
        # Not those that sessions share: each environment samples by itself, as local ones do.
        self._begin(lane, made, spaces.decode(response.observation_space), spaces.decode(response.action_space))

    def _begin(
        self, lane: Lane, made: Made, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]
    ) -> None:
        """Takes what was made on the server."""
        self._lane = ThreadLane(self._connection, lane)
        self._release = weakref.finalize(self, _release, self._lane, self._server)
        self._release.atexit = False  # at exit the connection itself is closed
        self._made = made
        # Methods of the environment's, as far as they have been asked for.
        self._methods: set[str] = set()
        # The generator that was handed out since the last command, and its state then.
        self._lent: tuple[np.random.Generator, bytes] | None = None
        self.observation_space = observation_space
        self.action_space = action_space
        self.metadata = _metadata(made)
        self.render_mode = made.render_mode
        self.tools = made.tools
        self._spec = _spec(self._server, self._options, self._create_timeout, made)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts an episode, as in Gymnasium.

        Raises:
            EnvironmentFault: The environment raised; the remote traceback is part of the message.
            SessionError: The session has ended; its subclass says how.
        """
        if seed is None:
            seed = self._lane.lane.first_seed()
        return decode_reset(self._command(pb.COMMAND_KIND_RESET, encode_reset(seed, options)))

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Takes a step, as in Gymnasium.

        Raises:
            EnvironmentFault: The environment raised; the remote traceback is part of the message.
            SessionError: The session has ended; its subclass says how.
        """
        return decode_step(self._command(pb.COMMAND_KIND_STEP, encode_step(action)))

    def fork(self, number: int = 1) -> list["RemoteEnv"]:
        """Makes environments that go on from the present state of this one, each with a session of its own.

        The same actions are answered in them as they would be here, their spaces sample as these would, and nothing
        that is done in one shows in another. See `Session.fork`.

        Args:
            number: How many.

        Raises:
            Unimplemented: The environment can't be copied; the message says what of it can't be.
            CapacityExhausted: The server is full.
            EnvironmentFault: Copying it raised; the remote traceback is part of the message.
            SessionError: The session has ended; its subclass says how.
        """
        if self._lent is not None:
            self._give_back()
        forked = self._lane.fork(encode_fork(number))
        forks: list[RemoteEnv] = []
        try:
            for lane, queued in forked.lanes:
                fork = object.__new__(type(self))
                fork._server = connect(**self._server.arguments).open()
                fork._options, fork._create_timeout = self._options, self._create_timeout
                fork._connection = self._connection
                forks.append(fork)
                fork._begin(
                    lane,
                    self._made.with_wait(queued),
                    copy.deepcopy(self.observation_space),
                    copy.deepcopy(self.action_space),
                )
        except BaseException:
            forked.leave()
            for fork in forks:
                fork._server.close()
            raise
        forked.lanes.clear()  # else this session, whose last command the fork is, would hold on to them
        return forks

    def render(self) -> Any:
        """Renders, as in Gymnasium."""
        return decode_render(self._command(pb.COMMAND_KIND_RENDER, b""))

    def close(self) -> None:
        """Closes the session and lets go of the server. Twice is no error."""
        if self._release.detach() is None:
            return
        try:
            lane = self._lane.lane
            if lane.close("the environment was closed"):
                with contextlib.suppress(errors.ServerUnavailable):
                    self._connection.call(pb.COMMAND_KIND_CLOSE, None, lane=lane.number)
        finally:
            self._lane.close()
            self._server.close()

    @property
    def replayable(self) -> bool:
        """Whether the session is recovered when its worker or its server dies; see `Session.replayable`."""
        return self.not_replayable is None

    @property
    def not_replayable(self) -> str | None:
        """Why the session could not be recovered, as of its last command; None where it could."""
        return why_not(self._lane.lane, self._made)

    @property
    def recoveries(self) -> int:
        """How often the session was recovered."""
        recovery = self._lane.lane.recovery
        return 0 if recovery is None else recovery.count

    # -- attributes ----------------------------------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        # Asked for what is not found here. Neither copy nor pickle nor a look at what is private sends anything.
        made: Made | None = self.__dict__.get("_made")
        if made is None or not is_public(name):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        if not reaches(made.attributes, name):
            raise self._unreachable(name)
        return self._method(name) if name in self._methods else self._get(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_") or name in _OWN or hasattr(type(self), name):
            object.__setattr__(self, name, value)
        elif reaches(self._made.attributes, name):
            self._methods.discard(name)
            self._set(name, value)
        else:
            # To keep it here would look as if it had been set there.
            raise self._unreachable(name)

    def has_wrapper_attr(self, name: str) -> bool:
        """Whether the environment has an attribute that can be reached."""
        try:
            return hasattr(self, name)
        except errors.EnvironmentFault:
            return True  # it is there, but what it is can't travel

    def set_wrapper_attr(self, name: str, value: Any, *, force: bool = True) -> bool:
        """Sets an attribute of the environment, as in Gymnasium.

        Raises:
            AttributeError: It is not declared for clients.
        """
        if not force and reaches(self._made.attributes, name) and not self.has_wrapper_attr(name):
            return False
        setattr(self, name, value)
        return True

    @property
    def np_random(self) -> np.random.Generator:
        """The environment's random generator, as it is on the server now.

        What is drawn from it here is drawn there too, with the next command; after that, ask for it again.
        """
        generator = self._borrow("np_random")
        assert generator is not None
        return generator

    @np_random.setter
    def np_random(self, value: np.random.Generator) -> None:
        self._set("np_random", value)

    @property
    def np_random_seed(self) -> int:
        """The seed of the environment's generator; -1 where it is not known."""
        return self._get("np_random_seed")

    # Where Gymnasium keeps them, and its checkers look.

    @property
    def _np_random(self) -> np.random.Generator | None:
        return self._borrow("_np_random")

    @_np_random.setter
    def _np_random(  # pyright: ignore[reportIncompatibleVariableOverride]
        self, value: np.random.Generator
    ) -> None:
        self._set("_np_random", value)

    @property
    def _np_random_seed(self) -> int | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._get("_np_random_seed")

    @property
    def spec(self) -> EnvSpec | None:
        """How it was made, and what is known of the environment."""
        return self._spec

    @spec.setter
    def spec(self, value: EnvSpec | None) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        # Gymnasium's make sets one that knows nothing of the environment behind `gymhost/Remote-v0`.
        if value is not None:
            value.nondeterministic = value.nondeterministic or self._made.nondeterministic
            if value.reward_threshold is None:
                value.reward_threshold = self._made.reward_threshold
            if value.max_episode_steps is None:
                value.max_episode_steps = self._made.max_episode_steps
        self._spec = value

    def _get(self, name: str) -> Any:
        with missing_as_usual():
            reply = self._command(pb.COMMAND_KIND_GET_ATTR, encode_get(name))
        value, is_method = decode_attribute(reply)
        return self._method(name) if is_method else value

    def _set(self, name: str, value: Any) -> None:
        with missing_as_usual():
            self._command(pb.COMMAND_KIND_SET_ATTR, encode_set(name, value))

    def _method(self, name: str) -> Callable[..., Any]:
        def method(*args: Any, **kwargs: Any) -> Any:
            return decode_attribute(self._command(pb.COMMAND_KIND_CALL, encode_call(name, args, kwargs)))[0]

        self._methods.add(name)
        method.__name__ = method.__qualname__ = name
        return method

    def _borrow(self, name: str) -> np.random.Generator | None:
        lent = self._lent
        if lent is None:
            generator = self._get(name)
            if generator is None:
                return None
            lent = self._lent = generator, _state(generator)
        return lent[0]

    def _give_back(self) -> None:
        lent, self._lent = self._lent, None
        if lent is not None and _state(lent[0]) != lent[1]:
            self._set("_np_random", lent[0])

    def _unreachable(self, name: str) -> AttributeError:
        id = self._options.environment_id
        return AttributeError(
            f"{name!r} of {id} is not declared for clients: gymhost.envs.register(..., attributes=({name!r},)) does "
            f"that, or gymhost serve --attributes '{id}={name}'"
        )

    # -- the rest ------------------------------------------------------------------------------------------------------

    def __exit__(self, *exc: object) -> Literal[False]:
        # What Gymnasium's does; but type checkers see that it lets exceptions pass.
        self.close()
        return False

    def _command(self, kind: int, payload: bytes) -> bytes:
        if self._lent is not None:
            self._give_back()
        return self._lane.command(kind, payload)

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
    tls: TlsLike = None,
    modules: Sequence[str] = (),
    task: int | None = None,
    split: str | None = None,
    create_timeout: float | None = None,
    recovery_timeout: float = RECOVERY_TIMEOUT,
    priority: int = 0,
    direct: bool = True,
    wrappers: Iterable[Any] = (),
    **kwargs: Any,
) -> RemoteEnv:
    """Makes an environment on a server; without one, on an embedded server that is stopped with its last environment.

    Args:
        id: The environment's id, such as `gymhost/Echo-v0` or `CartPole-v1`.
        server: `HOST:PORT` or `unix:PATH`; None starts a server of this process's own.
        token: The bearer token; None takes the environment variable GYMHOST_TOKEN.
        tls: How TLS is spoken with the server, as for `connect`; None takes what GYMHOST_TLS_CA, _CERT and _KEY name.
        modules: For an embedded server: modules that register environments.
        task: The task that resets play unless their options name another.
        split: The split that `task` counts in.
        create_timeout: Seconds to wait for a place on a full server.
        recovery_timeout: Seconds for making a session again that is lost, see `RemoteEnv.replayable`; 0 for never.
        priority: Where the server is full, whose turn it is: higher ones come first, from -1000 to 1000.
        direct: Whether steps go past gRPC, straight to the workers, where the server is this user's and on this host.
        wrappers: What the server is to put around the environment, the innermost first: the name of a wrapper of
            Gymnasium's, such as `"FrameStackObservation"`, `"module:Class"`, a class, or a pair of one of these and a
            dict of keyword arguments. The server has a list of those that it allows.
        **kwargs: Keyword arguments for the environment; `render_mode` is one of them.

    Raises:
        InvalidArgument: The address, the token, the task or a wrapper can't be one, or `modules` goes with an address.
        PermissionDenied: The server does not allow a wrapper.
        UnknownEnvironment: No such environment is registered on the server.
        ServerUnavailable: The server could not be reached, or started.
        EnvironmentFault: The environment could not be made.
    """
    options = SessionOptions(id, task=task, split=split, priority=priority, kwargs=kwargs, wrappers=wrappers)
    return RemoteEnv(
        connect(server, token=token, tls=tls, modules=modules, recovery_timeout=recovery_timeout, direct=direct),
        options,
        create_timeout=create_timeout,
    )


def make_remote(environment_id: str, **kwargs: Any) -> RemoteEnv:
    """What `gymnasium.make("gymhost.client:gymhost/Remote-v0", environment_id=...)` calls.

    Args:
        environment_id: The environment's id.
        **kwargs: What `make` takes.
    """
    return make(environment_id, **kwargs)


def remake(*, remote: dict[str, Any], **kwargs: Any) -> RemoteEnv:
    """Makes an environment again from its spec, as `gymnasium.make(env.spec)` does.

    Args:
        remote: How the environment was made, but for its keyword arguments.
        **kwargs: Keyword arguments for the environment.
    """
    kwargs |= remote["kwargs"]
    return _remake(remote["server"], {**remote["options"], "kwargs": kwargs}, remote["create_timeout"])


def _release(lane: ThreadLane, server: RemoteServer) -> None:
    """What happens to an environment that is garbage-collected: its session is closed."""
    release(lane.lane)
    lane.close()
    # The collector may run anywhere, a lock of the connection's held or not: closing is left to another thread.
    threading.Thread(target=server.close, daemon=True).start()


def _remake(server: dict[str, Any], options: dict[str, Any], create_timeout: float | None) -> RemoteEnv:
    remade = SessionOptions(options["environment_id"], **{k: v for k, v in options.items() if k != "environment_id"})
    return RemoteEnv(connect(**server), remade, create_timeout=create_timeout)


def _metadata(made: Made) -> dict[str, Any]:
    """Gymnasium's metadata, without the render mode that would show nothing here."""
    modes: Sequence[str] = made.metadata.get("render_modes") or ()
    if "human" not in modes:
        return made.metadata
    return {**made.metadata, "render_modes": [mode for mode in modes if mode != "human"]}


def _state(generator: np.random.Generator) -> bytes:
    return values.dumps(state_of(generator))


def _spec(server: RemoteServer, options: SessionOptions, create_timeout: float | None, made: Made) -> EnvSpec:
    kwargs = dict(options.kwargs)
    overridden: dict[str, Any] = {}
    if made.max_episode_steps is not None and not made.conversational and not options.wrappers:
        # Gymnasium's make puts a time limit of its own around it; so a longer one can be asked for.
        kwargs.pop("max_episode_steps", None)
        overridden["max_episode_steps"] = -1
    # Specs are printed and written to files: a token of the process's environment stays out of them.
    remote = {
        "server": server.arguments | server.given,
        "options": {name: value for name, value in vars(options).items() if name != "kwargs"},
        "create_timeout": create_timeout,
        "kwargs": overridden,
    }
    return EnvSpec(
        id=options.environment_id,
        entry_point="gymhost.client.env:remake",
        kwargs={**kwargs, "remote": remote},
        reward_threshold=made.reward_threshold,
        nondeterministic=made.nondeterministic,
        max_episode_steps=made.max_episode_steps,
        disable_env_checker=True,
        order_enforce=False,
    )
