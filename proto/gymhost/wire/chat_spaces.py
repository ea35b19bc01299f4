"""Spaces of text and chat messages, which Gymnasium lacks.

They behave as custom spaces do in Gymnasium: a batch of them is a ``Tuple``, and nothing flattens them into arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from typing import Any, Literal, TypeVar, cast

import numpy as np
from gymnasium import Space
from gymnasium.error import Error
from gymnasium.spaces import Tuple
from gymnasium.spaces import utils as space_utils
from gymnasium.vector import utils as vector_utils

__all__ = ["ROLES", "ChatMessage", "FreeText", "Message", "Messages"]

ChatMessage = dict[str, Any]
"""A chat message: a dict with ``role``, ``content`` and what `Message` allows beside them."""

ROLES = ("system", "user", "assistant", "tool")
"""The roles of a chat, as OpenAI names them."""

_T = TypeVar("_T")

# What a message of a role may have beside role and content; all but tool_calls is text.
_OPTIONAL: dict[str, frozenset[str]] = {
    "system": frozenset({"name"}),
    "user": frozenset({"name"}),
    "assistant": frozenset({"name", "reasoning_content", "tool_calls"}),
    "tool": frozenset({"name", "tool_call_id"}),
}
# What samples are made of: letters mostly, and some of what breaks careless code.
_LETTERS = tuple("abcdefghijklmnopqrstuvwxyz    ABCXYZ0189.,:;!?'\"\\/<>{}[]\n\té世😀")
_SAMPLE_LENGTH = 64


class _ChatSpace(Space[_T]):
    """What the spaces here have in common."""

    @property
    def is_np_flattenable(self) -> Literal[False]:
        """No text becomes an array."""
        return False

    def sample(self, mask: None = None, probability: None = None) -> _T:
        """A random member of the space, as short as tests like it.

        Args:
            mask: Not supported, as with ``Box``.
            probability: Not supported, as with ``Box``.
        """
        if mask is not None or probability is not None:
            raise Error(f"{type(self).__name__}.sample takes no mask and no probability")
        return self._draw()

    def _draw(self) -> _T:
        raise NotImplementedError

    def _draw_text(self, longest: int = _SAMPLE_LENGTH) -> str:
        length = int(self.np_random.integers(longest + 1))
        return "".join(_LETTERS[int(i)] for i in self.np_random.integers(len(_LETTERS), size=length).tolist())


class FreeText(_ChatSpace[str]):
    """Any text at all, where ``gymnasium.spaces.Text`` needs a charset and a length.

    Args:
        max_length: The most characters; no limit by default.
        seed: For sampling.
    """

    def __init__(self, max_length: int | None = None, seed: int | np.random.Generator | None = None) -> None:
        if max_length is not None and max_length < 1:
            raise ValueError(f"max_length is the most characters, at least 1, not {max_length}")
        self.max_length = max_length
        super().__init__(dtype=str, seed=seed)

    def contains(self, x: Any) -> bool:
        """Whether x is a str, and no longer than may be."""
        return isinstance(x, str) and (self.max_length is None or len(x) <= self.max_length)

    def _draw(self) -> str:
        return self._draw_text(min(self.max_length or _SAMPLE_LENGTH, _SAMPLE_LENGTH))

    def __repr__(self) -> str:
        return "FreeText()" if self.max_length is None else f"FreeText({self.max_length})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FreeText) and self.max_length == other.max_length


class _RoleSpace(_ChatSpace[_T]):
    """A space of messages of certain roles."""

    def __init__(self, roles: Iterable[str] | None = None, seed: int | np.random.Generator | None = None) -> None:
        self.roles: tuple[str, ...] | None = None if roles is None else tuple(dict.fromkeys(roles))
        if self.roles is not None and (not self.roles or not set(self.roles) <= set(ROLES)):
            raise ValueError(f"roles are some of {', '.join(ROLES)}, not {self.roles}")
        super().__init__(seed=seed)

    def _is_message(self, x: Any) -> bool:
        if not isinstance(x, dict):
            return False
        message = cast("dict[Any, Any]", x)
        role, content = message.get("role"), message.get("content")
        if not isinstance(role, str) or role not in (self.roles or ROLES):
            return False
        if not isinstance(content, str) and not _all(content, _is_block):
            return False
        if len(message) == 2:
            return True
        for key in message.keys() - {"role", "content"}:
            if key not in _OPTIONAL[role]:
                return False
            item = message[key]
            if not (_all(item, _is_tool_call) if key == "tool_calls" else isinstance(item, str)):
                return False
        return True

    def _draw_message(self) -> ChatMessage:
        choices = self.roles or ROLES
        role = choices[int(self.np_random.integers(len(choices)))]
        message: ChatMessage = {"role": role, "content": self._draw_text()}
        if role == "tool":
            message["tool_call_id"] = f"call_{self.np_random.integers(10)}"
        elif role == "assistant":
            if self.np_random.integers(2):
                message["reasoning_content"] = self._draw_text()
            if self.np_random.integers(2):
                message["tool_calls"] = [self._draw_call(i) for i in range(int(self.np_random.integers(1, 3)))]
        return message

    def _draw_call(self, index: int) -> dict[str, Any]:
        arguments = {"text": self._draw_text(8), "number": int(self.np_random.integers(100))}
        function = {"name": f"tool_{self.np_random.integers(4)}", "arguments": arguments}
        return {"id": f"call_{index}", "type": "function", "function": function}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({'' if self.roles is None else list(self.roles)})"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.roles == cast("_RoleSpace[Any]", other).roles


class Message(_RoleSpace[ChatMessage]):
    """One chat message in OpenAI's shape, as a plain dict.

    ``role`` and ``content`` are always there; the content is text, or a list of blocks (dicts with a ``type``). Any
    message may have a ``name``, an assistant's ``reasoning_content`` and ``tool_calls``, a tool's ``tool_call_id``. A
    tool call is ``{"id": str, "type": "function", "function": {"name": str, "arguments": ...}}``; arguments that are no
    dict are a call that the model malformed, and stand as it wrote them.

    Args:
        roles: The roles that are allowed; all by default.
        seed: For sampling.
    """

    def contains(self, x: Any) -> bool:
        """Whether x is a valid message of an allowed role."""
        return self._is_message(x)

    def _draw(self) -> ChatMessage:
        return self._draw_message()


class Messages(_RoleSpace[list[ChatMessage]]):
    """A list of chat messages, such as those that are new since the last observation; it may be empty.

    Args:
        roles: The roles that are allowed; all by default.
        seed: For sampling.
    """

    def contains(self, x: Any) -> bool:
        """Whether x is a list of valid messages of allowed roles."""
        return _all(x, self._is_message)

    def _draw(self) -> list[ChatMessage]:
        return [self._draw_message() for _ in range(int(self.np_random.integers(1, 4)))]


def _all(items: Any, is_one: Callable[[Any], bool]) -> bool:
    return isinstance(items, list) and all(is_one(item) for item in cast("list[Any]", items))


def _is_block(x: Any) -> bool:
    return isinstance(x, dict) and isinstance(cast("dict[Any, Any]", x).get("type"), str)


def _is_tool_call(x: Any) -> bool:
    if not isinstance(x, dict):
        return False
    call = cast("dict[Any, Any]", x)
    function = call.get("function")
    if call.keys() != {"id", "type", "function"} or call["type"] != "function" or not isinstance(function, dict):
        return False
    function = cast("dict[Any, Any]", function)
    return (
        function.keys() == {"name", "arguments"} and isinstance(call["id"], str) and isinstance(function["name"], str)
    )


# Gymnasium's functions on spaces: those it does for every space by itself (batch_space, concatenate) are not here, and
# `iterate` is not to know these spaces, as it then iterates over a batch as a whole.


def _batch_differing(spaces: Sequence[Space[Any]]) -> Tuple[Any]:
    return Tuple([deepcopy(space) for space in spaces], seed=deepcopy(spaces[0].np_random))


def _create_empty_text(space: FreeText, n: int = 1, fn: Callable[..., Any] = np.zeros) -> tuple[str, ...]:
    return ("",) * n


def _create_empty_message(space: Message, n: int = 1, fn: Callable[..., Any] = np.zeros) -> tuple[ChatMessage, ...]:
    return tuple({"role": (space.roles or ROLES)[0], "content": ""} for _ in range(n))


def _create_empty_messages(
    space: Messages, n: int = 1, fn: Callable[..., Any] = np.zeros
) -> tuple[list[ChatMessage], ...]:
    return tuple([] for _ in range(n))


def _flatten_space(space: Space[Any]) -> Space[Any]:
    return space


def _flatten(space: Space[Any], x: Any) -> Any:
    return x


def _register() -> None:
    vector: Any = vector_utils
    vector.create_empty_array.register(FreeText, _create_empty_text)
    vector.create_empty_array.register(Message, _create_empty_message)
    vector.create_empty_array.register(Messages, _create_empty_messages)
    flat: Any = space_utils
    for kind in (FreeText, Message, Messages):
        vector.batch_differing_spaces.register(kind, _batch_differing)
        # A Dict with text in it flattens to a Dict, in which the text stays as it is.
        flat.flatten_space.register(kind, _flatten_space)
        flat.flatten.register(kind, _flatten)
        flat.unflatten.register(kind, _flatten)


_register()
