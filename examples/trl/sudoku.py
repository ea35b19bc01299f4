"""TRL's example `grpo_sudoku`: TextArena's puzzles, a number a turn.

    gymhost serve environments --address 127.0.0.1:50051
    python sudoku.py --model_name_or_path Qwen/Qwen3-1.7B --use_vllm true --vllm_mode colocate \
        --num_generations 8 --gradient_accumulation_steps 64 --learning_rate 5e-6 --max_completion_length 16384

TRL's script has a reward function for each part of the reward. Here the parts are rubrics of the environment, and the
trainer is given their sum; `gymhost.trainers.trl.Environments(..., rewards=["win", "progress"])` gives it columns.
"""

from dataclasses import dataclass, field
from typing import Any

from datasets import Dataset
from trl.scripts.utils import TrlParser
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.model_config import ModelConfig

from gymhost.trainers.trl_factory import remote_environment

SYSTEM = "You solve Sudokus. Look for a cell that only one number fits in, and never try the same move twice."


@dataclass
class Arguments:
    server: str = field(default="127.0.0.1:50051", metadata={"help": "the server of the environment"})
    game: str = field(default="Sudoku-v0-easy", metadata={"help": "TextArena's name of the puzzles"})
    puzzles: int = field(default=1000, metadata={"help": "how many puzzles are played"})


def main() -> None:
    kinds: Any = (Arguments, GRPOConfig, ModelConfig)
    arguments, config, model = TrlParser(kinds).parse_args_and_config()
    config.chat_template_kwargs = {"enable_thinking": False}
    prompt = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": ""}]
    trainer = GRPOTrainer(
        model.model_name_or_path,
        args=config,
        train_dataset=Dataset.from_list([{"prompt": prompt, "task": task} for task in range(arguments.puzzles)]),
        environment_factory=remote_environment("examples/Sudoku-v0", server=arguments.server, game=arguments.game),
    )
    trainer.train()


if __name__ == "__main__":
    main()
