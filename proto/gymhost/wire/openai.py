"""OpenAI's language, which agents' harnesses speak, as gymhost's: what both of its APIs have in common.

`gymhost.wire.openai_chat` has `/v1/chat/completions`, `gymhost.wire.openai_responses` has `/v1/responses`. A body
becomes an `Ask`, and a `Reply` becomes a body or events. What a request asks for and can't be had is refused by name;
what makes no difference to what is said is taken and left alone.
"""

import json
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Ask", "Body", "Message", "Refused", "Reply", "error_body", "models", "sse"]

Message = dict[str, Any]
"""A message as environments and rollouts have it: the arguments of a call are a dict, or text if they are malformed."""

Body = Mapping[str, Any]


class Refused(Exception):
    """What OpenAI's API answers to a request that it does not take.

    Args:
        message: What is wrong, for a person.
        param: The field that it is about, such as "messages[2].content".
        code: What is wrong, for a program.
        status: The HTTP status.
        kind: The type of the error.
    """

    def __init__(
        self,
        message: str,
        param: str | None = None,
        code: str | None = None,
        *,
        status: int = 400,
        kind: str = "invalid_request_error",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.status = status
        self.kind = kind

    def body(self) -> dict[str, Any]:
        """The body of the answer."""
        return error_body(self.message, self.kind, self.param, self.code)


def error_body(
    message: str, kind: str = "server_error", param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """The body of an answer that says what went wrong."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


@dataclass(frozen=True, slots=True)
class Ask:
    """What a request asks for.

    Args:
        model: The name of the model, as the request has it.
        messages: The whole conversation, or with `previous` what is new in it.
        tools: What the model may call: name, description, parameters. Empty where the request forbids calls.
        sampling: Those of temperature, top_p, top_k, min_p and seed that the request names.
        max_tokens: The most tokens that the answer may have.
        stop: Texts before which the answer ends.
        stream: Whether the answer is to come as events.
        include_usage: Whether a stream of chat completions is to tell how many tokens there were.
        previous: The id of the response that this one continues.
        echoed: What a response repeats of its request.
    """

    model: str
    messages: list[Message]
    tools: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    sampling: dict[str, Any] = field(default_factory=dict[str, Any])
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stream: bool = False
    include_usage: bool = False
    previous: str | None = None
    echoed: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Reply:
    """What is answered.

    Args:
        message: The assistant's message. A malformed call in it is told as text, since no harness could run it.
        finish_reason: Either "stop", or "length" if a limit of tokens ended it.
        prompt_tokens: Tokens that the model was given.
        completion_tokens: Tokens that it sampled.
        model: The name of the model.
        id: What tells it from others: hexadecimal digits.
        created: Seconds since 1970.
    """

    message: Message
    finish_reason: str = "stop"
    prompt_tokens: int = 0
    completion_tokens: int = 0
    model: str = "policy"
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))


def models(*names: str) -> dict[str, Any]:
    """The body that `/v1/models` answers."""
    return {
        "object": "list",
        "data": [{"id": name, "object": "model", "created": 0, "owned_by": "gymhost"} for name in names],
    }


def sse(data: Mapping[str, Any] | str, event: str | None = None) -> str:
    """One server-sent event."""
    text = data if isinstance(data, str) else json.dumps(data)
    return f"event: {event}\ndata: {text}\n\n" if event else f"data: {text}\n\n"
