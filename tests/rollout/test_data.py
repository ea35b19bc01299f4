"""Arrays, stores and the text of trajectories."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gymhost.rollout import Outcome, Row, Trajectory, Turn, as_text, group_advantages, pad, read_jsonl, write_jsonl


def row(prompt: list[int], sampled: list[int], between: list[int], more: list[int]) -> Row:
    made = Row(prompt_ids=prompt)
    made.append_sampled(sampled, [-0.5] * len(sampled), [1] * len(sampled))
    made.append_environment(between)
    made.append_sampled(more, [-0.25] * len(more), [2] * len(more))
    return made


def trajectory(**changes: Any) -> Trajectory:
    call = {"id": "call_0", "type": "function", "function": {"name": "guess", "arguments": {"number": 4}}}
    broken = {"id": "call_1", "type": "function", "function": {"name": "", "arguments": "{nonsense"}}
    settings: dict[str, Any] = {
        "task": 3,
        "seed": 5,
        "group": "g",
        "messages": [
            {"role": "user", "content": "Guess."},
            {"role": "assistant", "content": "Hm.", "reasoning_content": "Four?", "tool_calls": [call, broken]},
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


def test_rows_become_padded_arrays() -> None:
    two = trajectory(token_rows=[row([1], [2], [], [3]), Row(prompt_ids=[9] * 8)])
    arrays = pad([trajectory(), trajectory(token_rows=[]), two], pad_id=0)
    assert arrays["input_ids"].tolist() == [[1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 0, 0, 0, 0]]
    assert arrays["attention_mask"].sum(axis=1).tolist() == [7, 3]
    assert arrays["loss_mask"].astype(int).tolist() == [[0, 0, 1, 0, 0, 1, 1], [0, 1, 1, 0, 0, 0, 0]]
    assert arrays["logprobs"].tolist() == [[0, 0, -0.5, 0, 0, -0.25, -0.25], [0, -0.5, -0.25, 0, 0, 0, 0]]
    assert arrays["policy_versions"].tolist() == [[-1, -1, 1, -1, -1, 2, 2], [-1, 1, 2, -1, -1, -1, -1]]
    assert arrays["trajectory"].tolist() == [0, 2]
    assert pad([], pad_id=0)["input_ids"].shape == (0, 0)


def test_advantages_are_those_of_each_group_over_its_valid_rewards() -> None:
    rewards: list[tuple[str, float | None]] = [("a", 3.0), ("b", 1.0), ("a", 1.0), ("b", None), ("a", None), ("b", 1.0)]
    made = [trajectory(group=group, reward=reward) for group, reward in rewards]
    advantages = group_advantages(made, epsilon=0.0)
    assert advantages[[0, 2]].tolist() == pytest.approx([2**-0.5, -(2**-0.5)])
    assert np.isnan(advantages[[3, 4]]).all()
    assert np.nan_to_num(group_advantages(made))[[1, 5]].tolist() == [0.0, 0.0]
    assert group_advantages([trajectory()]).tolist() == [0.0]


def test_a_file_gives_back_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    made = [
        trajectory(),
        trajectory(
            reward=None, outcome=Outcome(kind="failed", fault="environment", cause="ValueError", message="no", turn=1)
        ),
    ]
    assert write_jsonl(path, made[:1]) == 1
    assert write_jsonl(path, made[1:], append=True) == 1
    back = list(read_jsonl(path))
    assert [item.token_rows for item in back] == [item.token_rows for item in made]
    assert [(item.outcome, item.reward, item.turns) for item in back] == [
        (item.outcome, item.reward, item.turns) for item in made
    ]
    assert back[0].info == {"score": 0.5, "nothing": "nan", "seen": "{1, 2}", "grid": [0.0, 0.0]}


@pytest.mark.parametrize("line", ["nonsense", "[]", "{}", '{"schema": 99}'])
def test_a_line_that_is_no_trajectory_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "rollouts.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(ValueError, match=r"line 1: (this is no trajectory|schema 99)"):
        list(read_jsonl(path))


def test_a_trajectory_reads_well() -> None:
    text = as_text(trajectory())
    for part in (
        "Guess-v0  (task 3, seed 5, group g, number 0)",
        "--- assistant, turn 1 (1 tokens, reward 0.5)\n(thinks) Four?\nHm.\n-> guess(number=4)\n",
        "-> malformed call : {nonsense\n",
        "--- tool\nToo low.\n[image]",
        "outcome: terminated",
        "reward:  1  (won 1, style not known)",
        "turns:   2, 3 tokens sampled",
        "policy:  versions [1, 2]",
    ):
        assert part in text
    failed = trajectory(
        outcome=Outcome(kind="failed", fault="generator", cause="GeneratorError", message="gone\nmore", turn=2),
        reward=None,
    )
    assert "outcome: failed in turn 2 (generator: GeneratorError: gone)\nreward:  not known" in as_text(failed)
