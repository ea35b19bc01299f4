"""The fields of a request in OpenAI's language: each as what it must be, or a refusal that names it."""

import json
import math
from collections.abc import Mapping
from typing import Any, cast

from gymhost.wire.openai import Body, Refused

__all__ = [
    "flag_at",
    "list_at",
    "number_at",
    "object_of",
    "refuse",
    "refuse_formats",
    "sampling_of",
    "stops_of",
    "text_at",
    "tools_wanted",
    "whole_at",
]

_MISSING: Any = object()
_LARGEST = 2**31 - 1


def object_of(body: Any) -> Body:
    """The body of a request.

    Raises:
        Refused: It is no JSON object.
    """
    if not isinstance(body, Mapping):
        raise Refused("the body must be a JSON object", code="invalid_type")
    return cast(Body, body)


def refuse(body: Body, **fields: tuple[Any, ...]) -> None:
    """Refuses fields that can't be honoured.

    Args:
        body: The request.
        fields: By the name of each field the values that ask for nothing special; None is always one.

    Raises:
        Refused: A field has another value.
    """
    for name, harmless in fields.items():
        value = body.get(name)
        if value is not None and value not in harmless:
            raise Refused(f"{name} = {json.dumps(value)[:100]} is not supported here", name, "unsupported_parameter")


def refuse_formats(asked: Any, param: str) -> None:
    """Refuses formats that only constrained decoding could promise.

    Raises:
        Refused: Another format than text is asked for.
    """
    kind = cast(Body, asked).get("type") if isinstance(asked, Mapping) else asked
    if kind not in (None, "text"):
        raise Refused(f"{param} = {kind!r} is not supported: what is sampled is text", param, "unsupported_parameter")


def tools_wanted(body: Body) -> bool:
    """Whether the model may call tools.

    Raises:
        Refused: It must, which nobody can promise.
    """
    choice = body.get("tool_choice")
    if choice not in (None, "none", "auto"):
        raise Refused(
            f"tool_choice = {json.dumps(choice)[:100]} is not supported: it may be none or auto",
            "tool_choice",
            "unsupported_parameter",
        )
    return choice != "none"


def sampling_of(body: Body) -> dict[str, Any]:
    """Those settings of sampling that a request names.

    Raises:
        Refused: One makes no sense.
    """
    named = {
        "temperature": number_at(body, "temperature", 0.0, 2.0),
        "top_p": number_at(body, "top_p", 0.0, 1.0),
        "top_k": whole_at(body, "top_k", -1),
        "min_p": number_at(body, "min_p", 0.0, 1.0),
        "seed": whole_at(body, "seed", -(2**63), 2**64),
    }
    if named["top_p"] == 0.0:
        raise Refused("top_p must be above 0", "top_p", "invalid_value")
    if named["top_k"] == -1:  # how vLLM says that there is no such limit
        named["top_k"] = 0
    return {name: value for name, value in named.items() if value is not None}


def stops_of(body: Body) -> tuple[str, ...]:
    """The texts before which an answer is to end.

    Raises:
        Refused: They are no texts.
    """
    stop = body.get("stop")
    texts = [stop] if isinstance(stop, str) else cast("list[Any]", stop or [])
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise Refused("stop must be a text or a list of texts", "stop", "invalid_type")
    return tuple(texts)


def text_at(body: Body, name: str, param: str = "", *, default: Any = _MISSING) -> str:
    """A text in an object; None is as good as nothing.

    Raises:
        Refused: It is missing, or no text.
    """
    value = body.get(name)
    value = default if value is None else value
    where = f"{param}.{name}" if param else name
    if value is _MISSING:
        raise Refused(f"{where} is missing", where, "missing_required_parameter")
    if not isinstance(value, str):
        raise Refused(f"{where} must be text", where, "invalid_type")
    return value


def list_at(body: Body, name: str, param: str = "") -> list[Any]:
    """A list in an object, or an empty one.

    Raises:
        Refused: It is something else.
    """
    value = body.get(name)
    where = f"{param}.{name}" if param else name
    if value is not None and not isinstance(value, list):
        raise Refused(f"{where} must be a list", where, "invalid_type")
    return cast("list[Any]", value or [])


def flag_at(body: Body, name: str) -> bool:
    """A flag of a request, off where it is missing.

    Raises:
        Refused: It is no flag.
    """
    value = body.get(name)
    if not isinstance(value, bool | None):
        raise Refused(f"{name} must be true or false", name, "invalid_type")
    return bool(value)


def number_at(body: Body, name: str, least: float, most: float) -> float | None:
    """A number of a request.

    Raises:
        Refused: It is none, or out of range.
    """
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise Refused(f"{name} must be a number", name, "invalid_type")
    if not least <= value <= most:
        raise Refused(f"{name} must be between {least:g} and {most:g}, not {value}", name, "invalid_value")
    return float(value)


def whole_at(body: Body, name: str, least: int, most: int = _LARGEST) -> int | None:
    """A whole number of a request.

    Raises:
        Refused: It is none, or out of range.
    """
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise Refused(f"{name} must be a whole number", name, "invalid_type")
    if not least <= value <= most:
        raise Refused(f"{name} must be {least} or more, not {value}", name, "invalid_value")
    return value
