"""An environment with tools, and the messages that call them."""

from typing import Any

from gymhost.envs import Task, ToolEnv, ToolError, rubric, tool


def calls(*made: tuple[str, Any]) -> dict[str, Any]:
    """Returns an assistant message with tool calls of names and arguments."""
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": f"id_{i}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for i, (name, arguments) in enumerate(made)
        ],
    }


class Account(ToolEnv):
    """A balance that tools change."""

    system = "You keep an account."
    tasks = {"train": [{"start": 10}, {"start": 20}, {"start": 30}], "test": [{"start": 99}]}

    def setup(self, task: Task) -> None:
        self.balance: int = task["start"]

    def prompt(self, task: Task) -> str:
        return f"The balance is {task['start']}."

    @tool
    def add(self, amount: int) -> str:
        """Adds to the balance."""
        self.balance += amount
        return f"The balance is {self.balance}."

    @tool
    def take(self, amount: int) -> dict[str, int]:
        """Takes from the balance."""
        if amount > self.balance:
            raise ToolError("there is not as much")
        self.balance -= amount
        return {"balance": self.balance}

    @tool
    def done(self) -> str:
        """Ends the episode."""
        self.finish(balance=self.balance)
        return "Goodbye."

    @tool
    def crash(self) -> str:
        """Has a bug."""
        raise RuntimeError("a bug in the tool")

    @rubric(high=1000.0)
    def money(self) -> float:
        return self.balance
