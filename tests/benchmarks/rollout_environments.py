"""What `gymhost serve tests.benchmarks.rollout_environments` hosts: environments whose tool takes what a plan says."""

import asyncio
import time
from typing import Any

from tests.benchmarks.rollout_plan import Plan, answers, prompt

from gymhost.envs import Task, Tasks, ToolEnv, register, tool


class Work(ToolEnv):
    """Plays the rollouts of a plan, of which its tasks are the numbers."""

    tasks = {"train": Tasks.generate(lambda index: {"rollout": index})}
    without_call = "end"

    def __init__(self, *, plan: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._plan = Plan.read(plan)

    def setup(self, task: Task) -> None:
        self._answers = answers(self._plan.delays(task["rollout"]))

    def prompt(self, task: Task) -> str:
        return prompt(task["rollout"])


class Waiting(Work):
    @tool
    async def work(self) -> str:
        """Works for a while."""
        delay, answer = next(self._answers)
        await asyncio.sleep(delay)
        return answer


class Blocking(Work):
    @tool
    def work(self) -> str:
        """Works for a while."""
        delay, answer = next(self._answers)
        time.sleep(delay)
        return answer


register("benchmarks/Waiting-v0", Waiting, mode="async")
register("benchmarks/Blocking-v0", Blocking, mode="thread")
