"""Trains while rollouts go on, with TRL's asynchronous trainer: `accelerate launch async_grpo.py cpu7:50051`.

It needs two GPUs or more, and was run on none: what of it works without one is tested with TRL's trainer, a small model
and a stand-in for vLLM. The environments are on a server of theirs (`gymhost serve` on cpu7), and so is vLLM, on a GPU
that the trainer does not use:

    CUDA_VISIBLE_DEVICES=1 VLLM_SERVER_DEV_MODE=1 vllm serve Qwen/Qwen3-1.7B \
        --weight-transfer-config '{"backend":"nccl"}' --logprobs-mode processed_logprobs --max-logprobs -1
    CUDA_VISIBLE_DEVICES=0 accelerate launch async_grpo.py cpu7:50051
"""

import argparse

from datasets import Dataset
from renderers import Qwen3RendererConfig
from transformers import AutoTokenizer
from trl.experimental.async_grpo.async_grpo_config import AsyncGRPOConfig
from trl.experimental.async_grpo.async_grpo_trainer import AsyncGRPOTrainer

from gymhost.rollout import Chat, Limits, RolloutRequest
from gymhost.rollout.generators import Sampling, VllmServerGenerator
from gymhost.rollout.groups import Grouping
from gymhost.trainers.trl_async import RolloutWorker

GROUP = 8
GROUPS = 16
TASKS = 4096


def main() -> None:
    """Trains a model to guess numbers."""
    parser = argparse.ArgumentParser()
    parser.add_argument("environments", help="the server of the environments, HOST:PORT")
    parser.add_argument("--vllm", default="http://localhost:8000", help="the vLLM server")
    parser.add_argument("--model", default="Qwen/Qwen3-1.7B")
    parser.add_argument("--steps", type=int, default=200)
    arguments = parser.parse_args()

    config = AsyncGRPOConfig(
        output_dir="async_grpo",
        max_steps=arguments.steps,
        # All micro-batches of a step together are the groups that are trained on between two updates of the weights.
        per_device_train_batch_size=GROUP,
        gradient_accumulation_steps=GROUPS,
        num_generations=GROUP,
        token_budget=0,
        weight_sync_steps=1,
        max_staleness=4,
        learning_rate=1e-6,
        vllm_server_base_url=arguments.vllm,
        logging_steps=1,
        report_to="none",
    )
    worker = RolloutWorker(
        [RolloutRequest("gymhost/GuessNumber-v0", task=task, seed=task, split="train") for task in range(TASKS)],
        Chat(AutoTokenizer.from_pretrained(arguments.model), Qwen3RendererConfig()),
        VllmServerGenerator(arguments.vllm),
        server=arguments.environments,
        update_groups=GROUPS,
        grouping=Grouping(size=GROUP, extra=2),  # no group waits for its slowest two
        max_staleness=config.max_staleness,
        sampling=Sampling(temperature=config.temperature, max_tokens=512),
        limits=Limits(turns=8, context_tokens=4096),
    )
    trainer = AsyncGRPOTrainer(
        arguments.model,
        args=config,
        # The worker has the tasks; what is read of this is how many there are.
        train_dataset=Dataset.from_list([{"prompt": "", "task": task} for task in range(TASKS)]),
        rollout_worker=worker,
    )
    trainer.train()


if __name__ == "__main__":
    main()
