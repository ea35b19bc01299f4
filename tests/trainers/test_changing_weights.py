"""S09 in TRL's own trainer: weights change in the middle of a batch, on a server whose cache tells who filled it."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gymhost.rollout import Concurrency, Trajectory
from gymhost.rollout.generators import DiskWeights, VllmServerGenerator
from gymhost.rollout.loop_thread import LoopThread
from gymhost.trainers.trl import Environments
from support.completions_server import CompletionsServer, PrefixCache, weights
from support.local_source import LocalSource
from support.talk import Talk, end, go_on, tool
from support.tokenizers import encode
from support.trl_trainers import RENDERER, grpo_trainer, log_of

# What TRL and torch warn of is not ours to mend.
pytestmark = [pytest.mark.heavy, pytest.mark.filterwarnings("ignore")]

OLD, NEW = 1, 2
TURNS = 4
SAY = encode("abab<|im_end|>")


@pytest.fixture
def server() -> Iterator[CompletionsServer]:
    """Has the old weights; log-probs are those of the oldest version that filled a block of the context."""
    server, thread = CompletionsServer(), LoopThread("vllm")
    thread.run(server.start(0))
    server.version = OLD
    server.max_model_len = 100_000
    server.answer = PrefixCache(server, lambda _body: SAY)
    yield server
    thread.run(server.stop())
    thread.close()


class Changing:
    """Conversations of four turns, in the second of which those of the first group wait until the weights are new.

    Args:
        generator: Whose weights change.
    """

    def __init__(self, generator: VllmServerGenerator) -> None:
        self._generator = generator
        self._all_there = asyncio.Barrier(4)
        self._made = 0

    def __call__(self) -> Talk:
        changing, number, self._made = self, self._made, self._made + 1

        class Waiting(Talk):
            async def astep(self, action: Any) -> Any:
                answer = self.step(action)
                if number < 4 and len(self.said) == 2 and await changing._all_there.wait() == 0:
                    await changing._generator.update(weights(NEW), NEW)
                if number < 4 and len(self.said) == 2:
                    await changing._all_there.wait()
                return answer

        # Turns of the first group are worth 0 to 3, those of the others 0 or 1.
        reward = float(number % 4 if number < 4 else number % 2)
        return Waiting(lambda env, _: go_on(tool("On.")) if len(env.said) < TURNS else end(reward=reward))


class Trained:
    """Two steps of TRL's trainer, in the first of which the weights change.

    Attributes:
        batches: What was played.
        masks: What TRL was given of the first batch,
        rewards: what it made of it,
        advantages: and what it learned.
        log: Of both steps.
    """

    def __init__(self, server: CompletionsServer, folder: Path, **settings: Any) -> None:
        generator = VllmServerGenerator(server.url, policy_version=OLD, sync=DiskWeights(folder / "weights"))
        self.batches: list[list[Trajectory]] = []
        self.masks: list[list[int]] = []
        self.rewards: list[str] = []
        self.advantages: list[float] = []
        environments = Environments(
            "Talk-v0",
            server=LocalSource(Changing(generator)),
            tasks=range(4),
            renderer=RENDERER,
            generator=generator,
            # The others of the batch begin when those of the first group have ended.
            concurrency=Concurrency(run=4),
            on_rollouts=self.batches.append,
            **settings,
        )
        trainer = grpo_trainer(environments, folder, max_steps=2, max_completion_length=400, shuffle_dataset=False)
        play = trainer.rollout_func

        def look(prompts: Any, trainer: Any) -> dict[str, Any]:
            given = play(prompts, trainer)
            if trainer.state.global_step == 0:
                self.masks = given["env_mask"]
            else:
                self.rewards = [str(reward) for reward in trainer._logs["rewards"]["total"]]
                self.advantages = list(trainer._logs["advantages"])
            return given

        trainer.rollout_func = look
        trainer.train()
        self.log = log_of(trainer)


def versions(trajectory: Trajectory) -> list[int]:
    return [turn.policy_version for turn in trajectory.turns]


@pytest.mark.parametrize("mixed_versions", ["keep", "drop"])
def test_each_turn_says_by_which_weights_and_what_is_mixed_may_be_dropped(
    server: CompletionsServer, tmp_path: Path, caplog: pytest.LogCaptureFixture, mixed_versions: str
) -> None:
    trained = Trained(server, tmp_path, mixed_versions=mixed_versions)
    first, second = trained.batches
    mixed, rest = first[:4], first[4:] + second
    assert [versions(t) for t in mixed] == [[OLD, OLD, NEW, NEW]] * 4
    assert all(t.mixed_versions for t in mixed)
    assert [versions(t) for t in rest] == [[NEW] * TURNS] * 12  # though their prompts begin as those did
    assert not any(t.mixed_versions for t in rest)
    for t in first + second:
        assert (str(t.outcome), t.attempts) == ("terminated", 1)
        for version, sampled, logprob in zip(t.policy_versions, t.mask, t.logprobs, strict=True):
            assert not sampled or logprob == -version, "a block that older weights filled was used"

    drops = mixed_versions == "drop"
    of_mixed = ["nan"] * 4 if drops else ["0.0", "1.0", "2.0", "3.0"]
    assert trained.rewards == of_mixed + ["0.0", "1.0"] * 2
    assert [sum(mask) for mask in trained.masks] == [0 if drops else TURNS * len(SAY)] * 4 + [TURNS * len(SAY)] * 4
    assert [advantage == 0.0 for advantage in trained.advantages] == [drops] * 4 + [False] * 4
    assert [entry["rollouts/mixed_versions"] for entry in trained.log] == [0.5, 0.0]
    assert trained.log[0]["reward"] == (0.5 if drops else 1.0)
    told = re.findall(r"4 of 8 rollouts were sampled by more than one version of the weights: (.*) \(", caplog.text)
    assert told == ["they are not learned from" if drops else "they are learned from as others are"]
    assert "have no reward" not in caplog.text


def test_nothing_else_can_be_done_with_them() -> None:
    with pytest.raises(ValueError, match="mixed_versions must be 'keep' or 'drop', not 'fix'"):
        Environments("Talk-v0", mixed_versions="fix")  # pyright: ignore[reportArgumentType]
