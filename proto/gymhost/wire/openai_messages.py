"""Messages in OpenAI's language and in gymhost's, and whether two of them say the same."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from gymhost.wire.openai import Body, Message, Refused
from gymhost.wire.openai_fields import text_at

__all__ = ["called", "outgoing", "pieces", "same_message", "text_of", "tool_of", "with_names"]


def outgoing(message: Mapping[str, Any]) -> Message:
    """A message as harnesses are told it: arguments as JSON text, and malformed calls as text of the content."""
    content = message.get("content")
    said: Message = {"role": message["role"], "content": content if isinstance(content, str) else _joined(content)}
    if reasoning := message.get("reasoning_content"):
        said["reasoning_content"] = str(reasoning)
    calls: list[dict[str, Any]] = []
    for call in cast(Sequence[Mapping[str, Any]], message.get("tool_calls") or ()):
        name, arguments = call["function"]["name"], _arguments(call["function"]["arguments"])
        if name and isinstance(arguments, dict):
            text = json.dumps(arguments, ensure_ascii=False)
            calls.append({"id": call.get("id", ""), "type": "function", "function": {"name": name, "arguments": text}})
        elif text := str(arguments):
            said["content"] = f"{said['content']}\n{text}" if said["content"] else text
    if calls:
        said["tool_calls"] = calls
    for key in ("name", "tool_call_id"):
        if key in message:
            said[key] = message[key]
    return said


def same_message(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two messages say the same.

    Harnesses change some things in what they were told before they send it back: an empty content may be none,
    arguments may be text or an object with other spaces, reasoning may be left out, a malformed call is the text that
    it was told as. All that is said has to be the same nevertheless: nothing may be added, left out or shortened.
    """
    first, second = outgoing(one), outgoing(other)
    if any(first[key] != second[key] for key in ("role", "content")):
        return False
    for key in ("reasoning_content", "tool_call_id", "name"):
        if key in first and key in second and first[key] != second[key]:
            return False
    calls = zip(_calls(first), _calls(second), strict=False)
    return len(_calls(first)) == len(_calls(second)) and all(_same_call(*pair) for pair in calls)


def _calls(message: Message) -> list[dict[str, Any]]:
    return message.get("tool_calls") or []


def _same_call(one: dict[str, Any], other: dict[str, Any]) -> bool:
    ids = {one["id"], other["id"]} - {"", None}
    mine, theirs = one["function"], other["function"]
    return (
        len(ids) < 2
        and mine["name"] == theirs["name"]
        and _arguments(mine["arguments"]) == _arguments(theirs["arguments"])
    )


def _joined(content: Any) -> str:
    if content is None:
        return ""
    parts = cast("list[Any]", content) if isinstance(content, list) else [content]
    return "\n".join(
        str(cast(Body, part).get("text", "")) if isinstance(part, Mapping) else str(part) for part in parts
    )


def text_of(content: Any, param: str) -> str:
    """The text of a content: text, parts that are texts, or nothing.

    Raises:
        Refused: There is something else in it.
    """
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise Refused(f"{param} must be text or a list of parts", param, "invalid_type")
    texts: list[str] = []
    for i, part in enumerate(cast("list[Any]", content)):
        at = f"{param}[{i}]"
        kind = cast(Body, part).get("type") if isinstance(part, Mapping) else None
        if kind not in ("text", "input_text", "output_text", "refusal", "reasoning_text", "summary_text"):
            raise Refused(f"{at} is of the type {kind!r}, and the model reads text alone", at, "unsupported")
        texts.append(text_at(cast(Body, part), "refusal" if kind == "refusal" else "text", at))
    return "\n".join(texts)


def called(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    """A call as environments and rollouts have it."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": _arguments(arguments)}}


def _arguments(text: Any) -> Any:
    """Arguments as a dict, or what is no JSON object as the text that it is."""
    if not isinstance(text, str):
        return text
    try:
        arguments = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return text
    return cast(Any, arguments) if isinstance(arguments, dict) else text


def with_names(messages: list[Message]) -> list[Message]:
    """Gives each answer of a tool the name of the tool, which the call has and some models are shown."""
    names: dict[str, str] = {}
    for message in messages:
        for call in message.get("tool_calls", ()):
            names[call["id"]] = call["function"]["name"]
        if message["role"] == "tool" and (name := names.get(message.get("tool_call_id", ""))):
            message.setdefault("name", name)
    return messages


def tool_of(function: Any, param: str) -> dict[str, Any]:
    """A function that may be called as gymhost has it: name, description, parameters.

    Raises:
        Refused: It is none.
    """
    if not isinstance(function, Mapping):
        raise Refused(f"{param} must be an object", param, "invalid_type")
    function = cast(Body, function)
    parameters: Any = function.get("parameters") or {"type": "object", "properties": {}}
    if not isinstance(parameters, Mapping):
        raise Refused(f"{param}.parameters must be a JSON Schema", f"{param}.parameters", "invalid_type")
    return {
        "name": text_at(function, "name", param),
        "description": text_at(function, "description", param, default=""),
        "parameters": dict(cast(Body, parameters)),
    }


def pieces(text: str, size: int = 2048) -> Iterator[str]:
    """A text in pieces that are streamed one by one."""
    return (text[i : i + size] for i in range(0, len(text), size))
