"""TRL's example `grpo_echo`: the dataset asks for words, and a tool says them back.

gymhost serve environments --address 127.0.0.1:50051
python echo.py --model_name_or_path Qwen/Qwen3-0.6B --logging_steps 2 --log_completions true

What the environment opens with follows the words of the row.
"""

from dataclasses import dataclass, field
from typing import Any

from datasets import Dataset
from trl.scripts.utils import TrlParser
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.model_config import ModelConfig

from gymhost.trainers.trl_factory import remote_environment

ASKED = [
    "Have the environment say 'good morning'. ",
    "I want to hear 'good night' back. ",
    "What is the answer to 'is anybody there?' ",
    "Make it say 'gymnasium'. ",
]


@dataclass
class Arguments:
    server: str = field(default="127.0.0.1:50051", metadata={"help": "the server of the environment"})


def main() -> None:
    kinds: Any = (Arguments, GRPOConfig, ModelConfig)
    arguments, config, model = TrlParser(kinds).parse_args_and_config()
    config.chat_template_kwargs = {"enable_thinking": False}
    trainer = GRPOTrainer(
        model.model_name_or_path,
        args=config,
        train_dataset=Dataset.from_dict({"prompt": [[{"role": "user", "content": text}] for text in ASKED]}),
        environment_factory=remote_environment("examples/Echo-v0", server=arguments.server),
    )
    trainer.train()


if __name__ == "__main__":
    main()
