"""What goes to OpenEnv's `reset`, and what its answers come down to."""

import json
from collections.abc import Mapping
from typing import Any, cast

from gymhost.envs.adapters.openenv_links import Answer, Link
from gymhost.envs.content import Block
from gymhost.envs.tasks import Tasks
from gymhost.envs.tools import render_result

__all__ = ["ends", "reset_data", "task_fields", "text", "tool_text"]


def reset_data(link: Link, seed: int | None, options: dict[str, Any] | None) -> dict[str, Any]:
    """The arguments of OpenEnv's reset, where a task is an index in a split."""
    data = {name: given for name, given in (options or {}).items() if name != "evaluate_apart"}
    if "task" in data and (splits := link.splits):
        data["index"] = data.pop("task")
        data.setdefault("split", next(iter(splits)))
    return data if seed is None else {**data, "seed": seed}


def task_fields(splits: Mapping[str, Tasks]) -> list[str]:
    """The fields of tasks: OpenEnv shows them to everybody."""
    first = next((tasks for tasks in splits.values() if tasks.size), None)
    return [] if first is None else list(first[0])


def ends(answer: Answer) -> tuple[bool, bool]:
    """Whether an answer terminates the episode, and whether it truncates it."""
    if not answer.get("done"):
        return False, False
    metadata: dict[str, Any] = answer.get("metadata") or {}
    truncated = bool(metadata.get("truncated"))
    return bool(metadata.get("terminated", not truncated)), truncated


def text(observation: dict[str, Any]) -> str:
    """An observation for a model: the one text that it has, or JSON."""
    told = {name: part for name, part in observation.items() if name != "metadata" and part not in (None, "", [], {})}
    if not told:
        told = dict(observation.get("metadata") or {})
    if len(told) == 1 and isinstance(only := next(iter(told.values())), str):
        return only
    return json.dumps(told, ensure_ascii=False) if told else ""


def tool_text(result: Any) -> str | list[Block]:
    """What a tool returned for a model: of MCP's results the texts."""
    parts: Any = cast("dict[str, Any]", result).get("content") if isinstance(result, dict) else None
    texts = [_text_of(part) for part in cast("list[Any]", parts)] if isinstance(parts, list) else [None]
    told = [text for text in texts if text is not None]
    return "\n".join(told) if len(told) == len(texts) else render_result(cast(object, result))


def _text_of(part: Any) -> str | None:
    text: Any = cast("dict[str, Any]", part).get("text") if isinstance(part, dict) else None
    return text if isinstance(text, str) else None
