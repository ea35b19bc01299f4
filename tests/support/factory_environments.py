"""Environments for the tests of TRL's `environment_factory`: importing this module registers them."""

import asyncio
import io
from typing import Any, Literal

import pydantic

from gymhost.envs import Content, Picture, Task, Tasks, ToolEnv, register, rubric, tool


class Item(pydantic.BaseModel):
    """What is bought."""

    name: str
    count: int = pydantic.Field(default=1, ge=1)


class Shop(ToolEnv):
    """Two tools of all kinds of parameters; the episode ends with the second.

    Args:
        hang: Where the tool, the reset or the scoring of task 1 never ends: "tool", "reset" or "score".
        fail: Where it raises.
        late: Seconds that scoring takes.
    """

    system = "You are a customer."
    tasks: Any = {"train": Tasks.generate(lambda index: {"n": index}, 1000), "test": [{"n": 7}]}

    def __init__(self, *, hang: str = "", fail: str = "", late: float = 0.0) -> None:
        super().__init__()
        self.hang, self.fail, self.late = hang, fail, late

    async def setup(self, task: Task) -> None:
        self.n = task["n"]
        self.bought: list[str] = []
        await self._trouble("reset")

    def prompt(self, task: Task) -> str:
        return f"Task {task['n']}, seed {self.np_random_seed}."

    @tool
    async def buy(
        self,
        items: list[Item],
        how: Literal["card", "cash"] = "card",
        limit: float | None = None,
        notes: dict[str, int] | None = None,
        code: int | str = 0,
        gift: bool = False,
    ) -> str:
        """Buys some things.

        There may be several of each.

        Args:
            items: What is bought.
            how: How it is
                paid: either way.
            limit: The most that may be paid.
            notes: Whatever is to be noted.
            code: A voucher.
        """
        await self._trouble("tool")
        self.bought += [item.name for item in items for _ in range(item.count)]
        return f"You have {', '.join(self.bought)}, paid by {how}."

    @tool
    def leave(self) -> str:
        """Leaves the shop."""
        self.finish()
        return "Good bye."

    @tool
    def look(self) -> Content:
        """Looks around."""
        from PIL import Image

        file = io.BytesIO()
        Image.new("RGB", (2, 3), (255, 0, 0)).save(file, "png")
        return Content("This is what you see:", Picture(file.getvalue()))

    @rubric(high=10.0)
    async def bought_all(self) -> float:
        """How many things were bought."""
        await asyncio.sleep(self.late)
        await self._trouble("score")
        return float(len(self.bought))

    async def _trouble(self, where: str) -> None:
        if self.n == 1 and self.hang == where:
            await asyncio.Event().wait()
        if self.n == 1 and self.fail == where:
            raise RuntimeError("this was to be")


class Hidden(ToolEnv):
    """Has a tool with a name that TRL takes for a helper."""

    def prompt(self, task: Task) -> str:
        return "Go."

    @tool(name="_hidden")
    def hidden(self) -> str:
        """Is not seen."""
        return ""


register("test/Shop-v0", Shop, mode="async")
register("test/Hidden-v0", Hidden, mode="thread")
