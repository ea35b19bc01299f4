"""Tools: what the model sees of a method, and how its arguments are checked."""

import dataclasses
import datetime
import enum
import json
import math
from typing import Annotated, Any, Literal

import numpy as np
import pydantic
import pytest

from gymhost.envs import Content, Picture, Task, ToolEnv, ToolSpec, tool
from gymhost.envs.tools import render_result


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Point(pydantic.BaseModel):
    x: int
    y: int = 0


class Plain(ToolEnv):
    got: Any = None

    def prompt(self, task: Task) -> str:
        return "Go."


def call(env: ToolEnv, name: str, arguments: dict[str, Any]) -> str:
    """Calls a tool in a fresh episode and returns what the model is told."""
    env.reset()
    function = {"name": name, "arguments": arguments}
    observation, *_ = env.step({"role": "assistant", "content": "", "tool_calls": [{"function": function}]})
    return observation[0]["content"]


def test_a_schema_is_made_of_types_defaults_and_docstring() -> None:
    class Env(Plain):
        @tool
        def search(self, query: str, limit: int = 10, mode: Literal["any", "all"] = "any") -> str:
            """Searches the corpus.

            Finds passages, best first.

            Args:
                query: What to look for,
                    in plain words.
                limit (int): The most passages.

            Returns:
                The passages.
            """
            return f"{query} {limit} {mode}"

    assert Env().tools == [
        ToolSpec(
            "search",
            "Searches the corpus.\n\nFinds passages, best first.",
            {
                "type": "object",
                "properties": {
                    "query": {"type": "string", "description": "What to look for, in plain words."},
                    "limit": {"type": "integer", "default": 10, "description": "The most passages."},
                    "mode": {"enum": ["any", "all"], "type": "string", "default": "any"},
                },
                "required": ["query"],
                "additionalProperties": False,
            },
        )
    ]
    assert call(Env(), "search", {"query": "cats"}) == "cats 10 any"
    assert call(Env(), "search", {"query": "cats", "mode": "all", "limit": 3}) == "cats 3 all"


def test_a_tool_without_parameters_takes_an_empty_object() -> None:
    class Env(Plain):
        @tool
        def look(self) -> str:
            """Looks."""
            return "dark"

    assert Env().tools[0].parameters == {"type": "object", "properties": {}, "additionalProperties": False}
    assert call(Env(), "look", {}) == "dark"


def test_arguments_become_python_values() -> None:
    class Env(Plain):
        @tool
        def put(
            self,
            colour: Colour,
            at: Point,
            day: datetime.date,
            path: tuple[int, int],
            size: Annotated[float, pydantic.Field(gt=0)],
            note: str | None = None,
        ) -> str:
            """Puts it."""
            self.got = (colour, at, day, path, size, note)
            return "ok"

    env = Env()
    arguments = {"colour": "blue", "at": {"x": 1}, "day": "2024-02-03", "path": [1, 2], "size": 2}
    assert call(env, "put", arguments) == "ok"
    assert env.got == (Colour.BLUE, Point(x=1, y=0), datetime.date(2024, 2, 3), (1, 2), 2.0, None)
    answer = call(env, "put", arguments | {"colour": "green", "at": {"y": 1}, "size": -1.0})
    assert "colour: Input should be 'red' or 'blue', not \"green\"" in answer
    assert "at.x is missing" in answer
    assert "size: Input should be greater than 0, not -1.0" in answer
    json.dumps(env.tools[0].parameters)


def test_parameters_may_have_names_that_a_model_class_can_not() -> None:
    class Env(Plain):
        @tool
        def odd(self, json: str, schema: str, model_config: str, _private: str) -> str:
            """Is odd."""
            return json + schema + model_config + _private

    assert list(Env().tools[0].parameters["properties"]) == ["json", "schema", "model_config", "_private"]
    assert call(Env(), "odd", {"json": "a", "schema": "b", "model_config": "c", "_private": "d"}) == "abcd"
    assert "there is no argument field_0" in call(Env(), "odd", {"field_0": "a"})


def test_a_tool_may_have_another_name_and_description() -> None:
    class Env(Plain):
        @tool(name="read-file", description="Reads.")
        def read(self) -> str:
            """Not told."""
            return "text"

    assert [(spec.name, spec.description) for spec in Env().tools] == [("read-file", "Reads.")]
    assert call(Env(), "read-file", {}) == "text"
    assert "there is no tool 'read'" in call(Env(), "read", {})


def test_tools_are_inherited_in_order_and_may_be_taken_away() -> None:
    class Base(Plain):
        @tool
        def one(self) -> str:
            """One."""
            return "1"

        @tool
        def two(self) -> str:
            """Two."""
            return "2"

    class Sub(Base):
        @tool
        def three(self) -> str:
            """Three."""
            return "3"

        def one(self) -> str:
            return "no tool any more"

    assert [spec.name for spec in Base().tools] == ["one", "two"]
    assert [spec.name for spec in Sub().tools] == ["two", "three"]


