"""Makes TRL's vLLM generation work on a machine without a GPU. The one place of these repairs.

TRL builds its colocated engine without a dtype, which on a CPU means bfloat16 whatever the model is, and half a minute
of compilation. In float32 and eager mode it starts in seconds and samples from the very distribution that is trained;
but its weights are then packed, and TRL's own way of loading new ones fails. vLLM's `reload_weights` unpacks and packs
them again.

To a vLLM server TRL sends weights by NCCL, which needs a GPU at both ends. Here they go through the disk. The server is
to be started with VLLM_SERVER_DEV_MODE=1 and `--dtype float32 --enforce-eager --logprobs-mode processed_logprobs`.
"""

import functools
import importlib
from collections.abc import Callable, Iterable
from typing import Any

from gymhost.trainers.trl_weights import ServerWeights

__all__ = ["use_vllm_on_cpu"]


def use_vllm_on_cpu() -> bool:
    """Repairs TRL's vLLM generation in this process, if vLLM is installed and runs on the CPU.

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
        generation.LLM = functools.partial(_start, generation.LLM)
        generation.VLLMGeneration.sync_weights = _reloading(generation.VLLMGeneration.sync_weights)
        generation.VLLMClient.init_communicator = _connect
        generation.VLLMClient.update_named_params = _update
    return True


def _start(engine: Callable[..., Any], **settings: Any) -> Any:
    """In place of `vllm.LLM`."""
    if settings.get("enable_sleep_mode"):
        raise ValueError("vLLM can't sleep on a CPU: leave vllm_enable_sleep_mode out of the GRPOConfig")
    return engine(enforce_eager=True, dtype="float32", **settings)


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


def _connect(self: Any, device: Any = None) -> None:
    """In place of `VLLMClient.init_communicator`."""
    self.get_server_info()  # raises if the server was started without its control endpoints
    self.server_weights = ServerWeights(self.base_url)


def _update(self: Any, metadata: object, named_params: Iterable[tuple[str, Any]]) -> None:
    """In place of `VLLMClient.update_named_params`."""
    self.server_weights.update(named_params)
