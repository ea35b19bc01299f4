"""A session as OpenEnv has it: what its messages ask for, and what is answered."""

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, cast

from gymhost.client import Session
from gymhost.server.gateways.json_values import member, schema
from gymhost.wire import errors

__all__ = ["Episodes", "action_schema", "code_of", "listed", "observation_schema"]

Data = dict[str, Any]

# What an action that is a text is called: the first is the one that is told.
_TEXT = ("message", "text", "content")
_MESSAGE: Data = {
    "type": "object",
    "title": "Message",
    "description": "What an assistant says, and the tools that it calls, as OpenAI's API has them.",
    "properties": {
        "message": {"type": "string", "description": "The text."},
        "tool_calls": {"type": "array", "items": {"type": "object"}},
    },
}


def action_schema(space: Any, *, conversational: bool) -> Data:
    """The JSON Schema of actions."""
    if conversational:
        return _MESSAGE
    of = schema(space)
    if of.get("type") == "string":
        return {"type": "object", "title": "Text", "properties": {"message": of}, "required": ["message"]}
    if of.get("type") == "object":
        return {"title": "Action", **of}
    return {"type": "object", "title": "Action", "properties": {"value": of}, "required": ["value"]}


def observation_schema(space: Any, *, conversational: bool) -> Data:
    """The JSON Schema of observations."""
    if conversational:
        said = {"messages": schema(space), "text": {"type": "string"}}
    else:
        of = schema(space)
        said: Data = of["properties"] if of.get("type") == "object" else {"value": of}
    told = {"done": {"type": "boolean"}, "reward": {"type": ["number", "null"]}, "metadata": {"type": "object"}}
    return {"type": "object", "title": "Observation", "properties": said | told}


def listed(tools: Sequence[Mapping[str, Any]]) -> list[Data]:
    """Tools as OpenEnv lists them."""
    return [
        {"name": tool["name"], "description": tool["description"], "input_schema": tool["parameters"]} for tool in tools
    ]


def code_of(error: errors.Error) -> str:
    """OpenEnv's code of a failure of a command."""
    if isinstance(error, errors.InvalidArgument | errors.TooLarge):
        return "VALIDATION_ERROR"
    return "SESSION_ERROR" if isinstance(error, errors.SessionError) else "EXECUTION_ERROR"


