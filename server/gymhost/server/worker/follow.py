"""Following a session: its commands and their results, for those who watch it. Nothing is done while nobody does.

A session that is followed has another table of calls, which tells of each. What is told waits in a buffer until the
front asks for it, which it does as fast as whoever follows takes it: the session waits for nobody.
"""

import collections
import contextlib
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Generator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gymhost.server.worker.calls import Call
from gymhost.server.worker.failure import OK, code_name
from gymhost.server.worker.terms import Terms
from gymhost.v1 import environments_pb2 as pb
from gymhost.v1 import operations_pb2 as operations
from gymhost.v1 import values_pb2
from gymhost.wire import tensors, values
from gymhost.wire.layout import Batch, Layout

if TYPE_CHECKING:
    from gymhost.server.worker.session import Session

__all__ = ["Following", "command_name"]

# The most bytes of an action or an observation, and of what else comes with it.
LARGE = 256 * 1024
# What waits to be asked for: turns, and about how many bytes; and the most bytes that are told at once.
MOST_TURNS = 64
MOST_BYTES = 2 * 1024 * 1024
AT_ONCE = 1024 * 1024
# The most characters of a message and a traceback, of which the end is the best part.
MESSAGE, TRACEBACK = 1000, 16 * 1024

_RESULTS: dict[int, Any] = {
    pb.COMMAND_KIND_RESET: pb.ResetResult,
    pb.COMMAND_KIND_STEP: pb.StepResult,
    pb.COMMAND_KIND_CALL_TOOL: pb.CallToolResult,
    pb.COMMAND_KIND_EVALUATE: pb.EvaluateResult,
    pb.COMMAND_KIND_RENDER: pb.RenderResult,
}


def command_name(kind: int) -> str:
    """What operators call a kind of command, such as `step`."""
    if kind not in pb.CommandKind.values():
        return ""
    return pb.CommandKind.Name(kind).removeprefix("COMMAND_KIND_").lower()  # pyright: ignore[reportArgumentType]


class _Turn(NamedTuple):
    """A command that has been answered: what is told of it, and what the rest of it is read from (kind 0: nothing)."""

    told: operations.FollowedTurn
    kind: int
    payload: bytes
    reply: bytes
    batch: Batch | None


