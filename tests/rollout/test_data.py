"""Trajectories as JSON, as text, and their advantages."""

import base64
import dataclasses
import io
import json
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
from hypothesis import given

from gymhost.rollout import Outcome, Row, Sampling, Trajectory, Turn, as_text, group_advantages, pad
from support.trajectories import trajectories, trajectory


@given(trajectories())
def test_a_trajectory_comes_back_from_json(made: Trajectory) -> None:
    text = made.model_dump_json()
    json.loads(text, parse_constant=pytest.fail)  # which is called for NaN and Infinity
    assert Trajectory.model_validate_json(text) == made


def test_what_json_has_no_word_for_is_kept_readable() -> None:
    deep: list[object] = []
    for _ in range(500):
        deep = [deep]
    made = trajectory(
        info={
            "score": np.float32(0.5),
            "grid": np.arange(4).reshape(2, 2),
            "nothing": float("nan"),
            "far": np.array([np.inf]),
            "seen": {2, 1},
            "sampling": Sampling(top_k=3),
            "turn": Turn(row=0, start=1),
            "path": Path("runs/1"),
            "kind": np.float32,
            "by number": {3: (1, 2)},
            "half": "\ud83d",
            "deep": deep,
        },
        labels={"\udc00": True},
        outcome=Outcome(kind="failed", cause="ValueError", message="not \ud83d"),
    )
    back = Trajectory.model_validate_json(made.model_dump_json())
    found = back.info.pop("deep")
    assert back.info == {
        "score": 0.5,
        "grid": [[0, 1], [2, 3]],
        "nothing": "nan",
        "far": ["inf"],
        "seen": [1, 2],
        "sampling": dataclasses.asdict(Sampling(top_k=3)) | {"stop_token_ids": []},
        "turn": Turn(row=0, start=1).model_dump(),
        "path": "runs/1",
        "kind": "<class 'numpy.float32'>",
        "by number": {"3": [1, 2]},
        "half": "\\ud83d",
    }
    assert (back.labels, back.outcome.message) == ({"\\udc00": True}, "not \\ud83d")
    while isinstance(found, list):
        [found] = found
    assert isinstance(found, str)
    assert set(found) == {"[", "]"}


def test_pictures_are_kept_as_data_urls() -> None:
    picture = PIL.Image.new("RGB", (2, 2), "red")
    file = io.BytesIO()
    picture.save(file, format="JPEG")
    url = "data:image/png;base64,iVBO"
    blocks = [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "image", "image": picture},
        {"type": "image", "image": file.getvalue()},
        {"type": "audio", "data": b"\x00\xff"},
        {"type": "image", "image": picture.convert("CMYK")},  # which no PNG can hold
    ]
    made = trajectory(messages=[{"role": "user", "content": blocks}])
    kept = Trajectory.model_validate_json(made.model_dump_json()).messages[0]["content"]
    assert kept[0]["image_url"]["url"] == url
    assert _opened(kept[1]["image"], "image/png").tobytes() == picture.tobytes()
    assert _opened(kept[2]["image"], "image/jpeg").size == (2, 2)
    assert _opened(kept[4]["image"], "image/png").mode == "RGB"
    assert kept[3]["data"] == "data:application/octet-stream;base64,AP8="


def _opened(url: str, kind: str) -> PIL.Image.Image:
    head, _, data = url.partition(",")
    assert head == f"data:{kind};base64"
    return PIL.Image.open(io.BytesIO(base64.b64decode(data)))


def test_a_reward_that_is_no_number_is_no_reward() -> None:
    made = trajectory(reward=float("nan"), rewards={"won": float("inf")}, turns=[Turn(row=0, start=0, reward=-np.inf)])
    assert not made.valid
    back = Trajectory.model_validate_json(made.model_dump_json())
    assert (back.reward, back.rewards, back.turns[0].reward) == (None, {"won": None}, None)


def test_a_trajectory_knows_which_policies_sampled_it() -> None:
    made = trajectory()
    assert (made.trainable, made.oldest_version, made.newest_version) == (True, 1, 2)
    [turn, _] = made.turns
    spoken = trajectory(token_rows=[], turns=[turn])  # as a chat endpoint gives it, without ids
    assert (spoken.trainable, spoken.oldest_version, spoken.newest_version) == (False, 1, 1)
    silent = trajectory(token_rows=[Row(prompt_ids=[1])], turns=[Turn(row=0, start=0, policy_version=5)])
    assert (silent.trainable, silent.oldest_version, silent.newest_version) == (False, None, None)


def test_advantages_are_those_of_each_group_over_its_valid_rewards() -> None:
    rewards: list[tuple[str, float | None]] = [("a", 3.0), ("b", 1.0), ("a", 1.0), ("b", None), ("a", None), ("b", 1.0)]
    made = [trajectory(group=group, reward=reward) for group, reward in rewards]
    advantages = group_advantages(made, epsilon=0.0)
    assert advantages[[0, 2]].tolist() == pytest.approx([2**-0.5, -(2**-0.5)])
    assert np.isnan(advantages[[3, 4]]).all()
    assert np.nan_to_num(group_advantages(made))[[1, 5]].tolist() == [0.0, 0.0]
    assert group_advantages([trajectory()]).tolist() == [0.0]
    assert group_advantages([]).shape == (0,)


def test_leaving_one_out_compares_with_the_others() -> None:
    made = [trajectory(reward=reward) for reward in (1.0, 0.0, None, 5.0)]
    advantages = group_advantages(made, scale=False, leave_one_out=True)
    assert advantages[[0, 1, 3]].tolist() == pytest.approx([1.0 - 2.5, 0.0 - 3.0, 5.0 - 0.5])
    assert np.isnan(advantages[2])
    assert group_advantages(made[:1], leave_one_out=True).tolist() == [0.0]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None], ids=["NaN", "infinite", "not known"])
def test_a_broken_verifier_is_not_a_zero(value: float | None) -> None:
    """Case S08, by the records: what a verifier that raised or returned NaN leaves is never a number to learn from."""
    group = [trajectory(reward=reward, index=place) for place, reward in enumerate((1.0, 0.0, value, None))]
    assert [item.valid for item in group] == [True, True, False, False]
    advantages = group_advantages(group, scale=False)
    assert advantages[:2].tolist() == [0.5, -0.5]
    assert np.isnan(advantages[2:]).all()
    batch = pad(group, 0, advantages=advantages)
    assert batch["trajectory"].tolist() == [0, 1]
    assert all(np.isfinite(array).all() for array in batch.values())


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
        "policy:  versions 1 to 2",
    ):
        assert part in text
    failed = trajectory(
        outcome=Outcome(kind="failed", fault="generator", cause="GeneratorError", message="gone\nmore", turn=2),
        reward=None,
    )
    assert "outcome: failed in turn 2 (generator: GeneratorError: gone)\nreward:  not known" in as_text(failed)
