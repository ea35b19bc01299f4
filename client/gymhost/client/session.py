"""The async session: one environment on a server, driven by awaiting."""

import asyncio
import contextlib
import copy
import json
import numbers
import secrets
import weakref
from collections.abc import Iterable
from typing import Any, Self, TypeVar

import gymnasium
from google.protobuf.message import DecodeError as ProtobufDecodeError

from gymhost.client import wrapping
from gymhost.client.attributes import decode_attribute, encode_call, encode_get, encode_set, missing_as_usual
from gymhost.client.connection import Connection
from gymhost.client.forks import AsyncFork, encode_fork
from gymhost.client.pending import AsyncPending, Bridge, Lane
from gymhost.client.recovery import arrange, why_not
from gymhost.v1 import environments_pb2 as pb
from gymhost.v1 import values_pb2
from gymhost.wire import errors, spaces, values
from gymhost.wire.fields import FIELDS

__all__ = ["Session", "SessionOptions"]

# What `reset` and `step` return.
ResetResult = tuple[Any, dict[str, Any]]
StepResult = tuple[Any, float, bool, bool, dict[str, Any]]

MAX_PRIORITY = FIELDS["CreateSessionRequest.priority"]

# Spaces by their serialized form: thousands of sessions of one environment share them.
_spaces: dict[bytes, gymnasium.Space[Any]] = {}


class SessionOptions:
    """What a session is made from; kept so that it can be made again.

    Args:
        environment_id: The environment.
        task: The task that resets play unless their options name another; None leaves it to the environment.
        split: The split that `task` counts in; None means the environment's first.
        idle_timeout: Seconds without a command after which the server closes the session; None for no such limit.
        priority: Where the server is full, whose turn it is: higher ones come first; -1000 to 1000.
        kwargs: Keyword arguments for the environment.
        wrappers: What the server is to put around it, the innermost first; see `make`.

    Raises:
        InvalidArgument: The task is no index, the priority none, or a wrapper is none.
    """

    def __init__(
        self,
        environment_id: str,
        *,
        task: int | None = None,
        split: str | None = None,
        idle_timeout: float | None = None,
        priority: int = 0,
        kwargs: dict[str, Any] | None = None,
        wrappers: Iterable[Any] = (),
    ) -> None:
        if task is not None and not (isinstance(task, numbers.Integral) and 0 <= task < 2**64):
            raise errors.InvalidArgument(f"task must be an index from 0, not {task!r}")
        if not (isinstance(priority, numbers.Integral) and abs(priority) <= MAX_PRIORITY):
            raise errors.InvalidArgument(
                f"priority must be a whole number from -{MAX_PRIORITY} to {MAX_PRIORITY}, not {priority!r}"
            )
        self.environment_id = environment_id
        self.task = task
        self.split = split
        self.idle_timeout = idle_timeout
        self.priority = int(priority)
        self.kwargs = kwargs or {}
        self.wrappers = wrapping.normalise(wrappers)

    def request(self) -> pb.CreateSessionRequest:
        """The request that creates such a session, with a key of its own.

        Raises:
            EncodeError: A keyword argument can't travel.
        """
        request = pb.CreateSessionRequest(
            environment_id=self.environment_id,
            idempotency_key=secrets.token_bytes(16),
            task=self.task,
            split=self.split or "",
            idle_timeout_ms=round((self.idle_timeout or 0) * 1000),
            wrappers=wrapping.messages(self.wrappers),
            priority=self.priority,
        )
        if self.kwargs:
            values.encode(self.kwargs, request.kwargs)
        return request


