"""Rollout services, in this process and in one of their own, and what they are asked over gRPC."""

import contextlib
import functools
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, ClassVar

from gymhost.rollout.agents import Seat
from gymhost.server.rollouts.config import RolloutsConfig
from gymhost.server.rollouts.process import RolloutServer
from gymhost.server.tokens import hash_of
from gymhost.v1 import rollouts_pb2 as pb
from gymhost.v1 import rollouts_pb2_grpc as rpc
from support.raw import channel_to
from support.server import ServerProcess
from support.tokenizers import qwen3_tokenizer

__all__ = ["RolloutsProcess", "guessing", "rollouts_stub", "service", "submission", "tokenizer_folder"]


@functools.cache
def tokenizer_folder() -> str:
    """A folder with a small tokenizer."""
    folder = tempfile.mkdtemp(prefix="gymhost-test-tokenizer-")
    qwen3_tokenizer().save_pretrained(folder)
    return folder


def guessing(number: int) -> list[int]:
    """What a model says that guesses a number, in ids."""
    call = f'<tool_call>\n{{"name": "guess", "arguments": {{"number": {number}}}}}\n</tool_call><|im_end|>'
    return qwen3_tokenizer().encode(call)


class OneGuess:
    """An agent that takes one turn, whatever comes of it."""

    async def run(self, seat: Seat) -> None:
        await seat.step(await seat.say(seat.observation))


def settings_of(folder: Path, **settings: Any) -> dict[str, Any]:
    """Settings of `RolloutsConfig`: the usual ones of tests, but for those that are named.

    Args:
        folder: Where the service's file is.
        settings: Others; `tokens` are the tokens themselves.
    """
    usual = {
        "address": "127.0.0.1:0",
        "renderer": "qwen3",
        "tokenizer": tokenizer_folder(),
        "store": str(folder / "jobs.sqlite"),
        "limits": {"turns": 3, "turn_tokens": 64, "completion_tokens": 2000},
    }
    return usual | settings


@contextlib.asynccontextmanager
async def service(folder: Path, *environments: str, **settings: Any) -> AsyncGenerator[RolloutServer]:
    """A rollout service in this process, on this event loop.

    Args:
        folder: Where its file is.
        environments: Addresses of environment servers.
        settings: See `settings_of`.
    """
    settings = settings_of(folder, environments=list(environments), **settings)
    settings["tokens"] = {hash_of(token): owner for token, owner in settings.get("tokens", {}).items()}
    running = RolloutServer(RolloutsConfig.from_dict(settings))
    await running.start()
    try:
        yield running
    finally:
        await running.stop()


class RolloutsProcess(ServerProcess):
    """A rollout service in a process of its own.

    Args:
        folder: Where its file is.
        settings: See `settings_of`.
    """

    DEFAULTS: ClassVar[dict[str, Any]] = {}

    def __init__(self, folder: Path, **settings: Any) -> None:
        super().__init__(module="gymhost.server.rollouts", **settings_of(folder, **settings))


@contextlib.asynccontextmanager
async def rollouts_stub(address: str) -> AsyncGenerator[Any]:
    """A stub of the service at an address."""
    async with channel_to(address) as channel:
        yield rpc.RolloutServiceStub(channel)


def submission(
    key: str, tasks: int = 1, *, env_id: str = "gymhost/GuessNumber-v0", **fields: Any
) -> pb.SubmitJobRequest:
    """A job with the first tasks of an environment."""
    return pb.SubmitJobRequest(
        key=key, tasks=[pb.RolloutTask(environment_id=env_id, task=task) for task in range(tasks)], **fields
    )
