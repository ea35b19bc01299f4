"""Chat endpoints that answer in messages and name no token ids: for evaluation, with nothing to train on."""

import asyncio
import contextlib
import email.utils
import json
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any, cast

from gymhost.rollout.extras import require
from gymhost.rollout.generators.base import GeneratorError, GeneratorGone, PromptTooLong, Response, Sampling
from gymhost.rollout.plain import plain

__all__ = ["ChatEndpointGenerator"]

# HTTP statuses that a later attempt may not meet.
_PASSING = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 30.0
_CONNECT_SECONDS = 10.0
# Ends of a turn, by OpenAI's names and others'. What ended in another way, say by a filter, is half a turn: calls in it
# must not run.
_ENDS = frozenset({"stop", "tool_calls", "function_call", "eos", "eos_token", "stop_sequence", "end_turn", "tool_use"})
_TOO_LONG = ("context length", "context_length", "maximum context", "prompt is too long", "too many tokens")


class ChatEndpointGenerator:
    """Answers with the model behind an OpenAI-compatible endpoint (`/chat/completions`).

    Rollouts over it have messages, calls and rewards, but no tokens: good for evaluation. What the model thought is in
    the messages, and is not sent back.

    Args:
        url: The endpoint's base, such as "https://api.openai.com/v1" or "http://gpu3:8000/v1".
        model: The model's name there.
        api_key: The key, where one is needed.
        attempts: How often a request is sent at most, when the endpoint is busy, broken or out of reach.
        timeout: Seconds that an answer may take, all attempts together.
        policy_version: The version of the model, if somebody counts.
        name: What tells it from others; without one the model's name.
        extra: What else goes into each request, such as `{"reasoning_effort": "low"}`. None takes something out:
            `{"max_tokens": None, "max_completion_tokens": 2048}`.

    Raises:
        ValueError: A limit is not above 0.
    """

    def __init__(
        self,
        url: str,
        *,
        model: str,
        api_key: str | None = None,
        attempts: int = 5,
        timeout: float = 600.0,
        policy_version: int = 0,
        name: str | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        if not (attempts > 0 and timeout > 0):
            raise ValueError("a chat endpoint's attempts and timeout must be above 0")
        httpx = require("httpx", "rollout")
        self._httpx = httpx
        self.name = name or model
        self.policy_version = policy_version
        self._url = f"{url.rstrip('/')}/chat/completions"
        self._model = model
        self._attempts = attempts
        self._timeout = timeout
        self._extra = dict(extra or {})
        self._client = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
            timeout=httpx.Timeout(timeout, connect=_CONNECT_SECONDS),
        )

    async def respond(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        sampling: Sampling,
        *,
        request_id: str,
    ) -> Response:
        """Answers a conversation.

        Raises:
            PromptTooLong: The conversation is too long for the model.
            GeneratorGone: Nobody answers.
            GeneratorError: The endpoint refuses, is still busy after all attempts, took too long, or broke its answer
                off (by a filter, say).
        """
        body = self._body(messages, tools, sampling)
        problem: GeneratorError | None = None
        scope = asyncio.timeout(self._timeout)
        try:
            async with scope:
                for attempt in range(self._attempts):
                    answer, problem, wait = await self._ask(body, request_id)
                    if answer is not None:
                        return self._response(answer, first_call=_calls_in(messages))
                    if attempt + 1 == self._attempts or wait > self._timeout:
                        break
                    # Spread out, so that the rollouts of a batch do not come back all at once.
                    longest = min(_FIRST_WAIT * 2**attempt, _LONGEST_WAIT)
                    await asyncio.sleep(wait + random.uniform(longest / 2, longest))
        except asyncio.CancelledError as error:
            if problem:
                error.add_note(f"last, {problem}")  # whoever has lost patience says so
            raise
        except TimeoutError:
            if not scope.expired():
                raise
            last = f"; last, {problem}" if problem else ""
            raise GeneratorError(f"{self._url} took more than {self._timeout:g} s (timeout){last}") from None
        assert problem is not None
        raise problem

    async def aclose(self) -> None:
        """Closes the connections; requests in flight fail."""
        await self._client.aclose()

    async def _ask(self, body: dict[str, Any], request_id: str) -> tuple[Any, GeneratorError | None, float]:
        """Returns the answer, or None with what was wrong and how long the endpoint wants to be left alone.

        Raises:
            GeneratorError: Another attempt would be answered in the same way.
        """
        try:
            response = await self._client.post(self._url, json=body, headers={"X-Request-Id": request_id})
        except self._httpx.TransportError as error:
            return None, GeneratorGone(f"{self._url} does not answer: {error or type(error).__name__}"), 0.0
        if response.status_code == 200:
            try:
                return response.json(), None, 0.0
            except ValueError as error:
                raise GeneratorError(f"{self._url} answered what is no JSON: {response.text[:500]}") from error
        text = response.text[:1000]
        problem = GeneratorError(f"{self._url} answered {response.status_code}: {text}")
        if response.status_code in _PASSING:
            return None, problem, _retry_after(response.headers.get("Retry-After"))
        if response.status_code in (400, 413, 422) and any(words in text.lower() for words in _TOO_LONG):
            raise PromptTooLong(str(problem))
        raise problem

    def _body(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], sampling: Sampling
    ) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._model,
            "messages": [_outgoing(message) for message in messages],
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_tokens,
        }
        if tools:
            body["tools"] = [{"type": "function", "function": plain(dict(tool))} for tool in tools]
        # Not every endpoint knows these, so that they are sent only where they say something.
        optional = {"top_k": sampling.top_k or None, "min_p": sampling.min_p or None, "seed": sampling.seed}
        return {key: value for key, value in (body | optional | self._extra).items() if value is not None}

    def _response(self, answer: Any, first_call: int) -> Response:
        try:
            choice = answer["choices"][0]
            said: dict[str, Any] = choice["message"]
            content = _text(said.get("content")) or str(said.get("refusal") or "")
            message: dict[str, Any] = {"role": "assistant", "content": content}
            ended = str(choice.get("finish_reason") or "stop")
            if reasoning := said.get("reasoning_content") or said.get("reasoning"):
                message["reasoning_content"] = str(reasoning)
            if calls := said.get("tool_calls"):
                message["tool_calls"] = [_incoming(call, f"call_{first_call + i}") for i, call in enumerate(calls)]
            usage: dict[str, Any] = answer.get("usage") or {}
            response = Response(
                message,
                "length" if ended == "length" else "stop",
                int(usage.get("prompt_tokens") or 0),
                int(usage.get("completion_tokens") or 0),
            )
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            raise GeneratorError(f"{self._url} answered what is no chat completion: {str(answer)[:500]}") from error
        if ended != "length" and ended not in _ENDS:
            raise GeneratorError(f"{self._url} broke its answer off: {ended} (finish_reason)")
        return response


