"""What was said and seen in a session, as text."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
from rich.text import Text

from gymhost.cli.top_views import RED, YELLOW, seconds_text
from gymhost.cli.words import clean
from gymhost.v1 import operations_pb2 as pb
from gymhost.v1.values_pb2 import Value
from gymhost.wire import values
from gymhost.wire.errors import DecodeError

__all__ = ["told", "turn"]

# Characters of one value, and numbers of an array, that are shown.
CHARACTERS, NUMBERS = 4000, 32


def turn(each: pb.FollowedTurn) -> Iterator[Text]:
    """A turn: a line that says what came of it, and what was said and seen."""
    line = Text.assemble(
        (f"{each.sequence:>5}  ", "dim"), (f"{clean(each.command):<9}", "bold"), f"{seconds_text(each.seconds):>8}"
    )
    if each.HasField("reward"):
        line.append(f"  reward {each.reward:g}", "green" if each.reward > 0 else "")
    for ended in ("terminated", "truncated"):
        if getattr(each, ended):
            line.append(f"  {ended}", YELLOW)
    if each.code != "OK":
        line.append(f"  {each.code}: {clean(each.message)}", RED)
    yield line
    if each.HasField("action"):
        yield from _value("said", each.action)
    if each.HasField("observation"):
        yield from _value("seen", each.observation)
    if each.HasField("info"):
        yield from _value("info", each.info)
    if each.left_out:
        yield Text("       too large to be followed: left out", "dim")
    if each.traceback:
        yield Text(clean(each.traceback).rstrip(), RED)


def _value(label: str, value: Value) -> Iterator[Text]:
    try:
        said = told(values.decode(value))
    except DecodeError as error:
        said = f"what can't be read: {error.message}"
    if said:
        first, *others = clean(said[:CHARACTERS]).splitlines() or [""]
        yield Text.assemble((f"       {label:<6}", "dim"), first)
        for other in others:
            yield Text(f"             {other}")
        if len(said) > CHARACTERS:
            yield Text(f"             ... {len(said) - CHARACTERS:,} characters more", "dim")


def told(value: Any) -> str:
    """A value as text: messages as a conversation, arrays that are large by what there is to say of them."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        mapping = cast(Mapping[Any, Any], value)
        if not mapping:
            return ""
        if "role" in mapping:
            return _message(mapping)
    if isinstance(value, list | tuple):
        items = list(cast(Sequence[Any], value))
        if items and all(isinstance(item, Mapping) and "role" in item for item in items):
            return "\n".join(map(_message, items))
    return json.dumps(_plain(value), ensure_ascii=False, default=repr)


def _message(message: Mapping[Any, Any]) -> str:
    content = message.get("content") or ""
    if not isinstance(content, str):
        blocks = cast(Sequence[Any], content)
        content = "\n".join(str(block.get("text", f"[{block.get('type')}]")) for block in blocks)
    lines = [f"{message['role']}: {content}".rstrip()]
    for call in message.get("tool_calls") or ():
        function = call.get("function", {})
        lines.append(f"  {function.get('name')} {told(function.get('arguments', {}))}")
    return "\n".join(lines)


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        array = cast("np.ndarray[Any, Any]", value)
        if array.size <= NUMBERS:
            return array.tolist()
        return f"array of {array.dtype}, {'x'.join(map(str, array.shape))}"
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in cast(Mapping[Any, Any], value).items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in cast(Sequence[Any], value)]
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    return value
