"""Spaces of what JSON Schemas describe."""

import json
from collections.abc import Mapping
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium import spaces

from gymhost.wire.chat_spaces import FreeText
from gymhost.wire.errors import InvalidArgument

__all__ = ["Actions", "observation_space"]

Schema = Mapping[str, Any]

# What OpenEnv's base classes have, beside what environments add.
_COMMON = ("metadata", "reward", "done")


class Actions:
    """The actions of an environment, by their JSON Schema.

    Attributes:
        space: Their space: a text where they consist of one, and else a dict by the names of the fields. What no space
            describes, such as a list, is a text of JSON there.
    """

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._fields = _fields(schema)
        parts = {name: _space(field, schema) for name, field in self._fields.items()}
        texts = [name for name, field in self._fields.items() if _kind(field, schema) == "string"]
        # The name of the field that a text alone stands for.
        self._text = texts[0] if len(self._fields) == 1 and texts else ""
        # Those that may be a text, alone or among other things.
        self._texts = frozenset(name for name, field in self._fields.items() if _may_be_text(field, schema))
        self.space: gymnasium.Space[Any] = spaces.Dict(parts) if parts and not self._text else FreeText()

    def read(self, action: Any) -> dict[str, Any]:
        """Returns an action's fields as JSON has them.

        Args:
            action: A member of the space, or a dict with what JSON has. A text stands for the one field that there is,
                or is JSON.

        Raises:
            InvalidArgument: It is none.
        """
        if isinstance(action, str):
            if self._text:
                return {self._text: action}
            action = _parsed(action)
        if not isinstance(action, Mapping):
            raise InvalidArgument(f"an action is a dict with {', '.join(self._fields) or 'its fields'}, not {action!r}")
        fields = cast("Mapping[str, Any]", action)
        return {name: self._plain(name, value) for name, value in fields.items()}

    def _plain(self, name: str, value: Any) -> Any:
        if isinstance(value, (np.ndarray, np.generic)):
            return cast(Any, value).tolist()
        if not isinstance(value, str) or name not in self._fields:
            return value
        if name in self._texts:
            return value if value != "null" or _kind(self._fields[name], self._schema) == "string" else None
        return _parsed(value)


def observation_space(schema: Schema) -> gymnasium.Space[Any]:
    """Returns a space for observations, which are dicts with what JSON has.

    What no space describes, such as a list or what may be null, stands as a text in it.
    """
    return spaces.Dict({name: _space(field, schema) for name, field in _fields(schema).items()})


def _fields(schema: Schema) -> dict[str, Schema]:
    properties: dict[str, Schema] = dict(schema.get("properties") or {})
    return {name: field for name, field in properties.items() if name not in _COMMON}


def _space(field: Schema, whole: Schema) -> gymnasium.Space[Any]:
    field = _resolved(field, whole)
    low, high = field.get("minimum"), field.get("maximum")
    match _kind(field, whole):
        case "boolean":
            return spaces.Discrete(2)
        case "integer" if low is not None and high is not None and 0 <= high - low < 2**31:
            return spaces.Discrete(int(high - low) + 1, start=int(low))
        case "integer":
            bounds = np.iinfo(np.int64)
            return spaces.Box(bounds.min if low is None else low, bounds.max if high is None else high, (), np.int64)
        case "number":
            return spaces.Box(-np.inf if low is None else low, np.inf if high is None else high, (), np.float64)
        case _:
            return FreeText()


def _kind(field: Schema, whole: Schema) -> str:
    """The type of a field that may be nothing else."""
    field = _resolved(field, whole)
    kind: Any = field.get("type")
    choices: list[Any] = field.get("enum") or []
    if kind is None and choices and all(isinstance(one, str) for one in choices):
        return "string"
    return str(kind) if isinstance(kind, str) else ""


def _may_be_text(field: Schema, whole: Schema) -> bool:
    choices: list[Schema] = _resolved(field, whole).get("anyOf") or []
    return _kind(field, whole) == "string" or any(_may_be_text(one, whole) for one in choices)


def _resolved(field: Schema, whole: Schema) -> Schema:
    """A field without `$ref`; its definitions are those of the whole."""
    reference = field.get("$ref")
    if not isinstance(reference, str):
        return field
    return cast("dict[str, Schema]", whole.get("$defs") or {}).get(reference.rpartition("/")[2], {})


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidArgument(f"this is to be JSON: {error}: {text[:200]!r}") from None
