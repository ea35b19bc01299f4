"""Environments of OpenEnv, for tests with OpenEnv itself, which types are not checked with.

`uvicorn support.openenv_environments:countdown --port PORT`, or `:calculator`.
"""

# pyright: reportMissingImports=false, reportUntypedBaseClass=false, reportUnknownVariableType=false
# pyright: reportUnknownMemberType=false, reportUntypedFunctionDecorator=false, reportUnknownArgumentType=false

import random
from typing import Any, Literal
from uuid import uuid4

from fastmcp import FastMCP
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field


class Take(Action):
    """Takes some away."""

    amount: int = Field(ge=1, le=3)
    note: str | None = None
    tags: list[str] = Field(default_factory=list)
    how: Literal["low", "high"] = "low"


class Left(Observation):
    left: int
    history: list[int] = Field(default_factory=list)
    note: str | None = None


class Countdown(Environment[Take, Left, State]):
    """Counts down from a number that the seed draws. A step with a tag `unpaid` has no reward."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, most: int = 1000) -> None:
        super().__init__()
        self._most = most
        self._state = State(episode_id=str(uuid4()), step_count=0)
        self._left, self._history = 0, []

    def list_splits(self) -> list[Any]:
        return ["train", {"name": "hard", "type": "test"}]

    def num_tasks(self, split: str) -> int:
        return {"train": 5, "hard": 2}[split]

    def get_task(self, split: str, index: int) -> dict[str, Any]:
        return {"id": f"{split}-{index}", "left": 10 + index}

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        least: int = 5,
        split: str = "train",
        index: int | None = None,
    ) -> Left:
        self._state = State(episode_id=episode_id or str(uuid4()), step_count=0)
        self._left, self._history = random.Random(seed).randint(least, self._most), []
        if index is not None:
            self._left = self.get_task(split, index)["left"]
        return Left(left=self._left)

    def step(self, action: Take, timeout_s: float | None = None, **kwargs: Any) -> Left:
        if action.note == "raise":
            raise ValueError("told to")
        self._state.step_count += 1
        self._left -= action.amount
        self._history.append(action.amount)
        cut = self._left > 0 and self._state.step_count >= 8
        paid = None if "unpaid" in action.tags else action.amount / 4 + (action.how == "high")
        metadata: dict[str, Any] = {"step": self._state.step_count} | ({"truncated": True} if cut else {})
        return Left(
            left=self._left,
            history=list(self._history),
            note=action.note,
            done=self._left <= 0 or cut,
            reward=paid,
            metadata=metadata,
        )

    @property
    def state(self) -> State:
        return self._state


class Calculator(MCPEnvironment):
    """Adds, for a while."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        server = FastMCP("calculator")
        self._calls = 0

        @server.tool
        def add(a: int, b: int = 1) -> int:
            """Adds two numbers."""
            self._calls += 1
            return a + b

        @server.tool
        def describe(text: str) -> dict[str, Any]:
            """Describes a text."""
            self._calls += 1
            return {"length": len(text), "calls": self._calls}

        super().__init__(server)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Observation:
        self._calls = 0
        return Observation(done=False, reward=0.0, metadata={"status": "ready"})

    async def step_async(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        observation = await super().step_async(action, timeout_s=timeout_s, **kwargs)
        if isinstance(action, CallToolAction):
            observation.reward, observation.done = self._calls / 4, self._calls >= 3
        return observation

    def _step_impl(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        raise ValueError(f"it is played by its tools, not by {type(action).__name__}")

    @property
    def state(self) -> State:
        return State(step_count=self._calls)


countdown = create_app(lambda: Countdown(20), Take, Left, env_name="countdown", max_concurrent_envs=2)
calculator = create_app(Calculator, CallToolAction, CallToolObservation, env_name="calculator", max_concurrent_envs=4)
