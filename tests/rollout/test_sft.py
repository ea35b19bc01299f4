"""Rollouts as rows to learn from by imitation."""

from typing import Any

import pytest

from gymhost.rollout import Outcome, Turn, sft_rows, sft_token_rows
from support.trajectories import BROKEN, GOOD, row, trajectory

ASKED = {"role": "user", "content": "Guess."}
CALLED = {"role": "assistant", "content": "Hm.", "reasoning_content": "Four?", "tool_calls": [GOOD]}
ANSWERED = {"role": "tool", "tool_call_id": "call_0", "content": "Right."}
DONE = {"role": "assistant", "content": "I won."}
TOOL = {"name": "guess", "description": "Guesses.", "parameters": {"type": "object"}}


def test_a_conversation_is_as_trainers_take_it() -> None:
    made = trajectory(messages=[ASKED, CALLED, ANSWERED, DONE, ANSWERED], tools=[TOOL])
    assert list(sft_rows([made])) == [
        {"messages": [ASKED, CALLED, ANSWERED, DONE], "tools": [{"type": "function", "function": TOOL}]}
    ]
    [unreasoned] = sft_rows([made], reasoning=False)
    assert unreasoned["messages"][1] == {"role": "assistant", "content": "Hm.", "tool_calls": [GOOD]}
    assert made.messages[1] == CALLED


def test_token_rows_are_as_they_were_sampled() -> None:
    made = trajectory(messages=[ASKED, CALLED], token_rows=[row([1, 2], [3], [4], [5]), row([6], [7], [], [])])
    assert list(sft_token_rows([made])) == [
        {"input_ids": [1, 2, 3, 4, 5], "labels": [-100, -100, 3, -100, 5]},
        {"input_ids": [6, 7], "labels": [-100, 7]},
    ]
    assert list(sft_token_rows([trajectory(messages=[ASKED], token_rows=[])])) == []


@pytest.mark.parametrize("rows", [sft_rows, sft_token_rows])
def test_rollouts_are_chosen_by_reward_and_outcome(rows: Any) -> None:
    def made(kind: Any, reward: float | None) -> Any:
        return trajectory(messages=[ASKED, CALLED], outcome=Outcome(kind=kind), reward=reward)

    terminated = [made("terminated", reward) for reward in (1.0, 0.5, None, float("nan"))]
    others = [made(kind, 1.0) for kind in ("truncated", "failed", "cancelled")]
    assert len(list(rows([*terminated, *others]))) == 4
    assert len(list(rows(terminated, min_reward=0.5))) == 2
    assert len(list(rows(terminated, min_reward=0.6))) == 1
    assert len(list(rows(others, outcomes=["truncated", "failed"]))) == 2


def test_broken_calls_are_left_out_unless_asked_for() -> None:
    broken = {"role": "assistant", "content": "Hm.", "tool_calls": [GOOD, BROKEN]}
    alone = {"role": "assistant", "content": "", "tool_calls": [BROKEN]}
    made = [trajectory(messages=[ASKED, broken]), trajectory(messages=[ASKED, alone])]
    assert list(sft_rows(made)) == list(sft_token_rows(made)) == []
    assert [kept["messages"][1] for kept in sft_rows(made, broken_calls=True)] == [
        {"role": "assistant", "content": "Hm.\n{nonsense", "tool_calls": [GOOD]},
        {"role": "assistant", "content": "{nonsense"},
    ]
    assert len(list(sft_token_rows(made, broken_calls=True))) == 2


def test_what_a_limit_cut_off_is_no_example_of_how_to_end() -> None:
    turns = [Turn(row=0, start=0, finish_reason=reason) for reason in ("stop", "length")]
    outcome = Outcome(kind="truncated", limit="turn_tokens")
    two = trajectory(messages=[ASKED, CALLED, ANSWERED, DONE], turns=turns, outcome=outcome)
    one = trajectory(messages=[ASKED, DONE], turns=turns[1:], outcome=outcome)
    assert [kept["messages"] for kept in sft_rows([two, one], outcomes=["truncated"])] == [[ASKED, CALLED]]
