"""TRL's example `grpo_multi_env`: Wordle and Catch in one training.

    gymhost serve environments --address 127.0.0.1:50051
    python multi_env.py --model_name_or_path Qwen/Qwen3-1.7B --max_completion_length 1024 --logging_steps 1

TRL's script has one class for both, which shows a model all tools and refuses those of the other game. Its guide has a
dict of factories for that, and so has this one: a rollout has the tools of its own game, and a column of rewards too.
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
    server: str = field(default="127.0.0.1:50051", metadata={"help": "the server of the environments"})
    games: int = field(default=500, metadata={"help": "how many games of each are played"})


def main() -> None:
    kinds: Any = (Arguments, GRPOConfig, ModelConfig)
    arguments, config, model = TrlParser(kinds).parse_args_and_config()
    config.chat_template_kwargs = {"enable_thinking": False}
    rows = [{"environment": name, "task": task} for task in range(arguments.games) for name in ("wordle", "catch")]
    trainer = GRPOTrainer(
        model.model_name_or_path,
        args=config,
        train_dataset=Dataset.from_list(rows),
        environment_factory={
            "wordle": remote_environment("gymhost/Wordle-v0", server=arguments.server),
            "catch": remote_environment("examples/Catch-v0", server=arguments.server),
        },
    )
    trainer.train()


if __name__ == "__main__":
    main()
