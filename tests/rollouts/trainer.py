"""A training script on a machine that has no environments: it knows the address of a rollout service, and no more.

`python trainer.py SERVICE MODEL FOLDER` trains with TRL, and writes a line for each batch to FOLDER/batches.jsonl.
Before the batch of a step that `--hold` names it makes FOLDER/at-STEP, and waits for FOLDER/go-STEP. Started again, it
goes on from its last checkpoint.
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from gymhost.rollout import Limits, Trajectory
from gymhost.trainers.trl import Environments
from support.trl_trainers import grpo_trainer, log_of

PATIENCE_SECONDS = 300.0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("service")
    parser.add_argument("model", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--environment", default="test/SlowLetters-v0")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--hold", type=int, nargs="*", default=[])
    arguments = parser.parse_args()
    folder: Path = arguments.folder

    torch.set_num_threads(1)

    def note(trajectories: Sequence[Trajectory]) -> None:
        batch = {
            "step": trainer.state.global_step,
            "ids": [t.id for t in trajectories],
            "outcomes": [str(t.outcome) for t in trajectories],
            "attempts": [t.attempts for t in trajectories],
            "rewards": [t.reward for t in trajectories],
            "places": [[t.task, t.seed, t.group, t.index] for t in trajectories],
            "versions": sorted({version for t in trajectories for version in t.policy_versions if version >= 0}),
        }
        with (folder / "batches.jsonl").open("a") as file:
            file.write(json.dumps(batch) + "\n")

    environments = Environments(
        arguments.environment,
        service=arguments.service,
        num_tasks=4,
        limits=Limits(turn_tokens=8),
        on_rollouts=note,
        weights=folder / "weights",
    )
    trainer = grpo_trainer(
        environments,
        folder / "out",
        max_steps=arguments.steps,
        per_device_train_batch_size=arguments.batch,
        num_generations=16,
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        use_cpu=True,
        shuffle_dataset=False,  # TRL shuffles the rows of later epochs otherwise once it was started again
        save_strategy="steps",
        save_steps=1,
        save_total_limit=2,
    )
    play = trainer.rollout_func

    def held(prompts: Any, trainer: Any) -> Any:
        step = trainer.state.global_step
        if step in arguments.hold:
            (folder / f"at-{step}").touch()
            wait_for(folder / f"go-{step}")
        return play(prompts, trainer)

    trainer.rollout_func = held
    trainer.train(resume_from_checkpoint=any((folder / "out").glob("checkpoint-*")))
    (folder / "log.json").write_text(json.dumps(log_of(trainer)))


def wait_for(path: Path) -> None:
    """Waits until another process has made a file."""
    give_up = time.monotonic() + PATIENCE_SECONDS
    while not path.exists():
        assert time.monotonic() < give_up, f"{path} does not come"
        time.sleep(0.02)


if __name__ == "__main__":
    main()
