"""Anything at all on the link between a front and its workers, both ways.

How long it goes on is said by GYMHOST_FUZZ_EXAMPLES, as in test_fuzz.
"""

import asyncio
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymhost.server import link
from gymhost.server.config import ServerConfig
from gymhost.server.front.crews import crews
from gymhost.server.front.workers import Worker
from gymhost.v1 import environments_pb2 as pb
from gymhost.v1 import operations_pb2 as operations
from gymhost.wire import errors
from gymhost.wire.frames import FrameReader, pack
from support.fuzz import ENVIRONMENTS, examples, messages
from support.raw import command, create
from support.server import TESTS, alive, resident

KINDS = st.integers(0, 20) | st.integers(1000, 1014) | st.sampled_from((-1, 2**31 - 1))
REQUESTS = (
    pb.CreateSessionRequest,
    pb.GetEnvironmentRequest,
    pb.ListTasksRequest,
    pb.ResetCommand,
    pb.StepCommand,
    pb.CallToolCommand,
    pb.AttributeCommand,
    pb.ForkCommand,
)
PAYLOADS = (
    st.sampled_from(REQUESTS)
    .flatmap(lambda of: messages(of.DESCRIPTOR))
    .map(lambda message: message.SerializeToString())
    | st.binary(max_size=60)
    | st.sampled_from(ENVIRONMENTS).map(lambda name: create(name).SerializeToString())
)


class _Told:
    """Who is told of what becomes of workers."""

    def __init__(self) -> None:
        self.deaths: list[Worker] = []
        self.ended: list[int] = []
        self.failed: list[int] = []
        self.tainted = 0

    def worker_died(self, worker: Worker) -> None:
        self.deaths.append(worker)

    def worker_tainted(self, worker: Worker) -> None:
        self.tainted += 1

    def session_ended(self, worker: Worker, lane: int, error: errors.Error) -> None:
        self.ended.append(lane)

    def environment_failed(self, worker: Worker, lane: int, failure: operations.Failure) -> None:
        self.failed.append(lane)

    def owner_of(self, lane: int) -> str | None:
        return None


class _Bytes:
    """A message of any bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def SerializeToString(self) -> bytes:  # noqa: N802
        return self._data


# -- to a worker -------------------------------------------------------------------------------------------------------


class Victim:
    """A real worker process, and an event loop to talk to it on."""

    def __init__(self, folder: Path) -> None:
        self.sent = 0
        self._runner = asyncio.Runner()
        self._told = _Told()
        config = ServerConfig(modules=("support.environments",), paths=(str(TESTS),))
        self.worker = Worker(3, config, self._told, folder, crews(config)[0], dedicated=False)
        self.run(self._start())

    def run(self, work: Any) -> Any:
        return self._runner.run(asyncio.wait_for(work, 100))

    async def _start(self) -> None:
        await self.worker.start()
        # The small numbers are for the commands that are made up: nobody else waits for answers to them.
        for _ in range(10):
            await self.worker.request(link.CATALOG, 0, b"")

    async def send(self, commands: list[pb.Command], channel: int) -> None:
        """Sends a frame, which may make sessions; closes them again, and has the worker say that it lives."""
        lanes = {each.lane for each in commands}
        self.worker.send(pb.InteractRequest(commands=commands), channel)
        self.sent += len(commands)
        for lane in lanes:
            await self.worker.request(pb.COMMAND_KIND_CLOSE, lane, b"")
        assert len(await self.worker.request(link.CATALOG, 0, b"")) > 1000

    def close(self) -> None:
        self.run(self.worker.stop(20))
        self.leave()
        assert self.worker.ended_as_asked, self.worker.reason

    def leave(self) -> None:
        """Ends the event loop, once the worker is gone."""
        self.run(asyncio.sleep(0.1))
        self._runner.close()


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Victim]:
    made = Victim(tmp_path)
    yield made
    made.close()


COMMANDS = st.builds(
    command,
    KINDS,
    PAYLOADS,
    lane=st.integers(0, 6) | st.integers(0, 2**64 - 1),
    # Answers to number 0 would be notices, and others have the numbers of what the test itself asks.
    number=st.integers(1, 6) | st.integers(2**32, 2**64 - 1),
    time_left_ms=st.sampled_from((1, 20, 500)),
)


def test_any_commands_leave_a_worker_alive_and_of_its_size(victim: Victim) -> None:
    @examples(2.0)
    @given(st.lists(COMMANDS, max_size=8), st.integers(0, 3))
    def play(commands: list[pb.Command], channel: int) -> None:
        victim.run(victim.send(commands, channel))

    play()
    before = resident(victim.worker.pid)
    play()
    after = resident(victim.worker.pid)
    print(f"\n{victim.sent} commands to a worker; MiB before and after the second half: {before:.0f}, {after:.0f}")
    assert alive(victim.worker.pid)
    assert after < 1.25 * before + 30


@pytest.mark.parametrize("data", [b"\xff\xff\xff", b"\x0a\xff\xff\xff\x7f"])
def test_a_worker_whose_front_sends_what_is_no_frame_closes_and_ends(tmp_path: Path, data: bytes) -> None:
    victim = Victim(tmp_path)

    async def send() -> None:
        garbage: Any = _Bytes(data)
        victim.worker.send(garbage)
        with pytest.raises(errors.SessionLost):
            await victim.worker.request(link.CATALOG, 0, b"")

    victim.run(send())
    assert not alive(victim.worker.pid)
    victim.leave()


# -- to the front ------------------------------------------------------------------------------------------------------


class Front:
    """The front's end of a link whose worker says anything at all; the process that it is killed with is a dummy."""

    def __init__(self, folder: Path) -> None:
        self.told = _Told()
        self.frames: list[bytes] = []
        self._dummy = subprocess.Popen(["sleep", "600"], start_new_session=True)
        self.worker = Worker(7, ServerConfig(), self.told, folder, crews(ServerConfig())[0], dedicated=False)
        self.worker.pid = self._dummy.pid
        self._ends = socket.socketpair()

    async def begin(self) -> None:
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_unix_connection(lambda: self.worker, sock=self._ends[0])
        self.worker.channels[5] = self
        self.request = self.worker.request(link.CATALOG, 0, b"")

    def put_frame(self, frame: bytes) -> None:
        self.frames.append(frame)

    @property
    def killed(self) -> bool:
        return bool(self.worker.reason) and self._dummy.poll() is not None

    def end(self) -> None:
        # What is asked to end is not killed later on, when its process id may be another's.
        self.worker.closing = True
        self._transport.abort()
        self._ends[1].close()
        if self._dummy.poll() is None:
            os.killpg(self._dummy.pid, signal.SIGKILL)
        self._dummy.wait()


