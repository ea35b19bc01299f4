"""Clients that read too slowly, or send too much: they harm themselves alone, and the server's memory is bounded."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any

import grpc.aio
import pytest

from gymhost.client import connect
from gymhost.server import calls
from gymhost.server.config import ServerConfig
from gymhost.server.front import outgoing
from gymhost.server.front import stream as front_stream
from gymhost.server.server import Server
from gymhost.v1 import environments_pb2 as pb
from gymhost.wire import values
from support.raw import RawStream, command, error_of, observation, step, stub_to, trailing
from support.server import TESTS, ServerProcess, resident, until

StartServer = Callable[..., ServerProcess]

RESET, STEP = pb.COMMAND_KIND_RESET, pb.COMMAND_KIND_STEP
MODULES = ["support.environments", "support.flood_environments"]


async def _heap(stream: RawStream) -> pb.CreateSessionResponse:
    made = await stream.create("test/Heap-v0")
    assert not (await stream.ask(RESET, lane=made.lanes[0], number=1)).code
    return made


async def _read_on(stream: RawStream) -> None:
    """Reads until the stream ends."""
    while True:
        await stream.reply()


class _Neighbour:
    """Steps a session of its own all the while; `slowest` is how long its slowest step took."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.steps = 0
        self.slowest = 0.0

    async def __aenter__(self) -> "_Neighbour":
        self._task = asyncio.create_task(self._step())
        while not self.steps:
            await asyncio.sleep(0.01)
            assert not self._task.done(), self._task.result()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
        assert self._task.cancelled(), self._task.result()

    async def _step(self) -> None:
        async with (
            connect(self._address, direct=False) as remote,
            remote.session("test/Counter-v0") as session,
        ):
            await session.reset()
            while True:
                began = time.monotonic()
                observed = (await session.step(1))[0]
                self.steps += 1
                assert observed == self.steps
                self.slowest = max(self.slowest, time.monotonic() - began)
                await asyncio.sleep(0.002)


@contextlib.asynccontextmanager
async def in_process(**settings: Any) -> AsyncGenerator[Server]:
    """A server on the event loop of the test, whose parts can be reached."""
    config: dict[str, Any] = {
        "address": "127.0.0.1:0",
        "workers": 1,
        "modules": tuple(MODULES),
        "paths": (str(TESTS),),
    } | settings
    server = Server(ServerConfig(**config))
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@pytest.mark.parametrize("size", [200_000, 6_000_000], ids=["small replies", "large replies"])
async def test_a_slow_reader_is_cut_off_and_loses_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, size: int
) -> None:
    monkeypatch.setattr(outgoing, "STALL", 1.0)
    caplog.set_level("INFO", "gymhost.server")
    async with (
        in_process() as server,
        stub_to(server.address) as stub,
        RawStream(stub) as slow,
        _Neighbour(server.address) as neighbour,
    ):
        made = await _heap(slow)
        lane = made.lanes[0]
        # 100 MB of replies that nobody reads; of the large ones, with no bulk stream either.
        count = 100_000_000 // size
        for number in range(2, 2 + count):
            await slow.send(command(STEP, step(size).SerializeToString(), lane=lane, number=number))
        await until(lambda: "is cut off: its client reads too slowly" in caplog.text)
        steps = neighbour.steps
        with pytest.raises(grpc.aio.AioRpcError, match="reads too slowly and is cut off") as cut:
            await _read_on(slow)
        assert int(trailing(cut.value)["gymhost-code"]) == pb.REPLY_CODE_TOO_LARGE
        async with RawStream(stub) as again:
            attached = await again.attach(made.session_id)
            last = pb.Attached.FromString(attached.payload).last_sequences[0]
            assert last == 1 + count
            # Its last command ran once, and is answered to whoever asks again.
            await again.send(command(STEP, step(size).SerializeToString(), lane=lane, number=last))
            if size < 256 * 1024:
                assert len(observation(await again.reply())) == size
            else:
                assert (await again.reply()).code == pb.REPLY_CODE_WANT_BULK
            assert observation(await again.ask(STEP, step(3).SerializeToString(), lane=lane, number=last + 1)) == "xxx"
        assert neighbour.steps > steps
        assert neighbour.slowest < 5.0


async def test_a_burst_of_large_replies_cuts_off_nobody_who_reads(start_server: StartServer) -> None:
    server = start_server(workers=2, modules=MODULES)
    async with connect(server.address, direct=False) as remote:
        sessions = await asyncio.gather(*(remote.session("test/Heap-v0").open() for _ in range(24)))
        await asyncio.gather(*(session.reset() for session in sessions))
        # 144 MB at once: more than may wait for a client that does not read.
        for _ in range(2):
            results = await asyncio.gather(*(session.step(6_000_000) for session in sessions))
            assert {len(result[0]) for result in results} == {6_000_000}
        await asyncio.gather(*(session.close() for session in sessions))
    assert "is cut off" not in server.log


