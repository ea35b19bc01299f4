"""When TRL asks for rollouts, by which weights they are made, and that each row is learned from as what it is."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gymhost.rollout import Limits, Trajectory
from gymhost.rollout.generators import ScriptedGenerator
from gymhost.trainers.trl import Environments
from support.local_source import LocalSource
from support.models import tiny_qwen3
from support.recompute import check_rows
from support.talk import Talk, end, go_on, user
from support.text_environments import Letters
from support.tokenizers import decode, encode
from support.trl_trainers import RENDERER, grpo_trainer, log_of, versions

pytestmark = pytest.mark.heavy

quiet = pytest.mark.filterwarnings("ignore")
Batches = list[list[Trajectory]]
Train = Callable[..., tuple[Any, Batches]]


@pytest.fixture
def train(tmp_path: Path) -> Train:
    """Trains a model that generates by itself, and returns the trainer and the batches."""

    def run(**settings: Any) -> tuple[Any, Batches]:
        batches: Batches = []
        environments = Environments(
            "test/Letters-v0",
            server=LocalSource(Letters),
            tasks=[0, 1, 2, 3] * 2,
            renderer=RENDERER,
            limits=Limits(turn_tokens=6),
            on_rollouts=batches.append,
        )
        trainer = grpo_trainer(environments, tmp_path, learning_rate=1e-2, **settings)
        trainer.train()
        return trainer, batches

    return run


@quiet
@pytest.mark.parametrize(
    ("settings", "sizes", "by"),
    [
        # One batch of rollouts for the two halves of a step.
        ({"gradient_accumulation_steps": 2, "max_steps": 2}, [16, 16], [0, 1]),
        # A batch of rollouts for each half.
        ({"gradient_accumulation_steps": 2, "steps_per_generation": 1, "max_steps": 2}, [8] * 4, [0, 0, 1, 1]),
        # One batch for two steps, the second of which learns from the policy before.
        ({"steps_per_generation": 2, "max_steps": 4}, [16, 16], [0, 2]),
        ({"generation_batch_size": 24, "max_steps": 4}, [24, 24], [0, 3]),
        # Each batch is learned from twice.
        ({"num_iterations": 2, "max_steps": 4}, [8, 8], [0, 2]),
        ({"num_iterations": 2, "steps_per_generation": 2, "max_steps": 5}, [16, 16], [0, 4]),
    ],
    ids=["accumulation", "half-steps", "two-steps", "batch-size", "two-passes", "two-passes-of-two-steps"],
)
def test_rollouts_are_made_once_for_a_generation_batch(
    train: Train, settings: dict[str, Any], sizes: list[int], by: list[int]
) -> None:
    _, batches = train(**settings)
    assert [len(batch) for batch in batches] == sizes
    assert versions(batches) == [{version} for version in by]
    for batch in batches:  # whole groups, each once
        groups = [trajectory.group for trajectory in batch]
        assert all(groups.count(group) == 4 for group in groups)
        assert [trajectory.index for trajectory in batch] == [0, 1, 2, 3] * (len(batch) // 4)


@quiet
def test_no_batch_is_sampled_by_the_luck_of_another(train: Train) -> None:
    """Two batches by the same weights, of the same task."""
    _, batches = train(gradient_accumulation_steps=2, steps_per_generation=1, max_steps=1, num_generations=8)
    said = [tuple(trajectory.completion_ids) for batch in batches for trajectory in batch]
    assert len(said) == len(set(said)) == 16


@quiet
def test_log_probs_are_those_of_the_policy_that_is_said_to_have_sampled(train: Train, tmp_path: Path) -> None:
    """Each batch is compared with the weights that the trainer saved after that step."""
    from transformers import AutoModelForCausalLM

    trainer, batches = train(
        max_steps=4, gradient_accumulation_steps=2, num_iterations=2, save_strategy="steps", save_steps=1
    )
    models = {0: tiny_qwen3()}
    for step in (1, 2, 3):
        models[step] = AutoModelForCausalLM.from_pretrained(tmp_path / f"checkpoint-{step}").eval()
    assert versions(batches) == [{0}, {2}]
    assert check_rows([trajectory for batch in batches for trajectory in batch], models)
    assert trainer.state.global_step == 4


@quiet
def test_each_slice_of_a_batch_has_the_completions_advantages_and_masks_of_its_own_rows(tmp_path: Path) -> None:
    """TRL shuffles a batch and cuts it up; a row's tokens say which they are, and its reward is that number."""
    numbers = iter(range(16))

    def says(prompt_ids: Any, _request_id: str) -> list[int]:
        return encode(f"{decode(list(prompt_ids)).rsplit('Number ', 1)[1].split('.')[0]}<|im_end|>")

    def play(environment: Talk, message: Any) -> Any:
        number = int(message["content"])
        if len(environment.said) == 1:
            return go_on(user(f"Number {number}."))
        return end(reward=float(number))

    environments = Environments(
        "talk",
        server=LocalSource(lambda: Talk(play, lambda _env: [user(f"Number {next(numbers)}.")])),
        tasks=range(4),
        renderer=RENDERER,
        generator=ScriptedGenerator(says),
    )
    trainer = grpo_trainer(environments, tmp_path, max_steps=1, gradient_accumulation_steps=2, scale_rewards="none")
    slices: list[dict[str, Any]] = []
    compute = trainer.compute_loss

    def look(model: Any, inputs: dict[str, Any], **rest: Any) -> Any:
        slices.append({name: inputs[name].clone() for name in ("completion_ids", "tool_mask", "advantages")})
        return compute(model, inputs, **rest)

    trainer.compute_loss = look
    trainer.train()
    assert [len(batch["completion_ids"]) for batch in slices] == [8, 8]
    seen: dict[int, float] = {}
    for batch in slices:
        for ids, mask, advantage in zip(*batch.values(), strict=True):
            sampled = decode(ids[mask.bool()].tolist())
            first, second, _ = sampled.split("<|im_end|>")
            assert first == second
            seen[int(first)] = advantage.item()
    assert sorted(seen) == list(range(16))
    # Rewards less the mean of the group: rollouts begin in the order of the rows, so 0 to 3 are the first group.
    assert seen == {number: pytest.approx(number % 4 - 1.5) for number in seen}


@quiet
def test_lora_generates_with_its_adapter(tmp_path: Path) -> None:
    from peft import LoraConfig

    batches: Batches = []
    environments = Environments(
        "test/Letters-v0",
        server=LocalSource(Letters),
        tasks=range(4),
        renderer=RENDERER,
        limits=Limits(turn_tokens=6),
        on_rollouts=batches.append,
    )
    lora = LoraConfig(r=8, target_modules="all-linear", init_lora_weights=False)
    trainer = grpo_trainer(environments, tmp_path, max_steps=2, learning_rate=1e-2, trainer_peft_config=lora)
    rows = environments.dataset("train", tasks=range(4))
    before = environments.rollout(trainer, rows)
    assert check_rows(before, {0: trainer.model.eval()})
    trainer.train()
    after = environments.rollout(trainer, rows)
    assert check_rows(after, {2: trainer.model.eval()})
    with pytest.raises(AssertionError), trainer.model.disable_adapter():
        check_rows(after, {2: trainer.model})
    assert versions(batches) == [{0}, {1}]
    assert len(log_of(trainer)) == 2
