"""Tools of a server as the typed methods that TRL looks for."""

import functools
import inspect
import keyword
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Union, cast

__all__ = ["DeclaredTool", "typed_method"]

Schema = Mapping[str, Any]

_TYPES: dict[str, Any] = {
    "integer": int,
    "number": float,
    "string": str,
    "boolean": bool,
    "null": None,
    "array": list,
    "object": dict,
}

# Python has no parameters of these names, or takes them for the object. Arguments may have them all the same.
_NO_PARAMETERS = frozenset({*keyword.kwlist, "self"})


class DeclaredTool(dict[str, Any]):
    """A tool of one environment: its declaration, in the shape that chat templates take, which can be called.

    Out of a method TRL makes a declaration by its types and its docstring, and these can't say all that JSON Schema
    can: what is in an object, the least and the most of a number, a default. A declaration it takes as it is.

    Args:
        tool: The tool as the server declares it: name, description, parameters.
        method: The typed method of the same tool, for whoever looks at types and docstring.
        call: Calls the tool with the arguments by name.
    """

    def __init__(self, tool: Schema, method: Callable[..., Any], call: Callable[..., Any]) -> None:
        super().__init__(type="function", function=dict(tool))
        functools.update_wrapper(self, method)
        self.__annotations__ = method.__annotations__
        self._call = call

    def __call__(self, /, **arguments: Any) -> Any:
        """Calls the tool."""
        return self._call(**arguments)


def typed_method(tool: Schema, call: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a method out of a tool: with its name, types for its parameters, and a Google docstring.

    Args:
        tool: The tool as the server declares it: name, description, parameters.
        call: Calls the tool, given the object and the arguments by name.
    """

    def method(self: Any, /, **arguments: Any) -> Any:
        return call(self, **arguments)

    parameters: Schema = tool.get("parameters") or {}
    properties: Mapping[str, Schema] = parameters.get("properties") or {}
    method.__name__ = method.__qualname__ = str(tool["name"])
    method.__doc__ = _docstring(tool, properties)
    if all(name.isidentifier() for name in properties) and _NO_PARAMETERS.isdisjoint(properties):  # pyright: ignore[reportUnnecessaryContains]
        required: Sequence[str] = parameters.get("required") or ()
        definitions: Mapping[str, Schema] = parameters.get("$defs") or {}
        hints = {name: _hint(schema, definitions, ()) for name, schema in properties.items()}
        own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        given = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if name in required else properties[name].get("default"),
                annotation=hint,
            )
            for name, hint in hints.items()
        ]
        method.__signature__ = inspect.Signature([own, *given])  # pyright: ignore[reportFunctionMemberAccess]
        method.__annotations__ = hints
    return method


def _docstring(tool: Schema, properties: Mapping[str, Schema]) -> str:
    text = str(tool.get("description") or tool["name"])
    if not properties:
        return text
    lines = [
        f"    {name}: {' '.join(str(schema.get('description', '')).split())}" for name, schema in properties.items()
    ]
    return "\n".join([text, "", "Args:", *lines])


def _hint(schema: Schema, definitions: Mapping[str, Schema], within: tuple[str, ...]) -> Any:
    """The Python type of what a schema describes, as far as there is one.

    Args:
        schema: The schema.
        definitions: What its references mean.
        within: The references that were followed to get here: a type that holds itself goes no deeper.
    """
    if "$ref" in schema:
        name = str(schema["$ref"]).removeprefix("#/$defs/")
        if name in within or name not in definitions:
            return Any
        return _hint(definitions[name], definitions, (*within, name))
    values: list[Any] = [schema["const"]] if "const" in schema else list(schema.get("enum") or ())
    if values:
        plain = all(isinstance(value, str | int | bool | None) for value in values)
        return Literal[tuple(values)] if plain else Any
    alternatives: list[Schema] = schema.get("anyOf") or schema.get("oneOf") or []
    kind: object = schema.get("type")
    if isinstance(kind, list):
        alternatives = [{**schema, "type": each} for each in cast(list[str], kind)]
    if alternatives:
        hints = [_hint(alternative, definitions, within) for alternative in alternatives]
        return Any if Any in hints else Union[tuple(hints)]  # noqa: UP007 - there may be any number of them
    if kind == "array" and isinstance(schema.get("items"), Mapping):
        return list[_hint(schema["items"], definitions, within)]
    if kind == "object" and isinstance(schema.get("additionalProperties"), Mapping):
        return dict[str, _hint(schema["additionalProperties"], definitions, within)]
    return _TYPES.get(kind, Any) if isinstance(kind, str) else Any
