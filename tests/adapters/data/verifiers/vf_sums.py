# pyright: basic, reportMissingImports=false
"""A taskset of verifiers with one turn a task."""

import asyncio
from collections.abc import Iterator

import verifiers.v1 as vf


class SumsData(vf.TaskData):
    answer: int


class SumsTask(vf.Task[SumsData]):
    @vf.reward(weight=2.0)
    async def right(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == str(self.data.answer))

    @vf.reward(weight=-0.5)
    async def wordy(self, trace: vf.Trace) -> float:
        if trace.last_reply == "boom":
            raise ArithmeticError("no score for this")
        if trace.last_reply == "slow":
            await asyncio.sleep(60)
        return len(trace.last_reply) / 10

    @vf.metric
    async def turns(self, trace: vf.Trace) -> float:
        return trace.num_turns


class SumsConfig(vf.TasksetConfig):
    number: int = 4


class SumsTaskset(vf.Taskset[SumsTask, SumsConfig]):
    def load(self) -> Iterator[SumsTask]:
        n = 0
        while n < self.config.number:
            data = SumsData(
                name=f"sum-{n}",
                prompt=f"{n} + {n * n}",
                system_prompt="Say the number alone.",
                answer=n + n * n,
                timeout=vf.TaskTimeout(scoring=0.5),
            )
            yield SumsTask(data, self.config.task)
            n += 1


__all__ = ["SumsTaskset"]