def _calls_in(messages: Sequence[Mapping[str, Any]]) -> int:
    return sum(len(message.get("tool_calls") or ()) for message in messages)


def _incoming(call: Mapping[str, Any], call_id: str) -> dict[str, Any]:
    """A call as the environment gets it: arguments as a dict, or what can't be parsed as the text that it is."""
    function: Mapping[str, Any] = call["function"]
    raw: Any = function.get("arguments") or "{}"
    arguments: Any = raw
    if isinstance(raw, str):
        with contextlib.suppress(ValueError, RecursionError):
            arguments = json.loads(raw)
    if not isinstance(arguments, dict):
        arguments = str(raw)
    named = {"name": str(function.get("name") or ""), "arguments": cast(Any, arguments)}
    return {"id": call.get("id") or call_id, "type": "function", "function": named}


def _outgoing(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message as endpoints take it: arguments as JSON text, pictures as data URLs."""
    role = message["role"]
    sent: dict[str, Any] = {"role": role, "content": _content(message.get("content"))}
    if role == "tool":
        sent["tool_call_id"] = message.get("tool_call_id", "")
    elif "name" in message:
        sent["name"] = message["name"]
    if calls := message.get("tool_calls"):
        sent["tool_calls"] = [_outgoing_call(call) for call in calls]
    return sent


def _outgoing_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function: Mapping[str, Any] = call["function"]
    arguments = function["arguments"]
    if not isinstance(arguments, dict):
        # Endpoints that render a template parse this, and refuse the whole conversation if it is no JSON object.
        arguments = {"malformed": str(arguments)}
    named = {"name": function["name"] or "unknown", "arguments": json.dumps(plain(cast(Any, arguments)))}
    return {"id": call.get("id", ""), "type": "function", "function": named}


def _content(content: Any) -> Any:
    if not isinstance(content, list):
        return "" if content is None else str(content)
    return [_block(block) for block in cast("list[Mapping[str, Any]]", content)]


def _block(block: Mapping[str, Any]) -> dict[str, Any]:
    if block.get("type") == "image":
        picture = next((block[key] for key in ("image", "url", "data") if key in block), None)
        return {"type": "image_url", "image_url": {"url": plain(picture)}}
    return plain(dict(block))


def _text(content: Any) -> str:
    if isinstance(content, list):
        blocks = cast("list[Mapping[str, Any]]", content)
        return "\n".join(str(block["text"]) for block in blocks if "text" in block)
    return "" if content is None else str(content)


def _retry_after(header: str | None) -> float:
    """How many seconds a Retry-After header asks for: a number, or a date."""
    if not header:
        return 0.0
    with contextlib.suppress(ValueError):
        return max(0.0, float(header))
    with contextlib.suppress(ValueError, TypeError):
        return max(0.0, email.utils.parsedate_to_datetime(header).timestamp() - time.time())
    return 0.0
