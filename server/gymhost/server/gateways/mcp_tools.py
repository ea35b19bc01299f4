"""An environment as tools of the Model Context Protocol."""

from collections.abc import Callable, Coroutine
from typing import Any, cast

import mcp_types as types

from gymhost.client import EnvironmentDescription, Session
from gymhost.server.gateways.json_values import dumps, member, plain, schema
from gymhost.wire import errors

__all__ = ["Tools"]

Arguments = dict[str, Any]
Result = types.CallToolResult


class Tools:
    """The tools of an environment: its own, and those by which an episode is begun and played.

    `reset` begins an episode. One without tools of its own is played by `say`, where its actions are texts, or by
    `step`. `evaluate` ends and scores an episode of a conversation. What of the environment's own has one of these
    names keeps it: then the other one begins with `gymhost_`.

    Args:
        described: The environment.

    Attributes:
        listed: The tools.
    """

    def __init__(self, described: EnvironmentDescription) -> None:
        self._own = {tool["name"] for tool in described.tools}
        self._texts = described.conversational or schema(cast(Any, described.action_space)).get("type") == "string"
        self.listed = [
            types.Tool(name=tool["name"], description=tool["description"], input_schema=tool["parameters"])
            for tool in described.tools
        ]
        self._more: dict[str, Callable[[Session, Arguments], Coroutine[Any, Any, Result]]] = {}
        task: dict[str, Any] = {
            "task": {"type": "integer", "minimum": 0, "description": "Which task to play; without it one is drawn."},
            "split": {"type": "string", "enum": list(described.splits)},
        }
        seed: dict[str, Any] = {"seed": {"type": "integer", "description": "Makes the episode repeatable."}}
        about = f" {described.description}" if described.description else ""
        self._add(
            "reset", f"Begins an episode of {described.id}.{about}", seed | (task if described.splits else {}), _reset
        )
        if not described.tools and self._texts:
            self._add("say", "Takes a turn: says something.", {"text": {"type": "string"}}, _say, required=["text"])
        elif not described.tools:
            action = {"action": schema(cast(Any, described.action_space))}
            self._add("step", "Takes a step.", action, _step, required=["action"])
        if described.conversational:
            self._add("evaluate", "Ends the episode, and tells what it is worth.", {}, _evaluate)

    async def call(self, session: Session, name: str, arguments: Arguments) -> Result:
        """Calls a tool.

        Raises:
            Error: It failed; a `SessionError` where the session has ended.
        """
        if name in self._own:
            return _stepped(await session.call_tool(name, arguments))
        if name in self._more:
            return await self._more[name](session, arguments)
        raise errors.InvalidArgument(
            f"there is no tool {name!r}; the tools are {', '.join(self._own | self._more.keys())}"
        )

    def _add(self, name: str, description: str, properties: dict[str, Any], call: Any, required: Any = ()) -> None:
        name = f"gymhost_{name}" if name in self._own else name
        parameters: dict[str, Any] = {"type": "object", "properties": properties, "required": list(required)}
        self.listed.append(types.Tool(name=name, description=description, input_schema=parameters))
        self._more[name] = call


async def _reset(session: Session, arguments: Arguments) -> Result:
    options = {name: arguments[name] for name in ("task", "split") if arguments.get(name) is not None}
    observation, info = await session.reset(seed=arguments.get("seed"), options=options or None)
    return _result(observation, {"info": plain(info)})


async def _say(session: Session, arguments: Arguments) -> Result:
    text = arguments.get("text")
    if not isinstance(text, str):
        raise errors.InvalidArgument("text is what to say")
    return _stepped(await session.step(text))


async def _step(session: Session, arguments: Arguments) -> Result:
    if "action" not in arguments:
        raise errors.InvalidArgument("action is what to do")
    return _stepped(await session.step(member(session.action_space, arguments["action"])))


async def _evaluate(session: Session, arguments: Arguments) -> Result:
    return _stepped(await session.evaluate())


def _stepped(stepped: Any) -> Result:
    observation, reward, terminated, truncated, info = stepped
    told = dict(info)
    # No reward is none, and never 0.
    paid = None if told.pop("reward_invalid", False) else reward
    ends = {"reward": plain(paid), "terminated": terminated, "truncated": truncated, "info": plain(told)}
    return _result(observation, ends)


def _result(observation: Any, told: dict[str, Any]) -> Result:
    messages = _messages(observation)
    if messages is None:
        content: list[Any] = [types.TextContent(text=dumps(observation))]
    else:
        content = [block for message in messages for block in _blocks(message.get("content"))]
    if told.get("terminated") or told.get("truncated"):
        paid = "no reward could be told" if told["reward"] is None else f"reward {told['reward']:g}"
        content.append(types.TextContent(text=f"The episode has ended: {paid}."))
    return Result(content=content, structured_content={"observation": plain(observation), **told})


def _messages(observation: Any) -> list[dict[str, Any]] | None:
    """The messages that an observation consists of; None where it does not."""
    if not isinstance(observation, list):
        return None
    parts = cast("list[Any]", observation)
    are = all(isinstance(part, dict) and "role" in part and "content" in part for part in parts)
    return cast("list[dict[str, Any]]", parts) if are else None


def _blocks(content: Any) -> list[Any]:
    if isinstance(content, str):
        return [types.TextContent(text=content)]
    blocks: list[Any] = []
    for block in cast("list[dict[str, Any]]", content or []):
        image: dict[str, Any] = block.get("image_url") or {}
        url = str(image.get("url", ""))
        if url.startswith("data:"):
            kind, _, data = url.removeprefix("data:").partition(";base64,")
            blocks.append(types.ImageContent(data=data, mime_type=kind))
        else:
            blocks.append(types.TextContent(text=str(block.get("text", url))))
    return blocks
