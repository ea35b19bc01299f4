"""TRL's vLLM server mode: the trainer here, `vllm serve` in a process of its own, real weights between them."""

import asyncio
import copy
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from gymhost.envs.shelf.guess_number import GuessNumber
from gymhost.rollout import Limits, Trajectory
from gymhost.rollout.generators import DiskWeights, GeneratorError, VllmServerGenerator
from gymhost.rollout.loop_thread import LoopThread
from gymhost.rollout.service import RolloutClient
from gymhost.trainers.trl import Environments
from support.completions_server import CompletionsServer
from support.local_source import LocalSource
from support.models import player, save_tiny_qwen3, shifted, tiny_qwen3
from support.ranks import run_ranks
from support.recompute import check_rows, check_update
from support.rollout_service import RolloutServiceProcess
from support.server import ServerProcess
from support.text_environments import Letters
from support.tokenizers import qwen3_tokenizer
from support.trl_trainers import RENDERER, check_ratios, grpo_trainer, log_of, versions
from support.vllm_process import VllmProcess

pytestmark = pytest.mark.heavy
# A start of vLLM is in it.
patient = [pytest.mark.timeout(400), pytest.mark.filterwarnings("ignore")]

Batches = list[list[Trajectory]]
Train = Callable[..., tuple[Any, Environments, Batches]]


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmProcess]:
    folder = tmp_path_factory.mktemp("model")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        save_tiny_qwen3(folder)
        with VllmProcess(folder, length=1024) as process:
            yield process.wait()


@pytest.fixture
def train(vllm: VllmProcess, tmp_path: Path) -> Train:
    """Makes a trainer in server mode, on two tasks of an environment, and the list of the batches that it will play."""

    def make(game: Callable[..., Any], turn_tokens: int, **settings: Any) -> tuple[Any, Environments, Batches]:
        batches: Batches = []
        environments = Environments(
            "game",
            server=LocalSource(game),
            tasks=range(2),
            renderer=RENDERER,
            limits=Limits(turn_tokens=turn_tokens),
            on_rollouts=batches.append,
        )
        defaults = {"use_vllm": True, "vllm_mode": "server", "vllm_server_base_url": vllm.url, "learning_rate": 1e-2}
        return grpo_trainer(environments, tmp_path, **defaults | settings), environments, batches

    return make


def no_failures(batches: Batches) -> None:
    outcomes = {str(trajectory.outcome) for batch in batches for trajectory in batch}
    assert not any(outcome.startswith("failed") for outcome in outcomes), outcomes


async def _give(url: str, model: Any, folder: Path) -> None:
    """Gives a server the weights of a model."""
    generator = VllmServerGenerator(url, sync=DiskWeights(folder))
    await generator.update(model, 1)
    await generator.aclose()


