"""`/v1/responses`: a request as an `Ask`, and a `Reply` as a body or as server-sent events."""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, cast

from gymhost.wire.openai import Ask, Body, Message, Refused, Reply, sse
from gymhost.wire.openai_fields import (
    flag_at,
    list_at,
    object_of,
    refuse,
    refuse_formats,
    sampling_of,
    text_at,
    tools_wanted,
    whole_at,
)
from gymhost.wire.openai_messages import called, outgoing, pieces, text_of, tool_of, with_names

__all__ = ["events", "parse", "response"]

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


def parse(body: Any) -> Ask:
    """What a request asks for.

    `parallel_tool_calls` is taken and not enforced: a model may call several tools at once. `store` makes no
    difference: whether a response can be continued by its id is up to whoever answers.

    Args:
        body: The JSON of the request.

    Raises:
        Refused: It is no request, or asks for what can't be had.
    """
    body = object_of(body)
    refuse(body, background=(False,), conversation=(), prompt=(), top_logprobs=(0,), truncation=("disabled",))
    refuse_formats(object_of(body.get("text") or {}).get("format"), "text.format")
    messages: list[Message] = []
    if instructions := text_at(body, "instructions", default=""):
        messages.append({"role": "system", "content": instructions})
    given = body.get("input")
    if isinstance(given, str):
        messages.append({"role": "user", "content": given})
    else:
        _add_items(messages, list_at(body, "input"))
    if not given:
        raise Refused("input is missing or empty", "input", "missing_required_parameter")
    wanted = tools_wanted(body)
    tools = [_tool(tool, f"tools[{i}]") for i, tool in enumerate(list_at(body, "tools"))]
    return Ask(
        model=text_at(body, "model", default=""),
        messages=with_names(messages),
        tools=tools if wanted else [],
        sampling=sampling_of(body),
        max_tokens=whole_at(body, "max_output_tokens", 1),
        stream=flag_at(body, "stream"),
        previous=text_at(body, "previous_response_id", default="") or None,
        echoed={
            "instructions": instructions or None,
            "max_output_tokens": body.get("max_output_tokens"),
            "metadata": body.get("metadata") or {},
            "parallel_tool_calls": body.get("parallel_tool_calls") is not False,
            "previous_response_id": body.get("previous_response_id"),
            "temperature": body.get("temperature"),
            "tool_choice": body.get("tool_choice") or "auto",
            "tools": list_at(body, "tools"),
            "top_p": body.get("top_p"),
        },
    )


def response(reply: Reply, ask: Ask) -> dict[str, Any]:
    """The body of an answer."""
    return _response(reply, ask, _items(reply), None if reply.finish_reason == "stop" else "max_output_tokens")


def events(reply: Reply, ask: Ask) -> Iterator[str]:
    """The answer as server-sent events, the whole response being the last."""
    numbers = itertools.count()

    def event(kind: str, **fields: Any) -> str:
        return sse({"type": kind, "sequence_number": next(numbers), **fields}, kind)

    begun = _response(reply, ask, [], None) | {"status": "in_progress", "usage": None}
    yield event("response.created", response=begun)
    yield event("response.in_progress", response=begun)
    for i, item in enumerate(_items(reply)):
        begun_item = item | {key: value for key, value in _BEGUN[item["type"]].items() if key in item}
        yield event("response.output_item.added", output_index=i, item=begun_item)
        at = {"item_id": item["id"], "output_index": i}
        if item["type"] == "function_call":
            for piece in pieces(item["arguments"]):
                yield event("response.function_call_arguments.delta", **at, delta=piece)
            yield event("response.function_call_arguments.done", **at, name=item["name"], arguments=item["arguments"])
        else:
            [part] = item["content"]
            kind = "reasoning_text" if item["type"] == "reasoning" else "output_text"
            more: dict[str, Any] = {"logprobs": []} if kind == "output_text" else {}
            at["content_index"] = 0
            yield event("response.content_part.added", **at, part=part | {"text": ""})
            for piece in pieces(part["text"]):
                yield event(f"response.{kind}.delta", **at, delta=piece, **more)
            yield event(f"response.{kind}.done", **at, text=part["text"], **more)
            yield event("response.content_part.done", **at, part=part)
        yield event("response.output_item.done", output_index=i, item=item)
    whole = response(reply, ask)
    yield event(f"response.{whole['status']}", response=whole)


