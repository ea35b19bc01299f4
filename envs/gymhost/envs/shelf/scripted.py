"""What the scripted policies of the shelf share: they know the conversation alone, as a model does."""

from collections.abc import Sequence
from typing import Any

from gymhost.envs.messages import text_of
from gymhost.wire.chat_spaces import ChatMessage


def call(tool: str, /, **arguments: Any) -> ChatMessage:
    """Returns the assistant message that calls a tool."""
    return calls((tool, arguments))


def calls(*wanted: tuple[str, dict[str, Any]]) -> ChatMessage:
    """Returns the assistant message that calls several tools in one turn."""
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": f"call_{number}", "type": "function", "function": {"name": tool, "arguments": arguments}}
            for number, (tool, arguments) in enumerate(wanted)
        ],
    }


def said(messages: Sequence[ChatMessage], *roles: str) -> list[str]:
    """Returns the texts of those who have one of the roles, in order."""
    return [text_of(message) for message in messages if message["role"] in roles]