async def test_many_slow_readers_together_have_a_limit_too(start_server: StartServer) -> None:
    server = start_server(workers=1, modules=MODULES)
    async with stub_to(server.address) as stub, _Neighbour(server.address) as neighbour:
        before = resident(server.pid)
        streams: list[RawStream] = []
        for _ in range(12):
            stream = await RawStream(stub).__aenter__()
            streams.append(stream)
            lane = (await _heap(stream)).lanes[0]
            # 60 MB each, which is below the limit of one.
            for number in range(2, 8):
                await stream.send(command(STEP, step(10_000_000).SerializeToString(), lane=lane, number=number))
        await until(lambda: "is cut off: its client reads too slowly" in server.log)
        ended = 0
        for stream in streams:
            try:
                await stream.send(command(pb.COMMAND_KIND_HEARTBEAT, number=1000))
                async with asyncio.timeout(20):
                    while (await stream.reply()).sequence != 1000:
                        pass
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                ended += 1
        assert ended == server.log.count("is cut off: its client reads too slowly")
        # 512 MiB in all: the newest came last, and somebody had to go.
        assert 1 <= ended <= 6
        assert resident(server.pid) < before + 900
        for stream in streams:
            await stream.__aexit__(None, None, None)
        assert neighbour.slowest < 10.0


async def test_a_stream_without_a_hello_is_ended(server: ServerProcess) -> None:
    async with stub_to(server.address) as stub:
        call = stub.Interact()
        with pytest.raises(grpc.aio.AioRpcError, match="no HELLO came within 5 s") as raised:
            await asyncio.wait_for(call.read(), 20)
        assert raised.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED


async def test_a_frame_of_too_many_commands_ends_its_stream(server: ServerProcess) -> None:
    async with stub_to(server.address) as stub, RawStream(stub) as stream:
        lane = (await stream.create()).lanes[0]
        await stream.ask(RESET, lane=lane, number=1)
        beats = [command(pb.COMMAND_KIND_HEARTBEAT, number=number) for number in range(100, 613)]
        await stream.send(*beats[:512])
        assert {(await stream.reply()).sequence for _ in range(512)} == {beat.sequence for beat in beats[:512]}
        await stream.send(*beats)
        with pytest.raises(grpc.aio.AioRpcError, match="a frame of 513 commands: 512 is the most"):
            await stream.reply()


async def test_repeats_of_a_large_reply_make_no_heap_of_them(start_server: StartServer) -> None:
    server = start_server(workers=1, modules=MODULES)
    size = 200_000
    async with stub_to(server.address) as stub, RawStream(stub) as stream:
        lane = (await _heap(stream)).lanes[0]
        assert len(observation(await stream.ask(STEP, step(size).SerializeToString(), lane=lane, number=2))) == size
        before = resident(server.workers[0])
        # 100 MB, were each of them answered.
        await stream.send(*[command(STEP, lane=lane, number=2)] * 512)
        await asyncio.sleep(1.0)
        await stream.send(command(STEP, step(1).SerializeToString(), lane=lane, number=3))
        answers = 0
        while (reply := await stream.reply()).sequence != 3:
            answers += reply.sequence == 2
        assert 1 <= answers <= 3
        assert resident(server.workers[0]) < before + 50


async def test_a_flood_of_commands_on_one_lane_is_refused_and_harms_nobody(start_server: StartServer) -> None:
    server = start_server(workers=1, modules=MODULES)
    async with stub_to(server.address) as stub, RawStream(stub) as flood, _Neighbour(server.address) as neighbour:
        lane = (await flood.create("test/Slow-v0")).lanes[0]
        assert not (await flood.ask(RESET, lane=lane, number=1)).code
        before = [resident(pid) for pid in (server.pid, *server.workers)]
        await flood.send(command(STEP, step(2.0).SerializeToString(), lane=lane, number=2))

        async def read() -> int:
            refused = 0
            while (reply := await flood.reply()).sequence != 2:
                assert reply.code == pb.REPLY_CODE_OUT_OF_SEQUENCE, error_of(reply)
                refused += 1
            assert observation(reply) == 1
            return refused

        reading = asyncio.create_task(read())
        sent = 0
        while not reading.done() and sent < 50_000:
            # What runs already, and numbers out of their order.
            await flood.send(
                *[command(STEP, step(0.0).SerializeToString(), lane=lane, number=3 + n) for n in range(250)]
            )
            sent += 250
        assert await asyncio.wait_for(reading, 40) > 0
        assert neighbour.slowest < 5.0
        after = [resident(pid) for pid in (server.pid, *server.workers)]
        assert all(now < then + 150 for now, then in zip(after, before, strict=True)), (before, after)


