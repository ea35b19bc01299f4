"""Clients that say nothing for a minute, while other tests run."""

import queue
import time
from typing import Any

import grpc

from gymhost.v1 import environments_pb2 as pb
from gymhost.v1 import environments_pb2_grpc as rpc
from support.raw import command, create, observation, step

SILENCE = 60.0
KEEPALIVES = (10_000, 1_000)


def step_after_silence(address: str, keepalive_ms: int, seconds: float = SILENCE) -> int:
    """Resets, is silent but for pings, and steps over the same stream; returns what the step observed."""
    options = [
        ("grpc.keepalive_time_ms", keepalive_ms),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.use_local_subchannel_pool", 1),
    ]
    commands: queue.SimpleQueue[pb.InteractRequest | None] = queue.SimpleQueue()
    with grpc.insecure_channel(address, options=options) as channel:
        stub: Any = rpc.EnvironmentServiceStub(channel)
        replies = stub.Interact(iter(commands.get, None))

        def ask(kind: int, payload: bytes = b"", *, lane: int = 0, number: int) -> pb.Reply:
            commands.put(pb.InteractRequest(commands=[command(kind, payload, lane=lane, number=number)]))
            return next(replies).replies[0]

        ask(pb.COMMAND_KIND_HELLO, pb.Hello(protocol_minor=1, client="silent").SerializeToString(), number=1)
        made = ask(pb.COMMAND_KIND_CREATE, create("test/Counter-v0").SerializeToString(), number=2)
        lane = pb.CreateSessionResponse.FromString(made.payload).lanes[0]
        ask(pb.COMMAND_KIND_RESET, lane=lane, number=1)
        time.sleep(seconds)
        counted: int = observation(ask(pb.COMMAND_KIND_STEP, step(1).SerializeToString(), lane=lane, number=2))
        ask(pb.COMMAND_KIND_CLOSE, lane=lane, number=3)
        commands.put(None)
        return counted
