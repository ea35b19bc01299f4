"""The contract spoken by hand: stubs and streams without gymhost's client."""

import asyncio
import contextlib
import itertools
import secrets
import time
from collections.abc import AsyncGenerator, Iterable
from typing import Any

import grpc.aio

from gymhost.v1 import environments_pb2 as pb
from gymhost.v1 import environments_pb2_grpc as rpc
from gymhost.wire import values


def bearer(token: str | None) -> tuple[tuple[str, str], ...]:
    """The metadata of a caller with a token."""
    return (("authorization", f"Bearer {token}"),) if token else ()


@contextlib.asynccontextmanager
async def channel_to(address: str, **options: int) -> AsyncGenerator[grpc.aio.Channel]:
    """A channel that is closed at the end."""
    size = 128 * 1024 * 1024
    given = [("grpc.max_receive_message_length", size), ("grpc.max_send_message_length", size), *options.items()]
    given.append(("grpc.use_local_subchannel_pool", 1))
    async with grpc.aio.insecure_channel(address, options=given) as channel:
        yield channel


@contextlib.asynccontextmanager
async def stub_to(address: str) -> AsyncGenerator[Any]:
    """A stub of the service."""
    async with channel_to(address) as channel:
        yield rpc.EnvironmentServiceStub(channel)


def create(environment_id: str = "test/Counter-v0", **fields: Any) -> pb.CreateSessionRequest:
    """A request for a session, with a key of its own."""
    fields.setdefault("idempotency_key", secrets.token_bytes(16))
    return pb.CreateSessionRequest(environment_id=environment_id, **fields)


def step(action: Any) -> pb.StepCommand:
    """The payload of a step."""
    return pb.StepCommand(action=values.encode(action))


async def until_busy(stub: Any, session_id: str, busy: bool = True) -> None:
    """Waits until a session runs a command, or no longer does."""
    request = pb.GetSessionRequest(session_id=session_id)
    deadline = time.monotonic() + 10
    while (await stub.GetSession(request)).session.busy != busy:
        assert time.monotonic() < deadline, f"busy is still {not busy}"
        await asyncio.sleep(0.01)


class RawStream:
    """One Interact call, driven command by command. An async context manager.

    Args:
        stub: A stub of the service.
        token: The bearer token.
    """

    def __init__(self, stub: Any, token: str | None = None) -> None:
        self._stub = stub
        self._metadata = bearer(token)
        self._made: list[str] = []
        self.call = stub.Interact(metadata=self._metadata)
        self.numbers = itertools.count(1)
        self.welcome = pb.Welcome()
        self._replies: list[pb.Reply] = []

    async def __aenter__(self) -> "RawStream":
        hello = pb.Hello(protocol_minor=1, client="raw").SerializeToString()
        self.welcome = pb.Welcome.FromString((await self.ask(pb.COMMAND_KIND_HELLO, hello)).payload)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.call.cancel()
        for session_id in self._made:
            with contextlib.suppress(grpc.aio.AioRpcError):
                await self._stub.CloseSession(pb.CloseSessionRequest(session_id=session_id), metadata=self._metadata)

    async def send(self, *commands: pb.Command) -> None:
        """Sends one frame."""
        await self.call.write(pb.InteractRequest(commands=commands))

    async def reply(self) -> pb.Reply:
        """The next reply, whatever it is."""
        while not self._replies:
            frame = await self.call.read()
            assert frame is not grpc.aio.EOF, "the server ended the stream"
            self._replies.extend(frame.replies)
        return self._replies.pop(0)

    async def ask(self, kind: int, payload: bytes = b"", *, lane: int = 0, number: int | None = None) -> pb.Reply:
        """Sends one command and takes the next reply for it."""
        sequence = next(self.numbers) if number is None else number
        await self.send(command(kind, payload, lane=lane, number=sequence))
        reply = await self.reply()
        assert reply.sequence == sequence, reply
        return reply

    async def create(self, environment_id: str = "test/Counter-v0", **fields: Any) -> pb.CreateSessionResponse:
        """Creates a session that this stream drives."""
        reply = await self.ask(pb.COMMAND_KIND_CREATE, create(environment_id, **fields).SerializeToString())
        assert not reply.code, pb.Error.FromString(reply.payload)
        made = pb.CreateSessionResponse.FromString(reply.payload)
        self._made.append(made.session_id)
        return made

    async def attach(self, session_id: str) -> pb.Reply:
        """Takes a session over."""
        return await self.ask(pb.COMMAND_KIND_ATTACH, pb.Attach(session_id=session_id).SerializeToString())


def command(kind: int, payload: bytes = b"", *, lane: int = 0, number: int = 0, time_left_ms: int = 0) -> pb.Command:
    """One command."""
    return pb.Command(
        lane=lane,
        sequence=number,
        kind=kind,  # pyright: ignore[reportArgumentType]
        payload=payload,
        time_left_ms=time_left_ms,
    )


def error_of(reply: pb.Reply) -> tuple[int, str]:
    """The code of a failure and what is said about it."""
    return reply.code, pb.Error.FromString(reply.payload).message


def observation(reply: pb.Reply) -> Any:
    """What a step that went well observed."""
    assert not reply.code, error_of(reply)
    return values.decode(pb.StepResult.FromString(reply.payload).observation)


def trailing(error: grpc.aio.AioRpcError) -> dict[str, Any]:
    """The trailing metadata of a failed call."""
    metadata: Iterable[tuple[str, Any]] = error.trailing_metadata() or ()
    return dict(metadata)
