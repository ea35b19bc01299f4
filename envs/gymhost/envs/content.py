"""What a tool shows a model beside plain text: text and pictures, in the blocks of chat messages."""

import base64
from dataclasses import dataclass
from typing import Any, cast

__all__ = ["Block", "Content", "Picture", "clip"]

Block = dict[str, Any]
"""A part of a message's content, as OpenAI has it: a dict with a `type`."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture for a model that can see.

    Attributes:
        data: The picture, as a file of its kind.
        media_type: Its kind, such as `image/png`.

    Raises:
        TypeError: The data is no bytes.
    """

    data: bytes
    media_type: str = "image/png"

    def __post_init__(self) -> None:
        if not isinstance(cast(object, self.data), bytes):
            raise TypeError(f"a picture is made of the bytes of its file, not of {type(self.data).__name__}")


class Content:
    """Texts and pictures in order, for a tool to return.

        return Content("The board after your move:", Picture(png))

    Args:
        *parts: Texts and pictures.

    Raises:
        TypeError: A part is neither.
    """

    __slots__ = ("parts",)

    def __init__(self, *parts: str | Picture) -> None:
        wrong = [part for part in parts if not isinstance(cast(object, part), (str, Picture))]
        if wrong:
            raise TypeError(f"content is made of texts and pictures, not of {type(wrong[0]).__name__}")
        self.parts = parts

    def blocks(self, limit: int | None = None) -> list[Block]:
        """Returns the blocks of a message: pictures as data URLs.

        Args:
            limit: The most characters of a text; the middle of a longer one is left out.
        """
        return [
            {"type": "text", "text": clip(part, limit)} if isinstance(part, str) else _image_block(part)
            for part in self.parts
        ]


def clip(text: str, limit: int | None) -> str:
    """Returns a text with its middle left out where it has more characters than may be, and says how many that are."""
    if limit is None or len(text) <= limit:
        return text
    head, tail = (limit + 1) // 2, limit // 2
    return f"{text[:head]}\n[... {len(text) - limit} characters left out ...]\n{text[len(text) - tail :]}"


def _image_block(picture: Picture) -> Block:
    url = f"data:{picture.media_type};base64,{base64.b64encode(picture.data).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}
