"""TRL's own trainer as scripts make it, with small models, and what its log says."""

import copy
from pathlib import Path
from typing import Any

import pytest
from renderers import Qwen3RendererConfig

from gymhost.rollout import Trajectory
from gymhost.trainers.trl import Environments
from support.models import tiny_qwen3
from support.tokenizers import qwen3_tokenizer

__all__ = ["RENDERER", "check_ratios", "grpo_trainer", "log_of", "versions"]

RENDERER = Qwen3RendererConfig(thinking_retention="all")


def grpo_trainer(environments: Environments, output: Path, *, model: Any = None, **settings: Any) -> Any:
    """Makes a `GRPOTrainer` on environments.

    Args:
        environments: What it trains on.
        output: A folder of its own.
        model: A model or the folder of one; without one a random one.
        **settings: Of the `GRPOConfig`, and of the trainer what starts with `trainer_`.
    """
    from trl.chat_template_utils import qwen3_chat_template
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    tokenizer = copy.deepcopy(qwen3_tokenizer())
    tokenizer.chat_template = qwen3_chat_template
    own = {name.removeprefix("trainer_"): settings.pop(name) for name in list(settings) if name.startswith("trainer_")}
    defaults: dict[str, Any] = {
        "output_dir": str(output),
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_completion_length": 64,
        "learning_rate": 1e-3,
        "bf16": False,
        "gradient_checkpointing": False,
        "report_to": "none",
        "save_strategy": "no",
        "logging_steps": 1,
        "disable_tqdm": True,
    }
    config = GRPOConfig(**defaults | settings)
    return GRPOTrainer(
        tiny_qwen3() if model is None else model,
        args=config,
        processing_class=tokenizer,
        **environments.trainer_kwargs(config),
        **own,
    )


def log_of(trainer: Any) -> list[dict[str, float]]:
    """What the trainer logged, step by step."""
    return [entry for entry in trainer.state.log_history if "reward" in entry]


def check_ratios(log: list[dict[str, float]], tolerance: float = 0.01) -> None:
    """Asserts that what was sampled is what the trained model would have sampled, in each step and token."""
    ratios = [[entry[f"sampling/importance_sampling_ratio/{name}"] for name in ("min", "mean", "max")] for entry in log]
    assert ratios
    assert ratios == [[pytest.approx(1.0, abs=tolerance)] * 3] * len(log)


def versions(batches: list[list[Trajectory]]) -> list[set[int]]:
    """By which policies each batch was sampled."""
    return [{turn.policy_version for trajectory in batch for turn in trajectory.turns} for batch in batches]
