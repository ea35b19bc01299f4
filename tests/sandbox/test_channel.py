"""The protocol of calls, and the pipes that it goes over."""

import asyncio
import os
import random
import subprocess
import threading
from collections.abc import AsyncGenerator, Callable

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from gymhost.envs.sandbox.backend import Stream, StreamEnded, Take
from gymhost.envs.sandbox.channel import Channel, Reply
from gymhost.envs.sandbox.streams import PipeStream
from gymhost.envs.sandbox.turns import Turns
from gymhost.wire.errors import SandboxUnavailable

Pieces = list[tuple[int, bytes]]


class Script(Stream):
    """A process that answers requests as it was told to: what it writes where, in which pieces, then is gone."""

    def __init__(self, *answers: Callable[[bytes], Pieces]) -> None:
        self._answers = iter(answers)

    async def exchange(self, data: bytes, take: Take) -> None:
        for number, piece in next(self._answers)(data):
            if take(number, piece):
                return
        raise StreamEnded

    def close(self) -> None:
        pass


async def ask(channel: Channel, *, timeout: float = 20.0, output_limit: int = 1000) -> Reply:
    return await channel.call(str.encode, timeout=timeout, output_limit=output_limit)


def cut(text: bytes, size: int) -> list[bytes]:
    return [text[at : at + size] for at in range(0, len(text), size)]


# Much of it is nearly the end of a call; `@` stands for the beginning of its name.
OUTPUT = st.lists(
    st.one_of(
        st.binary(max_size=20),
        st.sampled_from([b"\x1e", b"\x1e\x1e", b"\n", b" 0\n", b"\x1e@", b"\x1e" + b"A" * 22 + b" 0\n", b"x" * 3000]),
    ),
    max_size=6,
).map(b"".join)