REPLIES = st.builds(
    lambda lane, sequence, code, payload: pb.Reply(lane=lane, sequence=sequence, code=code, payload=payload),
    st.integers(0, 4) | st.integers(0, 3).map(lambda number: 7 << 32 | number) | st.integers(0, 2**64 - 1),
    st.integers(0, 3) | st.integers(0, 2**64 - 1),
    st.integers(0, 30) | st.sampled_from((-1, link.FAILED, 2**31 - 1)),
    (messages(pb.Error.DESCRIPTOR) | messages(operations.Failure.DESCRIPTOR)).map(
        lambda message: message.SerializeToString()
    )
    | st.binary(max_size=60),
)
FRAMES = st.lists(
    st.tuples(
        st.lists(REPLIES, max_size=4).map(lambda replies: pb.InteractResponse(replies=replies).SerializeToString())
        | st.binary(max_size=40),
        st.integers(0, 6),
    ).map(lambda frame: pack(*frame)),
    min_size=1,
    max_size=6,
).map(b"".join)
STREAMS = FRAMES | st.binary(max_size=60)


def test_whatever_a_worker_says_the_front_goes_on_or_ends_that_worker(tmp_path: Path) -> None:
    fronts: list[Front] = []
    runner = asyncio.Runner()
    loops = runner.get_loop()
    raised: list[dict[str, Any]] = []
    loops.set_exception_handler(lambda _, context: raised.append(context))
    said = 0

    async def hear(data: bytes, cuts: list[int]) -> None:
        nonlocal said
        if not fronts or fronts[-1].worker.reason:
            if fronts:
                # The one before was ended; another worker takes its place.
                fronts.pop().end()
            fronts.append(Front(tmp_path))
            await fronts[-1].begin()
        front = fronts[-1]
        ended, failed = len(front.told.ended), len(front.told.failed)
        for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
            front.worker.data_received(data[start:end])
            said += 1
        # No lane but its own: neither those of another worker, nor the front's.
        assert {lane >> 32 for lane in front.told.ended[ended:] + front.told.failed[failed:]} <= {7}
        assert all(not message or message in data for message in front.frames)
        front.frames.clear()

    @examples(10.0)
    @given(STREAMS, st.lists(st.integers(0, 60), max_size=3))
    def play(data: bytes, cuts: list[int]) -> None:
        runner.run(hear(data, sorted(min(cut, len(data)) for cut in cuts)))

    try:
        play()
    finally:
        for front in fronts:
            front.end()
        runner.run(asyncio.sleep(0))
        runner.close()
    print(f"\n{said} pieces from a worker")
    assert [context for context in raised if "never retrieved" not in str(context.get("message"))] == []


def test_a_frame_above_the_limit_ends_the_worker(tmp_path: Path) -> None:
    async def hear() -> None:
        front = Front(tmp_path)
        await front.begin()
        try:
            front.worker.data_received(b"\xff\xff\xff\x7f\0\0\0\0")
            assert "above the limit" in front.worker.reason
        finally:
            front.end()
            await asyncio.sleep(0)

    asyncio.run(hear())
    with pytest.raises(errors.TooLarge):
        list(FrameReader(100).feed(pack(bytes(101))))


def test_a_worker_can_end_its_own_sessions_alone(tmp_path: Path) -> None:
    async def hear() -> None:
        front = Front(tmp_path)
        await front.begin()
        code, lost = errors.to_wire(errors.SessionLost("lost"))
        lanes = (7 << 32 | 1, 6 << 32 | 1, 1, 8 << 32, 2**64 - 1)
        notices = [pb.Reply(lane=lane, code=code, payload=lost.SerializeToString()) for lane in lanes]  # pyright: ignore[reportArgumentType]
        try:
            front.worker.data_received(pack(pb.InteractResponse(replies=notices).SerializeToString()))
            assert front.told.ended == [7 << 32 | 1]
            failures = [pb.Reply(lane=lane, code=link.FAILED) for lane in lanes]  # pyright: ignore[reportArgumentType]
            front.worker.data_received(pack(pb.InteractResponse(replies=failures).SerializeToString()))
            assert front.told.failed == [7 << 32 | 1]
        finally:
            front.end()
            await asyncio.sleep(0)

    asyncio.run(hear())
