"""What a model did in an episode, turn by turn."""

from dataclasses import dataclass, field
from typing import Any

from gymhost.envs.content import Block
from gymhost.wire.chat_spaces import ChatMessage


@dataclass(slots=True)
class Call:
    """A tool call and what came of it.

    Attributes:
        id: The id that the model gave it.
        name: The tool's name, or what stood for it.
        arguments: The arguments, checked; None where the call was malformed or did not run.
        result: What the model was told: a text, or the blocks of a message's content.
        valid: Whether the call was well formed, named a tool and had arguments that fit; a tool that ran and raised
            `ToolError` was called validly.
    """

    id: str
    name: str
    arguments: dict[str, Any] | None
    result: str | list[Block]
    valid: bool


@dataclass(slots=True)
class Turn:
    """What the model did in one step.

    Attributes:
        message: Its message.
        text: The text in it.
        calls: Its tool calls, in order.
    """

    message: ChatMessage
    text: str
    calls: list[Call] = field(default_factory=list[Call])

    @property
    def valid(self) -> bool:
        """Whether there was a valid call in it."""
        return any(call.valid for call in self.calls)
