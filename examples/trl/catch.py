"""TRL's example `grpo_catch`: be below a falling ball.

    gymhost serve environments --address 127.0.0.1:50051
    python catch.py --model_name_or_path Qwen/Qwen2.5-0.5B-Instruct --use_vllm true --vllm_mode colocate \
        --per_device_train_batch_size 2 --num_generations 8 --gradient_accumulation_steps 16 \
        --max_completion_length 4096

A row of the dataset is a ball, and needs no prompt: the environment has one.
"""

from dataclasses import dataclass, field
from typing import Any

from datasets import Dataset
from trl.scripts.utils import TrlParser
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.model_config import ModelConfig

from gymhost.trainers.trl_factory import remote_environment


@dataclass
class Arguments:
    server: str = field(default="127.0.0.1:50051", metadata={"help": "the server of the environment"})
    balls: int = field(default=1000, metadata={"help": "how many balls fall"})


def main() -> None:
    kinds: Any = (Arguments, GRPOConfig, ModelConfig)
    arguments, config, model = TrlParser(kinds).parse_args_and_config()
    config.chat_template_kwargs = {"enable_thinking": False}
    trainer = GRPOTrainer(
        model.model_name_or_path,
        args=config,
        train_dataset=Dataset.from_dict({"task": range(arguments.balls)}),
        environment_factory=remote_environment("examples/Catch-v0", server=arguments.server),
    )
    trainer.train()


if __name__ == "__main__":
    main()