class Made:
    """What the server said of a session that it made."""

    def __init__(self, response: pb.CreateSessionResponse) -> None:
        self.observation_space = _space(response.observation_space)
        self.action_space = _space(response.action_space)
        self.metadata: dict[str, Any] = values.decode(response.metadata)
        self.render_mode = response.render_mode or None
        self.conversational = response.conversational
        self.evaluates = response.evaluates
        self.replayable = response.replayable
        self.queued = response.queued_ms / 1000
        self.tools = [tool_dict(tool) for tool in response.tools]
        self.attributes = frozenset(response.attributes)
        spec = response.spec
        self.max_episode_steps = spec.max_episode_steps if spec.HasField("max_episode_steps") else None
        self.reward_threshold = spec.reward_threshold if spec.HasField("reward_threshold") else None
        self.nondeterministic = spec.nondeterministic

    def with_wait(self, queued: float) -> "Made":
        """The same of a session that waited so many seconds for its place."""
        made = copy.copy(self)
        made.queued = queued
        return made


def tool_dict(tool: pb.ToolSpec) -> dict[str, Any]:
    """A tool as its name, description and the JSON Schema of its parameters."""
    try:
        parameters = json.loads(tool.parameters_json or "{}")
    except ValueError as error:
        raise errors.DecodeError(f"the parameters of the tool {tool.name!r} are no JSON: {error}") from None
    return {"name": tool.name, "description": tool.description, "parameters": parameters}


def _space(message: values_pb2.Space) -> gymnasium.Space[Any]:
    """A space, which is shared with whoever has an equal one."""
    key = message.SerializeToString(deterministic=True)
    known = _spaces.get(key)
    if known is None:
        known = _spaces[key] = spaces.decode(message)
    return known


def release(lane: Lane) -> None:
    """Closes a session that nobody holds any more."""
    if lane.close("the session was let go of"):
        with contextlib.suppress(errors.Error):
            lane.connection.forget(pb.COMMAND_KIND_CLOSE, lane.number)