class Episodes:
    """A session, and the state that OpenEnv has of it. One command at a time.

    Args:
        session: The session.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self._turn = asyncio.Lock()
        self._began = False
        self._episode = str(uuid.uuid4())
        self._named = False  # by the client
        self._steps = 0

    async def reset(self, data: Data) -> Data:
        """Begins an episode: a seed, an id, and options.

        Raises:
            Error: It could not.
        """
        options = dict(data)
        seed, episode = options.pop("seed", None), options.pop("episode_id", None)
        if self.session.conversational and "index" in options:
            options["task"] = options.pop("index")  # as OpenEnv's tasks are chosen
        async with self._turn:
            self._episode, self._named = str(episode or uuid.uuid4()), bool(episode)
            observation, info = await self.session.reset(seed=seed, options=options or None, label=self._episode[:128])
            self._began, self._steps = True, 0
        return {"observation": self._observed(observation, info), "reward": None, "done": False} | _metadata(info)

    async def step(self, data: Data) -> Data:
        """Acts.

        Raises:
            Error: It could not.
        """
        kind = data.get("type")
        if kind == "list_tools" and self.session.tools:
            return {"observation": {"tools": listed(self.session.tools), "metadata": {}}, "reward": None, "done": False}
        if kind == "call_tool" and self.session.tools:
            return await self.call_tool(str(data.get("tool_name")), data.get("arguments") or {})
        return self._stepped(await self._act(self._action(data)), {})

    async def call_tool(self, name: str, arguments: Data) -> Data:
        """Calls a tool.

        Raises:
            Error: It could not.
        """
        async with self._turn:
            stepped = await self._after_reset(lambda: self.session.call_tool(name, arguments))
        text = _text(stepped[0])
        result: Data = {"content": [{"type": "text", "text": text}], "data": text, "is_error": False}
        return self._stepped(stepped, {"tool_name": name, "result": result, "error": None})

    async def state(self) -> Data:
        """OpenEnv's state: that of the environment where it has one, else what is known here."""
        known = {"episode_id": self._episode, "step_count": self._steps}
        async with self._turn:
            try:
                own: Any = await self.session.get_attr("state")
            except (AttributeError, errors.PermissionDenied, errors.EnvironmentFault):
                return known
        if not isinstance(own, dict):
            return known
        return cast(Data, own) | ({"episode_id": self._episode} if self._named else {})

    async def _act(self, action: Any) -> Any:
        async with self._turn:
            return await self._after_reset(lambda: self.session.step(action))

    async def _after_reset(self, command: Any) -> Any:
        """Takes a step; one before the first reset, which OpenEnv's environments mostly answer, gets an episode."""
        try:
            stepped = await command()
        except errors.ResetNeeded:
            if self._began:
                raise
            await self.session.reset(label=self._episode)
            stepped = await command()
        self._began = True
        self._steps += 1
        return stepped

    def _action(self, data: Data) -> Any:
        fields = {name: value for name, value in data.items() if name != "metadata"}
        if self.session.conversational:
            unknown = fields.keys() - {*_TEXT, "tool_calls", "reasoning_content", "role"}
            if unknown or not fields:
                raise errors.InvalidArgument(
                    f"an action is a message, tool_calls, or both, not {', '.join(sorted(unknown)) or 'nothing'}"
                )
            text = next((fields[name] for name in _TEXT if name in fields), "")
            more = {name: fields[name] for name in ("tool_calls", "reasoning_content") if fields.get(name)}
            return {"role": "assistant", "content": text, **more}
        space: Any = self.session.action_space
        kind = schema(space).get("type")
        if kind == "object":
            parts: Mapping[str, Any] = {str(name): part for name, part in space.spaces.items()}
            if unknown := fields.keys() - parts.keys():
                raise errors.InvalidArgument(f"an action has no {sorted(unknown)[0]!r}, but {', '.join(parts)}")
            # What is left out may have a default.
            return {name: member(parts[name], value) for name, value in fields.items()}
        names = _TEXT if kind == "string" else ("value",)
        if len(fields) == 1 and (name := next(iter(fields))) in (*names, "value"):
            return member(space, fields[name])
        if kind == "string":
            # A text that stands for several fields, or for one with a name of its own.
            only = next(iter(fields.values())) if len(fields) == 1 else None
            return only if isinstance(only, str) else fields
        raise errors.InvalidArgument(f"an action has the one field {names[0]}, not {', '.join(fields) or 'none'}")

    def _observed(self, observation: Any, info: Data) -> Data:
        if self.session.conversational:
            said: Data = {"messages": observation, "text": _text(observation)}
        elif isinstance(observation, dict):
            said = cast(Data, observation)
        else:
            said = {"value": observation}
        return said if "metadata" in said else {**said, "metadata": info}

    def _stepped(self, stepped: Any, more: Data) -> Data:
        observation, reward, terminated, truncated, info = stepped
        told = {**info, "terminated": terminated, "truncated": truncated} if terminated or truncated else dict(info)
        # No reward is none, and never 0.
        paid = None if told.pop("reward_invalid", False) else reward
        observed = self._observed(observation, told) | more
        return {"observation": observed, "reward": paid, "done": terminated or truncated} | _metadata(told)


def _metadata(info: Data) -> Data:
    return {"metadata": info} if info else {}


def _text(messages: Any) -> str:
    """The text of messages."""
    if not isinstance(messages, list):
        return str(messages)
    contents = [cast(Data, message).get("content") for message in cast("list[Any]", messages)]
    parts: list[str] = []
    for content in contents:
        if isinstance(content, str):
            parts.append(content)
        else:
            parts += [str(block["text"]) for block in cast("list[Data]", content or []) if "text" in block]
    return "\n\n".join(parts)
