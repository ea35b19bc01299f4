"""Reinforcement learning: TRL's GRPO with vLLM generation, playing on the environment server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from transformers import (
    PreTrainedTokenizerFast,
    PrinterCallback,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from gymhost.rollout import Trajectory
from gymhost.trainers.trl import Environments

GAMES_A_TASK = 16
"""How often every task of a batch is played: the group whose mean is GRPO's baseline."""


class Follower(TrainerCallback):
    """Follows the training, and ends it once the model wins nearly always.

    Args:
        on_step: Called after each step with the share of games won in it.
        goal: The share of games won, over the last `window` steps, at which training ends; None lets it go on.
        window: See `goal`.
    """

    def __init__(self, on_step: Callable[[float], None], goal: float | None = 0.95, window: int = 10) -> None:
        self.wins: list[float] = []
        self.ratios: list[float] = []
        self._on_step = on_step
        self._goal = goal
        self._window = window

    def see(self, trajectories: Sequence[Trajectory]) -> None:
        """Counts the games won in a batch."""
        self.wins.append(sum(map(won, trajectories)) / len(trajectories))

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Reads the trainer's log of one step."""
        if logs is None or "reward" not in logs:
            return
        self.ratios += [float(logs[f"sampling/importance_sampling_ratio/{name}"]) for name in ("min", "max")]
        self._on_step(self.wins[-1])
        recent = self.wins[-self._window :]
        if self._goal is not None and len(recent) == self._window and sum(recent) / self._window >= self._goal:
            control.should_training_stop = True

    @property
    def worst_ratio(self) -> float:
        """The importance sampling ratio that was furthest from 1: how well vLLM and the trainer agree on log-probs."""
        return max(self.ratios, key=lambda ratio: abs(ratio - 1), default=1.0)


def won(trajectory: Trajectory) -> bool:
    """Whether a game was won; one that was cut off, or failed, was not."""
    return trajectory.rewards.get("win") == 1.0


def make_trainer(
    model: str,
    tokenizer: PreTrainedTokenizerFast,
    environments: Environments,
    follower: Follower,
    *,
    tasks_a_step: int,
    steps: int,
    seed: int,
    folder: Path,
    **settings: Any,
) -> GRPOTrainer:
    """Makes the GRPO trainer; the environments are one line of it.

    Args:
        model: The folder with the fine-tuned model.
        tokenizer: The model's tokenizer.
        environments: Where the games are played.
        follower: Follows the training.
        tasks_a_step: How many tasks a batch has, each played `GAMES_A_TASK` times.
        steps: The most optimizer steps.
        seed: Of everything that is random in the trainer.
        folder: For the trainer's own files.
        **settings: Of the `GRPOConfig`, in place of those here.
    """
    chosen: dict[str, Any] = {
        "output_dir": str(folder),
        "seed": seed,
        "max_steps": steps,
        "per_device_train_batch_size": tasks_a_step * GAMES_A_TASK,
        "num_generations": GAMES_A_TASK,
        "steps_per_generation": 1,
        "max_completion_length": 128,
        # The rate is near the highest at which so small a model does not collapse; the warm-up matters.
        "learning_rate": 2e-3,
        # Adam steps as far for a tiny gradient as for a large one, which wears down the format of the calls; this does
        # not let it.
        "adam_epsilon": 3e-5,
        "lr_scheduler_type": "constant_with_warmup",
        "warmup_steps": 5,
        "adam_beta2": 0.95,
        "beta": 0.0,
        # Without this bonus some runs settle on a strategy that never finds one of the numbers.
        "entropy_coef": 0.02,
        # The tasks come in the order of the dataset, in which each batch holds every number once.
        "shuffle_dataset": False,
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_max_model_length": 512,
        "vllm_gpu_memory_utilization": 0.2,
        "bf16": False,
        "gradient_checkpointing": False,
        "logging_steps": 1,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
    }
    config = GRPOConfig(**chosen | settings)
    trainer = GRPOTrainer(
        model=model,
        args=config,
        processing_class=tokenizer,
        callbacks=[follower],
        **environments.trainer_kwargs(),
    )
    trainer.remove_callback(PrinterCallback)
    return trainer
