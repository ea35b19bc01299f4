"""`connect` and `make`: how users get at environments on a server."""

import asyncio
import atexit
import contextlib
import copy
import dataclasses
import math
import os
import re
import threading
from collections.abc import Generator, Iterable, Sequence
from typing import Any, Self, cast

import gymnasium

from gymhost.client.connection import (
    CALL_GRACE,
    CONNECT_TIMEOUT,
    RECONNECT_TIMEOUT,
    RECOVERY_TIMEOUT,
    Connection,
)
from gymhost.client.embedded import EmbeddedServer
from gymhost.client.loop import loop_thread, on_fork
from gymhost.client.session import Session, SessionOptions, tool_dict
from gymhost.client.tls import Tls, TlsLike, tls_of
from gymhost.v1 import environments_pb2 as pb
from gymhost.wire import spaces, values
from gymhost.wire.errors import ConnectionLost, InvalidArgument

__all__ = [
    "EnvironmentDescription",
    "RemoteServer",
    "TaskList",
    "check_address",
    "check_token",
    "connect",
    "tasks_request",
]

# Seconds for calls that only ask, and to close a connection.
ASK_LIMIT = 60.0
CLOSE_LIMIT = 10.0

_ADDRESS = re.compile(r"unix:.+|(?:\[[^\[\]\s]+\]|[^:/\[\]\s]+):(?P<port>[0-9]{1,5})", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class TaskList:
    """Tasks of an environment, as far as they are public.

    Attributes:
        split: The split that they are of.
        count: How many tasks it has; None where they have no end.
        tasks: The public fields of the tasks that were listed, by index.
    """

    split: str
    count: int | None
    tasks: dict[int, dict[str, Any]]

    @classmethod
    def from_response(cls, response: pb.ListTasksResponse) -> "TaskList":
        """Reads the contract's message."""
        return cls(
            split=response.split,
            count=response.count if response.HasField("count") else None,
            tasks={task.index: cast("dict[str, Any]", values.decode(task.fields)) for task in response.tasks},
        )


@dataclasses.dataclass(frozen=True)
class EnvironmentDescription:
    """An environment that a server hosts.

    Attributes:
        id: Its id.
        description: What it is.
        mode: How its code runs: `thread`, `async` or `inline`.
        isolation: `shared` or `process`.
        source: The distribution that registered it; empty where that is not known.
        licence: The licence of that, as it says itself; empty where that is not known.
        step_timeout: Seconds that a step may take; None for no limit.
        reset_timeout: Seconds that a reset may take; None for no limit.
        memory_limit: Bytes that the worker of a session may have; None for no limit.
        replayable: Whether its sessions are recovered when a worker or the server dies; see `Session.replayable`.
        native_vector: Whether it has a vector form of its own, which `make_vec` then makes.
        conversational: Whether actions are assistant messages. This and what follows is known from `describe` only.
        tools: `name`, `description` and `parameters` (JSON Schema) of each tool.
        splits: The number of tasks in each split; None for one without end.
        observation_space: None unless described.
        action_space: None unless described.
        metadata: Gymnasium's metadata.
    """

    id: str
    description: str
    mode: str
    isolation: str
    source: str
    step_timeout: float | None
    reset_timeout: float | None
    licence: str = ""
    memory_limit: int | None = None
    replayable: bool = False
    native_vector: bool = False
    conversational: bool = False
    tools: Sequence[dict[str, Any]] = ()
    splits: dict[str, int | None] = dataclasses.field(default_factory=dict[str, int | None])
    observation_space: gymnasium.Space[Any] | None = None
    action_space: gymnasium.Space[Any] | None = None
    metadata: dict[str, Any] = dataclasses.field(default_factory=dict[str, Any])

    @classmethod
    def from_info(cls, info: pb.EnvironmentInfo) -> "EnvironmentDescription":
        """Reads the contract's message."""
        return cls(
            id=info.environment_id,
            description=info.description,
            mode=pb.RunMode.Name(info.run_mode).removeprefix("RUN_MODE_").lower(),
            isolation=pb.Isolation.Name(info.isolation).removeprefix("ISOLATION_").lower(),
            source=info.source,
            licence=info.licence,
            step_timeout=info.step_timeout_ms / 1000 or None,
            reset_timeout=info.reset_timeout_ms / 1000 or None,
            memory_limit=info.memory_limit_bytes or None,
            replayable=info.replayable,
            native_vector=info.native_vector,
            conversational=info.conversational,
            tools=tuple(tool_dict(tool) for tool in info.tools),
            splits={split.name: split.count if split.HasField("count") else None for split in info.splits},
            observation_space=spaces.decode(info.observation_space) if info.HasField("observation_space") else None,
            action_space=spaces.decode(info.action_space) if info.HasField("action_space") else None,
            metadata=values.decode(info.metadata) or {},
        )


class _Shared:
    """A connection, with the embedded server behind it if there is one, and how many hold it."""

    def __init__(self, connection: Connection, embedded: EmbeddedServer | None) -> None:
        self.connection = connection
        self.embedded = embedded
        self.holders = 0
        # In a forked child: it is the parent's to close.
        self.inherited = False

    def close(self) -> None:
        """Closes the connection, and stops the embedded server."""
        with contextlib.suppress(ConnectionLost, TimeoutError):
            self.connection.thread.call(self.connection.close(), CLOSE_LIMIT)
        if self.embedded is not None:
            self.embedded.stop()

    def forked(self) -> None:
        """Called in a forked child: what is shared is the parent's."""
        self.inherited = True
        if self.embedded is not None:
            self.embedded.forked()


_lock = threading.Lock()
_shared: dict[tuple[Any, ...], _Shared] = {}


def _close_all() -> None:
    """Closes what users left open when the interpreter exits, embedded servers above all."""
    for shared in list(_shared.values()):
        shared.close()
    _shared.clear()


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _shared.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class RemoteServer:
    """A server that hosts environments; made by `connect`. A context manager, for `async with` and for `with` alike.

    Its methods are coroutines and may be awaited on any event loop. All that a process connects to one server goes over
    one connection.
    """

    def __init__(
        self,
        address: str | None,
        token: str | None,
        tls: TlsLike,
        modules: Sequence[str],
        connect_timeout: float,
        reconnect_timeout: float,
        recovery_timeout: float,
        direct: bool,
    ) -> None:
        # As they were given, so without what the process's environment has, and as plain values: for specs.
        self.given = {"token": token, "tls": dataclasses.asdict(tls) if isinstance(tls, Tls) else tls}
        self._address = address
        self._token = token if token is not None or address is None else os.environ.get("GYMHOST_TOKEN")
        if address is not None:
            check_address(address)
            if modules:
                raise InvalidArgument(
                    "modules are for an embedded server, which no address is given for; one that runs elsewhere is "
                    "told its modules when it is started: gymhost serve MODULE"
                )
        if self._token is not None:
            check_token(self._token)
        self._tls = tls_of(tls) if address is not None else None
        if tls and (address is None or address.startswith("unix:")):
            raise InvalidArgument("tls is for a server at HOST:PORT: nothing else leaves this machine")
        if address is not None and address.startswith("unix:"):
            self._tls = None  # that of the process's environment is for other servers
        self._modules = tuple(modules)
        self._connect_timeout = connect_timeout
        self._reconnect_timeout = reconnect_timeout
        if not 0 <= recovery_timeout < math.inf:
            raise InvalidArgument(
                f"recovery_timeout is a number of seconds, 0 for no recovery, not {recovery_timeout!r}"
            )
        self._recovery_timeout = recovery_timeout
        self._direct = direct
        timeouts = connect_timeout, reconnect_timeout, recovery_timeout
        self._key = (address, self._token, self._tls, self._modules, timeouts, direct)
        self._held: _Shared | None = None

    # -- life ----------------------------------------------------------------------------------------------------------

    def open(self) -> Self:
        """Connects, from any thread; starts the embedded server where no address was given.

        Raises:
            ServerUnavailable: The server could not be reached, or started.
            Unauthenticated: It did not take the token, or the client's certificate.
            InvalidArgument: A file of `tls` can't be read.
        """
        if self._held is not None:
            return self
        with _lock:
            shared = _shared.get(self._key)
            if shared is None or shared.connection.dead is not None:
                shared = self._connect()
                _shared[self._key] = shared
            shared.holders += 1
            self._held = shared
        return self

    def _connect(self) -> _Shared:
        loop_thread()  # where there can be none, no server is started either
        embedded = EmbeddedServer(self._modules) if self._address is None else None
        connection = Connection(
            embedded.address if embedded else self._address or "",
            embedded.token if embedded else self._token,
            tls=self._tls,
            connect_timeout=self._connect_timeout,
            reconnect_timeout=self._reconnect_timeout,
            recovery_timeout=self._recovery_timeout,
            direct=self._direct,
        )
        if embedded is not None:
            connection.is_gone = embedded.has_ended
        try:
            connection.thread.call(connection.open())
        except BaseException:
            if embedded is not None:
                embedded.stop()
            raise
        shared = _Shared(connection, embedded)
        on_fork(shared)
        # The loop's thread is stopped after this, since it was asked for before.
        atexit.unregister(_close_all)
        atexit.register(_close_all)
        return shared

    def close(self) -> None:
        """Lets go of the connection; the last holder closes it, and stops the embedded server. Twice is no error."""
        held, self._held = self._held, None
        if held is None or held.inherited:
            return
        with _lock:
            held.holders -= 1
            if held.holders:
                return
            if _shared.get(self._key) is held:
                del _shared[self._key]
        held.close()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *exc: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.open)

    async def __aexit__(self, *exc: object) -> None:
        await asyncio.to_thread(self.close)

    def __await__(self) -> Generator[Any, None, Self]:
        """`server = await connect(...)`, to be closed with `close`."""
        return self.__aenter__().__await__()

    # -- use -----------------------------------------------------------------------------------------------------------

    @property
    def connection(self) -> Connection:
        """The connection, for those who build on it."""
        if self._held is None:
            self.open()
            assert self._held is not None
        return self._held.connection

    @property
    def arguments(self) -> dict[str, Any]:
        """What `connect` was given, to connect again elsewhere."""
        return {
            "address": self._address,
            "token": self._token,
            "tls": self._tls or False,
            "modules": self._modules,
            "connect_timeout": self._connect_timeout,
            "reconnect_timeout": self._reconnect_timeout,
            "recovery_timeout": self._recovery_timeout,
            "direct": self._direct,
        }

    @property
    def address(self) -> str:
        """Where the server listens."""
        return self.connection.address

    @property
    def draining(self) -> bool:
        """Whether the server has said that it is going away: it takes no new sessions, and those there are end soon."""
        return self._held is not None and self._held.connection.draining

    def session(
        self,
        environment_id: str,
        /,
        *,
        task: int | None = None,
        split: str | None = None,
        idle_timeout: float | None = None,
        create_timeout: float | None = None,
        priority: int = 0,
        wrappers: Iterable[Any] = (),
        **kwargs: Any,
    ) -> Session:
        """A session, which is created when it is entered with `async with`, or by awaiting its `open`.

        Args:
            environment_id: The environment.
            task: The task that resets play unless their options name another.
            split: The split that `task` counts in; None means the environment's first.
            idle_timeout: Seconds without a command after which the server closes the session.
            create_timeout: Seconds to wait for a place on a full server; None for the server's default.
            priority: Where the server is full, whose turn it is: higher ones come first, from -1000 to 1000.
            wrappers: What the server is to put around the environment, the innermost first; see `make`.
            **kwargs: Keyword arguments for the environment.

        Raises:
            InvalidArgument: The task is no index, the priority none, or a wrapper is none.
        """
        options = SessionOptions(
            environment_id,
            task=task,
            split=split,
            idle_timeout=idle_timeout,
            priority=priority,
            kwargs=kwargs,
            wrappers=wrappers,
        )
        return Session(self.connection, options, create_timeout=create_timeout)

    async def describe(self, environment_id: str, /, **kwargs: Any) -> EnvironmentDescription:
        """Describes an environment: spaces, tools, tasks.

        Args:
            environment_id: The environment.
            **kwargs: Keyword arguments for the instance that is made to find out.

        Raises:
            UnknownEnvironment: No such environment is registered there.
            EnvironmentFault: It could not be made.
        """
        request = pb.GetEnvironmentRequest(environment_id=environment_id)
        if kwargs:
            values.encode(kwargs, request.kwargs)
        response = await self._unary("GetEnvironment", request, 300.0 + CALL_GRACE)
        return EnvironmentDescription.from_info(response.environment)

    async def tasks(
        self,
        environment_id: str,
        /,
        *,
        split: str | None = None,
        start: int = 0,
        limit: int = 100,
        sample: int | None = None,
        **kwargs: Any,
    ) -> "TaskList":
        """Lists or samples the tasks of an environment, with the fields that it declares public.

        Args:
            environment_id: The environment.
            split: The split; None means the environment's first.
            start: The index of the first task.
            limit: How many tasks at most, up to 1000.
            sample: Draws so many at random instead, each at most once; this is the seed.
            **kwargs: Keyword arguments for the instance that is made to find out.

        Raises:
            UnknownEnvironment: No such environment is registered there.
            InvalidArgument: It has no tasks, or no such split.
            EnvironmentFault: It could not be made.
        """
        request = tasks_request(environment_id, split, start, limit, sample, kwargs)
        return TaskList.from_response(await self._unary("ListTasks", request, 300.0 + CALL_GRACE))

    async def environments(self, prefix: str = "") -> list[EnvironmentDescription]:
        """Lists the environments that the server hosts, by the beginning of their ids."""
        response = await self._unary("ListEnvironments", pb.ListEnvironmentsRequest(prefix=prefix), ASK_LIMIT)
        return [EnvironmentDescription.from_info(info) for info in response.environments]

    def has_vector_form(self, environment_id: str) -> bool:
        """Whether an environment has a vector form of its own; from any thread. No for one that is not there."""
        request = pb.ListEnvironmentsRequest(prefix=environment_id)
        connection = self.connection
        listed = connection.thread.call(connection.unary("ListEnvironments", request, ASK_LIMIT))
        return any(info.environment_id == environment_id and info.native_vector for info in listed.environments)

    async def problems(self) -> list[str]:
        """What the server could not load when it started, in words."""
        response = await self._unary("ListEnvironments", pb.ListEnvironmentsRequest(prefix="\0"), ASK_LIMIT)
        return list(response.problems)

    async def sessions(self, *, everyone: bool = False, memory: bool = False) -> list[dict[str, Any]]:
        """The caller's sessions, without their ids: `environment_id`, `attached`, `age` in seconds, `worker`.

        Args:
            everyone: Everybody's instead, each also with its `identity`.
            memory: Whether each is also to have, in bytes, the `worker_memory` of its worker, for which other sessions
                in it account too; the `memory` that is known to be its own, of its sandboxes and of a worker that it
                has alone (None where nothing is known); and the `memory_limit` of such a worker (None for no limit).

        Raises:
            PermissionDenied: Everybody's are for the role `admin`.
        """
        request = pb.ListSessionsRequest(everyone=everyone, memory=memory)
        response = await self._unary("ListSessions", request, ASK_LIMIT)
        return [
            {
                "environment_id": info.environment_id,
                "attached": info.attached,
                "age": info.age_ms / 1000,
                "worker": info.worker,
                **({"identity": info.identity} if everyone else {}),
                **(_memory_of(info) if memory else {}),
            }
            for info in response.sessions
        ]

    async def _unary(self, method: str, request: Any, timeout: float) -> Any:
        connection = self.connection
        if connection.dead is not None:
            raise copy.copy(connection.dead)
        return await connection.thread.acall(connection.unary(method, request, timeout))


