"""Tools: methods of an environment that a model may call."""

import asyncio
import inspect
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, get_type_hints, overload

import pydantic
import pydantic_core
from pydantic.json_schema import GenerateJsonSchema

from gymhost.envs.content import Block, Content, clip

_MARK = "__gymhost_tool__"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

F = TypeVar("F", bound=Callable[..., Any])


class ToolError(Exception):
    """What a tool raises to tell the model that its call did not work; the text becomes the tool's answer."""


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as a model sees it.

    Attributes:
        name: What a call names.
        description: What it does.
        parameters: JSON Schema of the arguments, an object.
    """

    name: str
    description: str
    parameters: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Mark:
    name: str
    description: str | None
    timeout: float | None
    output_limit: int | None
    parallel: bool


@overload
def tool(function: F, /) -> F: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = None,
    output_limit: int | None = None,
    parallel: bool = False,
) -> Callable[[F], F]: ...
def tool(
    function: F | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = None,
    output_limit: int | None = None,
    parallel: bool = False,
) -> F | Callable[[F], F]:
    """Makes a method of a `ToolEnv` a tool.

    The method may be `def` or `async def`. Every parameter needs a type; types, defaults and the docstring (its `Args`
    section for the parameters) make the schema that the model sees and that its arguments are checked against. A result
    that is neither a `str` nor a `Content` is given to the model as JSON.

    Args:
        function: The method.
        name: The tool's name, if not the method's.
        description: What the tool does, if not what the docstring says.
        timeout: Seconds that a call may take; then it is cancelled, which the model is told. For `async def` alone: a
            `def` is bounded by the environment's `step_timeout`.
        output_limit: The most characters of text that a call may give the model; the middle of more is left out, which
            the model is told.
        parallel: Whether calls of one turn, of this and other parallel tools, may run at the same time. For `async def`
            alone.

    Raises:
        ValueError: `timeout` or `output_limit` is not above 0.
    """
    for setting, value in (("timeout", timeout), ("output_limit", output_limit)):
        if value is not None and not value > 0:
            raise ValueError(f"a tool's {setting} is above 0, or None for no limit, not {value!r}")

    def mark(function: F) -> F:
        setattr(function, _MARK, _Mark(name or function.__name__, description, timeout, output_limit, parallel))
        return function

    return mark if function is None else mark(function)


def marked_name(attribute: object) -> str | None:
    """Returns the name of the tool that an attribute of a class is, or None."""
    mark = _mark(attribute)
    return None if mark is None else mark.name


def _mark(attribute: object) -> _Mark | None:
    """Returns what `@tool` left; static and class methods are looked into, since they hide it."""
    return getattr(getattr(attribute, "__func__", attribute), _MARK, None)


class Tool:
    """A tool of a class: its spec, and how it is called.

    Attributes:
        spec: The tool as a model sees it.
        parallel: Whether it may run beside others.
    """

    __slots__ = ("_arguments", "_fields", "_function", "_output_limit", "_timeout", "parallel", "spec")

    def __init__(self, function: object) -> None:
        """Reads what is marked with `@tool`.

        Raises:
            TypeError: The method can't be a tool; the message says what to mend.
        """
        mark = _mark(function) or _Mark("", None, None, None, parallel=False)
        name = mark.name
        if not inspect.isfunction(function):
            raise TypeError(f"tool {name!r}: a tool is a plain method, not a {type(function).__name__}")
        if not _NAME.fullmatch(name):
            raise TypeError(f"tool {name!r}: a name has 1 to 64 letters, digits, '_' or '-'")
        if (mark.timeout is not None or mark.parallel) and not inspect.iscoroutinefunction(function):
            setting = "timeout" if mark.timeout is not None else "parallel"
            raise TypeError(f"tool {name!r}: {setting} is for tools that are `async def`; nothing stops others midway")
        summary, documented = parse_docstring(inspect.getdoc(function) or "")
        self._function = function
        self._timeout = mark.timeout
        self._output_limit = mark.output_limit
        self.parallel = mark.parallel
        self._fields, self._arguments = _arguments_model(name, function, documented)
        self.spec = ToolSpec(name, mark.description or summary, _schema(self._arguments))

    @property
    def is_async(self) -> bool:
        """Whether a call must be awaited."""
        return inspect.iscoroutinefunction(self._function)

    def check(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Returns the arguments as the method takes them.

        Raises:
            ToolError: They do not fit the schema; the text tells the model why.
        """
        try:
            # Arguments are JSON: so they are checked as JSON, where "7" is no integer but a date is a string.
            checked = self._arguments.model_validate_json(json.dumps(arguments), strict=True)
        except pydantic.ValidationError as error:
            problems = "; ".join(_problem(detail) for detail in error.errors(include_url=False))
            raise ToolError(f"invalid arguments for {self.spec.name}: {problems}") from None
        except (TypeError, ValueError) as error:
            raise ToolError(f"invalid arguments for {self.spec.name}: not JSON: {error}") from None
        return {name: getattr(checked, field) for field, name in self._fields.items()}

    async def call(self, owner: object, arguments: dict[str, Any]) -> str | list[Block]:
        """Calls the tool of an environment with checked arguments, and returns what the model is given.

        Raises:
            ToolError: The tool raised it, or its time was up.
        """
        result: Any
        if self._timeout is None:
            result = self._function(owner, **arguments)
            if inspect.isawaitable(result):
                result = await result
        else:
            allowed = asyncio.timeout(self._timeout)
            try:
                async with allowed:
                    result = await self._function(owner, **arguments)
            except TimeoutError:
                if not allowed.expired():
                    raise
                raise ToolError(f"{self.spec.name} took more than {self._timeout:g} s and was stopped") from None
        return render_result(result, self._output_limit)