class Following:
    """All that follow one session.

    Args:
        session: The session.
    """

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._calls = session.calls
        self._followers: dict[int, _Follower] = {}
        self._layout: Layout | None = None
        self._turn = operations.FollowedTurn()
        self._kind = 0
        self._payload = b""
        self._began = 0.0

    # -- on the event loop ---------------------------------------------------------------------------------------------

    def ask(self, follower: int, answer: Callable[[bytes], None]) -> None:
        """Has somebody told what came since the last time, once there is something; the first time at once."""
        known = self._followers.get(follower)
        if known is None:
            known = self._followers[follower] = _Follower(self._session)
            if self._session.calls is self._calls:
                self._session.calls = {kind: self._followed(kind, call) for kind, call in self._calls.items()}
            answer(b"")
        else:
            known.ask(answer)

    def leave(self, follower: int) -> bool:
        """Ends the following of one; whether nobody else follows."""
        self._followers.pop(follower, None)
        if not self._followers:
            self._session.calls = self._calls
        return not self._followers

    def end(self) -> None:
        """Tells those who wait what there is still to tell, and those who ask again: the session has ended."""
        for follower in self._followers.values():
            follower.end()

    # -- where the session's code runs ---------------------------------------------------------------------------------

    def _followed(self, kind: int, call: Call) -> Call:
        """A call that is told of."""

        def decode(payload: bytes, terms: Terms) -> Any:
            self._begin(kind, payload)
            with self._telling():
                return call.decode(payload, terms)

        def run(env: Any, argument: Any) -> Any:
            with self._telling():
                return call.run(env, argument)

        async def run_async(env: Any, argument: Any) -> Any:
            assert call.run_async is not None
            with self._telling():
                return await call.run_async(env, argument)

        def encode(returned: Any) -> bytes:
            with self._telling():
                reply = call.encode(returned)
                host = self._session.host
                if len(reply) > host.max_payload:
                    raise host.too_large(reply)
            self._end(0, reply)
            return reply

        own: Callable[[Any, Any], Awaitable[Any]] | None = run_async if call.run_async is not None else None
        return Call(call.limit, decode, run, own, encode, call.kept)

    def _begin(self, kind: int, payload: bytes) -> None:
        self._kind, self._payload = kind, payload
        self._turn = operations.FollowedTurn(sequence=self._session.last, command=command_name(kind), time=time.time())
        self._began = time.monotonic()

    @contextlib.contextmanager
    def _telling(self) -> Generator[None]:
        """Tells of what goes wrong within."""
        try:
            yield
        except BaseException as error:
            code, reply = self._session.outcome(error)
            self._end(code, reply)
            raise

    def _end(self, code: int, reply: bytes) -> None:
        try:
            made = self._made(code, reply)
            for follower in list(self._followers.values()):
                follower.add(made)
        except Exception:  # noqa: BLE001 - whoever follows does no harm to the session
            traceback.print_exc()

    def _made(self, code: int, reply: bytes) -> _Turn:
        turn, payload, batch = self._turn, self._payload, None
        turn.seconds = time.monotonic() - self._began
        turn.code = code_name(code)
        if code:
            told = pb.Error.FromString(reply)
            turn.message, turn.traceback, reply = told.message[:MESSAGE], told.traceback[-TRACEBACK:], b""
        elif self._kind in (pb.COMMAND_KIND_RESET, pb.COMMAND_KIND_STEP):
            batch = self._batch()
        if len(payload) > LARGE:
            turn.left_out, payload = True, b""
        made = _Turn(turn, self._kind, payload, reply, batch)
        if len(reply) > LARGE or batch is not None:
            # As it is told: what is large is not kept, and the memory of a batch is used again by the next command.
            made = _Turn(_told(made), 0, b"", b"", None)
        return made

    def _batch(self) -> Batch | None:
        """The arrays of a vector session that are in its memory, and not in its replies."""
        env = self._session.env
        memory = getattr(env, "memory", None) if self._session.is_vector else None
        if memory is None:
            return None
        if self._layout is None:
            self._layout = Layout.of(env.observation_space, len(env))
        return None if self._layout is None else self._layout.batch(memory.map)


class _Follower:
    """One that follows, and what waits for it."""

    def __init__(self, session: "Session") -> None:
        self._host = session.host
        self._lock = threading.Lock()
        self._turns: collections.deque[_Turn] = collections.deque()
        self._size = 0
        self._missed = 0
        self._ended = False
        self._answer: Callable[[bytes], None] | None = None

    def add(self, turn: _Turn) -> None:
        """Takes a turn. From any thread."""
        with self._lock:
            self._turns.append(turn)
            self._size += _size(turn)
            while len(self._turns) > MOST_TURNS or (self._size > MOST_BYTES and len(self._turns) > 1):
                self._size -= _size(self._turns.popleft())
                self._missed += 1
            wakes = self._answer is not None and len(self._turns) == 1
        if wakes:
            self._host.post(self._tell, None)

    def ask(self, answer: Callable[[bytes], None]) -> None:
        """Has what there is told, once there is something. On the event loop, as what follows."""
        self._answer = answer
        if self._turns or self._ended:
            self._tell(None)

    def end(self) -> None:
        """Tells what there is, be it nothing, now and when it is asked again."""
        self._ended = True
        if self._answer is not None:
            self._tell(None)

    def _tell(self, _: None) -> None:
        answer, self._answer = self._answer, None
        if answer is None:
            return
        response = operations.FollowSessionResponse()
        size = 0
        while self._turns and size < AT_ONCE:
            with self._lock:
                if not response.turns:
                    response.missed, self._missed = self._missed, 0
                turn = self._turns.popleft()
                self._size -= _size(turn)
            told = _told(turn)
            size += told.ByteSize()
            response.turns.append(told)
        answer(response.SerializeToString())


