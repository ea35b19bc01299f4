"""What a TRL trainer generates with, as a generator of `gymhost.rollout`."""

from collections.abc import Generator as Yields
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from gymhost.rollout.generators import Generator, Sampling
from gymhost.trainers.trl_player import Player

__all__ = ["generator_of", "sampling_of", "tokenizer_of"]

# With a seed all rollouts of a group would be the same.
_KNOWN = {field.name for field in fields(Sampling)} - {"seed", "stop_token_ids"}


def tokenizer_of(trainer: Any) -> Any:
    """The trainer's tokenizer, which may be a part of its processor."""
    return getattr(trainer.processing_class, "tokenizer", trainer.processing_class)


def sampling_of(trainer: Any) -> Sampling:
    """How a trainer is set to sample.

    Raises:
        ValueError: The trainer is set to something that rollouts do not know.
    """
    if trainer.repetition_penalty != 1.0:
        raise ValueError("rollouts know no repetition_penalty: leave it at 1.0 in the GRPOConfig")
    if trainer.args.vllm_structured_outputs_regex:
        raise ValueError("rollouts know no vllm_structured_outputs_regex: leave it out of the GRPOConfig")
    chosen: dict[str, Any] = {
        "temperature": trainer.temperature,
        "top_p": trainer.top_p,
        "top_k": trainer.top_k,
        "min_p": trainer.min_p or 0.0,
        "max_tokens": trainer.max_completion_length,
    }
    extra: dict[str, Any] = trainer.args.generation_kwargs or {}
    if unknown := sorted(set(extra) - _KNOWN):
        raise ValueError(
            f"rollouts know no generation_kwargs {', '.join(unknown)}: leave them out of the GRPOConfig; known are"
            f" {', '.join(sorted(_KNOWN))}"
        )
    return Sampling(**chosen | extra)


@contextmanager
def generator_of(trainer: Any, version: int, player: Player) -> Yields[Generator]:
    """Gives the generator for one call of the rollout function, with the trainer's present weights.

    With several ranks each of them has to come here: where weights are gathered or sent, that is done together, and
    only then does each of them sample by itself, for as long as it takes.

    Args:
        trainer: A `GRPOTrainer`.
        version: The policy version of these weights.
        player: Where the rollouts will be played.

    Raises:
        ValueError: The trainer is set up in a way that asynchronous rollouts can't work with.
    """
    if not trainer.use_vllm:
        with _own_model(trainer, version) as generator, player.closing(generator):
            yield generator
    elif trainer.vllm_mode == "server":
        yield player.server(_server(trainer), version)
    else:
        with _colocated(trainer, version) as generator, player.closing(generator):
            yield generator


def _synchronize(trainer: Any) -> None:
    """Gives vLLM the present weights, if it hasn't got them: TRL itself has done so where it asks for rollouts."""
    if trainer.state.global_step != trainer._last_loaded_step:
        trainer.vllm_generation.sync_weights()
        trainer._last_loaded_step = trainer.state.global_step


def _server(trainer: Any) -> str:
    """The URL of the trainer's vLLM server, which has the present weights."""
    _synchronize(trainer)
    # It is the main rank that has the server load them, and the others must not sample before it has.
    trainer.accelerator.wait_for_everyone()
    args = trainer.args
    return args.vllm_server_base_url or f"http://{args.vllm_server_host}:{args.vllm_server_port}"


@contextmanager
def _colocated(trainer: Any, version: int) -> Yields[Generator]:
    if trainer.vllm_tensor_parallel_size > 1:
        raise ValueError(
            "colocated vLLM with tensor parallelism needs all ranks to generate in step, which rollouts do not: set"
            " vllm_tensor_parallel_size=1, or use vllm_mode='server'"
        )
    from gymhost.rollout.generators import VllmEngineGenerator

    _synchronize(trainer)
    vllm = trainer.vllm_generation
    if vllm.enable_sleep_mode:
        # Level 2 throws the weights away, so waking is not enough.
        if vllm._llm_weights_sleeping:
            vllm.sync_weights()
        vllm.llm.wake_up(tags=["kv_cache"])
    try:
        yield VllmEngineGenerator(vllm.llm, policy_version=version)
    finally:
        if vllm.enable_sleep_mode:
            vllm.llm.sleep(level=2)
            vllm._llm_weights_sleeping = True


@contextmanager
def _own_model(trainer: Any, version: int) -> Yields[Generator]:
    if trainer.is_fsdp_enabled or (trainer.is_deepspeed_enabled and not trainer.args.ds3_gather_for_generation):
        raise ValueError(
            "a sharded model generates on all ranks in step, which rollouts do not: set use_vllm=True, or with"
            " DeepSpeed ds3_gather_for_generation=True"
        )
    import torch
    from trl.models.utils import unwrap_model_for_generation  # pyright: ignore[reportUnknownVariableType]

    from gymhost.rollout.generators import TransformersGenerator

    with unwrap_model_for_generation(
        trainer.model_wrapped,
        trainer.accelerator,
        gather_deepspeed3_params=trainer.args.ds3_gather_for_generation,
        gradient_checkpointing_kwargs=trainer.args.gradient_checkpointing_kwargs,
    ) as model:  # pyright: ignore[reportUnknownVariableType]
        # From the trainer's seed, which is another on each rank.
        seed = int(torch.randint(2**62, ()))
        yield TransformersGenerator(model, policy_version=version, seed=seed)
