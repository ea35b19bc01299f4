"""Plays a plan's rollouts with TRL's own loop: `python -m tests.benchmarks.rollout_trl {sync|async} - PLAN`.

What runs is TRL's code, from the resets to the end of its tool loop, with `environment_factory`. A simulated generator
takes the place of the model; what follows the loop, scoring the rollouts with the model, is left out.
"""

import asyncio
import copy
import math
import os
import sys
import tempfile
import time
import warnings
from dataclasses import replace
from typing import Any

from tests.benchmarks.rollout_plan import Model, Plan, answers, prompt, report
from tests.support.simulated_generator import Slots
from tests.support.tokenizers import encode, qwen3_tokenizer

os.environ |= {"OMP_NUM_THREADS": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
warnings.simplefilter("ignore")

import torch  # noqa: E402 - what is set above is read when these are imported
from transformers import Qwen3Config, Qwen3ForCausalLM  # noqa: E402
from trl.chat_template_utils import qwen3_chat_template  # noqa: E402
from trl.trainer.grpo_config import GRPOConfig  # noqa: E402
from trl.trainer.grpo_trainer import GRPOTrainer  # noqa: E402

# Tokens that no rollout of a plan ever has.
_LONGEST = 2**20


class _Work:
    """What TRL takes for an environment. It is made without arguments, so the plan is an attribute of the class."""

    plan: Plan

    def reset(self, *, rollout: int, **_: Any) -> None:
        self._answers = answers(self.plan.delays(rollout))

    def get_reward(self) -> float:
        return 1.0


class SyncWork(_Work):
    def work(self) -> str:
        """Works for a while."""
        delay, answer = next(self._answers)
        time.sleep(delay)
        return answer


class AsyncWork(_Work):
    async def work(self) -> str:
        """Works for a while."""
        delay, answer = next(self._answers)
        await asyncio.sleep(delay)
        return answer


class Played(Exception):
    """The loop has ended."""


class Simulated(GRPOTrainer):
    """A trainer whose model is simulated while it samples."""

    model_of_plan: Model
    slots: Slots

    def _generate_single_turn(self, prompt_ids: Any, *_: Any, **__: Any) -> Any:
        sampled = [list(self.model_of_plan.answer(ids)) for ids in prompt_ids]
        now = time.perf_counter()
        end = max(self.slots.take(len(ids), now) for ids in sampled)
        time.sleep(max(0.0, end - time.perf_counter()))
        return sampled, [[-1.0] * len(ids) for ids in sampled]


class Trainer(Simulated):
    """One that ends where the rollouts do."""

    played: Any

    def play(self, plan: Plan, slots: Slots) -> list[int]:
        """Plays the rollouts, and returns how many turns each had."""
        _Work.plan, self.model_of_plan, self.slots = plan, Model(plan, encode), slots
        rows = [
            {"prompt": [{"role": "user", "content": prompt(rollout)}], "rollout": rollout}
            for rollout in range(plan.rollouts)
        ]
        try:
            self._generate_and_score_completions(rows)
        except Played:
            pass
        return [sum(message["role"] == "assistant" for message in said) for said in self.played]

    def _generate(self, prompts: list[Any]) -> Any:
        _, _, _, self.played, *_ = super()._generate(prompts)
        raise Played


def tokenizer_and_model(width: int, layers: int) -> tuple[Any, Any]:
    """The tokenizer of the tests, and a random model for it."""
    torch.set_num_threads(1)
    tokenizer = copy.deepcopy(qwen3_tokenizer())
    tokenizer.chat_template = qwen3_chat_template
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=width,
        num_hidden_layers=layers,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=width,
        max_position_embeddings=_LONGEST,
    )
    return tokenizer, Qwen3ForCausalLM(config)


def trainer(factory: type[_Work], folder: str) -> Trainer:
    tokenizer, model = tokenizer_and_model(width=8, layers=1)
    config = GRPOConfig(
        output_dir=folder,
        max_steps=1,
        per_device_train_batch_size=8,
        num_generations=8,
        max_completion_length=_LONGEST,
        bf16=False,
        gradient_checkpointing=False,
        report_to="none",
        disable_tqdm=True,
    )
    return Trainer(model, args=config, processing_class=tokenizer, environment_factory=factory)


def main(variant: str, plan: Plan) -> None:
    with tempfile.TemporaryDirectory() as folder:
        trl = trainer({"sync": SyncWork, "async": AsyncWork}[variant], folder)
        # The first use is slow.
        trl.play(replace(plan, rollouts=2, tokens_per_second=math.inf, delay=0.0), Slots())
        slots = Slots(plan.slots, plan.tokens_per_second)
        print("begin", flush=True)
        begun = time.perf_counter()
        turns = trl.play(plan, slots)
        seconds = time.perf_counter() - begun
        print("end", flush=True)
        report(plan, turns, seconds, busy=slots.share_busy)


if __name__ == "__main__":
    main(sys.argv[1], Plan.read(sys.argv[3]))
