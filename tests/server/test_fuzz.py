"""Anything at all, sent to every RPC of a real server: no crash, no hang, no growth, a clear status for each (S33).

How long it goes on is said by GYMHOST_FUZZ_EXAMPLES: the number of examples, each of up to 12 calls and frames.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import grpc.aio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymhost.v1 import environments_pb2 as pb
from gymhost.v1 import environments_pb2_grpc as rpc
from gymhost.wire import errors
from support.fuzz import ENVIRONMENTS, examples, messages
from support.raw import RawStream, channel_to, command, observation, step, trailing
from support.server import ServerProcess, alive, resident

SERVICE = pb.DESCRIPTOR.services_by_name["EnvironmentService"]
UNARY = [method for method in SERVICE.methods if method.name != "Interact"]
PAYLOADS = (
    pb.Hello,
    pb.CreateSessionRequest,
    pb.Attach,
    pb.ResetCommand,
    pb.StepCommand,
    pb.CallToolCommand,
    pb.ForkCommand,
    pb.AttributeCommand,
    pb.EvaluateCommand,
)
# Seconds within which everything is answered, on a machine that may be busy.
PATIENCE = 40.0


class World:
    """A server under fire, and a client beside that must not notice.

    Attributes:
        sent: How many calls and commands were sent.
    """

    def __init__(self) -> None:
        self.sent = 0
        self._runner = asyncio.Runner()
        self._stack = contextlib.AsyncExitStack()
        self._numbers = itertools.count(10**6)
        self._known: list[str] = [""]
        self._lanes: list[int] = [0]
        self._call: Any = None

    def __enter__(self) -> "World":
        self.server = ServerProcess(workers=2, capacity=40, queue_timeout=0.2, queue_length=8)
        self.run(self._open())
        self.workers = self.server.workers
        return self

    def __exit__(self, *exc: object) -> None:
        self.run(self._stack.aclose())
        self._runner.close()
        self.server.__exit__()

    def run(self, work: Any) -> Any:
        """Runs a coroutine on the client's event loop, for a bounded time."""
        return self._runner.run(asyncio.wait_for(work, 3 * PATIENCE))

    async def _open(self) -> None:
        self.channel = await self._stack.enter_async_context(channel_to(self.server.address))
        self.stub: Any = rpc.EnvironmentServiceStub(self.channel)
        self.canary = await self._stack.enter_async_context(RawStream(self.stub))
        self._canary_lane = (await self.canary.create()).lanes[0]
        await self.canary.ask(pb.COMMAND_KIND_RESET, lane=self._canary_lane, number=1)
        self._steps = 1
        self._lanes.append(self._canary_lane)

    # -- unary calls ---------------------------------------------------------------------------------------------------

    async def call(self, method: Any, request: Any, pick: int) -> None:
        """Makes a call; whatever it is answered, it must be clear."""
        if not isinstance(request, bytes):
            names = {field.name for field in method.input_type.fields}
            if "session_id" in names and pick % 3:
                request.session_id = self._known[pick % len(self._known)]
            if "limit" in names and pick % 2:
                request.limit = pick % 5
            if method.name == "CreateSession":
                self._tame(request, pick)
            request = request.SerializeToString()
        path = f"/{SERVICE.full_name}/{method.name}"
        try:
            answer = await self.channel.unary_unary(path)(request, timeout=PATIENCE)
        except grpc.aio.AioRpcError as error:
            self._check_status(error, (method.name, request))
        else:
            if method.name == "CreateSession":
                self._made(pb.CreateSessionResponse.FromString(answer))
        self.sent += 1

    def _tame(self, request: Any, pick: int) -> None:
        """Has most creates make something."""
        if pick % 4:
            request.environment_id = ENVIRONMENTS[pick % len(ENVIRONMENTS)]
            request.idempotency_key = (request.idempotency_key * 16 + bytes(16))[:16]
        if pick % 2:
            request.ClearField("kwargs")
            request.ClearField("wrappers")
            request.num_envs %= 3
            request.priority %= 1000

    def _made(self, made: pb.CreateSessionResponse) -> None:
        self._known.append(made.session_id)
        self._lanes.extend(made.lanes)

    def _check_status(self, error: grpc.aio.AioRpcError, what: Any) -> None:
        detail = trailing(error)
        assert "gymhost-code" in detail, (error, what)
        self._check(int(detail["gymhost-code"]), detail["gymhost-error-bin"], what)

    def _check(self, code: int, payload: bytes, what: Any) -> None:
        message = pb.Error.FromString(payload)
        assert code in errors.BY_CODE or code == pb.REPLY_CODE_WANT_BULK, (code, what)
        assert code != pb.REPLY_CODE_SERVER_FAULT, (message, what, self.server.log[-3000:])
        assert message.message or code == pb.REPLY_CODE_WANT_BULK, (code, what)

    # -- the stream ----------------------------------------------------------------------------------------------------

    async def frame(self, frame: Any, lanes: list[int]) -> None:
        """Sends a frame; the stream then answers a heartbeat, or has ended with a clear status."""
        call = await self._opened()
        if not isinstance(frame, bytes):
            self.sent += len(frame.commands)
            for each, pick in zip(frame.commands, itertools.cycle(lanes), strict=False):
                if pick % 4:
                    each.lane = self._lanes[pick % len(self._lanes)]
                if each.kind == pb.COMMAND_KIND_ATTACH and pick % 2:
                    known = self._known[pick % len(self._known)]
                    each.payload = pb.Attach(session_id=known).SerializeToString()
                elif each.kind == pb.COMMAND_KIND_CREATE:
                    each.time_left_ms = 200
                    with contextlib.suppress(Exception):
                        request = pb.CreateSessionRequest.FromString(each.payload)
                        self._tame(request, pick)
                        each.payload = request.SerializeToString()
            frame = frame.SerializeToString()
        number = next(self._numbers)
        beat = pb.InteractRequest(commands=[command(pb.COMMAND_KIND_HEARTBEAT, number=number)])
        try:
            await call.write(frame)
            await call.write(beat.SerializeToString())
            while True:
                answer = await call.read()
                if answer is grpc.aio.EOF:
                    self._call = None
                    return
                for reply in pb.InteractResponse.FromString(answer).replies:
                    if reply.code:
                        self._check(reply.code, reply.payload, frame)
                    elif reply.lane == 0 and reply.sequence and len(reply.payload) > 40:
                        with contextlib.suppress(Exception):
                            made = pb.CreateSessionResponse.FromString(reply.payload)
                            if "-" in made.session_id:
                                self._made(made)
                    if reply.sequence == number and reply.lane == 0:
                        return
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            self._call = None
            await self._ended(call, frame)

    async def _ended(self, call: Any, frame: bytes) -> None:
        """Looks at what a stream ended with that this frame has ended."""
        detail = {key: value for key, value in await call.trailing_metadata() or ()}  # noqa: C416
        if "gymhost-code" not in detail:
            # The heartbeat was written on a stream that had just ended, and gRPC tells of that alone.
            assert await call.code() in (grpc.StatusCode.INTERNAL, grpc.StatusCode.CANCELLED), frame
            call = await self._opened()
            self._call = None
            await call.write(frame)
            with contextlib.suppress(grpc.aio.AioRpcError):
                async with asyncio.timeout(PATIENCE):
                    while await call.read() is not grpc.aio.EOF:
                        pass
            detail = {key: value for key, value in await call.trailing_metadata() or ()}  # noqa: C416
        self._check(int(detail["gymhost-code"]), detail["gymhost-error-bin"], frame)

    async def _opened(self) -> Any:
        if self._call is None:
            self._call = self.channel.stream_stream(f"/{SERVICE.full_name}/Interact")()
            hello = command(pb.COMMAND_KIND_HELLO, pb.Hello(client="fuzz").SerializeToString(), number=1)
            await self._call.write(pb.InteractRequest(commands=[hello]).SerializeToString())
            await self._call.read()
        return self._call

    async def hello(self, first: bytes) -> None:
        """Opens a stream with anything as its first frame, and leaves it."""
        for _ in range(20):
            call = self.channel.stream_stream(f"/{SERVICE.full_name}/Interact")()
            try:
                await call.write(first)
                await asyncio.wait_for(call.read(), PATIENCE)
            except grpc.aio.AioRpcError as error:
                if "Internal error from Core" in (error.details() or ""):
                    continue  # gRPC was still writing when the status came, and lost it
                self._check_status(error, first)
            call.cancel()
            self.sent += 1
            return
        raise AssertionError(f"no clear status for {first!r}")

    # -- afterwards ----------------------------------------------------------------------------------------------------

    async def settle(self) -> None:
        """What must hold after everything: the canary steps on, the workers live; sessions are closed again."""
        self._steps += 1
        reply = await self.canary.ask(
            pb.COMMAND_KIND_STEP, step(1).SerializeToString(), lane=self._canary_lane, number=self._steps
        )
        assert observation(reply) == self._steps - 1
        assert [pid for pid in self.workers if not alive(pid)] == [], self.server.log[-3000:]
        if len(self._known) > 8:
            for session_id in self._known[1:]:
                with contextlib.suppress(grpc.aio.AioRpcError):
                    await self.stub.CloseSession(pb.CloseSessionRequest(session_id=session_id))
            self._known = ["", *self._known[-2:]]
            self._lanes = [0, self._canary_lane, *self._lanes[-2:]]

    async def left(self) -> int:
        """How many sessions there are when all that is known was closed, and nobody holds the rest."""
        for session_id in self._known[1:]:
            with contextlib.suppress(grpc.aio.AioRpcError):
                await self.stub.CloseSession(pb.CloseSessionRequest(session_id=session_id))
        return len((await self.stub.ListSessions(pb.ListSessionsRequest())).sessions)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World() as made:
        yield made


