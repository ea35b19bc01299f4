"""A socket a session and frames of a length and its bytes, on uvloop: what Python allows where a step is a message.

`python -m tests.benchmarks.raw_tcp serve ADDRESS`
`python -m tests.benchmarks.raw_tcp client ADDRESS N SECONDS`

A request is the text, empty to reset; a reply is the reward, whether the episode has ended, and the text.
"""

import asyncio
import struct
import sys
from typing import cast

import uvloop
from tests.benchmarks.driver import EchoEpisode, drive

_LENGTH, _REPLY = struct.Struct("<I"), struct.Struct("<d?")


class Frames(asyncio.Protocol):
    """Cuts what comes into frames."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's has the methods, but is none by its class

    def data_received(self, data: bytes) -> None:
        data = self._data + data if self._data else data
        while len(data) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(data)[0]
            if len(data) < end:
                break
            self.frame_received(data[_LENGTH.size : end])
            data = data[end:]
        self._data = data

    def frame_received(self, frame: bytes) -> None:
        raise NotImplementedError

    def send(self, frame: bytes) -> None:
        self.transport.write(_LENGTH.pack(len(frame)) + frame)


class ServerSide(Frames):
    def __init__(self) -> None:
        super().__init__()
        self._episode = EchoEpisode()

    def frame_received(self, frame: bytes) -> None:
        if frame:
            text, reward, done = self._episode.step(frame.decode())
        else:
            text, reward, done = self._episode.reset(), 0.0, False
        self.send(_REPLY.pack(reward, done) + text.encode())


class ClientSide(Frames):
    """A session."""

    _reply: asyncio.Future[bytes]

    def frame_received(self, frame: bytes) -> None:
        self._reply.set_result(frame)

    def _call(self, frame: bytes) -> asyncio.Future[bytes]:
        self._reply = asyncio.get_running_loop().create_future()
        self.send(frame)
        return self._reply

    async def reset(self) -> None:
        await self._call(b"")

    async def step(self, text: str, /) -> tuple[str, float, bool]:
        frame = await self._call(text.encode())
        reward, done = _REPLY.unpack_from(frame)
        return frame[_REPLY.size :].decode(), reward, done

    async def close(self) -> None:
        self.transport.close()


async def serve(address: str) -> None:
    host, _, port = address.rpartition(":")
    server = await asyncio.get_running_loop().create_server(ServerSide, host, int(port), backlog=1024)
    await server.serve_forever()


async def client(address: str, n: int, seconds: float) -> None:
    host, _, port = address.rpartition(":")

    async def open_session(_: int) -> ClientSide:
        return (await asyncio.get_running_loop().create_connection(ClientSide, host, int(port)))[1]

    await drive(open_session, n, seconds)


if __name__ == "__main__":
    uvloop.install()
    if sys.argv[1] == "serve":
        asyncio.run(serve(sys.argv[2]))
    else:
        asyncio.run(client(sys.argv[2], int(sys.argv[3]), float(sys.argv[4])))
