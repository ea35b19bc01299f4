# pyright: reportMissingImports=false, reportMissingTypeStubs=false
"""An environment of GEM's that is not in its package."""

from typing import Any

import gem


class Patience(gem.Env):  # pyright: ignore[reportUntypedBaseClass]
    """Pays for the length of each text, and is cut off after some turns."""

    def __init__(self, turns: int = 2) -> None:
        self.turns = turns

    def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed)
        self.left = self.turns
        return f"Say something, {self.left} times.", {"suffix": str(seed)}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        return f"{self.left} left", len(action) / 8, False, self.left == 0, {}


gem.register("made:Patience-v0", Patience)
