"""Case S08 from the environment's verifier to the trainer's batch."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gymhost.envs import ToolEnv, rubric
from gymhost.rollout import RolloutRequest, Store, group_advantages, pad
from support.local_source import LocalSource
from support.rollouts import SAY, engine

pytestmark = pytest.mark.heavy


class Verified(ToolEnv):
    """Ends with the first thing that the model says; the task is what its verifier finds."""

    tasks = {"train": [{"found": "1.0"}, {"found": "0.0"}, {"found": "nothing"}, {"found": "nan"}]}
    without_call = "end"

    def setup(self, task: Any) -> None:
        self.found = task["found"]

    def prompt(self, task: Any) -> str:
        return "Say something."

    @rubric
    def verifier(self) -> float:
        return float(self.found)  # which raises where nothing was found


async def test_a_broken_verifier_is_not_learned_from(tmp_path: Path) -> None:
    """Case S08: 1.0, 0.0, a verifier that raises, one that returns NaN."""
    group = [RolloutRequest("Verified-v0", task=task, group="g", index=task) for task in range(4)]
    async with engine(LocalSource(Verified), lambda *_: SAY) as rollouts:
        made = await rollouts.collect(group)
    with Store.create(tmp_path / "run") as store:
        for trajectory in made:
            store.append(trajectory)
    for trajectories in (made, list(store)):
        assert [item.reward for item in trajectories] == [1.0, 0.0, None, None]
        assert [item.valid for item in trajectories] == [True, True, False, False]
        assert [item.rewards for item in trajectories] == [{"verifier": score} for score in (1.0, 0.0, None, None)]
        advantages = group_advantages(trajectories, scale=False)
        assert advantages[:2].tolist() == [0.5, -0.5]  # the mean is that of two
        assert np.isnan(advantages[2:]).all()
        batch = pad(trajectories, 0, advantages=advantages)
        assert batch["trajectory"].tolist() == [0, 1]
        assert np.unique(batch["advantages"][batch["loss_mask"]]).tolist() == [-0.5, 0.5]
        assert all(np.isfinite(array).all() for array in batch.values())
    assert len(store.done()) == 4
