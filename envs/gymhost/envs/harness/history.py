"""What a harness has been told and has said: whether what it sends now goes on from there."""

from collections.abc import Iterable, Sequence
from typing import Any, cast

from gymhost.envs.messages import CallRequest, text_of
from gymhost.envs.turns import Turn
from gymhost.wire.chat_spaces import ChatMessage
from gymhost.wire.openai_messages import same_message

__all__ = ["about_tokens", "added", "alike", "told"]


def alike(some: Sequence[ChatMessage], others: Sequence[ChatMessage]) -> bool:
    """Whether two conversations say the same."""
    return len(some) == len(others) and all(map(same_message, some, others))


def added(before: Sequence[ChatMessage], now: Sequence[ChatMessage]) -> list[ChatMessage] | None:
    """Returns what a conversation has more than it had before; None where it is another one, or has nothing more."""
    if len(now) <= len(before) or not alike(before, now[: len(before)]):
        return None
    return list(now[len(before) :])


def told(turn: Turn, requests: Sequence[CallRequest]) -> ChatMessage:
    """Returns a model's message as a harness is told it, every call with an id."""
    said: ChatMessage = {"role": "assistant", "content": turn.text}
    if isinstance(reasoning := turn.message.get("reasoning_content"), str) and reasoning:
        said["reasoning_content"] = reasoning
    made: Any = turn.message.get("tool_calls") or ()
    calls: list[dict[str, Any]] = []
    for request, call in zip(requests, cast("Iterable[object]", made), strict=False):
        arguments = request.arguments if request.arguments is not None else _raw(call)
        function = {"name": request.name, "arguments": arguments}
        calls.append({"id": request.id, "type": "function", "function": function})
    return {**said, "tool_calls": calls} if calls else said


def about_tokens(messages: Sequence[ChatMessage]) -> int:
    """About how many tokens messages have. The environment can't know; the harness may budget by it."""
    return sum(4 + len(text_of(message)) // 4 + len(str(message.get("tool_calls", ""))) // 4 for message in messages)


def _raw(call: object) -> str:
    """The arguments of a malformed call, as far as there are any."""
    for name in ("function", "arguments"):
        call = cast("dict[str, object]", call).get(name) if isinstance(call, dict) else call
    return call if isinstance(call, str) else "" if call is None else str(call)
