"""Rollouts over a real server: its own processes, its own sockets."""

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from renderers import Qwen3RendererConfig

from gymhost.client import RemoteServer, Session, connect
from gymhost.rollout import Chat, Limits, RolloutEngine, RolloutRequest
from gymhost.rollout.generators import ScriptedGenerator
from support.proxy import Proxy
from support.server import ServerProcess
from support.tokenizers import call, encode, qwen3_tokenizer

pytestmark = pytest.mark.heavy

CHAT = Chat(qwen3_tokenizer(), Qwen3RendererConfig())
ECHO = encode(call("echo", '{"text": "x"}'))
PARROT = "test/Parrot-v0"


async def test_what_was_sampled_is_what_comes_back(server: ServerProcess) -> None:
    """Case S01: `abab` is sampled as a, b, ab, which no encoder would say, then a tool is called; more than once."""
    a, b, ab = (encode(text)[0] for text in ("a", "b", "ab"))
    assert encode("abab") == [ab, ab]
    turn = [a, b, ab, *ECHO]
    contexts: list[list[int]] = []

    def script(prompt_ids: Sequence[int], _name: str) -> list[int]:
        contexts.append(list(prompt_ids))
        return turn

    async with connect(server.address) as remote, RolloutEngine(remote, CHAT, ScriptedGenerator(script)) as engine:
        [trajectory] = await engine.collect([RolloutRequest(PARROT, task=0)])

    [row] = trajectory.rows()
    assert (trajectory.outcome.kind, trajectory.reward) == ("terminated", 1.0)
    assert len(row.completion_ids) == len(row.mask) == len(row.logprobs)
    whole = row.prompt_ids + row.completion_ids
    at = len(row.prompt_ids)
    for context in contexts:
        assert whole[: len(context)] == context  # each prompt is the last one, unchanged, and what came after it
        assert whole[len(context) : len(context) + len(turn)] == turn
        start = len(context) - at
        assert row.mask[start : start + len(turn)] == [1] * len(turn)
    assert sum(row.mask) == len(contexts) * len(turn)
    assert all(logprob == 0.0 for logprob, sampled in zip(row.logprobs, row.mask, strict=True) if not sampled)


async def test_malformed_calls_are_turns_that_the_environment_answers(server: ServerProcess) -> None:
    """Case S05: four rollouts in one batch, of which one calls correctly."""
    first = [
        "{}",
        '{"name": "echo", "arguments": [1]}',
        '{"name": "nosuch", "arguments": {}}',
        '{"name": "echo", "arguments": {"text": "x"}}',
    ]

    def script(_prompt_ids: Sequence[int], name: str) -> list[int]:
        rollout, _, turn = name.partition("/")
        return encode(f"<tool_call>\n{first[bodies[rollout]]}\n</tool_call><|im_end|>") if turn == "1" else ECHO

    bodies: dict[str, int] = {}

    class Named(ScriptedGenerator):
        async def generate(self, prompt_ids: Sequence[int], sampling: Any, *, request_id: str) -> Any:
            bodies.setdefault(request_id.partition("/")[0], len(bodies))
            return await super().generate(prompt_ids, sampling, request_id=request_id)

    async with connect(server.address) as remote, RolloutEngine(remote, CHAT, Named(script)) as engine:
        trajectories = await engine.collect([RolloutRequest(PARROT, task=0) for _ in first])

    assert [trajectory.outcome.kind for trajectory in trajectories] == ["terminated"] * 4
    answers = [trajectory.messages[2]["content"] for trajectory in trajectories]
    assert sorted(len(trajectory.turns) for trajectory in trajectories) == [3, 4, 4, 4]
    assert sum(answer == "x" for answer in answers) == 1
    for trajectory, answer in zip(trajectories, answers, strict=True):
        # A turn that called nothing counts as a turn, and changes nothing: the parrot heard three calls all the same.
        assert trajectory.info["heard"] == ["x"] * 3
        assert (len(trajectory.turns) == 4) == (answer != "x")
        assert answer


class Apart:
    """One task's sessions go over a connection of their own."""

    def __init__(self, remote: RemoteServer, other: RemoteServer, task: int) -> None:
        self._remote, self._other, self._task = remote, other, task

    def session(
        self, env_id: str, /, *, task: int | None = None, **kwargs: Any
    ) -> AbstractAsyncContextManager[Session]:
        return (self._other if task == self._task else self._remote).session(env_id, task=task, **kwargs)


async def test_a_batch_stays_whole_whatever_becomes_of_its_rollouts(server: ServerProcess, proxy: Proxy) -> None:
    """Case S07: of 16 rollouts number 5 raises in its third step, and number 9 is cut off from the network."""
    third_turns = 0
    all_there = asyncio.Event()

    async def script(_prompt_ids: Sequence[int], name: str) -> list[int]:
        nonlocal third_turns
        if name.endswith("/3"):
            # All 16 are in the middle of their episodes when the network goes.
            third_turns += 1
            if third_turns == 16:
                proxy.refuse(True)
                proxy.cut()
                all_there.set()
            await all_there.wait()
        return ECHO

    async with (
        connect(server.address) as remote,
        connect(proxy.address, direct=False, reconnect_timeout=0.5) as other,
        RolloutEngine(
            Apart(remote, other, 9), CHAT, ScriptedGenerator(script), limits=Limits(retries=0), reuse_sessions=False
        ) as engine,
    ):
        trajectories = await engine.collect([RolloutRequest(PARROT, task=task) for task in range(16)])

    assert [trajectory.task for trajectory in trajectories] == list(range(16))
    for task, trajectory in enumerate(trajectories):
        outcome = trajectory.outcome
        if task == 5:
            assert (outcome.kind, outcome.fault, outcome.cause, outcome.turn) == (
                "failed",
                "environment",
                "EnvironmentFault",
                3,
            )
            assert "this step was told to raise" in outcome.message
            assert trajectory.reward is None
        elif task == 9:
            assert (outcome.kind, outcome.fault, outcome.turn) == ("failed", "infrastructure", 3)
            assert trajectory.reward is None
        else:
            assert (outcome.kind, trajectory.reward, outcome.turn) == ("terminated", 1.0, 3)
