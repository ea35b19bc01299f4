"""A user's training script, which the tests run as a process of its own; it closes nothing, and prints JSON."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig
from renderers import Qwen3RendererConfig
from transformers import AutoTokenizer
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from gymhost.rollout import Limits, Trajectory
from gymhost.trainers.trl import Environments


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("model", type=Path)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--vllm", action="store_true")
    parser.add_argument("--lora", action="store_true")
    parser.add_argument("--die-in-step", type=int, help="raise in the middle of this step")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    batches: list[list[Trajectory]] = []

    def look(trajectories: list[Trajectory]) -> None:
        batches.append(trajectories)
        if len(batches) == arguments.die_in_step:
            raise RuntimeError("this script was told to die")

    config = GRPOConfig(
        output_dir=str(arguments.model / "out"),
        max_steps=arguments.steps,
        per_device_train_batch_size=16,
        num_generations=8,
        max_completion_length=64,
        learning_rate=1e-2,  # high, so that weights that were not handed on would show
        temperature=0.8,
        use_vllm=arguments.vllm,
        vllm_max_model_length=1024,
        vllm_gpu_memory_utilization=0.2,
        bf16=False,
        gradient_checkpointing=False,
        report_to="none",
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
    )
    environments = Environments(
        "gymhost/GuessNumber-v0",
        server=arguments.address,
        num_tasks=64,
        # A random model does not know how a turn ends: the end of the text does for it.
        limits=Limits(turn_tokens=12),
        renderer=Qwen3RendererConfig(thinking_retention="all"),
        on_rollouts=look,
    )
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    # Not 0 in the beginning, so that the first step already would show if vLLM had the base alone.
    lora = LoraConfig(r=8, target_modules="all-linear", init_lora_weights=False) if arguments.lora else None
    trainer = GRPOTrainer(
        str(arguments.model),
        args=config,
        processing_class=tokenizer,
        peft_config=lora,
        **environments.trainer_kwargs(),
    )
    trainer.train()

    seen: dict[str, Any] = {
        "log": [entry for entry in trainer.state.log_history if "reward" in entry],
        "outcomes": [[str(trajectory.outcome) for trajectory in batch] for batch in batches],
        "versions": [sorted({turn.policy_version for t in batch for turn in t.turns}) for batch in batches],
    }
    sys.stdout.write(json.dumps(seen) + "\n")


if __name__ == "__main__":
    main()
