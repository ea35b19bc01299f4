"""What of a message can be shown to a model that is given token ids: its text."""

from collections.abc import Mapping
from typing import Any, cast

__all__ = ["CannotRender", "text_only"]


class CannotRender(ValueError):
    """A message that the model can't be shown: another try ends in the same way."""


def text_only(message: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a message whose content is plain text: blocks of text are joined by line breaks.

    Raises:
        CannotRender: The message holds a picture or something else that is no text. Left out silently, as renderers
            do, it would have the model play blind.
    """
    content: Any = message.get("content")
    if content is None or isinstance(content, str):
        return dict(message)
    blocks = cast(list[Any], content) if isinstance(content, list) else [content]
    if others := sorted({_kind(block) for block in blocks if not _is_text(block)}):
        raise CannotRender(
            f"a message of the role {message.get('role')!r} holds {', '.join(others)}, and generators that are given"
            " token ids take text alone: let the environment describe what is to be seen, or play through a chat"
            " endpoint (ChatEndpointGenerator, chat=None), which is given messages as they are"
        )
    return {**message, "content": "\n".join(block["text"] for block in blocks)}


def _is_text(block: Any) -> bool:
    return isinstance(block, Mapping) and isinstance(cast(Mapping[str, Any], block).get("text"), str)


def _kind(block: Any) -> str:
    kind = cast(Mapping[str, Any], block).get("type") if isinstance(block, Mapping) else None
    if kind is None:
        return f"a value of the type {type(cast(object, block)).__name__}"
    return "a text without text" if kind == "text" else str(kind)
