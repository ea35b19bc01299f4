"""A person's game: what is typed becomes actions, what comes of them is shown."""

import json
import shlex
from collections.abc import Callable
from typing import Any, cast

import click
import gymnasium
import numpy as np
from gymnasium import spaces

from gymhost.wire.chat_spaces import ChatMessage, Message
from gymhost.wire.errors import EnvironmentFault, InvalidArgument

__all__ = ["Player"]

_COLOURS = {"system": "magenta", "user": "cyan", "tool": "yellow", "assistant": "green"}

_TALK_HELP = """What you type is the model's turn:
  TOOL ARGUMENTS   calls a tool: guess 50, or guess number=50, or guess {"number": 50}
  anything else    is said as text
  /tools           the tools
  /history         the conversation so far
  /new [TASK]      another episode
  /help            this
  /quit            ends it, as Ctrl-D does"""

_ACTION_HELP = """What you type is the action, as JSON; a number alone will do where it is one.
  an empty line    takes a random action
  /space           what actions there are
  /new             another episode
  /help            this
  /quit            ends it, as Ctrl-D does"""


class NotUnderstoodError(Exception):
    """What was typed is no action; the text says why."""


class Player:
    """Plays an environment with a person at the keyboard.

    Args:
        env: The environment.
        id: Its id, to be shown.
        ask: Reads a line; raises EOFError at the end.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], id: str, ask: Callable[[str], str] = input) -> None:
        self._env: Any = env
        self._id = id
        self._ask = ask
        self._talks = isinstance(env.action_space, Message)
        self._tools: dict[str, dict[str, Any]] = {tool["name"]: tool for tool in getattr(env, "tools", ())}
        self._history: list[ChatMessage] = []
        self._return = 0.0
        self._steps = 0
        self._ended = True
        self._calls = 0

    def play(self, seed: int | None = None) -> None:
        """Plays until the person has enough."""
        click.secho(f"{self._id}: /help tells what to type, /quit ends", dim=True)
        self._begin({}, seed)
        while True:
            try:
                line = self._ask("> ").strip()
            except (EOFError, KeyboardInterrupt):
                click.echo()
                return
            if line in ("/quit", "/exit"):
                return
            try:
                self._take(line)
            except NotUnderstoodError as problem:
                click.secho(str(problem), fg="red")
            except EnvironmentFault as error:
                click.secho(f"The environment failed: {error}", fg="red")
                self._ended = True
            except InvalidArgument as error:
                click.secho(f"{error}: /new begins another episode", fg="red")
                self._ended = True

    def _take(self, line: str) -> None:
        name, _, rest = line.partition(" ")
        if name == "/help":
            click.echo(_TALK_HELP if self._talks else _ACTION_HELP)
        elif name == "/new":
            if rest and not (self._talks and rest.isdigit()):
                raise NotUnderstoodError("/new may be followed by the index of a task, where there are tasks")
            self._begin({"task": int(rest)} if rest else {})
        elif name == "/tools" and self._talks:
            click.echo("\n".join(_signature(tool) for tool in self._tools.values()) or "There are no tools.")
        elif name == "/history" and self._talks:
            for message in self._history:
                _show(message)
        elif name == "/space" and not self._talks:
            click.echo(str(self._env.action_space))
        elif name.startswith("/"):
            raise NotUnderstoodError(f"there is no {name}: /help tells what there is")
        elif self._ended:
            raise NotUnderstoodError("the episode has ended: /new begins another, /quit ends")
        elif self._talks:
            if line:
                self._step(self._message(line))
        else:
            self._step(read_action(self._env.action_space, line) if line else self._env.action_space.sample())

    def _begin(self, options: dict[str, Any], seed: int | None = None) -> None:
        observation, info = self._env.reset(seed=seed, options=options or None)
        self._return, self._steps, self._calls, self._ended = 0.0, 0, 0, False
        self._history = []
        where = ", ".join(f"{name} {info[name]}" for name in ("split", "task") if name in info)
        click.secho(f"A new episode{f' ({where})' if where else ''}", dim=True)
        self._see(observation)

    def _step(self, action: Any) -> None:
        if self._talks:
            self._history.append(action)
        observation, reward, terminated, truncated, info = self._env.step(action)
        self._return += reward
        self._steps += 1
        self._see(observation)
        if reward or not self._talks:
            click.secho(f"reward {reward:g}", dim=True)
        if terminated or truncated:
            self._ended = True
            how = "The episode has ended" if terminated else f"Cut off by {info.get('limit', 'its length')}"
            click.secho(f"{how} after {self._steps} turns. Reward in all: {self._return:g}", bold=True)
            for name, score in info.get("rewards", {}).items():
                click.echo(f"  {name}: {'invalid' if score is None else format(score, 'g')}")
            for error in info.get("rewards_errors", {}).values():
                click.secho(f"  {error.strip().splitlines()[-1]}", fg="red")
            click.secho("/new begins another", dim=True)

    def _see(self, observation: Any) -> None:
        if self._talks:
            self._history += observation
            for message in observation:
                _show(message)
            return
        if self._env.render_mode == "ansi":
            click.echo(self._env.render())
        click.echo(str(observation))

    def _message(self, line: str) -> ChatMessage:
        name, _, rest = line.partition(" ")
        tool = self._tools.get(name)
        if tool is None:
            return {"role": "assistant", "content": line}
        function = {"name": name, "arguments": read_arguments(tool["parameters"], rest.strip())}
        self._calls += 1
        call = {"id": f"call_{self._calls}", "type": "function", "function": function}
        return {"role": "assistant", "content": "", "tool_calls": [call]}


def read_arguments(schema: dict[str, Any], text: str) -> dict[str, Any]:
    """Reads the arguments of a tool: a JSON object, `name=value` pairs, or the value of the first parameter.

    Raises:
        NotUnderstoodError: They are none of these.
    """
    properties: dict[str, dict[str, Any]] = schema.get("properties", {})
    if not text:
        return {}
    if text.startswith("{"):
        try:
            return json.loads(text)
        except ValueError as error:
            raise NotUnderstoodError(f"that is no JSON object: {error}") from None
    if text.partition("=")[0].strip() in properties:
        try:
            pairs = [word.partition("=") for word in shlex.split(text)]
        except ValueError as error:
            raise NotUnderstoodError(f"arguments are name=value, in quotes where there are spaces: {error}") from None
        if not all(equals for _, equals, _ in pairs):
            raise NotUnderstoodError("arguments are name=value, in quotes where there are spaces")
        return {name: _value(properties.get(name, {}), value) for name, _, value in pairs}
    if not properties:
        raise NotUnderstoodError("this tool takes no arguments")
    first = next(iter(properties))
    return {first: _value(properties[first], text)}


def read_action(space: gymnasium.Space[Any], text: str) -> Any:
    """Reads an action of a space from JSON; what is no JSON is a text.

    Raises:
        NotUnderstoodError: The space has no such action.
    """
    try:
        value: Any = json.loads(text)
    except ValueError:
        value = text
    try:
        action = _fit(space, value)
    except (TypeError, ValueError, KeyError, OverflowError):
        action = None
    if action is None or not space.contains(action):
        raise NotUnderstoodError(f"actions are of {space}: {text!r} is none")
    return action


def _fit(space: gymnasium.Space[Any], value: Any) -> Any:
    if isinstance(space, spaces.Dict):
        named = cast("dict[str, gymnasium.Space[Any]]", space.spaces)  # pyright: ignore[reportUnknownMemberType]
        return {name: _fit(inner, value[name]) for name, inner in named.items()}
    if isinstance(space, spaces.Tuple):
        parts = cast("tuple[gymnasium.Space[Any], ...]", space.spaces)  # pyright: ignore[reportUnknownMemberType]
        return tuple(_fit(inner, item) for inner, item in zip(parts, value, strict=True))
    if isinstance(space, spaces.Discrete):
        return cast(Any, space.dtype).type(value) if isinstance(value, int) else None
    if isinstance(space, (spaces.Box, spaces.MultiDiscrete, spaces.MultiBinary)):
        return np.asarray(value, cast(Any, space).dtype).reshape(cast(Any, space).shape)
    return value


def _value(schema: dict[str, Any], text: str) -> Any:
    """A typed value as JSON, unless the parameter is a text."""
    if schema.get("type") == "string":
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def _signature(tool: dict[str, Any]) -> str:
    parameters: dict[str, Any] = tool["parameters"].get("properties", {})
    head = f"{tool['name']} {' '.join(parameters)}".strip()
    summary = str(tool["description"]).partition("\n")[0]
    return f"  {head}: {summary}" if summary else f"  {head}"


def _show(message: ChatMessage) -> None:
    content = message["content"]
    if not isinstance(content, str):
        content = "\n".join(block.get("text", f"[{block['type']}]") for block in content)
    for call in message.get("tool_calls", ()):
        function = call["function"]
        content = f"{content}\n{function['name']} {json.dumps(function['arguments'])}".strip()
    role = str(message["role"])
    click.echo(f"{click.style(f'{role}:', fg=_COLOURS.get(role), bold=True)} {content}")
