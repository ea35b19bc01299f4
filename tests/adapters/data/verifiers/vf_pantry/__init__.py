# pyright: basic, reportMissingImports=false
"""A taskset of verifiers with tools and a state that they share with the scoring."""

from collections.abc import Iterator

import verifiers.v1 as vf

from vf_pantry.servers.shelf import Pantry, ShelfConfig, ShelfToolset

__all__ = ["PantryTaskset"]


class PantryData(vf.TaskData):
    wanted: dict[str, int]


class PantryTaskConfig(vf.TaskConfig):
    tools: ShelfConfig = ShelfConfig()


class PantryTask(vf.Task[PantryData, Pantry, PantryTaskConfig]):
    @classmethod
    def toolsets(cls, config: PantryTaskConfig) -> list[vf.Toolset]:
        return [ShelfToolset(config.tools)]

    @vf.stop
    async def emptied(self, trace: vf.Trace) -> bool:
        return trace.state.taken.get("poison", 0) > 0

    @vf.reward
    async def fetched(self, trace: vf.Trace) -> float:
        taken = trace.state.taken
        return sum(min(taken.get(name, 0), number) for name, number in self.data.wanted.items()) / 4

    @vf.reward
    async def said(self, trace: vf.Trace) -> float:
        return 0.125 if "done" in trace.last_reply else 0.0


class PantryConfig(vf.TasksetConfig):
    task: PantryTaskConfig = PantryTaskConfig()


class PantryTaskset(vf.Taskset[PantryTask, PantryConfig]):
    def load(self) -> Iterator[PantryTask]:
        for wanted in ({"flour": 3, "salt": 1}, {"rice": 4}):
            yield PantryTask(PantryData(prompt=f"Fetch {wanted}.", wanted=wanted), self.config.task)
