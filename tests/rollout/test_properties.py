"""Whatever models say and environments do: batches and rows are whole, and masks and log-probs sit on their tokens."""

import asyncio
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from renderers import Qwen3RendererConfig

from gymhost.rollout import Chat, Concurrency, Limits, RolloutEngine, RolloutRequest, Trajectory
from support.local_source import LocalSource
from support.plans import NEVER, PLANS, Plan, Planned, PlannedTalk
from support.templates import CHATML, CYCLE_OF_THOUGHTS, LAST_THOUGHT, MERGING, STRICT
from support.tokenizers import qwen3_tokenizer, with_template

pytestmark = pytest.mark.heavy

CHATS = {
    "qwen3": Chat(qwen3_tokenizer(), Qwen3RendererConfig()),
    "qwen3, no thoughts": Chat(qwen3_tokenizer(), Qwen3RendererConfig(enable_thinking=False)),
    "qwen3, all thoughts": Chat(qwen3_tokenizer(), Qwen3RendererConfig(thinking_retention="all")),
    "chatml": Chat(with_template(CHATML)),
    "last thought": Chat(with_template(LAST_THOUGHT)),
    "cycle of thoughts": Chat(with_template(CYCLE_OF_THOUGHTS)),
    "merging": Chat(with_template(MERGING)),
    "strict": Chat(with_template(STRICT)),
}


def budget(least: int, most: int) -> Any:
    return st.one_of(st.none(), st.none(), st.none(), st.integers(least, most))


LIMITS = st.builds(
    Limits,
    turns=budget(1, 4),
    turn_tokens=st.one_of(st.just(100), st.just(100), st.integers(1, 40)),
    completion_tokens=budget(1, 300),
    context_tokens=budget(1, 1200),
    sampled_tokens=budget(1, 150),
    retries=st.just(0),
)
CONCURRENCIES = st.builds(
    Concurrency, init=st.integers(1, 3), run=st.integers(1, 3), eval=st.integers(1, 3), ahead=st.integers(1, 3)
)


@settings(max_examples=150)
@given(st.lists(PLANS, min_size=1, max_size=4), st.sampled_from(sorted(CHATS)), LIMITS, CONCURRENCIES)
def test_whatever_is_said_and_done(plans: list[Plan], chat: str, limits: Limits, concurrency: Concurrency) -> None:
    playing: dict[Any, Plan] = {}
    source = LocalSource(lambda: PlannedTalk(plans, playing))

    async def collect() -> list[Trajectory]:
        async with RolloutEngine(
            source, CHATS[chat], Planned(playing), limits=limits, concurrency=concurrency
        ) as engine:
            return await engine.collect([RolloutRequest("Talk-v0", task=i) for i in range(len(plans))])

    trajectories = asyncio.run(collect())
    assert [trajectory.task for trajectory in trajectories] == list(range(len(plans)))
    assert source.open == 0
    for plan, trajectory in zip(plans, trajectories, strict=True):
        check_tokens(plan, trajectory)
        check_limits(limits, trajectory)
        check_ending(plan, trajectory)
        assert Trajectory.model_validate_json(trajectory.model_dump_json()) == trajectory


def check_tokens(plan: Plan, trajectory: Trajectory) -> None:
    """Rows are what was asked and sampled, in order, and nothing else is masked in."""
    expected = Counter[tuple[int, int]]()
    for row in trajectory.token_rows:
        assert len(row.completion_ids) == len(row.mask) == len(row.logprobs) == len(row.policy_versions)
        assert NEVER not in row.ids
    for number, turn in enumerate(trajectory.turns):
        pieces = [entry for entry in plan.asked if entry[0] == number]
        if not turn.finish_reason:  # it failed
            continue
        prompt = pieces[0][1]
        row, end = trajectory.token_rows[turn.row], turn.start + turn.tokens
        assert row.ids[: len(row.prompt_ids) + turn.start] == prompt
        ids = [token for piece in pieces for token in piece[2]]
        logprobs = [logprob for piece in pieces for logprob in piece[3]]
        versions = [version for piece in pieces for version in piece[4]]
        assert row.completion_ids[turn.start : end] == ids
        assert row.logprobs[turn.start : end] == logprobs
        assert row.policy_versions[turn.start : end] == versions
        assert row.mask[turn.start : end] == [1] * turn.tokens
        assert turn.mixed_versions == (len(set(versions)) > 1)
        for piece, (_, asked, *_) in enumerate(pieces):
            assert asked == prompt + [item for before in pieces[:piece] for item in before[2]]
        expected.update((turn.row, place) for place in range(turn.start, end))
    masked = [
        (number, place)
        for number, row in enumerate(trajectory.token_rows)
        for place, mask in enumerate(row.mask)
        if mask
    ]
    assert Counter(masked) == expected
    for row in trajectory.token_rows:
        assert all(
            (logprob, version) == (0.0, -1)
            for mask, logprob, version in zip(row.mask, row.logprobs, row.policy_versions, strict=True)
            if not mask
        )


def check_limits(limits: Limits, trajectory: Trajectory) -> None:
    assert limits.turns is None or len(trajectory.turns) <= limits.turns
    assert all(turn.tokens <= limits.turn_tokens for turn in trajectory.turns)
    assert limits.sampled_tokens is None or trajectory.sampled_tokens <= limits.sampled_tokens
    for row in trajectory.rows():
        assert limits.context_tokens is None or len(row) <= limits.context_tokens
        first = len(trajectory.token_rows[0].prompt_ids)
        assert limits.completion_tokens is None or len(row) - first <= limits.completion_tokens


def check_ending(plan: Plan, trajectory: Trajectory) -> None:
    outcome = trajectory.outcome
    finished = [turn for turn in trajectory.turns if turn.finish_reason]
    spoken = [message for message in trajectory.messages if message["role"] == "assistant"]
    assert len(spoken) == len(finished)
    assert len(plan.heard) == sum(turn.finish_reason == "stop" for turn in finished)  # no cut-off call was run
    assert [turn.calls for turn in finished] == [len(message.get("tool_calls", ())) for message in spoken]
    assert all(turn.finish_reason in ("stop", "length") for turn in finished)
    if outcome.kind == "failed":
        assert trajectory.reward is None
        assert outcome.cause
        assert (outcome.fault == "generator") == (outcome.cause == "GeneratorError")
    else:
        assert outcome.kind in ("terminated", "truncated")
        assert (outcome.limit is None) == (outcome.kind == "terminated")
        if finished and finished[-1].tokens:
            assert trajectory.mask[-1] == 1
        if outcome.limit not in (None, "turns", "environment") and spoken:
            assert trajectory.messages[-1]["role"] == "assistant"
        unknown = outcome.limit in (None, "environment") and plan.ended in ("nan", "invalid")
        assert (trajectory.reward is None) == unknown