async def test_a_worker_that_takes_nothing_holds_up_who_sends_it_much_and_nobody_else(
    start_server: StartServer,
) -> None:
    server = start_server(workers=2, modules=MODULES, worker_liveness=60.0)
    big = pb.StepCommand(action=values.encode(bytes(200_000))).SerializeToString()
    async with stub_to(server.address) as stub, RawStream(stub) as flood, RawStream(stub) as light:
        made = await flood.create("test/Heap-v0")
        stuck = made.lanes[0]
        number = (await stub.GetSession(pb.GetSessionRequest(session_id=made.session_id))).session.worker
        lanes = [(await light.create("test/Counter-v0")).lanes[0] for _ in range(4)]
        here = [lane for lane in lanes if lane >> 32 == number]
        elsewhere = [lane for lane in lanes if lane >> 32 != number]
        assert here
        assert elsewhere
        before = resident(server.pid)
        pid = server.workers[number]
        os.kill(pid, signal.SIGSTOP)
        try:

            async def send() -> None:
                for _ in range(500):
                    await flood.send(command(STEP, big, lane=stuck, number=77))

            flooding = asyncio.create_task(send())
            await asyncio.sleep(2.0)
            assert not flooding.done()
            # 100 MB were to be sent; of which the server has taken some megabytes.
            assert resident(server.pid) < before + 60
            # Another client goes on, with small commands for the worker that is stuck and for the other one.
            await light.send(*[command(RESET, lane=lane, number=1) for lane in (*here, *elsewhere)])
            answered = {(await asyncio.wait_for(light.reply(), 10)).lane for _ in elsewhere}
            assert answered == set(elsewhere)
        finally:
            os.kill(pid, signal.SIGCONT)
        await asyncio.wait_for(flooding, 30)
        answered = {(await asyncio.wait_for(light.reply(), 20)).lane for _ in here}
        assert answered == set(here)


async def test_attaches_without_end_are_answered_and_do_not_pile_up(server: ServerProcess) -> None:
    async with stub_to(server.address) as stub, RawStream(stub) as stream:
        made = await stream.create()
        attach = pb.Attach(session_id=made.session_id).SerializeToString()

        async def send() -> None:
            for start in range(0, 10_000, 500):
                await stream.send(
                    *[
                        command(pb.COMMAND_KIND_ATTACH, attach, number=1000 + number)
                        for number in range(start, start + 500)
                    ]
                )

        sending = asyncio.create_task(send())
        answered = {(await stream.reply()).sequence for _ in range(10_000)}
        await sending
        assert len(answered) == 10_000


async def test_calls_and_streams_beyond_what_a_server_takes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "MAX_CALLS", 4)
    monkeypatch.setattr(front_stream, "MAX_STREAMS", 3)
    async with in_process() as server:
        async with stub_to(server.address) as stub, RawStream(stub) as first, RawStream(stub), RawStream(stub):
            beyond = stub.Interact()
            with pytest.raises(grpc.aio.AioRpcError, match="the server has 3 streams, which is the most") as raised:
                await beyond.read()
            assert pb.Error.FromString(trailing(raised.value)["gymhost-error-bin"]).retry_after_ms == 5000
            made = [await first.create("test/Slow-v0") for _ in range(4)]
            for each in made:
                await stub.Reset(pb.ResetRequest(session_id=each.session_id, sequence=1))
            running = [
                stub.Step(pb.StepRequest(session_id=each.session_id, sequence=2, command=step(3.0))) for each in made
            ]
            await asyncio.sleep(1.0)
            with pytest.raises(grpc.aio.AioRpcError, match="4 calls are running, which is the most") as raised:
                await stub.ListSessions(pb.ListSessionsRequest())
            assert raised.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            for call in running:
                assert values.decode((await call).result.observation) == 1
            assert len((await stub.ListSessions(pb.ListSessionsRequest())).sessions) == 4
        # What has ended counts no longer.
        async with stub_to(server.address) as stub, RawStream(stub) as again:
            await again.create()


async def test_calls_that_came_while_the_server_stood_still_are_all_answered(start_server: StartServer) -> None:
    server = start_server(workers=1)
    async with contextlib.AsyncExitStack() as stack:
        stubs = [await stack.enter_async_context(stub_to(server.address)) for _ in range(10)]
        for stub in stubs:
            await stub.ListSessions(pb.ListSessionsRequest())
        server.signal(signal.SIGSTOP)
        calls = [stub.ListSessions(pb.ListSessionsRequest(), timeout=40) for stub in stubs for _ in range(250)]
        await asyncio.sleep(0.5)  # for them to leave
        server.signal(signal.SIGCONT)
        assert {await call.code() for call in calls} == {grpc.StatusCode.OK}