def tasks_request(
    environment_id: str, split: str | None, start: int, limit: int, sample: int | None, kwargs: dict[str, Any]
) -> pb.ListTasksRequest:
    """The contract's message of what `tasks` is asked.

    Raises:
        InvalidArgument: A number is negative, or an argument can't travel.
    """
    for name, number in (("start", start), ("limit", limit), ("sample", sample)):
        if number is not None and number < 0:
            raise InvalidArgument(f"{name} must not be negative, not {number}")
    request = pb.ListTasksRequest(environment_id=environment_id, split=split or "", start=start, limit=limit)
    if sample is not None:
        request.sample_seed = sample
    if kwargs:
        values.encode(kwargs, request.kwargs)
    return request


def check_address(address: str) -> None:
    """Sees whether an address can be one.

    Raises:
        InvalidArgument: It can't.
    """
    match = _ADDRESS.fullmatch(address)
    if match is None or (match["port"] is not None and not 0 < int(match["port"]) < 2**16):
        raise InvalidArgument(
            f"{address!r} is no address: write HOST:PORT (such as localhost:50051), [IPv6]:PORT or unix:PATH"
        )


def check_token(token: str) -> None:
    """Sees whether a token can be one.

    Raises:
        InvalidArgument: It can't.
    """
    # What the token is stays out of the message.
    if not (token.isascii() and token.isprintable()):
        raise InvalidArgument(
            "the token, which is the argument or GYMHOST_TOKEN, has characters that no token can have: "
            "take out what is not printable ASCII, such as a newline at its end"
        )


