"""What of a message can be shown to a model that is given token ids: its text."""

from collections.abc import Mapping
from typing import Any, cast

__all__ = ["CannotRender", "text_only"]


class CannotRender(ValueError):
    """A message that the model can't be shown: another try ends in the same way."""


def text_only(message: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a message whose content is plain text: blocks of text are joined by line breaks.

    Raises:
        CannotRender: The message holds a picture or something else that is no text. Left out silently, it would have
            the model play blind.
    """
    content: Any = message.get("content")
    if not isinstance(content, list):
        return dict(message)
    blocks = cast(list[dict[str, Any]], content)
    if others := sorted({str(block.get("type")) for block in blocks if not isinstance(block.get("text"), str)}):
        raise CannotRender(
            f"a message of the role {message.get('role')!r} holds {', '.join(others)}, and generators that are given"
            " token ids take text alone: let the environment describe what is to be seen, or play through a chat"
            " endpoint (ChatEndpointGenerator, chat=None), which is given messages as they are"
        )
    return {**message, "content": "\n".join(block["text"] for block in blocks)}
