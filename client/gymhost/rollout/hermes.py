"""How Hermes, and many models since, call tools and think: `<tool_call>{json}</tool_call>` and `<think>`."""

import json
import re
from collections.abc import Sequence
from typing import Any, cast

from gymhost.rollout.extras import require

__all__ = ["describe_tools", "read_hermes"]

_THOUGHT = re.compile(r"\s*<think>(.*?)(?:</think>|$)", re.DOTALL)
_CALL = re.compile(r"<tool_call>(.*?)(</tool_call>|$)", re.DOTALL)


def read_hermes(text: str) -> Any:
    """Reads a turn of the model.

    Args:
        text: The turn, without what ended it.

    Returns:
        A `renderers.ParsedResponse`. What is not in a thought or a call is the content.
    """
    renderers = require("renderers", "rollout")
    rest = text
    reasoning = None
    if thought := _THOUGHT.match(text):
        reasoning, rest = thought[1].strip(), text[thought.end() :]
    calls = [_call(renderers, match[1].strip(), closed=bool(match[2])) for match in _CALL.finditer(rest)]
    content = _CALL.sub("", rest) if calls else rest
    # A template that is given the content back says where the line breaks beside thoughts and calls are.
    content = content if content == text else content.strip()
    return renderers.ParsedResponse(content=content, reasoning_content=reasoning or None, tool_calls=calls)


def _call(renderers: Any, raw: str, *, closed: bool) -> Any:
    status = renderers.ToolCallParseStatus
    if not closed:
        return renderers.ParsedToolCall(raw=raw, status=status.UNCLOSED_BLOCK)
    try:
        call: Any = json.loads(raw)
    except (ValueError, RecursionError):
        return renderers.ParsedToolCall(raw=raw, status=status.INVALID_JSON)
    fields = cast(dict[str, Any], call) if isinstance(call, dict) else {}
    name = fields.get("name")
    if not (isinstance(name, str) and name):
        return renderers.ParsedToolCall(raw=raw, status=status.MISSING_NAME)
    return renderers.ParsedToolCall(raw=raw, name=name, arguments=fields.get("arguments", {}))


def describe_tools(tools: Sequence[Any]) -> str:
    """What a model is told of its tools where its chat template has no place for them."""
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    return (
        f"# Tools\n\nYou may call these functions:\n<tools>\n{listed}\n</tools>\n\n"
        "To call one, write a JSON object with its name and arguments within <tool_call></tool_call>:\n"
        '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
    )
