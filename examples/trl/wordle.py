"""TRL's example `grpo_wordle`, with Wordle from gymhost's shelf.

    gymhost serve --address 127.0.0.1:50051
    python wordle.py --model_name_or_path Qwen/Qwen3-1.7B --use_vllm true --vllm_mode colocate \
        --num_generations 4 --gradient_accumulation_steps 64 --learning_rate 1e-6 --max_completion_length 1024

The tool is `guess` in both; its argument is `guess` in TRL's and `word` in this one.
"""

from dataclasses import dataclass, field
from typing import Any

from datasets import Dataset
from trl.scripts.utils import TrlParser
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.model_config import ModelConfig

from gymhost.trainers.trl_factory import remote_environment

PROMPT = "You know English words and how often each letter is in them. Guess so that every answer tells you most.\n\n"


@dataclass
class Arguments:
    server: str = field(default="127.0.0.1:50051", metadata={"help": "the server of the environment"})
    words: int = field(default=600, metadata={"help": "how many words are played"})


def main() -> None:
    kinds: Any = (Arguments, GRPOConfig, ModelConfig)
    arguments, config, model = TrlParser(kinds).parse_args_and_config()
    config.chat_template_kwargs = {"enable_thinking": False}
    # A row is a word: all rollouts of a group are to find the same one.
    rows = [{"prompt": [{"role": "user", "content": PROMPT}], "task": task} for task in range(arguments.words)]
    trainer = GRPOTrainer(
        model.model_name_or_path,
        args=config,
        train_dataset=Dataset.from_list(rows),
        environment_factory=remote_environment("gymhost/Wordle-v0", server=arguments.server),
    )
    trainer.train()


if __name__ == "__main__":
    main()
