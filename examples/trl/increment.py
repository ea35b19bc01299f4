"""TRL's first example of an environment, from the guide of `GRPOTrainer`: a counter with one tool, and no dataset.

    gymhost serve environments --address 127.0.0.1:50051
    python increment.py --model_name_or_path Qwen/Qwen3-0.6B --max_steps 1000 --log_completions true

Without a dataset the environment chooses what is played, for each rollout anew: the rollouts of a group differ. With
one the rows say it: `Dataset.from_dict({"task": [0, 1, 2, 3, 4, 5]})` has all of a group count to the same number.
"""

from dataclasses import dataclass, field
from typing import Any

from trl.scripts.utils import TrlParser
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.model_config import ModelConfig

from gymhost.trainers.trl_factory import remote_environment


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
        environment_factory=remote_environment("examples/Increment-v0", server=arguments.server),
    )
    trainer.train()


if __name__ == "__main__":
    main()