def _request(method: Any) -> st.SearchStrategy[Any]:
    return messages(method.input_type) | st.binary(max_size=60)


CALLS = st.sampled_from(UNARY).flatmap(
    lambda method: st.tuples(st.just("call"), st.just(method), _request(method), st.integers(0, 1000))
)
PAYLOAD = st.sampled_from(PAYLOADS).flatmap(lambda of: messages(of.DESCRIPTOR)).map(lambda m: m.SerializeToString())
COMMANDS = st.builds(
    command,
    st.integers(0, 20) | st.sampled_from((-1, 1001, 1002, 1003, 1004, 1005, 1006, 1007, 2**31 - 1)),
    PAYLOAD | st.binary(max_size=60),
    lane=st.integers(0, 2**64 - 1) | st.integers(0, 4),
    number=st.integers(0, 6) | st.integers(0, 2**64 - 1),
    # What has no limit could run for as long as its action says.
    time_left_ms=st.sampled_from((1, 20, 500)),
)
FRAMES = st.lists(COMMANDS, max_size=6).map(lambda commands: pb.InteractRequest(commands=commands))
STREAM = st.tuples(
    st.just("frame"), FRAMES | st.binary(max_size=60), st.lists(st.integers(0, 1000), min_size=1, max_size=6)
)
HELLOS = st.tuples(
    st.just("hello"), st.binary(min_size=1, max_size=60) | FRAMES.map(lambda frame: frame.SerializeToString())
)


def test_anything_at_all_is_answered_clearly_and_harms_nobody(world: World) -> None:
    @examples()
    @given(st.lists(CALLS | STREAM | STREAM | HELLOS, min_size=1, max_size=12))
    def play(deeds: list[Any]) -> None:
        async def all_of_them() -> None:
            for what, *how in deeds:
                await getattr(world, what)(*how)
            await world.settle()

        world.run(all_of_them())

    play()
    # Once more, with the same world: what grows now grows for ever.
    pids = (world.server.pid, *world.workers)
    before = [resident(pid) for pid in pids]
    play()
    after = [resident(pid) for pid in pids]
    print(f"\n{world.sent} calls and commands; MiB before and after the second half: {before}, {after}")
    assert all(now < 1.25 * then + 30 for now, then in zip(after, before, strict=True)), (before, after)
    # The canary's, and those whose creates were answered to a stream that nobody read to the end: few.
    assert world.run(world.left()) <= 40
    assert world.sent > 100
