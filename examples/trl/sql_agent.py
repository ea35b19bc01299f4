"""TRL's example `grpo_agent`: a model reads a database of genes before it answers yes or no.

    gymhost serve environments --address 127.0.0.1:50051
    python sql_agent.py --model_name_or_path Qwen/Qwen3-1.7B --use_vllm true --vllm_mode colocate \
        --max_completion_length 1024 --log_completions true

TRL's script has the tool as a plain function beside BioGRID, which is downloaded; here a few rows of a table stand for
it, on the server. Rewards come from both sides, and are added up: how the table was read is the environment's to say,
and the answer, which no tool is told of, the trainer's.
"""

import re
from dataclasses import dataclass, field
from typing import Any

from datasets import Dataset
from trl.scripts.utils import TrlParser
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.model_config import ModelConfig

from gymhost.trainers.trl_factory import remote_environment

PROMPT = "Does the gene {} interact with {} in humans? Answer *yes* or *no*, with the stars. "
QUESTIONS = [
    ("JNKK", "MAPK8", "yes"),
    ("JNKK", "JUN", "no"),
    ("TP53", "MDM2", "yes"),
    ("CDC28", "SIC1", "no"),
    ("BRCA1", "BARD1", "yes"),
    ("BRCA1", "EP300", "no"),
]


@dataclass
class Arguments:
    server: str = field(default="127.0.0.1:50051", metadata={"help": "the server of the environment"})


def correct(completions: list[list[dict[str, Any]]], answer: list[str], **_: Any) -> list[float | None]:
    """0.6 for the right answer, -1 for the wrong one, -0.5 for none."""
    said = [re.search(r"\*(yes|no)\*", str(completion[-1].get("content")).lower()) for completion in completions]
    return [-0.5 if one is None else 0.6 if one[1] == right else -1.0 for one, right in zip(said, answer, strict=True)]


def main() -> None:
    kinds: Any = (Arguments, GRPOConfig, ModelConfig)
    arguments, config, model = TrlParser(kinds).parse_args_and_config()
    config.chat_template_kwargs = {"enable_thinking": False}
    rows = [
        {"prompt": [{"role": "user", "content": PROMPT.format(one, other)}], "answer": answer}
        for one, other, answer in QUESTIONS
    ]
    trainer = GRPOTrainer(
        model.model_name_or_path,
        args=config,
        train_dataset=Dataset.from_list(rows),
        reward_funcs=correct,
        environment_factory=remote_environment("examples/Interactions-v0", server=arguments.server),
    )
    trainer.train()


if __name__ == "__main__":
    main()
