"""Conversational environments without a base class, whose every answer a test decides."""

from collections.abc import Callable
from typing import Any

Answer = tuple[Any, float | None, bool, bool, dict[str, Any]]

ECHO: dict[str, Any] = {
    "name": "echo",
    "description": "Returns the text.",
    "parameters": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def tool(text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": "call_0", "name": "echo", "content": text}


def go_on(*messages: Any, reward: float = 0.0) -> Answer:
    return list(messages), reward, False, False, {}


def end(*messages: Any, reward: float | None = 1.0, **info: Any) -> Answer:
    return list(messages), reward, True, False, info


class Talk:
    """Opens with a user's message and answers what the test says.

    Args:
        answer: Given the environment and the assistant's message, what `step` returns.
        opening: What `reset` returns.
    """

    def __init__(self, answer: Callable[["Talk", Any], Answer], opening: Any = None) -> None:
        self.answer = answer
        self.opening = [user("Go.")] if opening is None else opening
        self.tools = [ECHO]
        self.said: list[Any] = []
        self.seed: int | None = None
        self.options: dict[str, Any] = {}
        self.closed = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.said = []
        self.seed = seed
        self.options = options or {}
        opening = self.opening(self) if callable(self.opening) else self.opening
        return opening, {"task": self.options.get("task")}

    def step(self, action: Any) -> Any:
        self.said.append(action)
        return self.answer(self, action)

    def close(self) -> None:
        self.closed = True