@pytest.mark.parametrize(
    "name", ["close", "reset", "step", "render", "seed", "setup", "prompt", "finish", "areset", "tools"]
)
def test_what_every_environment_has_can_be_no_tool(name: str) -> None:
    def method(self: Any) -> str:
        """Does it."""
        return ""

    with pytest.raises(TypeError, match=f"'{name}' belongs to every environment"):
        type("Env", (Plain,), {name: tool(method)})
    with pytest.raises(TypeError, match=f"'{name}' belongs to every environment"):
        type("Env", (Plain,), {"harmless": tool(name=name)(method)})


def test_a_method_that_can_be_no_tool_is_refused_where_it_is_written() -> None:
    def untyped(self: Any, number) -> str:  # type: ignore[no-untyped-def] # pyright: ignore[reportMissingParameterType]
        """Has no type."""
        return ""

    def starred(self: Any, *numbers: int) -> str:
        """Has a star."""
        return ""

    def misdocumented(self: Any, number: int) -> str:
        """Has a typing error.

        Args:
            nubmer: What?
        """
        return ""

    def unknown(self: Any, number: np.random.Generator) -> str:
        """Has a type that JSON knows nothing of."""
        return ""

    for method, says in (
        (untyped, "parameter 'number' has no type"),
        (starred, "parameter 'numbers' can't be given by name"),
        (misdocumented, "describes 'nubmer', which is no parameter"),
        (unknown, "type has no JSON form"),
    ):
        with pytest.raises(TypeError, match=says):
            type("Env", (Plain,), {"method": tool(method)})
    for kind in (staticmethod, classmethod):
        with pytest.raises(TypeError, match=f"a tool is a plain method, not a {kind.__name__}"):
            type("Env", (Plain,), {"method": kind(tool(untyped))})
    with pytest.raises(TypeError, match="two tools named 'same'"):
        type("Env", (Plain,), {"a": tool(name="same")(lambda self: ""), "b": tool(name="same")(lambda self: "")})
    with pytest.raises(TypeError, match="1 to 64 letters"):
        type("Env", (Plain,), {"a": tool(name="two words")(lambda self: "")})


@dataclasses.dataclass
class Found:
    place: str
    score: float


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ("as it is\n", "as it is\n"),
        ("", ""),
        (None, "null"),
        (7, "7"),
        ({"a": [1, True, None]}, '{"a":[1,true,null]}'),
        ([Found("hier", 0.5)], '[{"place":"hier","score":0.5}]'),
        (Point(x=1), '{"x":1,"y":0}'),
        (np.arange(3), "[0,1,2]"),
        ({"mean": np.float32(0.5)}, '{"mean":0.5}'),
        ("ünïcode", "ünïcode"),
        (["ünïcode"], '["ünïcode"]'),
    ],
)
def test_a_result_is_text_as_it_is_and_all_else_json(result: Any, text: str) -> None:
    assert render_result(result) == text


def test_a_result_without_a_json_form_is_a_fault_of_the_environment() -> None:
    with pytest.raises(Exception, match="object has none"):
        render_result(object())
    assert render_result([math.pi]) == json.dumps([math.pi])


def test_a_result_of_texts_and_pictures_becomes_blocks() -> None:
    class Env(Plain):
        @tool
        def look(self) -> Content:
            """Looks."""
            return Content("The board:", Picture(b"\x89PNG"))

    env = Env()
    env.reset()
    observation, *_ = env.step({"role": "assistant", "content": "", "tool_calls": [{"name": "look", "arguments": {}}]})
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw=="}}
    assert observation[0]["content"] == [{"type": "text", "text": "The board:"}, picture]
    assert env.observation_space.contains(observation)
    with pytest.raises(TypeError, match="not of int"):
        Content("a", 7)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="bytes of its file, not of str"):
        Picture("board.png")  # pyright: ignore[reportArgumentType]


def test_the_middle_of_a_long_result_is_left_out_and_that_is_said() -> None:
    class Env(Plain):
        @tool(output_limit=10)
        def say(self, length: int) -> str:
            """Says much."""
            return "abcdefghijklmnopqrstuvwxyz"[:length]

    assert call(Env(), "say", {"length": 10}) == "abcdefghij"
    assert call(Env(), "say", {"length": 26}) == "abcde\n[... 16 characters left out ...]\nvwxyz"


@pytest.mark.parametrize("setting", ["timeout", "output_limit"])
def test_limits_are_above_zero(setting: str) -> None:
    settings: dict[str, Any] = {setting: 0}
    with pytest.raises(ValueError, match=setting):
        tool(**settings)


@pytest.mark.parametrize("settings", [{"timeout": 1.0}, {"parallel": True}])
def test_what_can_not_be_stopped_midway_has_no_timeout_and_is_not_parallel(settings: dict[str, Any]) -> None:
    def blocks(self: ToolEnv) -> str:
        """Blocks."""
        return ""

    with pytest.raises(TypeError, match="async def"):
        type("Env", (Plain,), {"blocks": tool(**settings)(blocks)})
