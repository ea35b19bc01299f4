"""A trajectory as text that a person reads."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from gymhost.rollout.trajectory import Trajectory, Turn

__all__ = ["as_text", "message_text"]


def as_text(trajectory: Trajectory) -> str:
    """Renders messages, tool calls, rewards and outcome."""
    return "\n".join(_lines(trajectory)) + "\n"


def message_text(message: Mapping[str, Any]) -> str:
    """Renders what a message says: reasoning, content and tool calls, each on lines of its own."""
    parts: list[str] = []
    if reasoning := message.get("reasoning_content"):
        parts.append(f"(thinks) {reasoning}")
    if content := _content(message.get("content")):
        parts.append(content)
    parts.extend(_call(call["function"]) for call in message.get("tool_calls") or ())
    return "\n".join(parts)


def _lines(trajectory: Trajectory) -> Iterator[str]:
    facts = [f"task {trajectory.task}", f"seed {trajectory.seed}"]
    if trajectory.group is not None:
        facts.append(f"group {trajectory.group}, number {trajectory.index}")
    yield f"{trajectory.env_id}  ({', '.join(facts)})"
    turns = trajectory.turns if not trajectory.asides else []  # which of several conversations one is in is not known
    for number, messages in enumerate((trajectory.messages, *trajectory.asides), 1):
        if trajectory.asides:
            yield f"\n=== conversation {number}"
        turn = 0
        for message in messages:
            role = str(message.get("role"))
            if role == "assistant":
                turn += 1
                yield f"\n--- assistant, turn {turn} {_turn_facts(turns, turn)}".rstrip()
            else:
                yield f"\n--- {role}"
            if said := message_text(message):
                yield said
    yield "\n==="
    reward = "not known" if trajectory.reward is None else f"{trajectory.reward:g}"
    yield f"outcome: {trajectory.outcome}"
    yield f"reward:  {reward}" + (f"  ({_rubrics(trajectory.rewards)})" if trajectory.rewards else "")
    times = trajectory.timings
    yield (
        f"turns:   {len(trajectory.turns)}, {trajectory.sampled_tokens} tokens sampled, "
        f"{times.generation:.2f} s generating, {times.environment:.2f} s in the environment"
    )
    if trajectory.turns and not trajectory.token_rows:
        yield "rows:    none, since a chat endpoint tells no token ids"
    if trajectory.rewritten:
        yield f"rows:    {len(trajectory.rows())}, since " + (
            f"there were {len(trajectory.asides) + 1} conversations"
            if trajectory.asides
            else "the chat template rewrote history"
        )
    if trajectory.mixed_versions:
        yield f"policy:  versions {trajectory.oldest_version} to {trajectory.newest_version}"


def _turn_facts(turns: Sequence[Turn], number: int) -> str:
    if number > len(turns):
        return ""
    turn = turns[number - 1]
    paid = "" if turn.reward == 0.0 else f", reward {'not known' if turn.reward is None else f'{turn.reward:g}'}"
    return f"({turn.tokens} tokens{paid})"


def _content(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(str(block.get("text", f"[{block.get('type')}]")) for block in content)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType, reportUnknownArgumentType]
    return "" if content is None else str(content)


def _call(function: Mapping[str, Any]) -> str:
    arguments = function["arguments"]
    if isinstance(arguments, Mapping) and function["name"]:
        pairs = cast(Mapping[str, Any], arguments)
        return f"-> {function['name']}({', '.join(f'{key}={json.dumps(value)}' for key, value in pairs.items())})"
    return f"-> malformed call {function['name']}: {arguments}"


def _rubrics(rewards: Mapping[str, float | None]) -> str:
    return ", ".join(f"{name} {'not known' if value is None else f'{value:g}'}" for name, value in rewards.items())
