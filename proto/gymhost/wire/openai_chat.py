"""`/v1/chat/completions`: a request as an `Ask`, and a `Reply` as a body or as server-sent events."""

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
    stops_of,
    text_at,
    tools_wanted,
    whole_at,
)
from gymhost.wire.openai_messages import called, outgoing, pieces, text_of, tool_of, with_names

__all__ = ["chunks", "completion", "parse"]

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


def parse(body: Any) -> Ask:
    """What a request asks for.

    `parallel_tool_calls` is taken and not enforced: a model may call several tools at once.

    Args:
        body: The JSON of the request.

    Raises:
        Refused: It is no request, or asks for what can't be had.
    """
    body = object_of(body)
    refuse(
        body,
        n=(1,),
        logit_bias=({},),
        logprobs=(False,),
        top_logprobs=(0,),
        functions=([],),
        function_call=(),
        audio=(),
        modalities=(["text"],),
        web_search_options=(),
        prediction=(),
        frequency_penalty=(0,),
        presence_penalty=(0,),
        repetition_penalty=(1,),
    )
    refuse_formats(body.get("response_format"), "response_format")
    messages = [_message(message, f"messages[{i}]") for i, message in enumerate(list_at(body, "messages"))]
    if not messages:
        raise Refused("messages is missing or empty", "messages", "missing_required_parameter")
    wanted = tools_wanted(body)
    tools = [_tool(tool, f"tools[{i}]") for i, tool in enumerate(list_at(body, "tools"))]
    options: Any = body.get("stream_options") or {}
    return Ask(
        model=text_at(body, "model", default=""),
        messages=with_names(messages),
        tools=tools if wanted else [],
        sampling=sampling_of(body),
        max_tokens=whole_at(body, "max_completion_tokens", 1) or whole_at(body, "max_tokens", 1),
        stop=stops_of(body),
        stream=flag_at(body, "stream"),
        include_usage=flag_at(object_of(options), "include_usage"),
    )


def completion(reply: Reply) -> dict[str, Any]:
    """The body of an answer."""
    message = _said(reply)
    message.setdefault("refusal", None)
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish_reason(reply)}
    return _head(reply, "chat.completion") | {"choices": [choice], "usage": _usage(reply)}


def chunks(reply: Reply, *, include_usage: bool = False) -> Iterator[str]:
    """The answer as server-sent events, up to the one that says that it is done.

    Args:
        reply: The answer, all of it.
        include_usage: Whether a last chunk tells how many tokens there were.
    """
    head = _head(reply, "chat.completion.chunk")

    def chunk(delta: Mapping[str, Any], finish_reason: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return sse(head | {"choices": [choice]} | ({"usage": None} if include_usage else {}))

    message = outgoing(reply.message)
    yield chunk({"role": "assistant", "content": ""})
    for piece in pieces(message.get("reasoning_content", "")):
        yield chunk({"reasoning_content": piece})
    for piece in pieces(message["content"]):
        yield chunk({"content": piece})
    for i, call in enumerate(message.get("tool_calls", ())):
        function = call["function"]
        yield chunk({"tool_calls": [{"index": i, **call, "function": {"name": function["name"], "arguments": ""}}]})
        for piece in pieces(function["arguments"]):
            yield chunk({"tool_calls": [{"index": i, "function": {"arguments": piece}}]})
    yield chunk({}, _finish_reason(reply))
    if include_usage:
        yield sse(head | {"choices": [], "usage": _usage(reply)})
    yield sse("[DONE]")


def _message(message: Any, param: str) -> Message:
    if not isinstance(message, Mapping):
        raise Refused(f"{param} must be an object", param, "invalid_type")
    message = cast(Body, message)
    role = _ROLES.get(text_at(message, "role", param))
    if role is None:
        raise Refused(f"{param}.role is not supported: {message['role']!r}", f"{param}.role", "unsupported")
    said: Message = {"role": role, "content": text_of(message.get("content"), f"{param}.content")}
    if name := text_at(message, "name", param, default=""):
        said["name"] = name
    if role == "tool":
        said["tool_call_id"] = text_at(message, "tool_call_id", param)
    if role == "assistant":
        refuse(message, function_call=())
        said["content"] = said["content"] or text_at(message, "refusal", param, default="")
        reasoning = message.get("reasoning_content") or message.get("reasoning")
        if isinstance(reasoning, str) and reasoning:
            said["reasoning_content"] = reasoning
        calls = list_at(message, "tool_calls", param)
        if calls:
            said["tool_calls"] = [_call(call, f"{param}.tool_calls[{i}]") for i, call in enumerate(calls)]
    return said


def _call(call: Any, param: str) -> dict[str, Any]:
    function = cast(Body, call).get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        raise Refused(f"{param} is no call of a function", param, "invalid_type")
    function = cast(Body, function)
    where = f"{param}.function"
    arguments = text_at(function, "arguments", where, default="{}")
    return called(text_at(cast(Body, call), "id", param, default=""), text_at(function, "name", where), arguments)


def _tool(tool: Any, param: str) -> dict[str, Any]:
    kind = cast(Body, tool).get("type") if isinstance(tool, Mapping) else None
    if kind != "function":
        raise Refused(f"{param} is of the type {kind!r}: only functions are supported", param, "unsupported")
    return tool_of(cast(Body, tool).get("function"), f"{param}.function")


def _said(reply: Reply) -> Message:
    message = outgoing(reply.message)
    if message.get("tool_calls"):
        message["content"] = message["content"] or None
    return message


def _finish_reason(reply: Reply) -> str:
    called = reply.finish_reason == "stop" and outgoing(reply.message).get("tool_calls")
    return "tool_calls" if called else reply.finish_reason


def _head(reply: Reply, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{reply.id}", "object": kind, "created": reply.created, "model": reply.model}


def _usage(reply: Reply) -> dict[str, int]:
    return {
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.completion_tokens,
        "total_tokens": reply.prompt_tokens + reply.completion_tokens,
    }
