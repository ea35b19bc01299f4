"""Generators: what turns prompt token ids into sampled token ids.

Each lives in a module of its own, imported when it is first used: `ScriptedGenerator` (fixed answers),
`TransformersGenerator`, `VllmServerGenerator` (HTTP) and `VllmEngineGenerator` (an engine in this process).
"""

from typing import TYPE_CHECKING, Any

from gymhost.rollout.generators.base import Generation, Generator, GeneratorError, PromptTooLong, Sampling
from gymhost.rollout.generators.scripted import Reply, ScriptedGenerator

if TYPE_CHECKING:
    from gymhost.rollout.generators.transformers import TransformersGenerator
    from gymhost.rollout.generators.vllm_engine import VllmEngineGenerator
    from gymhost.rollout.generators.vllm_server import VllmServerGenerator

__all__ = [
    "Generation",
    "Generator",
    "GeneratorError",
    "PromptTooLong",
    "Reply",
    "Sampling",
    "ScriptedGenerator",
    "TransformersGenerator",
    "VllmEngineGenerator",
    "VllmServerGenerator",
]

_LAZY = {
    "TransformersGenerator": "gymhost.rollout.generators.transformers",
    "VllmEngineGenerator": "gymhost.rollout.generators.vllm_engine",
    "VllmServerGenerator": "gymhost.rollout.generators.vllm_server",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LAZY[name]), name)
