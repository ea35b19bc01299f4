"""Frames on byte streams: cut anywhere, they come out whole."""

import socket
import threading
from collections.abc import Iterator

import pytest

from gymhost.wire.errors import TooLarge
from gymhost.wire.frames import FrameReader, SocketFrames, pack

MESSAGES = [b"", b"x", b"y" * 1000, b"z" * 70_000, b"", b"end" * 100_000]


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    here, there = socket.socketpair()
    with here, there:
        here.settimeout(20)
        there.settimeout(20)
        yield here, there


@pytest.mark.parametrize("size", [1, 7, 8, 9, 1000, 65536, 10**7])
def test_frames_are_put_together_from_any_pieces(size: int) -> None:
    stream = b"".join(pack(message, channel) for channel, message in enumerate(MESSAGES))
    reader = FrameReader(10**6)
    got = [frame for start in range(0, len(stream), size) for frame in reader.feed(stream[start : start + size])]
    assert got == list(enumerate(MESSAGES))


@pytest.mark.parametrize("size", [7, 1000, 65536, 10**7])
def test_a_thread_reads_frames_from_any_pieces(ends: tuple[socket.socket, socket.socket], size: int) -> None:
    here, there = ends
    stream = b"".join(pack(message) for message in MESSAGES)

    def send() -> None:
        for start in range(0, len(stream), size):
            there.sendall(stream[start : start + size])
        there.shutdown(socket.SHUT_WR)

    sender = threading.Thread(target=send)
    sender.start()
    frames = SocketFrames(here, 10**6)
    got: list[bytes] = []
    while (message := frames.read()) is not None:
        got.append(message)
    sender.join()
    assert got == MESSAGES


def test_what_is_written_is_read(ends: tuple[socket.socket, socket.socket]) -> None:
    here, there = ends
    writer = threading.Thread(target=lambda: [SocketFrames(there, 0).write(message) for message in MESSAGES])
    writer.start()
    frames = SocketFrames(here, 10**6)
    assert [frames.read() for _ in MESSAGES] == MESSAGES
    writer.join()


@pytest.mark.parametrize("have", [0, 4, 8, 100, 69_000])
def test_a_socket_that_ends_in_a_frame_gives_none_of_it(ends: tuple[socket.socket, socket.socket], have: int) -> None:
    here, there = ends
    there.sendall(pack(b"z" * 70_000)[:have])
    there.close()
    assert SocketFrames(here, 10**6).read() is None


def test_a_frame_above_the_limit_is_refused(ends: tuple[socket.socket, socket.socket]) -> None:
    here, there = ends
    there.sendall(pack(b"x" * 101))
    with pytest.raises(TooLarge, match="101 bytes is above the limit of 100 bytes"):
        SocketFrames(here, 100).read()
    with pytest.raises(TooLarge, match="--max-payload"):
        list(FrameReader(100).feed(pack(b"x" * 101)))