def connect(
    address: str | None = None,
    *,
    token: str | None = None,
    tls: TlsLike = None,
    modules: Sequence[str] = (),
    connect_timeout: float = CONNECT_TIMEOUT,
    reconnect_timeout: float = RECONNECT_TIMEOUT,
    recovery_timeout: float = RECOVERY_TIMEOUT,
    direct: bool = True,
) -> RemoteServer:
    """Connects to a server, or starts an embedded one.

        async with connect("cpu7:50051") as server:
            async with server.session("gymhost/GuessNumber-v0", task=3) as session:
                observation, info = await session.reset(seed=0)

    Args:
        address: `HOST:PORT` or `unix:PATH`; None starts a server of this process's own, stopped with its last user.
        token: The bearer token; None takes the environment variable GYMHOST_TOKEN.
        tls: How TLS is spoken with the server: a `Tls`, its fields as a dict, True for a certificate of a public
            authority, False for no TLS. None takes the files that the environment variables GYMHOST_TLS_CA,
            GYMHOST_TLS_CERT and GYMHOST_TLS_KEY name; without them no TLS is spoken.
        modules: For an embedded server: modules that register environments.
        connect_timeout: Seconds for the first connection.
        reconnect_timeout: Seconds for restoring a broken one, after which what waits fails with ConnectionLost.
        recovery_timeout: Seconds for making a session again that is lost, see `Session.replayable`; 0 for never.
        direct: Whether steps go past gRPC, straight to the workers, where the server is this user's and on this host.

    Returns:
        The server, to be entered with `async with` or `with`, or opened with `open`.

    Raises:
        InvalidArgument: The address, the token, `tls` or `recovery_timeout` can't be one, or `modules` goes with an
            address.
    """
    return RemoteServer(address, token, tls, modules, connect_timeout, reconnect_timeout, recovery_timeout, direct)


def _memory_of(info: pb.SessionInfo) -> dict[str, int | None]:
    return {
        "worker_memory": info.worker_memory_bytes or None,
        "memory": info.memory_bytes if info.HasField("memory_bytes") else None,
        "memory_limit": info.memory_limit_bytes or None,
    }