@given(
    outputs=st.tuples(OUTPUT, OUTPUT),
    between=st.one_of(st.none(), OUTPUT),
    payload=st.one_of(st.none(), OUTPUT),
    status=st.integers(0, 255),
    limit=st.integers(0, 5000),
    size=st.integers(1, 100),
    order=st.randoms(use_true_random=False),
)
def test_in_whatever_pieces_it_comes_it_is_read_as_it_was_meant(
    outputs: tuple[bytes, bytes],
    between: bytes | None,
    payload: bytes | None,
    status: int,
    limit: int,
    size: int,
    order: random.Random,
):
    meant: list[bytes] = []

    def answer(nonce: bytes) -> Pieces:
        meant[:] = [output.replace(b"@", nonce[:12]) for output in outputs]
        mark = b"\x1e" + nonce
        length = b"" if payload is None else b" %d" % len(payload)
        ends = [mark + b" %d%s\n" % (status, length) + (payload or b""), mark + b"\n"]
        if between is not None:
            noise = between.replace(b"@", nonce[:12])
            ends = [mark + b" %d+\n%s%s 99\n" % (status, noise, mark), mark + b"+\n" + noise + mark + b"\n"]
        texts = [cut(output + end + b"later", size) for output, end in zip(meant, ends, strict=True)]
        pieces: Pieces = []
        while texts[0] or texts[1]:
            number = order.choice([number for number in (1, 2) if texts[number - 1]])
            pieces.append((number, texts[number - 1].pop(0)))
        return pieces

    reply = asyncio.run(ask(Channel(Script(answer)), output_limit=limit))
    assert (reply.status, reply.limit, reply.ended) == (status, None, False)
    assert reply.payload == (b"" if payload is None or between is not None else payload)
    for output, kept, left_out in (
        (meant[0], reply.stdout, reply.stdout_left_out),
        (meant[1], reply.stderr, reply.stderr_left_out),
    ):
        if len(output) <= limit:
            assert (kept, left_out) == (output, 0)
        else:
            assert (len(kept), left_out) == (limit, len(output) - limit)
            assert kept == output[: limit // 2] + output[len(output) - (limit - limit // 2) :]


async def test_what_comes_after_the_end_of_a_call_is_output_of_the_next():
    def first(nonce: bytes) -> Pieces:
        return [(2, b"\x1e%s\nlate err " % nonce), (1, b"one\x1e%s 0\nlate " % nonce)]

    def second(nonce: bytes) -> Pieces:
        return [(1, b"two\x1e%s 1\n" % nonce), (2, b"two\x1e%s\n" % nonce)]

    channel = Channel(Script(first, second))
    assert (await ask(channel)).stdout == b"one"
    reply = await ask(channel)
    assert (reply.stdout, reply.stderr, reply.status) == (b"late two", b"late err two", 1)


@pytest.mark.parametrize(
    "answer", [b"\x1e%s xyz\n", b"\x1e%s -1\n", b"\x1e%s 0 99999999999\n", b"\x1e%s 1000\n", b"\x1e%s\n"]
)
async def test_an_end_that_makes_no_sense_ends_the_channel(answer: bytes):
    channel = Channel(Script(lambda nonce: [(1, answer % nonce), (2, b"\x1e%s\n" % nonce)]))
    reply = await ask(channel)
    assert (reply.status, reply.ended, channel.ended) == (None, True, True)


async def test_a_process_that_is_gone_has_said_what_it_said():
    reply = await ask(Channel(Script(lambda nonce: [(1, b"begun\x1e" + nonce[:5]), (2, b"oh")])))
    assert (reply.status, reply.ended, reply.stderr) == (None, True, b"oh")
    assert reply.stdout.startswith(b"begun\x1e")


async def test_another_one_tells_that_it_has_ended():
    last: Callable[[bytes], Pieces] = lambda _: [(2, b"bye\x1elast\n"), (1, b"\x1elast 9\n")]  # noqa: E731
    reply = await ask(Channel(Script(last), "last"))
    assert (reply.status, reply.ended, reply.stderr) == (9, True, b"bye")


async def test_who_can_not_work_is_told_of_with_what_it_said():
    with pytest.raises(SandboxUnavailable, match="no bash"):
        await Channel(Script(lambda _: [(2, b"no bash\n")])).greet(str.encode, timeout=20)


# ----------------------------------------------------------------------------------------------------------------------
# Pipes


class Process:
    """A process with the ends of its pipes."""

    def __init__(self, script: str) -> None:
        ours: list[int] = []
        theirs: list[int] = []
        for writes in (True, False, False):
            read, write = os.pipe()
            ours.append(write if writes else read)
            theirs.append(read if writes else write)
        stdin, stdout, stderr = theirs
        self.process = subprocess.Popen(["bash", "-c", script], stdin=stdin, stdout=stdout, stderr=stderr)
        for descriptor in theirs:
            os.close(descriptor)
        self.stream = PipeStream(*ours)
        self.descriptors = ours

    async def say(self, data: bytes, ends_with: bytes) -> bytes:
        said = bytearray()

        def take(number: int, data: bytes) -> bool:
            said.extend(data if number == 1 else b"")
            return said.endswith(ends_with)

        await self.stream.exchange(data, take)
        return bytes(said)

    def is_open(self) -> list[bool]:
        return [os.path.exists(f"/proc/self/fd/{descriptor}") for descriptor in self.descriptors]  # noqa: PTH110


@pytest.fixture
async def started() -> AsyncGenerator[Callable[[str], Process]]:
    processes: list[Process] = []

    def start(script: str) -> Process:
        processes.append(Process(script))
        return processes[-1]

    yield start
    for process in processes:
        process.stream.close()
        process.process.kill()
        process.process.wait()


async def test_much_is_sent_while_much_is_read(started: Callable[[str], Process]):
    process = started("cat")
    data = os.urandom(3_000_000) + b"END"
    assert await process.say(data, b"END") == data


async def test_who_does_not_read_any_more_is_read_to_its_end(started: Callable[[str], Process]):
    # What it left running holds its output open.
    process = started("sleep 50 <&- & echo $!; exec <&-; echo bye")
    said = bytearray()
    with pytest.raises(StreamEnded):
        await process.stream.exchange(b"x" * 1_000_000, lambda _, data: bool(said.extend(data)))
    assert b"bye" in said
    os.kill(int(said.split()[0]), 9)


async def test_a_cancelled_exchange_leaves_the_stream_usable(started: Callable[[str], Process]):
    process = started("while read -r line; do [[ $line == quiet ]] || echo $line; done")
    for _ in range(20):
        exchange = asyncio.create_task(process.say(b"quiet\n", b"END"))
        await asyncio.sleep(0)
        exchange.cancel()
        with pytest.raises(asyncio.CancelledError):
            await exchange
    assert await process.say(b"END\n", b"END\n") == b"END\n"


async def test_closing_ends_an_exchange_from_any_thread(started: Callable[[str], Process]):
    process = started("cat >&2")
    exchange = asyncio.create_task(process.say(b"x", b"END"))
    await asyncio.sleep(0.05)
    threading.Thread(target=process.stream.close).start()
    with pytest.raises(StreamEnded):
        await exchange
    assert process.is_open() == [False, False, False]
    process.stream.close()
    with pytest.raises(StreamEnded):
        await process.say(b"x", b"END")


async def test_many_small_pieces_leave_the_loop_to_others(started: Callable[[str], Process]):
    process = started("for ((i = 0; i < 20000; i++)); do printf x; done; printf END")
    pieces = 0

    def take(_: int, data: bytes) -> bool:
        nonlocal pieces
        pieces += 1
        return data.endswith(b"END")

    await process.stream.exchange(b"", take)
    assert pieces < 5000


def test_it_works_with_any_event_loop_in_turn():
    process = Process("cat")
    for factory in (asyncio.new_event_loop, uvloop.new_event_loop, asyncio.new_event_loop):
        with asyncio.Runner(loop_factory=factory) as runner:
            data = b"x" * 200_000 + b"END"
            assert runner.run(process.say(data, b"END")) == data
    process.stream.close()
    process.process.wait()


# ----------------------------------------------------------------------------------------------------------------------
# Turns


async def test_turns_are_taken_in_order_and_passed_on():
    turns, order = Turns(2), list[int]()
    inside = 0

    async def enter(number: int) -> None:
        nonlocal inside
        async with turns:
            order.append(number)
            inside += 1
            assert inside <= 2
            await asyncio.sleep(0.001)
            inside -= 1

    tasks = [asyncio.create_task(enter(number)) for number in range(20)]
    await asyncio.sleep(0)
    for task in tasks[3:20:4]:
        task.cancel()
    await asyncio.wait(tasks)
    assert order == [number for number in range(20) if number not in range(3, 20, 4)]
    async with asyncio.timeout(5), turns, turns:
        pass
