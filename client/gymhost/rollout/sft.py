"""Rollouts as rows to learn from by imitation."""

from collections.abc import Collection, Iterable, Iterator
from typing import Any

from gymhost.rollout.arrays import IGNORED
from gymhost.rollout.plain import plain
from gymhost.rollout.trajectory import OutcomeKind, Trajectory

__all__ = ["sft_rows", "sft_token_rows"]

Message = dict[str, Any]


def sft_rows(
    trajectories: Iterable[Trajectory],
    *,
    min_reward: float | None = None,
    outcomes: Collection[OutcomeKind] = ("terminated",),
    broken_calls: bool = False,
    reasoning: bool = True,
) -> Iterator[dict[str, Any]]:
    """Yields conversations as TRL's SFTTrainer and the chat templates of transformers take them.

        SFTTrainer(model, train_dataset=sft_dataset(sft_rows(store, min_reward=1.0)))

    Each row has `messages`, which end with what the model said last, and `tools`. The arguments of a tool call are a
    dict. What a limit cut off is left out, since a template would end it as if the model had.

    Args:
        trajectories: The rollouts to choose from.
        min_reward: The least reward of what is taken. Without one any reward will do, and none too.
        outcomes: How what is taken may have ended.
        broken_calls: Whether to take rollouts in which the model malformed a tool call. It is then part of the text.
        reasoning: Whether to keep `reasoning_content`.
    """
    for trajectory in _chosen(trajectories, min_reward, outcomes, broken_calls):
        messages = [_message(message, reasoning) for message in _finished(trajectory)]
        if messages:
            yield {"messages": messages, "tools": [_offer(tool) for tool in plain(trajectory.tools)]}


def sft_token_rows(
    trajectories: Iterable[Trajectory],
    *,
    min_reward: float | None = None,
    outcomes: Collection[OutcomeKind] = ("terminated",),
    broken_calls: bool = False,
) -> Iterator[dict[str, list[int]]]:
    """Yields the token ids themselves, as they were sampled, so that no template comes between.

    Each row has `input_ids` and `labels`, which are the ids where they were sampled and -100 elsewhere. A trajectory
    whose template rewrote history has several rows.

    Args:
        trajectories: The rollouts to choose from.
        min_reward: The least reward of what is taken. Without one any reward will do, and none too.
        outcomes: How what is taken may have ended.
        broken_calls: Whether to take rollouts in which the model malformed a tool call.
    """
    for trajectory in _chosen(trajectories, min_reward, outcomes, broken_calls):
        for row in trajectory.rows():
            sampled = zip(row.completion_ids, row.mask, strict=True)
            labels = [IGNORED] * len(row.prompt_ids) + [token if mask else IGNORED for token, mask in sampled]
            yield {"input_ids": row.ids, "labels": labels}


def _chosen(
    trajectories: Iterable[Trajectory], min_reward: float | None, outcomes: Collection[OutcomeKind], broken_calls: bool
) -> Iterator[Trajectory]:
    for trajectory in trajectories:
        if trajectory.outcome.kind not in outcomes:
            continue
        reward = trajectory.reward if trajectory.valid else None
        if min_reward is not None and (reward is None or reward < min_reward):
            continue
        calls = [call for message in trajectory.messages for call in message.get("tool_calls") or ()]
        if broken_calls or all(_is_well_formed(call) for call in calls):
            yield trajectory


def _finished(trajectory: Trajectory) -> list[Message]:
    """The messages up to the last that the model finished, before any that was cut off."""
    ends = [place + 1 for place, message in enumerate(trajectory.messages) if message.get("role") == "assistant"]
    cut = [turn.finish_reason in ("length", "cut") for turn in trajectory.turns]
    if any(cut):
        # An agent may have gone on after it; with several conversations nobody knows which of them it was in.
        ends = ends[: cut.index(True)] if len(cut) == len(ends) else []
    return trajectory.messages[: ends[-1]] if ends else []


def _message(message: Message, reasoning: bool) -> Message:
    kept: Message = plain({key: value for key, value in message.items() if reasoning or key != "reasoning_content"})
    calls: list[Message] = kept.pop("tool_calls", None) or []
    broken = [call["function"]["arguments"] for call in calls if not _is_well_formed(call)]
    if broken:
        kept["content"] = "\n".join(str(part) for part in (kept["content"], *broken) if part)
    if whole := [call for call in calls if _is_well_formed(call)]:
        kept["tool_calls"] = whole
    return kept


def _is_well_formed(call: Message) -> bool:
    return bool(call["function"]["name"]) and isinstance(call["function"]["arguments"], dict)


def _offer(tool: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": tool}
