"""Policies for GuessNumber that know only the conversation, as a model does."""

import re
from collections.abc import Sequence
from random import Random

from gymhost.wire.chat_spaces import ChatMessage


def binary_search(messages: Sequence[ChatMessage]) -> ChatMessage:
    """Guesses the middle of what is left: as good as any policy can be."""
    low, high = remaining(messages)
    return call((low + high) // 2)


def blind(random: Random, messages: Sequence[ChatMessage]) -> ChatMessage:
    """Guesses any number of the game, whatever the answers were."""
    return call(random.randint(*_ranges(messages)[0]))


def consistent(random: Random, messages: Sequence[ChatMessage]) -> ChatMessage:
    """Guesses any number that is still possible."""
    return call(random.randint(*remaining(messages)))


def remaining(messages: Sequence[ChatMessage]) -> tuple[int, int]:
    """Returns the range that the last answer left open."""
    return _ranges(messages)[-1]


def call(number: int) -> ChatMessage:
    """Returns the assistant message that guesses a number."""
    function = {"name": "guess", "arguments": {"number": number}}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "call_0", "type": "function", "function": function}],
    }


def _ranges(messages: Sequence[ChatMessage]) -> list[tuple[int, int]]:
    texts = [message["content"] for message in messages if message["role"] in ("user", "tool")]
    found = [re.search(r"from (-?\d+) to (-?\d+)", text) for text in texts]
    return [(int(match[1]), int(match[2])) for match in found if match]
