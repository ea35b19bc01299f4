"""Takes a training step of a plan's rollouts: `python -m tests.benchmarks.training_client VARIANT ADDRESS PLAN`.

It is a script of TRL's with an `environment_factory`. Variants are `local`, as TRL documents it, with the environment
a class of this process; `remote`, with `remote_environment` in its place; and `rollouts`, with `Environments`. All else
is the same: a trainer of a tiny model, which is really trained, and what it samples is simulated.
"""

import math
import sys
import tempfile
import time
from dataclasses import replace
from typing import Any

from datasets import Dataset
from renderers import Qwen3RendererConfig
from tests.benchmarks.rollout_plan import Model, Plan, prompt, report
from tests.benchmarks.rollout_trl import Simulated, SyncWork, tokenizer_and_model
from tests.support.simulated_generator import SimulatedGenerator, Slots
from tests.support.tokenizers import encode
from transformers.trainer_callback import PrinterCallback, TrainerCallback
from trl.trainer.grpo_config import GRPOConfig

from gymhost.rollout import Trajectory
from gymhost.trainers.trl import Environments
from gymhost.trainers.trl_factory import remote_environment

# The plan's tool holds its thread, as that of the local environment does.
_HOSTED = "benchmarks/Blocking-v0"
_GROUP = 8


class LocalWork(SyncWork):
    """The environment as a script has it that knows of TRL alone."""

    def reset(self, *, task: int, **_: Any) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().reset(rollout=task)
        return prompt(task)


class Trainer(Simulated):
    """A trainer that knows how long its rollouts took, and how many turns each had.

    Attributes:
        rollout_seconds: How long the last rollouts took, with their tools.
        turns: The turns of each.
    """

    rollout_seconds = 0.0
    turns: list[int] = []

    def _generate(self, prompts: list[Any]) -> Any:
        begun = time.perf_counter()
        output: Any = super()._generate(prompts)
        self.rollout_seconds = time.perf_counter() - begun
        self.turns = [sum(message["role"] == "assistant" for message in said) for said in output[3]]
        return output


class Step(TrainerCallback):
    """Takes the time of a step, and tells the runner of its begin and end.

    Attributes:
        seconds: How long the step took.
    """

    def __init__(self, *, tells: bool) -> None:
        self.seconds = math.nan
        self._tells = tells
        self._begun = math.nan

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._tell("begin")
        self._begun = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.seconds = time.perf_counter() - self._begun
        self._tell("end")

    def _tell(self, what: str) -> None:
        if self._tells:
            print(what, flush=True)


def train(variant: str, address: str, plan: Plan, slots: Slots, *, tells: bool) -> tuple[list[int], float, float]:
    """Takes a step, and returns the turns of each rollout, and how long the step and its rollouts took."""
    group = min(_GROUP, plan.rollouts)
    rows = [
        {"prompt": [{"role": "user", "content": ""}], "task": task, "split": "train", "seed": task}
        for task in range(plan.rollouts // group)
    ]
    model, played = Model(plan, encode), list[Trajectory]()
    given: dict[str, Any] = {"train_dataset": Dataset.from_list(rows)}
    if variant == "local":
        LocalWork.plan = plan
        given["environment_factory"] = LocalWork
    elif variant == "remote":
        given["environment_factory"] = remote_environment(_HOSTED, server=address, plan=plan.write())
    else:
        given = Environments(
            _HOSTED,
            server=address,
            dataset=given["train_dataset"],
            renderer=Qwen3RendererConfig(thinking_retention="all"),
            generator=SimulatedGenerator(slots, model.answer),
            on_rollouts=played.extend,
            plan=plan.write(),
        ).trainer_kwargs()
    tokenizer, tiny = tokenizer_and_model(width=64, layers=2)
    step = Step(tells=tells)
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder,
            max_steps=1,
            per_device_train_batch_size=group,
            gradient_accumulation_steps=plan.rollouts // group,
            num_generations=group,
            max_completion_length=1500,
            bf16=False,
            gradient_checkpointing=False,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
        )
        trainer = Trainer(tiny, args=config, processing_class=tokenizer, callbacks=[step], **given)
        # Nothing but what the runner reads is printed.
        trainer.remove_callback(PrinterCallback)
        trainer.model_of_plan, trainer.slots = model, slots
        trainer.train()
    turns = [len(trajectory.turns) for trajectory in played] if variant == "rollouts" else trainer.turns
    return turns, step.seconds, trainer.rollout_seconds


def main(variant: str, address: str, plan: Plan) -> None:
    # The first use is slow.
    few = replace(plan, rollouts=2, tokens_per_second=math.inf, delay=0.0)
    train(variant, address, few, Slots(), tells=False)
    slots = Slots(plan.slots, plan.tokens_per_second)
    turns, seconds, rollout_seconds = train(variant, address, plan, slots, tells=True)
    report(plan, turns, seconds, rollout_seconds=rollout_seconds)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Plan.read(sys.argv[3]))
