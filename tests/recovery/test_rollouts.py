"""Rollouts that go on in the same conversation when the worker of their session dies."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from gymhost.client import connect
from gymhost.rollout import Limits, RolloutEngine, RolloutRequest, Sampling
from gymhost.rollout.generators import Response
from support.killing import Notes
from support.server import ServerProcess

pytestmark = pytest.mark.usefixtures("path")


class Obedient:
    """Says the number that it is told to say; before the turns that it is told of it kills the worker."""

    name = "obedient"
    policy_version = 0

    def __init__(self, notes: Notes, kills: Sequence[int]) -> None:
        self.asked: list[list[str]] = []
        self._notes = notes
        self._kills = kills

    async def respond(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        sampling: Sampling,
        *,
        request_id: str,
    ) -> Response:
        self.asked.append([str(message["content"]) for message in messages])
        if len(self.asked) in self._kills:
            await asyncio.to_thread(self._notes.kill)
        numbers = re.findall(r"\d+", str(messages[-1]["content"]))
        arguments = {"number": int(numbers[-1])}
        call = {"id": "call_0", "type": "function", "function": {"name": "say", "arguments": arguments}}
        return Response({"role": "assistant", "content": "", "tool_calls": [call]})

    async def aclose(self) -> None: ...


@pytest.mark.parametrize("seed", [7, None])
async def test_a_rollout_goes_on_in_the_same_conversation(
    server: ServerProcess, notes: Notes, seed: int | None
) -> None:
    model = Obedient(notes, kills=(2, 4, 7))
    request = RolloutRequest("test/Repeats-v0", seed=seed, kwargs={"notes": str(notes)})
    async with (
        connect(server.address) as remote,
        RolloutEngine(remote, None, model, limits=Limits(retries=0)) as engine,
    ):
        # The second begins in the session of the first.
        first = await engine.collect([request])
        second = await engine.collect([request])
    for trajectory in (*first, *second):
        assert (trajectory.outcome.kind, trajectory.reward, trajectory.attempts) == ("terminated", 1.0, 1)
        assert len(trajectory.turns) == 5
    # Each conversation grew by what was said, and by nothing else.
    assert [len(asked) for asked in model.asked] == [1, 3, 5, 7, 9] * 2
    for before, after in zip(model.asked, model.asked[1:], strict=False):
        assert after[: len(before)] == before or len(after) == 1
