"""Colocated vLLM that sleeps while the trainer learns, which vLLM does on a GPU only: what is asked of it, and when.

All but the engine is real: TRL's trainer, and its code that hands weights to an engine.
"""

import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import gymhost.rollout.generators
from gymhost.rollout.generators import ScriptedGenerator
from gymhost.trainers.trl import Environments
from support.local_source import LocalSource
from support.talk import Talk, end
from support.tokenizers import encode
from support.trl_trainers import RENDERER, grpo_trainer

pytestmark = pytest.mark.heavy

ROUND = ["wake weights", "load", "reset_prefix_cache", "wake kv_cache", "sample", "sleep 2"]


class Engine:
    """What is asked of a `vllm.LLM`, in order; what is asked several times in a row stands there once."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        runner = SimpleNamespace(model=SimpleNamespace(load_weights=lambda _weights: self.note("load")))
        self.llm_engine = SimpleNamespace(
            model_executor=SimpleNamespace(driver_worker=SimpleNamespace(model_runner=runner))
        )

    def note(self, call: str) -> None:
        if self.calls[-1:] != [call]:
            self.calls.append(call)

    def wake_up(self, tags: list[str]) -> None:
        self.note(f"wake {' '.join(tags)}")

    def sleep(self, level: int) -> None:
        self.note(f"sleep {level}")

    def reset_prefix_cache(self) -> None:
        self.note("reset_prefix_cache")

    def says_hello(self, _prompt_ids: Any, _request_id: str) -> list[int]:
        self.note("sample")
        return encode("Hello.<|im_end|>")


@pytest.fixture
def sleeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Any, list[str]]]:
    """Makes a trainer with an engine that is asleep, and the list of what will be asked of the engine."""

    def make(renderer: Any = RENDERER, **settings: Any) -> tuple[Any, list[str]]:
        from trl.generation.vllm_generation import VLLMGeneration

        environments = Environments(
            "talk", server=LocalSource(lambda: Talk(lambda _env, _message: end())), tasks=range(64), renderer=renderer
        )
        trainer = grpo_trainer(environments, tmp_path, **settings)
        engine = Engine()
        monkeypatch.setattr(
            gymhost.rollout.generators, "VllmEngineGenerator", lambda _llm, **_: ScriptedGenerator(engine.says_hello)
        )
        # TRL's own code for a GPU, as it is without the repairs for a CPU.
        own = getattr(VLLMGeneration.sync_weights, "__wrapped__", VLLMGeneration.sync_weights)
        monkeypatch.setattr(VLLMGeneration, "sync_weights", own)
        # As if it had been made with use_vllm=True, but for what then needs a GPU.
        generation = VLLMGeneration.__new__(VLLMGeneration)
        generation.__dict__ |= {
            "mode": "colocate",
            "model": trainer.model,
            "accelerator": trainer.accelerator,
            "_dist": SimpleNamespace(is_fsdp=False, gather_params=nullcontext),
            "enable_sleep_mode": True,
            "llm": engine,
            "_llm_weights_sleeping": True,
        }
        trainer.vllm_generation = generation
        trainer.use_vllm, trainer.vllm_mode, trainer.vllm_importance_sampling_correction = True, "colocate", False
        trainer.vllm_tensor_parallel_size = 1
        trainer._last_loaded_step = -1
        return trainer, engine.calls

    return make


@pytest.mark.filterwarnings("ignore")
class TestSleep:
    def test_it_is_awake_with_new_weights_for_each_batch_and_asleep_after_it(
        self, sleeper: Callable[..., tuple[Any, list[str]]]
    ) -> None:
        trainer, calls = sleeper(max_steps=2)
        trainer.train()
        assert calls == ROUND * 2

    def test_it_gets_its_weights_again_where_they_are_still_the_same(
        self, sleeper: Callable[..., tuple[Any, list[str]]]
    ) -> None:
        """Two batches in one step: TRL gives the weights for the first, and sleep throws them away."""
        trainer, calls = sleeper(max_steps=1, gradient_accumulation_steps=2, steps_per_generation=1)
        trainer.train()
        assert calls == ROUND * 2

    def test_it_sleeps_again_if_there_is_no_batch(self, sleeper: Callable[..., tuple[Any, list[str]]]) -> None:
        trainer, calls = sleeper(None, max_steps=1)
        trainer.processing_class.name_or_path = "models/mine"
        with pytest.raises(ValueError, match="no renderer is known"):
            trainer.train()
        assert calls == [call for call in ROUND if call != "sample"]

    def test_a_cpu_refuses_it(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("os.environ", {**os.environ})  # TRL writes into it
        environments = Environments("talk", server=LocalSource(lambda: None), tasks=range(4), renderer=RENDERER)
        with pytest.raises(ValueError, match="leave vllm_enable_sleep_mode out of the GRPOConfig"):
            grpo_trainer(environments, tmp_path, use_vllm=True, vllm_mode="colocate", vllm_enable_sleep_mode=True)