_BEGUN: dict[str, dict[str, Any]] = {
    "reasoning": {"content": []},
    "message": {"content": [], "status": "in_progress"},
    "function_call": {"arguments": "", "status": "in_progress"},
}


def _add_items(messages: list[Message], items: list[Any]) -> None:
    """Adds what items say: those of one turn of the model, which follow one another, are one message."""
    turn: Message | None = None
    for i, item in enumerate(items):
        param = f"input[{i}]"
        if not isinstance(item, Mapping):
            raise Refused(f"{param} must be an object", param, "invalid_type")
        item = cast(Body, item)
        kind = item.get("type") or "message"
        role = _ROLES.get(text_at(item, "role", param)) if kind == "message" else None
        if kind == "message" and role is None:
            raise Refused(f"{param}.role is not supported: {item['role']!r}", f"{param}.role", "unsupported")
        if kind == "function_call_output":
            turn = None
            output = text_of(item.get("output"), f"{param}.output")
            messages.append({"role": "tool", "tool_call_id": text_at(item, "call_id", param), "content": output})
        elif role is not None and role != "assistant":
            turn = None
            messages.append({"role": role, "content": text_of(item.get("content"), f"{param}.content")})
        else:
            if turn is None:
                turn = {"role": "assistant", "content": ""}
                messages.append(turn)
            _add_to_turn(turn, item, kind, param)


def _add_to_turn(turn: Message, item: Body, kind: Any, param: str) -> None:
    match kind:
        case "message":
            text = text_of(item.get("content"), f"{param}.content")
            turn["content"] = f"{turn['content']}\n{text}" if turn["content"] else text
        case "function_call":
            call_id, name = text_at(item, "call_id", param), text_at(item, "name", param)
            arguments = text_at(item, "arguments", param, default="{}")
            turn.setdefault("tool_calls", []).append(called(call_id, name, arguments))
        case "reasoning":
            if text := text_of(item.get("content"), f"{param}.content"):
                turn["reasoning_content"] = text
        case _:
            raise Refused(f"{param}.type is not supported: {kind!r}", f"{param}.type", "unsupported")


def _tool(tool: Any, param: str) -> dict[str, Any]:
    kind = cast(Body, tool).get("type") if isinstance(tool, Mapping) else None
    if kind != "function":
        raise Refused(f"{param} is of the type {kind!r}: only functions are supported", param, "unsupported")
    return tool_of(tool, param)


def _items(reply: Reply) -> list[dict[str, Any]]:
    message = outgoing(reply.message)
    status = "completed" if reply.finish_reason == "stop" else "incomplete"
    items: list[dict[str, Any]] = []
    if reasoning := message.get("reasoning_content"):
        content = [{"type": "reasoning_text", "text": reasoning}]
        items.append({"type": "reasoning", "id": f"rs_{reply.id}", "summary": [], "content": content})
    calls = message.get("tool_calls", ())
    if message["content"] or not calls:
        part: dict[str, Any] = {"type": "output_text", "text": message["content"], "annotations": [], "logprobs": []}
        own = {"type": "message", "id": f"msg_{reply.id}", "role": "assistant"}
        items.append(own | {"status": status, "content": [part]})
    for i, call in enumerate(calls):
        own = {"type": "function_call", "id": f"fc_{reply.id}_{i}", "call_id": call["id"], "status": status}
        items.append(own | call["function"])
    return items


def _response(reply: Reply, ask: Ask, items: list[dict[str, Any]], incomplete: str | None) -> dict[str, Any]:
    return {
        "id": f"resp_{reply.id}",
        "object": "response",
        "created_at": reply.created,
        "status": "incomplete" if incomplete else "completed",
        "error": None,
        "incomplete_details": {"reason": incomplete} if incomplete else None,
        "model": reply.model,
        "output": items,
        "reasoning": {"effort": None, "summary": None},
        "store": False,
        "text": {"format": {"type": "text"}},
        "truncation": "disabled",
        "usage": {
            "input_tokens": reply.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": reply.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": reply.prompt_tokens + reply.completion_tokens,
        },
        **ask.echoed,
    }
