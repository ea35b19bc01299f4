"""Messages of environments as TRL takes what an environment shows."""

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any

from gymhost.rollout.extras import require

__all__ = ["Content", "content_of"]

Content = str | list[dict[str, Any]]
"""The content of a message: its text, or blocks where there are pictures."""


def content_of(messages: Sequence[Mapping[str, Any]]) -> Content:
    """What several messages say, as the content of one.

    Raises:
        ValueError: A message holds what is neither text nor picture.
    """
    contents = [message.get("content") or "" for message in messages]
    blocks = [
        {"type": "text", "text": block["text"]} if block["type"] == "text" else _picture(block)
        for content in contents
        for block in ([{"type": "text", "text": content}] if isinstance(content, str) else content)
    ]
    if all(block["type"] == "text" for block in blocks):
        return "\n\n".join(block["text"] for block in blocks if block["text"])
    return blocks


def _picture(block: Mapping[str, Any]) -> dict[str, Any]:
    """A block as TRL takes pictures."""
    source: Mapping[str, Any] = block.get("image_url") or {}
    url = str(source.get("url"))
    kind, _, data = url.partition(";base64,")
    if block["type"] != "image_url" or not kind.startswith("data:image/"):
        raise ValueError(f"a message holds {block['type']}, and a model can be shown text and pictures alone")
    image: Any = require("PIL.Image", "trl").open(io.BytesIO(base64.b64decode(data)))
    image.load()
    return {"type": "image", "image": image}
