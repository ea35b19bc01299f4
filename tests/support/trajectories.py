"""Trajectories that nobody played, made up for tests of what is done with them."""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from gymhost.rollout import Outcome, Row, Trajectory, Turn

GOOD = {"id": "call_0", "type": "function", "function": {"name": "guess", "arguments": {"number": 4}}}
BROKEN = {"id": "call_1", "type": "function", "function": {"name": "", "arguments": "{nonsense"}}


def row(prompt: list[int], sampled: list[int], between: list[int], more: list[int]) -> Row:
    made = Row(prompt_ids=prompt)
    made.append_sampled(sampled, [-0.5] * len(sampled), [1] * len(sampled))
    made.append_environment(between)
    made.append_sampled(more, [-0.25] * len(more), [2] * len(more))
    return made


def trajectory(**changes: Any) -> Trajectory:
    """A trajectory of two turns, with a malformed call and an info full of what JSON has no word for."""
    settings: dict[str, Any] = {
        "task": 3,
        "seed": 5,
        "group": "g",
        "messages": [
            {"role": "user", "content": "Guess."},
            {"role": "assistant", "content": "Hm.", "reasoning_content": "Four?", "tool_calls": [GOOD, BROKEN]},
            {"role": "tool", "content": [{"type": "text", "text": "Too low."}, {"type": "image", "image": b"x"}]},
        ],
        "token_rows": [row([1, 2], [3], [4, 5], [6, 7])],
        "turns": [
            Turn(row=0, start=0, tokens=1, policy_version=1, finish_reason="stop", reward=0.5),
            Turn(row=0, start=3, tokens=2, policy_version=2, finish_reason="stop", reward=None),
        ],
        "reward": 1.0,
        "rewards": {"won": 1.0, "style": None},
        "outcome": Outcome(kind="terminated", turn=2),
        "info": {"score": np.float32(0.5), "nothing": float("nan"), "seen": {1, 2}, "grid": np.zeros(2)},
    }
    return Trajectory(env_id="Guess-v0", **(settings | changes))


_words = st.text(max_size=8)  # with halves of surrogate pairs left out: they don't come back as they were
_numbers = st.floats(allow_nan=False, allow_infinity=False)
_maybe_number = st.none() | _numbers
_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | _numbers | _words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_words, inner, max_size=3),
    max_leaves=8,
)
_objects = st.dictionaries(_words, _json, max_size=3)


@st.composite
def rows(draw: st.DrawFn) -> Row:
    made = Row(prompt_ids=draw(st.lists(st.integers(0, 200_000), max_size=5)))
    for _ in range(draw(st.integers(0, 3))):
        ids = draw(st.lists(st.integers(0, 200_000), max_size=5))
        logprobs = st.floats(allow_nan=False, max_value=0.0, width=32)  # with minus infinity
        made.append_sampled(ids, [draw(logprobs) for _ in ids], [draw(st.integers(0, 2**40)) for _ in ids])
        made.append_environment(draw(st.lists(st.integers(0, 200_000), max_size=5)))
    return made


def trajectories() -> st.SearchStrategy[Trajectory]:
    """Any trajectory at all that JSON can hold."""
    turn = st.builds(
        Turn, row=st.integers(0, 3), start=st.integers(0, 9), reward=_maybe_number, mixed_versions=st.booleans()
    )
    outcome = st.builds(
        Outcome,
        kind=st.sampled_from(["terminated", "truncated", "failed", "cancelled"]),
        limit=st.none() | _words,
        fault=st.none() | st.sampled_from(["environment", "infrastructure", "generator"]),
        message=_words,
    )
    return st.builds(
        Trajectory,
        env_id=_words,
        task=st.none() | st.integers(0, 2**60),
        seed=st.none() | st.integers(0, 2**60),
        split=st.none() | _words,
        group=st.none() | _words,
        messages=st.lists(_objects, max_size=3),
        tools=st.lists(_objects, max_size=2),
        turns=st.lists(turn, max_size=3),
        token_rows=st.lists(rows(), max_size=3),
        reward=_maybe_number,
        rewards=st.dictionaries(_words, _maybe_number, max_size=3),
        outcome=outcome,
        labels=_objects,
        info=_objects,
    )
