"""Chat messages as plain dicts: making them, and reading a model's action."""

import copy
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

from gymnasium.error import InvalidAction

from gymhost.envs.content import Block
from gymhost.wire.chat_spaces import ChatMessage


def system(text: str) -> ChatMessage:
    """Returns a system message."""
    return {"role": "system", "content": text}


def user(text: str) -> ChatMessage:
    """Returns a user message."""
    return {"role": "user", "content": text}


def tool_result(call_id: str, name: str, content: str | list[Block]) -> ChatMessage:
    """Returns the message that answers a tool call."""
    return {"role": "tool", "tool_call_id": call_id, "name": name, "content": content}


def as_messages(said: str | Iterable[ChatMessage] | None) -> list[ChatMessage]:
    """Returns what an author's hook said as new messages of its own: a text is a user message."""
    if said is None:
        return []
    if isinstance(said, str):
        return [user(said)]
    return copy.deepcopy(list(said))


def text_of(message: ChatMessage) -> str:
    """Returns the text of a message, whether its content is a string or a list of blocks."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        blocks = cast(list[Any], content)
        texts = [cast(dict[str, Any], block).get("text") for block in blocks if isinstance(block, dict)]
        return "".join(text for text in texts if isinstance(text, str))
    return ""


@dataclass(frozen=True, slots=True)
class CallRequest:
    """A tool call as the model made it: either `arguments`, or the `problem` that kept it from being read."""

    id: str
    name: str
    arguments: dict[str, Any] | None
    problem: str | None = None


def read_action(action: object) -> tuple[ChatMessage, list[CallRequest]]:
    """Reads an action: an assistant message, or a text that stands for one.

    A malformed tool call is no reason to fail: it is read as a request with a problem, which the model is told.

    Returns:
        The message and its tool calls.

    Raises:
        InvalidAction: The action is neither a text nor an assistant message.
    """
    if isinstance(action, str):
        return {"role": "assistant", "content": action}, []
    if not isinstance(action, dict):
        raise InvalidAction(f"an action is an assistant message (a dict) or a text, not {_kind(action)}")
    message = cast(ChatMessage, action)
    if message.get("role", "assistant") != "assistant":
        raise InvalidAction(f"an action has the role 'assistant', not {message['role']!r}")
    calls: object = message.get("tool_calls")
    if calls is None:
        return message, []
    if not isinstance(calls, (list, tuple)):
        return message, [CallRequest("call_0", "", None, f"tool_calls must be a list, not {_kind(calls)}")]
    return message, [_read_call(call, f"call_{index}") for index, call in enumerate(cast(list[object], calls))]


def _read_call(call: object, default_id: str) -> CallRequest:
    if not isinstance(call, dict):
        return CallRequest(default_id, "", None, f"a tool call must be an object, not {_kind(call)}")
    fields = cast(dict[str, Any], call)
    given_id = fields.get("id")
    call_id = given_id if isinstance(given_id, str) and given_id else default_id
    function = fields.get("function", fields)
    if not isinstance(function, dict):
        return CallRequest(call_id, "", None, f"the call's function must be an object, not {_kind(function)}")
    named = cast(dict[str, Any], function)
    name = named.get("name")
    if not isinstance(name, str) or not name:
        return CallRequest(call_id, "", None, "the call names no tool")
    arguments = _read_arguments(named.get("arguments"))
    if not isinstance(arguments, dict):
        problem = f"the arguments of {name} must be a JSON object, not {_kind(arguments)}"
        return CallRequest(call_id, name, None, problem)
    return CallRequest(call_id, name, cast(dict[str, Any], arguments))


def _read_arguments(arguments: object) -> object:
    """Returns the arguments; those in JSON text, as the OpenAI API has them, are parsed if they can be."""
    if not isinstance(arguments, str):
        return arguments
    try:
        parsed: object = json.loads(arguments)
    except ValueError:
        return arguments
    return cast(object, parsed) if isinstance(parsed, dict) else arguments


def _kind(value: object) -> str:
    """Names the type of a value in the words of JSON."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, str):
        return "a text"
    if isinstance(value, (int, float)):
        return "a number"
    if isinstance(value, (list, tuple)):
        return "a list"
    return f"a {type(value).__name__}"
