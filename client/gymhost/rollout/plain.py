"""Values of any kind as what JSON can hold."""

import base64
import dataclasses
import io
import math
import os
import sys
from collections.abc import Mapping
from typing import Any, cast

from pydantic import BaseModel

__all__ = ["data_url", "plain", "text"]

_DEPTH = 64  # readers of JSON have a limit of their own, and what goes deeper than this is rarely data

_KINDS = (
    (b"\x89PNG\r\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"RIFF", "image/webp"),
    (b"BM", "image/bmp"),
)


def plain(value: Any, depth: int = _DEPTH) -> Any:
    """Returns `value` as what JSON can hold.

    Bytes and pictures become data URLs, so that nothing of an image block is lost; arrays and scalars of NumPy become
    lists and numbers, sets lists, dataclasses and pydantic models dicts, and paths text; floats that are no finite
    numbers become text ("nan", "inf"), since JSON has no such numbers; halves of surrogate pairs are escaped, since
    UTF-8 can't hold them. Whatever else there is becomes its `repr`.

    Args:
        value: Anything, such as a message or the info of an environment.
        depth: How deep lists and dicts may be nested before the rest becomes its `repr`.
    """
    if isinstance(value, str):
        return text(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else repr(float(value))
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return data_url(bytes(cast(bytes, value)))
    if isinstance(value, os.PathLike):
        return text(os.fsdecode(cast(os.PathLike[str], value)))
    if _is_picture(value):
        return _picture_url(value)
    inner = _inner(value)
    if inner is None or depth == 0:
        return text(repr(value))
    if isinstance(inner, dict):
        return {text(str(key)): plain(item, depth - 1) for key, item in cast(dict[Any, Any], inner).items()}
    if isinstance(inner, list):
        return [plain(item, depth - 1) for item in cast(list[Any], inner)]
    return plain(inner, depth - 1)


def _inner(value: Any) -> Any:
    """What a container holds, as a dict, a list or, of an array without dimensions, a scalar; None if it is none."""
    if isinstance(value, type):  # which has the methods of its instances
        return None
    if isinstance(value, Mapping):
        return dict(cast(Mapping[Any, Any], value))
    if isinstance(value, list | tuple):
        return list(cast(list[Any], value))
    if isinstance(value, set | frozenset):
        return sorted(cast(set[Any], value), key=repr)
    if hasattr(value, "tolist"):  # an array or a scalar, of NumPy or of torch
        return value.tolist()
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, BaseModel):
        return value.model_dump()
    return None


def text(value: str) -> str:
    """Returns a text that UTF-8 can hold: halves of surrogate pairs, as `json.loads` makes them, are escaped."""
    if value.isascii():
        return value
    return value.encode("utf-8", "backslashreplace").decode()


def data_url(data: bytes) -> str:
    """Returns bytes as a data URL, with the media type that they begin like."""
    kind = next((kind for start, kind in _KINDS if data.startswith(start)), "application/octet-stream")
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def _is_picture(value: Any) -> bool:
    # Whoever made a picture of Pillow's has imported Pillow.
    module: Any = sys.modules.get("PIL.Image")
    return module is not None and isinstance(value, module.Image)


def _picture_url(picture: Any) -> str:
    file = io.BytesIO()
    if picture.mode not in ("1", "L", "LA", "I", "I;16", "P", "RGB", "RGBA"):  # those of a PNG
        picture = picture.convert("RGB")
    picture.save(file, format="PNG")
    return data_url(file.getvalue())
