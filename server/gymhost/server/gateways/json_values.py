"""Values and spaces as JSON has them."""

from collections.abc import Callable, Mapping
from typing import Any, cast

import gymnasium
import numpy as np
import pydantic_core
from gymnasium import spaces

from gymhost.wire.chat_spaces import FreeText, Message, Messages
from gymhost.wire.errors import InvalidArgument

__all__ = ["dumps", "member", "plain", "schema"]

Schema = dict[str, Any]


def dumps(value: Any) -> str:
    """Returns a value in JSON: arrays are lists, bytes are base64, what is no finite number is null."""
    return pydantic_core.to_json(value, fallback=_fallback, inf_nan_mode="null", bytes_mode="base64").decode()


def plain(value: Any) -> Any:
    """Returns a value as JSON would be read."""
    return pydantic_core.from_json(dumps(value))


def schema(space: gymnasium.Space[Any]) -> Schema:
    """Returns the JSON Schema of a space's members."""
    of = cast(Any, space)
    match space:
        case FreeText() | spaces.Text():
            longest: int | None = of.max_length
            return {"type": "string"} if longest is None else {"type": "string", "maxLength": longest}
        case Message():
            return {"type": "object", "properties": {"role": {"type": "string"}, "content": {}}}
        case Messages():
            return {"type": "array", "items": {"type": "object"}}
        case spaces.Discrete():
            return {"type": "integer", "minimum": int(of.start), "maximum": int(of.start + of.n) - 1}
        case spaces.MultiBinary():
            return _array(of.shape, {"type": "integer", "minimum": 0, "maximum": 1})
        case spaces.MultiDiscrete():
            return _array(of.shape, {"type": "integer"}) | {"description": f"each below {of.nvec.tolist()}"}
        case spaces.Box():
            kind: Schema = {"type": "number" if of.dtype.kind == "f" else "integer"}
            for name, bound, most in (("minimum", of.low, min), ("maximum", of.high, max)):
                flat: list[float] = bound.ravel().tolist()
                if flat and np.isfinite(most(flat)):
                    kind[name] = most(flat)
            return _array(of.shape, kind) | {"description": f"{of.dtype}, of the shape {list(of.shape)}"}
        case spaces.Dict():
            parts: Mapping[str, gymnasium.Space[Any]] = of.spaces
            return {
                "type": "object",
                "properties": {str(name): schema(part) for name, part in parts.items()},
                "required": [str(name) for name in parts],
            }
        case spaces.Tuple():
            return {"type": "array", "prefixItems": [schema(part) for part in of.spaces]}
        case spaces.Sequence():
            return {"type": "array", "items": schema(of.feature_space)}
        case _:
            return {}


def member(space: gymnasium.Space[Any], value: Any) -> Any:
    """Returns the member of a space that a value of JSON stands for.

    Raises:
        InvalidArgument: It stands for none.
    """
    try:
        read = _member(space, value)
        fits = space.contains(read)
    except (IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise InvalidArgument(f"{_shown(value)} is not in {space}: {error}") from None
    if not fits:
        raise InvalidArgument(f"{_shown(value)} is not in {space}")
    return read


def _member(space: gymnasium.Space[Any], value: Any) -> Any:
    of = cast(Any, space)
    match space:
        case spaces.Dict():
            given = cast("dict[str, Any]", value)
            parts: Mapping[str, gymnasium.Space[Any]] = of.spaces
            if unknown := given.keys() - {str(name) for name in parts}:
                raise ValueError(f"there is no {sorted(unknown)[0]!r}")
            return {name: _member(part, given[str(name)]) for name, part in parts.items()}
        case spaces.Tuple():
            return tuple(_member(part, each) for part, each in zip(of.spaces, value, strict=True))
        case spaces.Discrete():
            if not isinstance(value, int):
                raise TypeError("it is to be a whole number")
            return int(value)
        case spaces.Box() | spaces.MultiBinary() | spaces.MultiDiscrete():
            return np.array(value, dtype=space.dtype).reshape(of.shape)
        case FreeText():
            # Which stands for what no space describes, too, as JSON.
            return value if isinstance(value, str) else dumps(value)
        case spaces.Text() | Message() | Messages():
            return value
        case _:
            return next(iter(space.from_jsonable([value])))


def _array(shape: tuple[int, ...], items: Schema) -> Schema:
    for size in reversed(shape):
        items = {"type": "array", "items": items, "minItems": size, "maxItems": size}
    return items


def _fallback(value: Any) -> Any:
    to_list: Callable[[], Any] | None = getattr(value, "tolist", None)
    return str(value) if to_list is None else to_list()


def _shown(value: Any) -> str:
    text = dumps(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
