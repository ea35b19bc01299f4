"""Plays a plan's rollouts: `python -m tests.benchmarks.rollout_client VARIANT ADDRESS PLAN`.

Variants are `engine`, `engine-grpc`, `local` (environments in this process) and `lock-step`. It marks begin and end for
the runner, and then prints what came of it as JSON.
"""

import asyncio
import math
import sys
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

from renderers import Qwen3RendererConfig
from tests.benchmarks.rollout_plan import LAST, TOOL, Model, Plan, answers, prompt, report
from tests.support.local_source import LocalSource
from tests.support.simulated_generator import SimulatedGenerator, Slots
from tests.support.tokenizers import encode, qwen3_tokenizer

from gymhost.client import RemoteServer, connect
from gymhost.rollout import Chat, Concurrency, RolloutEngine, RolloutRequest, Trajectory


class TimedChat(Chat):
    """A chat that knows how long it took: all of its work is done in one thread, without a wait."""

    seconds = 0.0

    def prompt(self, *args: Any, **kwargs: Any) -> Any:
        return self._timed(super().prompt, *args, **kwargs)

    def extension(self, *args: Any, **kwargs: Any) -> Any:
        return self._timed(super().extension, *args, **kwargs)

    def parse(self, *args: Any, **kwargs: Any) -> Any:
        return self._timed(super().parse, *args, **kwargs)

    def _timed(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        begun = time.thread_time()
        try:
            return function(*args, **kwargs)
        finally:
            self.seconds += time.thread_time() - begun


class LocalWork:
    """The environment in this process, with as little of its own as can be."""

    tools = [TOOL]

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        rollout: int = (options or {})["task"]
        self._answers = answers(self._plan.delays(rollout))
        return [{"role": "user", "content": prompt(rollout)}], {}

    async def step(self, action: Any) -> Any:
        calls: list[Any] = action.get("tool_calls", [])
        if not calls:
            return [], 1.0, True, False, {}
        delay, answer = next(self._answers)
        if delay:
            await asyncio.sleep(delay)
        said = {"role": "tool", "tool_call_id": calls[0]["id"], "name": "work", "content": answer}
        return [said], 0.0, False, False, {}

    def close(self) -> None:
        pass


async def with_engine(plan: Plan, source: Any, chat: Chat, slots: Slots) -> list[int]:
    """gymhost's engine, with its usual settings; returns how many turns each rollout had."""
    generator = SimulatedGenerator(slots, Model(plan, encode).answer)
    requests = [
        RolloutRequest(plan.environment, task=rollout, kwargs={"plan": plan.write()})
        for rollout in range(plan.rollouts)
    ]
    concurrency = Concurrency(run=max(plan.rollouts, Concurrency().run))
    async with RolloutEngine(source, chat, generator, concurrency=concurrency) as engine:
        return [_turns(trajectory) for trajectory in await engine.collect(requests)]


def _turns(trajectory: Trajectory) -> int:
    if trajectory.outcome.kind != "terminated":
        raise RuntimeError(f"a rollout {trajectory.outcome}")
    return len(trajectory.turns)


async def in_lock_step(plan: Plan, server: RemoteServer, chat: Chat, slots: Slots) -> list[int]:
    """All generate, then all act, and each waits for the slowest; nothing is rendered, which costs this one nothing."""
    call: dict[str, Any] = {"id": "call_0", "type": "function", "function": {"name": "work", "arguments": {}}}
    calling: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": [call]}
    turns = [0] * plan.rollouts

    async with AsyncExitStack() as stack:
        sessions = await asyncio.gather(
            *(
                stack.enter_async_context(server.session(plan.environment, plan=plan.write()))
                for _ in range(plan.rollouts)
            )
        )
        await asyncio.gather(*(session.reset(options={"task": rollout}) for rollout, session in enumerate(sessions)))
        says = dict.fromkeys(range(plan.rollouts), calling)
        while says:
            now = time.perf_counter()
            await asyncio.sleep(max(slots.take(plan.tokens, now) for _ in says) - now)
            results = await asyncio.gather(*(sessions[rollout].step(said) for rollout, said in says.items()))
            for rollout, (observation, _, terminated, _, _) in zip(list(says), results, strict=True):
                turns[rollout] += 1
                if terminated:
                    del says[rollout]
                elif observation[-1]["content"] == LAST:
                    says[rollout] = {"role": "assistant", "content": "Enough."}
        return turns


async def main(variant: str, address: str, plan: Plan) -> None:
    chat = TimedChat(qwen3_tokenizer(), Qwen3RendererConfig(thinking_retention="all"))
    play = in_lock_step if variant == "lock-step" else with_engine
    async with AsyncExitStack() as stack:
        source: Any = LocalSource(lambda plan: LocalWork(Plan.read(plan)))
        if variant != "local":
            source = await stack.enter_async_context(connect(address, direct=variant != "engine-grpc"))
        # The first use is slow.
        few = replace(plan, rollouts=2, tokens_per_second=math.inf, delay=0.0)
        await play(few, source, chat, Slots(tokens_per_second=math.inf))

        slots = Slots(plan.slots, plan.tokens_per_second)
        chat.seconds = 0.0
        print("begin", flush=True)
        begun = time.perf_counter()
        turns = await play(plan, source, chat, slots)
        seconds = time.perf_counter() - begun
        print("end", flush=True)
        chat_us = chat.seconds / plan.turns * 1e6 or None
        report(plan, turns, seconds, busy=slots.share_busy, chat_us=chat_us)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], Plan.read(sys.argv[3])))
