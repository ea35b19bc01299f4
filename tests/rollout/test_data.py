"""Trajectories as JSON, as text, and their advantages."""

import io
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymhost.rollout import Outcome, Row, Trajectory, Turn, as_text, group_advantages, pad
from support.trajectories import BROKEN, row, trajectories, trajectory


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
            "seen": {1},
            3: (1, 2),
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
        "seen": "{1}",
        "3": [1, 2],
        "half": "\\ud83d",
    }
    assert (back.labels, back.outcome.message) == ({"\\udc00": True}, "not \\ud83d")
    while isinstance(found, list):
        [found] = found
    assert isinstance(found, str)
    assert set(found) == {"[", "]"}


def test_pictures_are_kept_as_data_urls() -> None:
    image = pytest.importorskip("PIL.Image") if False else None
    del image
