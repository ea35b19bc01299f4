"""Long silence, with clients that ping more often than gRPC's servers allow by default (S19)."""

import asyncio

import pytest
from support.raw import RawStream, channel_to, observation, step
from support.server import ServerProcess

from gymhost.v1 import environments_pb2 as pb
from gymhost.v1 import environments_pb2_grpc as rpc

SILENCE = 60.0


@pytest.mark.timeout(120)
async def test_a_step_after_a_minute_of_silence_works(server: ServerProcess) -> None:
    async def be_silent(keepalive_ms: int) -> None:
        options = {
            "grpc.keepalive_time_ms": keepalive_ms,
            "grpc.keepalive_timeout_ms": 5000,
            "grpc.keepalive_permit_without_calls": 1,
            "grpc.http2.max_pings_without_data": 0,
        }
        async with channel_to(server.address, **options) as channel:
            stub = rpc.EnvironmentServiceStub(channel)
            async with RawStream(stub) as stream:
                made = await stream.create("test/Counter-v0")
                lane = made.lanes[0]
                assert not (await stream.ask(pb.COMMAND_KIND_RESET, lane=lane, number=1)).code
                await asyncio.sleep(SILENCE)
                # Over the same stream: a GOAWAY would have ended it.
                reply = await stream.ask(pb.COMMAND_KIND_STEP, step(1).SerializeToString(), lane=lane, number=2)
                assert observation(reply) == 1

    await asyncio.gather(be_silent(10_000), be_silent(1_000))
