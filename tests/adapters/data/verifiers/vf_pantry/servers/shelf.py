# pyright: basic, reportMissingImports=false
"""The server of the pantry's tools, a program of its own."""

import verifiers.v1 as vf
from pydantic import Field


class Pantry(vf.State):
    taken: dict[str, int] = Field(default_factory=dict)


class ShelfConfig(vf.ToolsetConfig):
    pass


class ShelfToolset(vf.Toolset[ShelfConfig, Pantry]):
    TOOL_PREFIX = "shelf"

    @vf.tool
    def take(self, name: str, number: int = 1) -> str:
        """Takes something from the shelf."""
        if number > 3:
            raise ValueError("too much at once")
        self.state.taken[name] = self.state.taken.get(name, 0) + number
        return f"{number} of {name}; {sum(self.state.taken.values())} things in all."


if __name__ == "__main__":
    ShelfToolset.run()
