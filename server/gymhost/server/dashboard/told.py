"""What servers say as what JSON can hold, for pages."""

import base64
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from google.protobuf.message import Message

from gymhost.v1 import operations_pb2 as pb
from gymhost.wire import values
from gymhost.wire.errors import DecodeError

__all__ = ["followed", "told", "turn"]

# Of a value: how deep it is shown, how many items of a list, characters of a text, and numbers of an array.
DEPTH, ITEMS, CHARACTERS, NUMBERS = 8, 64, 20_000, 64
# The largest picture that is shown as one, in bytes.
PICTURE = 262_144


def told(value: Any) -> Any:
    """A message, or a dataclass of the client, by the names of its fields; what is no number becomes null."""
    if isinstance(value, Message):
        return {field.name: told(getattr(value, field.name)) for field in value.DESCRIPTOR.fields}
    if dataclasses.is_dataclass(value):
        return {field.name: told(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, Mapping):
        return {str(key): told(item) for key, item in cast(Mapping[Any, Any], value).items()}
    return [told(item) for item in value]


def followed(response: pb.FollowSessionResponse) -> dict[str, Any]:
    """What came of a session that is followed."""
    said: dict[str, Any] = {"turns": [turn(each) for each in response.turns], "missed": response.missed}
    if response.HasField("session"):
        said["session"] = told(response.session)
    if response.ended:
        said["ended"] = response.ended
    return said


def turn(each: pb.FollowedTurn) -> dict[str, Any]:
    """A turn, with what was said and seen."""
    said: dict[str, Any] = {
        name: told(getattr(each, name))
        for name in ("sequence", "command", "time", "seconds", "code", "message", "traceback", "left_out")
    }
    said |= {"terminated": each.terminated, "truncated": each.truncated}
    said["reward"] = told(each.reward) if each.HasField("reward") else None
    for name in ("action", "observation", "info"):
        if each.HasField(name):
            said[name] = _shown(getattr(each, name))
    return said


def _shown(value: Any) -> Any:
    try:
        return shown(values.decode(value))
    except DecodeError as error:
        return f"what can't be read: {error.message}"


def shown(value: Any, depth: int = DEPTH) -> Any:
    """A value of an environment, bounded: what is long says how long it is, and arrays what they are."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return value if len(value) <= CHARACTERS else f"{value[:CHARACTERS]} … ({len(value)} characters)"
    if isinstance(value, int):
        return value if abs(value) < 2**53 else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if isinstance(value, np.ndarray):
        return _array(cast("np.ndarray[Any, Any]", value))
    if isinstance(value, np.generic):
        return shown(value.item(), depth)
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    if depth == 0:
        return "…"
    if isinstance(value, Mapping):
        pairs = list(cast(Mapping[Any, Any], value).items())
        kept = {str(key): shown(item, depth - 1) for key, item in pairs[:ITEMS]}
        return kept if len(pairs) <= ITEMS else {**kept, "…": f"{len(pairs) - ITEMS} more"}
    if isinstance(value, list | tuple):
        items = cast(Sequence[Any], value)
        kept_items = [shown(item, depth - 1) for item in items[:ITEMS]]
        return kept_items if len(items) <= ITEMS else [*kept_items, f"… {len(items) - ITEMS} more"]
    return repr(value)[:CHARACTERS]


def _array(array: "np.ndarray[Any, Any]") -> Any:
    """An array: as a picture if it looks like one, all of it if it is short, or else what there is to say of it."""
    if array.dtype == np.uint8 and array.nbytes <= PICTURE and _is_picture(array.shape):
        data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
        return {"$picture": list(array.shape), "data": data}
    said: dict[str, Any] = {"$array": list(array.shape), "dtype": str(array.dtype)}
    if array.size <= NUMBERS:
        return said | {"values": shown(array.tolist())}
    if array.dtype.kind in "iuf":
        said |= {"min": shown(array.min()), "max": shown(array.max()), "mean": shown(float(array.mean()))}
    return said


def _is_picture(shape: tuple[int, ...]) -> bool:
    return len(shape) in (2, 3) and min(shape[:2]) >= 16 and (len(shape) == 2 or shape[2] in (1, 3, 4))