def render_result(result: object, limit: int | None = None) -> str | list[Block]:
    """Returns a tool's result as the model is given it: a `str` as it is, a `Content` as blocks, all else as JSON.

    Args:
        result: What the tool returned.
        limit: The most characters of text; the middle of a longer one is left out.
    """
    if isinstance(result, Content):
        return result.blocks(limit)
    text = result if isinstance(result, str) else pydantic_core.to_json(result, fallback=_numpy_to_list).decode()
    return clip(text, limit)


def parse_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Splits a Google-style docstring into what comes before its sections and the texts of its `Args` section."""
    sections = re.split(r"^(Args|Arguments|Returns|Raises|Yields|Examples?|Notes?):[ \t]*$", text, flags=re.MULTILINE)
    documented: dict[str, str] = {}
    for title, body in zip(sections[1::2], sections[2::2], strict=True):
        if title not in ("Args", "Arguments"):
            continue
        entry = None
        body = inspect.cleandoc(body)
        for line in body.splitlines():
            start = re.match(r"(\w+)(?:\s*\([^)]*\))?:\s*(.*)", line)
            if start:
                entry = start[1]
                documented[entry] = start[2].strip()
            elif entry is not None:
                documented[entry] = f"{documented[entry]} {line.strip()}".strip()
    return sections[0].strip(), documented


def _arguments_model(
    tool: str, function: Callable[..., Any], documented: dict[str, str]
) -> tuple[dict[str, str], type[pydantic.BaseModel]]:
    """Makes a pydantic model of a method's parameters, and the map from its fields to their names.

    Fields have names of their own, because a parameter may be called what a model can't have (`json`, `schema`, `_x`).
    """
    hints = get_type_hints(function, include_extras=True)
    fields: dict[str, str] = {}
    definitions: dict[str, Any] = {}
    parameters = list(inspect.signature(function).parameters.values())[1:]
    for index, parameter in enumerate(parameters):
        name = parameter.name
        if parameter.kind not in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY):
            raise TypeError(f"tool {tool!r}: parameter {name!r} can't be given by name")
        if name not in hints:
            raise TypeError(f"tool {tool!r}: parameter {name!r} has no type")
        default = ... if parameter.default is inspect.Parameter.empty else parameter.default
        field = f"field_{index}"
        fields[field] = name
        definitions[field] = (hints[name], pydantic.Field(default, alias=name, description=documented.get(name)))
    unknown = sorted(documented.keys() - set(fields.values()))
    if unknown:
        raise TypeError(f"tool {tool!r}: its docstring describes {unknown[0]!r}, which is no parameter")
    config = pydantic.ConfigDict(extra="forbid", arbitrary_types_allowed=False)
    try:
        return fields, pydantic.create_model(tool, __config__=config, **definitions)
    except pydantic.errors.PydanticSchemaGenerationError as error:
        raise TypeError(f"tool {tool!r}: a parameter's type has no JSON form: {error.message}") from None


class _PlainSchema(GenerateJsonSchema):
    """Leaves out titles that only repeat the names."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _schema(model: type[pydantic.BaseModel]) -> dict[str, Any]:
    schema = model.model_json_schema(by_alias=True, schema_generator=_PlainSchema)
    schema.pop("title", None)
    schema.setdefault("properties", {})
    return schema


def _problem(detail: pydantic_core.ErrorDetails) -> str:
    place = ".".join(str(part) for part in detail["loc"])
    match detail["type"]:
        case "missing":
            return f"{place} is missing"
        case "extra_forbidden":
            return f"there is no argument {place}"
        case _:
            return f"{place}: {detail['msg']}, not {json.dumps(detail['input'], default=repr)}"


def _numpy_to_list(value: object) -> object:
    to_list = getattr(value, "tolist", None)
    if to_list is None:
        raise TypeError(f"a tool's result must be text or have a JSON form, and {type(value).__name__} has none")
    return to_list()
