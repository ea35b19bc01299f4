"""Generators: what turns prompt token ids into sampled token ids.

Each lives in a module of its own, imported when it is first used: `ScriptedGenerator` (fixed answers),
`TransformersGenerator`, `VllmServerGenerator` (HTTP), `VllmEngineGenerator` (an engine in this process) and
`GeneratorPool` (several as one). `ChatEndpointGenerator` answers in messages instead, and is for evaluation.
`DiskWeights` and `TransferWeights` are how new weights reach a vLLM server.
"""

from typing import TYPE_CHECKING, Any

from gymhost.rollout.generators.base import (
    ChatGenerator,
    Generation,
    Generator,
    GeneratorError,
    GeneratorGone,
    InFlight,
    PromptTooLong,
    Response,
    Sampling,
    Updatable,
)
from gymhost.rollout.generators.scripted import Reply, ScriptedGenerator
from gymhost.rollout.generators.updates import WeightsRefused

if TYPE_CHECKING:
    from gymhost.rollout.generators.chat_endpoint import ChatEndpointGenerator
    from gymhost.rollout.generators.members import Member
    from gymhost.rollout.generators.pool import GeneratorPool
    from gymhost.rollout.generators.transformers import TransformersGenerator
    from gymhost.rollout.generators.vllm_engine import VllmEngineGenerator
    from gymhost.rollout.generators.vllm_server import VllmServerGenerator
    from gymhost.rollout.generators.weight_sync import DiskWeights, TransferWeights, WeightSync

__all__ = [
    "ChatEndpointGenerator",
    "ChatGenerator",
    "DiskWeights",
    "Generation",
    "Generator",
    "GeneratorError",
    "GeneratorGone",
    "GeneratorPool",
    "InFlight",
    "Member",
    "PromptTooLong",
    "Reply",
    "Response",
    "Sampling",
    "ScriptedGenerator",
    "TransferWeights",
    "TransformersGenerator",
    "Updatable",
    "VllmEngineGenerator",
    "VllmServerGenerator",
    "WeightSync",
    "WeightsRefused",
]

_LAZY = {
    "ChatEndpointGenerator": "gymhost.rollout.generators.chat_endpoint",
    "DiskWeights": "gymhost.rollout.generators.weight_sync",
    "GeneratorPool": "gymhost.rollout.generators.pool",
    "Member": "gymhost.rollout.generators.members",
    "TransferWeights": "gymhost.rollout.generators.weight_sync",
    "TransformersGenerator": "gymhost.rollout.generators.transformers",
    "VllmEngineGenerator": "gymhost.rollout.generators.vllm_engine",
    "VllmServerGenerator": "gymhost.rollout.generators.vllm_server",
    "WeightSync": "gymhost.rollout.generators.weight_sync",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LAZY[name]), name)