class Session:
    """One environment on a server. Use it as an async context manager; it may be awaited from any event loop.

    One command at a time: a second one waits for the first. A session that is garbage-collected is closed.

    Args:
        connection: The connection to the server.
        options: What to make.
        create_timeout: Seconds to wait for a place on a full server; None for the server's default.
    """

    def __init__(self, connection: Connection, options: SessionOptions, *, create_timeout: float | None = None) -> None:
        self.options = options
        self._connection = connection
        self._create_timeout = create_timeout
        self._lane: Lane | None = None
        # That of the event loop which had the last command.
        self._bridge: Bridge | None = None
        self._made: Made | None = None

    async def open(self) -> Self:
        """Creates the session on the server.

        Raises:
            UnknownEnvironment: No such environment is registered there.
            CapacityExhausted: The server is full, or the caller has its quota; `retry_after` says when it is worth
                asking again.
            EnvironmentFault: The environment could not be made.
        """
        request = self.options.request()
        reply = await self._connection.acall(pb.COMMAND_KIND_CREATE, request, timeout=self._create_timeout)
        response = pb.CreateSessionResponse.FromString(reply)
        lane, made = self._connection.lane(response.lanes[0]), Made(response)
        arrange(lane, made, self.options, self._create_timeout)
        self._begin(lane, made)
        return self

    def _begin(self, lane: Lane, made: "Made") -> None:
        """Takes what was made on the server."""
        self._lane, self._made = lane, made
        # At exit the connection itself is closed.
        weakref.finalize(self, release, lane).atexit = False

    async def __aenter__(self) -> Self:
        return await self.open() if self._lane is None else self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    # -- what it is ----------------------------------------------------------------------------------------------------

    @property
    def observation_space(self) -> gymnasium.Space[Any]:
        """The environment's observation space."""
        return self._opened.observation_space

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        """The environment's action space."""
        return self._opened.action_space

    @property
    def metadata(self) -> dict[str, Any]:
        """Gymnasium's metadata of the environment."""
        return self._opened.metadata

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The environment's tools: `name`, `description`, `parameters` (JSON Schema)."""
        return self._opened.tools

    @property
    def conversational(self) -> bool:
        """Whether actions are assistant messages."""
        return self._opened.conversational

    @property
    def evaluates(self) -> bool:
        """Whether the environment scores episodes on demand, see `evaluate`."""
        return self._opened.evaluates

    @property
    def queued(self) -> float:
        """Seconds that the create waited for a place."""
        return self._opened.queued

    @property
    def lost(self) -> bool:
        """Whether the session has ended other than by `close`, for good, as far as is known here."""
        return self._lane is not None and self._lane.lost

    @property
    def replayable(self) -> bool:
        """Whether the session is recovered when its worker or its server dies; `not_replayable` says why not.

        Then another one is created, told again what this one was told since its last seeded reset, and goes on from
        there: a step takes longer, and that is all. Its replies are compared with those before.
        """
        return self.not_replayable is None

    @property
    def not_replayable(self) -> str | None:
        """Why the session could not be recovered, as of its last command; None where it could."""
        made = self._opened
        assert self._lane is not None
        return why_not(self._lane, made)

    @property
    def recoveries(self) -> int:
        """How often the session was recovered."""
        recovery = None if self._lane is None else self._lane.recovery
        return 0 if recovery is None else recovery.count

    @property
    def _opened(self) -> Made:
        if self._made is None:
            raise errors.InvalidArgument(
                "the session is not open: use `async with server.session(...)`, or await open()"
            )
        return self._made

    # -- commands ------------------------------------------------------------------------------------------------------

    async def reset(
        self,
        *,
        seed: int | None = None,
        options: dict[str, Any] | None = None,
        timeout: float | None = None,
        label: str = "",
    ) -> ResetResult:
        """Starts an episode.

        Args:
            seed: As in Gymnasium.
            options: As in Gymnasium; environments of gymhost know `task` and `split`.
            timeout: Seconds after which the server stops the reset; None leaves it to the environment's own limit.
            label: What you call the episode, such as the id of a rollout, in 128 characters at most: the server's log
                has it, and those who watch the server see it.

        Returns:
            The observation and the info.

        Raises:
            EnvironmentFault: The environment raised; the remote traceback is part of the message.
            CommandTimeout: A time limit stopped it.
            SessionError: The session has ended; its subclass says how.
        """
        if seed is None and self._lane is not None:
            seed = self._lane.first_seed()
        return decode_reset(await self._command(pb.COMMAND_KIND_RESET, encode_reset(seed, options, label), timeout))

    async def step(self, action: Any, *, timeout: float | None = None) -> StepResult:
        """Takes a step.

        Args:
            action: The action.
            timeout: Seconds after which the server stops the step; None leaves it to the environment's own limit.

        Returns:
            Observation, reward, terminated, truncated, info. `info["reward_invalid"]` is True for an invalid reward.

        Raises:
            EnvironmentFault: The environment raised; the remote traceback is part of the message.
            CommandTimeout: A time limit stopped it.
            SessionError: The session has ended; its subclass says how.
        """
        payload = encode_step(action)
        lane = self._lane
        if lane is None or lane.pending is not None:
            return decode_step(await self._command(pb.COMMAND_KIND_STEP, payload, timeout))
        # What `_command` does, without a coroutine more on the way of every step.
        pending = self._send(lane, pb.COMMAND_KIND_STEP, payload, timeout)
        try:
            await pending.future
        except asyncio.CancelledError:
            lane.cancel()
            raise
        return decode_step(pending.result())

    async def call_tool(self, name: str, arguments: dict[str, Any], *, timeout: float | None = None) -> StepResult:
        """Takes a step that consists of one tool call."""
        command = pb.CallToolCommand(name=name, arguments=json.dumps(arguments))
        reply = await self._command(pb.COMMAND_KIND_CALL_TOOL, command.SerializeToString(), timeout)
        return decode_step_message(parse(pb.CallToolResult, reply).result)

    async def fork(self, number: int = 1, *, timeout: float | None = None) -> "list[Session]":
        """Makes sessions that go on from the present state of this one, as for a search, or for a shared beginning.

        The same actions are answered in them as they would be here, and nothing that is done in one shows in another.
        Where the environment has a sandbox, theirs begin with the files of this one; what runs in it does not run in
        them. All of them are in the worker of this session, and each takes a place of the server's.

        Args:
            number: How many.
            timeout: Seconds after which the server stops it, a wait for places included; None leaves it to the
                server's and the environment's own limits.

        Returns:
            The sessions, which are open: close each, or use it with `async with`.

        Raises:
            Unimplemented: The environment can't be copied, or has copies of its own (a vector session).
            CapacityExhausted: The server is full.
            EnvironmentFault: Copying it raised; the remote traceback is part of the message.
            CommandTimeout: A time limit stopped it.
            SessionError: The session has ended; its subclass says how.
        """
        payload, made, lane = encode_fork(number), self._opened, self._lane
        assert lane is not None
        while lane.pending is not None:
            await asyncio.wrap_future(lane.until_free())
        bridge = self._connection.bridge()
        pending = AsyncFork(bridge, lane, payload, 0 if timeout is None else max(1, round(timeout * 1000)))
        if lane.begin(pending):
            # On the stream, whatever way steps go: the server itself has a part in it.
            bridge.submit(pending)
        try:
            forked = await pending.wait()
        except asyncio.CancelledError:
            lane.cancel()
            raise
        forks: list[Session] = []
        for twin, queued in forked.lanes:
            fork = Session(self._connection, self.options, create_timeout=self._create_timeout)
            fork._begin(twin, made.with_wait(queued))
            forks.append(fork)
        forked.lanes.clear()  # else this session, whose last command the fork is, would hold on to them
        return forks

    async def evaluate(self, limit: str | None = None, *, timeout: float | None = None) -> StepResult:
        """Scores the episode: one that was reset with the option `evaluate_apart` and has ended, or one that ends here.

        Args:
            limit: The name of the limit of yours that ended the episode, for the info, where the environment did not
                end it itself.
            timeout: Seconds after which the server stops the scoring; None leaves it to the environment's own limit.

        Returns:
            What a last step returns: no observation, the reward that has not been paid yet, how the episode ended, and
            info with `rewards`.

        Raises:
            Unimplemented: The environment pays with its steps alone, see `evaluates`.
            ResetNeeded: There is no episode, or it is scored already.
            EnvironmentFault: The environment raised; the remote traceback is part of the message.
            CommandTimeout: A time limit stopped it.
            SessionError: The session has ended; its subclass says how.
        """
        command = pb.EvaluateCommand(limit=limit or "")
        reply = await self._command(pb.COMMAND_KIND_EVALUATE, command.SerializeToString(), timeout)
        return decode_step_message(parse(pb.EvaluateResult, reply).result)

    async def render(self) -> Any:
        """Renders the environment, as Gymnasium does."""
        return decode_render(await self._command(pb.COMMAND_KIND_RENDER, b"", None))

    async def get_attr(self, name: str) -> Any:
        """Reads an attribute of the environment, from the outermost of its wrappers that has it.

        Returns:
            Its value; of a method None.

        Raises:
            AttributeError: The environment has none of this name.
            PermissionDenied: It is not declared for clients; the message says how that is done.
        """
        with missing_as_usual():
            reply = await self._command(pb.COMMAND_KIND_GET_ATTR, encode_get(name), None)
        return decode_attribute(reply)[0]

    async def set_attr(self, name: str, value: Any) -> None:
        """Sets an attribute of the environment, on the outermost of its wrappers that has it.

        Raises:
            PermissionDenied: It is not declared for clients; the message says how that is done.
        """
        with missing_as_usual():
            await self._command(pb.COMMAND_KIND_SET_ATTR, encode_set(name, value), None)

    async def call(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Calls a method of the environment.

        Returns:
            What it returned; the value of an attribute that can't be called.

        Raises:
            EnvironmentFault: It raised, or there is none of this name.
            PermissionDenied: It is not declared for clients; the message says how that is done.
        """
        reply = await self._command(pb.COMMAND_KIND_CALL, encode_call(name, args, kwargs), None)
        return decode_attribute(reply)[0]

    async def close(self) -> None:
        """Closes the session. Twice is no error, nor is closing one that has ended."""
        lane = self._lane
        if lane is None or not lane.close("the session was closed"):
            return
        with contextlib.suppress(errors.ServerUnavailable):
            await self._connection.acall(pb.COMMAND_KIND_CLOSE, None, lane=lane.number)

    async def _command(self, kind: int, payload: bytes, timeout: float | None) -> bytes:
        lane = self._lane
        if lane is None:
            raise errors.InvalidArgument(
                "the session is not open: use `async with server.session(...)`, or await open()"
            )
        while lane.pending is not None:
            await asyncio.wrap_future(lane.until_free())
        pending = self._send(lane, kind, payload, timeout)
        try:
            await pending.future
        except asyncio.CancelledError:
            lane.cancel()
            raise
        return pending.result()

    def _send(self, lane: Lane, kind: int, payload: bytes, timeout: float | None) -> AsyncPending:
        """Makes a command the one in flight on a lane that is free."""
        connection = self._connection
        if len(payload) > connection.max_payload:
            raise connection.too_large(payload)
        bridge = self._bridge
        if bridge is None or not bridge.is_here():
            bridge = self._bridge = connection.bridge()
        left = 0 if timeout is None else max(1, round(timeout * 1000))
        pending = AsyncPending(bridge, lane, lane.number, kind, payload, left)
        if not lane.begin(pending):
            return pending
        link = bridge.links.of(lane)
        if link is not None:
            link.submit(pending)
        else:
            bridge.submit(pending)
        return pending


# -- payloads ----------------------------------------------------------------------------------------------------------

_Result = TypeVar("_Result", pb.ResetResult, pb.StepResult, pb.CallToolResult, pb.EvaluateResult, pb.RenderResult)


def parse(kind: type[_Result], reply: bytes) -> _Result:
    """Reads the payload of a reply.

    Raises:
        DecodeError: It is no message of this kind.
    """
    try:
        return kind.FromString(reply)
    except ProtobufDecodeError as error:
        raise errors.DecodeError(f"the server's reply is no {kind.__name__}: {error}") from None


def encode_reset(seed: int | None, options: dict[str, Any] | None, label: str = "") -> bytes:
    """The payload of a RESET."""
    command = pb.ResetCommand(label=label)
    if seed is not None:
        try:
            command.seed = seed
        except (TypeError, ValueError):
            raise errors.InvalidArgument(f"seed must be an int within 64 bits, not {seed!r}") from None
    if options is not None:
        values.encode(options, command.options)
    return command.SerializeToString()


def decode_reset(reply: bytes) -> ResetResult:
    """What a RESET returned."""
    result = parse(pb.ResetResult, reply)
    return values.decode(result.observation), values.decode(result.info) if result.HasField("info") else {}


def encode_step(action: Any, kept: int = 0) -> bytes:
    """The payload of a STEP; `kept` is for vector sessions."""
    command = pb.StepCommand(kept=kept)
    values.encode(action, command.action)
    return command.SerializeToString()


def decode_step(reply: bytes) -> StepResult:
    """What a STEP returned."""
    return decode_step_message(parse(pb.StepResult, reply))


def decode_step_message(result: pb.StepResult) -> StepResult:
    """What a step returned."""
    info: dict[str, Any] = values.decode(result.info) if result.HasField("info") else {}
    if result.reward_invalid:
        info["reward_invalid"] = True
    return values.decode(result.observation), result.reward, result.terminated, result.truncated, info


def decode_render(reply: bytes) -> Any:
    """What a RENDER returned."""
    return values.decode(parse(pb.RenderResult, reply).frame)
