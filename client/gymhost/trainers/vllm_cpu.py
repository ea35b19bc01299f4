"""Makes TRL's vLLM generation work on a machine without a GPU. The one place of these repairs.

TRL builds its colocated engine without a dtype, which on a CPU means bfloat16 whatever the model is, and half a minute
of compilation. In float32 and eager mode it starts in seconds and samples from the very distribution that is trained;
but its weights are then packed, and TRL's own way of loading new ones fails. vLLM's `reload_weights` unpacks and packs
them again.
"""

import functools
import importlib
from collections.abc import Callable
from typing import Any

__all__ = ["use_vllm_on_cpu"]


def use_vllm_on_cpu() -> bool:
    """Repairs TRL's colocated vLLM generation in this process, if vLLM is installed and runs on the CPU.

    To be called before the trainer is made. With a GPU, or without vLLM, it does nothing; calling it twice does nothing
    more.

    Returns:
        Whether the repairs are in place.
    """
    from trl.import_utils import is_vllm_available

    if not is_vllm_available():
        return False
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return False
    generation: Any = importlib.import_module("trl.generation.vllm_generation")
    if not isinstance(generation.LLM, functools.partial):
        generation.LLM = functools.partial(generation.LLM, enforce_eager=True, dtype="float32")
        generation.VLLMGeneration.sync_weights = _reloading(generation.VLLMGeneration.sync_weights)
    return True


def _reloading(sync_weights: Callable[[Any], None]) -> Callable[[Any], None]:
    @functools.wraps(sync_weights)
    def sync(self: Any) -> None:
        if self.mode != "colocate":
            sync_weights(self)
            return
        if getattr(self.model.config.get_text_config(), "tie_word_embeddings", False):
            # It would be answered with success, and every log-prob would be wrong.
            raise ValueError(
                "vLLM on a CPU loads new weights of a model with tied embeddings wrongly: make the model with"
                " tie_word_embeddings=False, or train on a GPU"
            )
        weights = [(name, parameter.detach().clone()) for name, parameter in self._iter_named_params()]
        self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(weights)})
        self.llm.reset_prefix_cache()

    return sync