class TestServerMode:
    pytestmark = patient

    def test_a_model_that_knows_nothing_learns_a_game_of_words(self, train: Train) -> None:
        trainer, _, batches = train(
            Letters, 8, max_steps=20, per_device_train_batch_size=32, num_generations=16, lr_scheduler_type="constant"
        )
        trainer.train()
        log = log_of(trainer)
        assert len(log) == 20
        check_ratios(log)
        assert versions(batches) == [{step} for step in range(20)]
        no_failures(batches)
        rewards = [entry["reward"] for entry in log]
        assert fmean(rewards[-5:]) > fmean(rewards[:5]) + 0.2, rewards

    def test_nothing_of_older_weights_is_left_in_the_caches(self, train: Train, vllm: VllmProcess) -> None:
        """S09: each step's long prompts begin as those of the step before."""
        trainer, environments, batches = train(
            lambda: GuessNumber(guesses=3),
            48,
            model=copy.deepcopy(player()).requires_grad_(True),
            max_steps=3,
            max_completion_length=400,
        )
        hits = vllm.metric("prefix_cache_hits_total")
        trainer.train()
        assert vllm.metric("prefix_cache_hits_total") > hits
        check_ratios(log_of(trainer))
        assert versions(batches) == [{0}, {1}, {2}]
        no_failures(batches)
        assert max(len(trajectory.turns) for batch in batches for trajectory in batch) > 1

        # What a script plays when the training is over is played with what was learned in the last step.
        evaluated = environments.rollout(trainer, environments.dataset("test", tasks=range(4)))
        no_failures([evaluated])
        assert versions([evaluated]) == [{3}]
        check_rows(evaluated, {3: trainer.model.eval()})

    def test_weights_that_change_under_a_batch_are_told_apart(self, vllm: VllmProcess, tmp_path: Path) -> None:
        """S09 with a generator of the user's own, which somebody updates in the middle of the second batch."""
        models = {1: player(), 2: shifted(player())}
        batches: Batches = []
        turns = 0

        class Changing(VllmServerGenerator):
            async def generate(self, *args: Any, **how: Any) -> Any:
                nonlocal turns
                turns += len(batches) == 1
                if turns == 48 and self.policy_version == 1:
                    await self.update(models[2], 2)  # once those in flight have ended
                return await super().generate(*args, **how)

        asyncio.run(_give(vllm.url, models[1], tmp_path))
        environments = Environments(
            "game",
            server=LocalSource(lambda: GuessNumber(guesses=6)),
            tasks=range(8),
            renderer=RENDERER,
            generator=Changing(vllm.url, policy_version=1, sync=DiskWeights(tmp_path)),
            limits=Limits(turn_tokens=48),
            on_rollouts=batches.append,
        )
        trainer = grpo_trainer(
            environments, tmp_path, max_steps=3, max_completion_length=400, per_device_train_batch_size=32
        )
        hits = vllm.metric("prefix_cache_hits_total")
        trainer.train()
        assert vllm.metric("prefix_cache_hits_total") > hits
        no_failures(batches)
        assert {trajectory.attempts for batch in batches for trajectory in batch} == {1}
        assert versions([batches[0], batches[2]]) == [{1}, {2}]
        check_rows(batches[0] + batches[2], models)
        check_update(batches[1], models, mixed=False)
        shares = [entry["rollouts/mixed_versions"] for entry in log_of(trainer)]
        assert shares == [0.0, pytest.approx(fmean(t.mixed_versions for t in batches[1])), 0.0]
        assert shares[1] > 0

    def test_lora_s_weights_are_merged_on_their_way(self, train: Train) -> None:
        from peft import LoraConfig

        # Not 0 in the beginning, so that the first step already would show if the server had the base alone.
        lora = LoraConfig(r=8, target_modules="all-linear", init_lora_weights=False)
        trainer, _, batches = train(Letters, 8, max_steps=3, trainer_peft_config=lora)
        trainer.train()
        check_ratios(log_of(trainer))
        assert versions(batches) == [{0}, {1}, {2}]
        no_failures(batches)

    def test_no_rank_samples_before_the_server_has_the_weights(self, vllm: VllmProcess, tmp_path: Path) -> None:
        seen = run_ranks(tmp_path, "--vllm", vllm.url)
        check_ratios(seen[0]["log"])
        for own in seen:
            assert own["versions"] == [[0], [1], [2]]
            assert not any(outcome.startswith("failed") for batch in own["outcomes"] for outcome in batch)

    def test_a_rollout_service_that_samples_with_that_server_is_told_of_the_weights(
        self, vllm: VllmProcess, tmp_path: Path
    ) -> None:
        qwen3_tokenizer().save_pretrained(tmp_path / "tokenizer")
        batches: Batches = []
        with ServerProcess(workers=1, modules=["support.text_environments"]) as server:
            options = ("--renderer", "qwen3", "--generator", vllm.url)
            at = server.address, tmp_path / "tokenizer", tmp_path / "jobs.sqlite"
            with RolloutServiceProcess(*at, *options) as service:
                environments = Environments(
                    "test/Letters-v0",
                    service=service.address,
                    limits=Limits(turn_tokens=8),
                    on_rollouts=batches.append,
                )
                vllm_server = {"use_vllm": True, "vllm_mode": "server", "vllm_server_base_url": vllm.url}
                trainer = grpo_trainer(environments, tmp_path / "out", max_steps=3, learning_rate=1e-2, **vllm_server)
                trainer.train()
                with RolloutClient(service.address) as client:
                    client.call_sync(client.add_generator("http://127.0.0.1:1"))
                    with pytest.raises(ValueError, match="leave use_vllm out of the GRPOConfig"):
                        environments.rollout(trainer, environments.dataset("test"))
        check_ratios(log_of(trainer))
        assert versions(batches) == [{1}, {2}, {3}]
        no_failures(batches)
        assert not (tmp_path / "out" / "weights").exists()

    def test_tied_embeddings_are_refused(self, train: Train) -> None:
        model = tiny_qwen3()
        model.config.tie_word_embeddings = True
        model.tie_weights()
        trainer, _, batches = train(Letters, 8, max_steps=1, model=model)
        with pytest.raises(GeneratorError, match="tie_word_embeddings=False"):
            trainer.train()
        assert batches == []


@pytest.mark.filterwarnings("ignore")
def test_a_server_without_its_control_endpoints_is_refused(tmp_path: Path) -> None:
    server = CompletionsServer(dev_mode=False)
    thread = LoopThread("vllm")
    environments = Environments("game", server=LocalSource(Letters), tasks=range(2), renderer=RENDERER)
    try:
        thread.run(server.start(0))
        with pytest.raises(RuntimeError, match="VLLM_SERVER_DEV_MODE=1"):
            grpo_trainer(
                environments, tmp_path, use_vllm=True, vllm_mode="server", vllm_server_base_url=server.url, max_steps=1
            )
    finally:
        thread.run(server.stop())
        thread.close()