def _size(turn: _Turn) -> int:
    return len(turn.payload) + len(turn.reply) + turn.told.ByteSize()


def _told(turn: _Turn) -> operations.FollowedTurn:
    """A turn as it is told."""
    told = operations.FollowedTurn()
    told.CopyFrom(turn.told)
    if turn.payload:
        with contextlib.suppress(Exception):  # what is no command has failed, which is told
            _add_action(told, turn.kind, turn.payload)
    if turn.kind and told.code == OK:
        _add_result(told, turn)
    return told


def _add_action(told: operations.FollowedTurn, kind: int, payload: bytes) -> None:
    if kind == pb.COMMAND_KIND_RESET:
        reset = pb.ResetCommand.FromString(payload)
        if reset.HasField("options"):
            told.action.CopyFrom(reset.options)
    elif kind == pb.COMMAND_KIND_STEP:
        told.action.CopyFrom(pb.StepCommand.FromString(payload).action)
    elif kind == pb.COMMAND_KIND_CALL_TOOL:
        tool = pb.CallToolCommand.FromString(payload)
        values.encode({"name": tool.name, "arguments": tool.arguments}, told.action)
    elif kind in (pb.COMMAND_KIND_GET_ATTR, pb.COMMAND_KIND_SET_ATTR, pb.COMMAND_KIND_CALL):
        values.encode(pb.AttributeCommand.FromString(payload).name, told.action)


def _add_result(told: operations.FollowedTurn, turn: _Turn) -> None:
    result: Any = _RESULTS.get(turn.kind, pb.AttributeResult).FromString(turn.reply)
    if turn.kind in (pb.COMMAND_KIND_CALL_TOOL, pb.COMMAND_KIND_EVALUATE):
        result = result.result
    if isinstance(result, pb.RenderResult):
        _add(told, result.frame)
        return
    if isinstance(result, pb.AttributeResult):
        _add(told, result.value)
        return
    if turn.batch is not None:
        if sum(leaf.nbytes for leaf in _leaves(turn.batch.observation)) > LARGE:
            told.left_out = True
        else:
            values.encode(turn.batch.observation, told.observation)
    elif result.HasField("observation"):
        _add(told, result.observation)
    info = result.infos if result.HasField("infos") else result.info
    if info.ByteSize() > LARGE:
        told.left_out = True
    elif result.HasField("info") or result.HasField("infos"):
        told.info.CopyFrom(info)
    if isinstance(result, pb.StepResult):
        _add_reward(told, result, turn.batch)


def _add_reward(told: operations.FollowedTurn, result: pb.StepResult, batch: Batch | None) -> None:
    if batch is not None:
        told.reward = float(np.sum(batch.rewards))
        told.terminated, told.truncated = bool(np.any(batch.terminations)), bool(np.any(batch.truncations))
    elif result.HasField("rewards"):
        told.reward = float(np.sum(tensors.decode_array(result.rewards)))
        told.terminated = bool(np.any(tensors.decode_array(result.terminations)))
        told.truncated = bool(np.any(tensors.decode_array(result.truncations)))
    else:
        told.terminated, told.truncated = result.terminated, result.truncated
        if not result.reward_invalid:
            told.reward = result.reward


def _add(told: operations.FollowedTurn, value: values_pb2.Value) -> None:
    if value.ByteSize() > LARGE:
        told.left_out = True
    else:
        told.observation.CopyFrom(value)


def _leaves(observation: Any) -> list[Any]:
    """The arrays of a batched observation."""
    if isinstance(observation, dict):
        return [leaf for each in observation.values() for leaf in _leaves(each)]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(observation, tuple):
        return [leaf for each in observation for leaf in _leaves(each)]  # pyright: ignore[reportUnknownVariableType]
    return [observation]
