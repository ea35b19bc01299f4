"""A bare grpc.aio stream a session: what gRPC alone allows, with neither workers nor seeds, infos, deadlines or errors.

`python -m tests.benchmarks.grpc_stream serve ADDRESS`
`python -m tests.benchmarks.grpc_stream client ADDRESS N SECONDS`
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from tests.benchmarks.driver import EchoEpisode, drive

_SERVICE, _METHOD = "benchmarks.Echo", "Play"
_Field = descriptor_pb2.FieldDescriptorProto


def _messages() -> tuple[Any, Any]:
    """The two messages, made here so that the benchmark needs no generated code."""
    file = descriptor_pb2.FileDescriptorProto(name="benchmarks/echo.proto", package="benchmarks", syntax="proto3")
    text, flag = _Field.TYPE_STRING, _Field.TYPE_BOOL
    fields = {
        "Request": {"id": _Field.TYPE_UINT64, "action": text, "reset": flag},
        "Reply": {
            "id": _Field.TYPE_UINT64,
            "observation": text,
            "reward": _Field.TYPE_DOUBLE,
            "terminated": flag,
            "truncated": flag,
        },
    }
    for name, types in fields.items():
        message = file.message_type.add(name=name)
        for number, (field, type) in enumerate(types.items(), start=1):
            message.field.add(name=field, number=number, type=type, label=_Field.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    request, reply = (pool.FindMessageTypeByName(f"benchmarks.{name}") for name in fields)
    return message_factory.GetMessageClass(request), message_factory.GetMessageClass(reply)


Request, Reply = _messages()


async def play(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
    episode = EchoEpisode()
    async for request in requests:
        if request.reset:
            yield Reply(id=request.id, observation=episode.reset())
        else:
            observation, reward, terminated = episode.step(request.action)
            yield Reply(id=request.id, observation=observation, reward=reward, terminated=terminated)


async def serve(address: str) -> None:
    method = grpc.stream_stream_rpc_method_handler(
        play, request_deserializer=Request.FromString, response_serializer=Reply.SerializeToString
    )
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, {_METHOD: method}),))
    server.add_insecure_port(address)
    await server.start()
    await server.wait_for_termination()


class Stream:
    """A session: one call for all its messages."""

    def __init__(self, call: Any, id: int) -> None:
        self._call = call
        self._id = id

    async def reset(self) -> None:
        await self._call.write(Request(id=self._id, reset=True))
        await self._call.read()

    async def step(self, text: str, /) -> tuple[str, float, bool]:
        await self._call.write(Request(id=self._id, action=text))
        reply = await self._call.read()
        return reply.observation, reply.reward, reply.terminated

    async def close(self) -> None:
        await self._call.done_writing()


async def client(address: str, n: int, seconds: float) -> None:
    async with grpc.aio.insecure_channel(address) as channel:
        method: Any = channel.stream_stream(
            f"/{_SERVICE}/{_METHOD}",
            request_serializer=Request.SerializeToString,
            response_deserializer=Reply.FromString,
        )

        async def open_session(id: int) -> Stream:
            return Stream(method(), id)

        await drive(open_session, n, seconds)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        asyncio.run(serve(sys.argv[2]))
    else:
        asyncio.run(client(sys.argv[2], int(sys.argv[3]), float(sys.argv[4])))
