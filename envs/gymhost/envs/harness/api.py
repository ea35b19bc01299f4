"""OpenAI's API as a harness in a sandbox has it: what a request asks for, and the answer to it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gymhost.envs.harness.link import Answer, Asked
from gymhost.wire import openai_chat, openai_responses
from gymhost.wire.chat_spaces import ChatMessage
from gymhost.wire.openai import Ask, Refused, Reply
from gymhost.wire.openai_messages import with_names

__all__ = ["read", "refusal", "write"]

_CHAT, _RESPONSES = "/chat/completions", "/responses"


def read(asked: Asked, responses: Mapping[str, Sequence[ChatMessage]]) -> Ask:
    """Returns what a request asks for, with the whole conversation.

    Args:
        asked: The request.
        responses: Conversations up to responses that may be continued, by the ids of these.

    Raises:
        Refused: It is no request, or asks for what can't be had.
    """
    path = _path(asked)
    if not path.endswith((_CHAT, _RESPONSES)):
        raise Refused(f"there is no {asked.path}: there are {_CHAT} and {_RESPONSES}", status=404)
    try:
        body: Any = json.loads(asked.body)
    except (ValueError, RecursionError) as error:
        raise Refused(f"the body is no JSON: {error}") from None
    if path.endswith(_CHAT):
        return openai_chat.parse(body)
    ask = openai_responses.parse(body)
    if ask.previous is None:
        return ask
    before = responses.get(ask.previous)
    if before is None:
        raise Refused(f"there is no response {ask.previous}", "previous_response_id", status=404)
    return replace(ask, messages=with_names([*before, *ask.messages]))


def write(asked: Asked, ask: Ask, reply: Reply) -> Answer:
    """Returns the answer to a request, as events where it asks for a stream."""
    if _path(asked).endswith(_CHAT):
        if ask.stream:
            return _events("".join(openai_chat.chunks(reply, include_usage=ask.include_usage)))
        return _body(200, openai_chat.completion(reply))
    if ask.stream:
        return _events("".join(openai_responses.events(reply, ask)))
    return _body(200, openai_responses.response(reply, ask))


def refusal(refused: Refused) -> Answer:
    """Returns the answer that says why there is none."""
    return _body(refused.status, refused.body())


def _path(asked: Asked) -> str:
    return asked.path.partition("?")[0].rstrip("/")


def _events(text: str) -> Answer:
    return Answer(200, "text/event-stream", text.encode())


def _body(status: int, body: Mapping[str, Any]) -> Answer:
    return Answer(status, "application/json", json.dumps(body).encode())
