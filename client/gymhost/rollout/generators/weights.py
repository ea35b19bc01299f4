"""Weights in the shapes that trainers hold them in."""

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from gymhost.rollout.extras import require
from gymhost.rollout.generators.updates import WeightsRefused

__all__ = ["named_tensors", "read_folder", "refuse_tied", "weights_folder", "write_folder"]

_FILE = "model.safetensors"
_INPUT = ("embed_tokens.weight", "wte.weight", "embed_in.weight", "word_embeddings.weight")
_OUTPUT = ("lm_head.weight", "embed_out.weight")


def named_tensors(weights: Any) -> dict[str, Any]:
    """The tensors of a model or a state dict by their names, without gradients; of those that share memory the first.

    Raises:
        WeightsRefused: The weights are of a shape that nobody knows.
    """
    torch = require("torch", "trl")
    if isinstance(weights, torch.nn.Module):
        weights = weights.state_dict()
    if not isinstance(weights, Mapping):
        kind = type(weights).__name__
        raise WeightsRefused(f"weights are a model, a state dict or a folder of safetensors files, not {kind}")
    tensors: dict[str, Any] = {}
    seen: set[tuple[Any, ...]] = set()
    for name, value in cast("Mapping[str, Any]", weights).items():
        if not isinstance(value, torch.Tensor):
            continue
        tensor: Any = value.detach()
        if callable(whole := getattr(tensor, "full_tensor", None)):  # sharded by FSDP
            tensor = whole()
        place = (tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride())
        if tensor.numel() and place in seen:
            continue
        seen.add(place)
        tensors[name] = tensor
    if not tensors:
        raise WeightsRefused("there are no weights in what was given")
    return tensors


def weights_folder(weights: Any) -> Path | None:
    """The folder that weights are in; None if they are in memory.

    Raises:
        WeightsRefused: The folder holds no safetensors files, or can't be read.
    """
    if not isinstance(weights, str | os.PathLike):
        return None
    folder = Path(cast("str | os.PathLike[str]", weights)).absolute()
    try:
        found = any(folder.glob("*.safetensors"))
    except (OSError, ValueError) as error:  # a name that is too long, or has a null character
        raise WeightsRefused(f"the folder of the weights can't be read: {getattr(error, 'strerror', error)}") from None
    if not found:
        raise WeightsRefused(f"{folder} holds no safetensors files")
    return folder


def read_folder(folder: Path) -> dict[str, Any]:
    """The tensors of all safetensors files in a folder."""
    load: Any = require("safetensors.torch", "trl").load_file
    tensors: dict[str, Any] = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors |= load(path)
    return tensors


def write_folder(weights: Any, folder: Path) -> None:
    """Writes weights into a folder of their own, which is there as a whole or not at all.

    Raises:
        WeightsRefused: The weights are of a shape that nobody knows.
        OSError: The disk is full or can't be written.
    """
    save: Any = require("safetensors.torch", "trl").save_file
    tensors = {name: tensor.contiguous().cpu() for name, tensor in named_tensors(weights).items()}
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        save(tensors, part / _FILE, metadata={"format": "pt"})
        shutil.rmtree(folder, ignore_errors=True)
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def refuse_tied(weights: Any) -> None:
    """Refuses weights whose input and output embeddings are one, which vLLM reloads wrongly in float32 on a CPU.

    Raises:
        WeightsRefused: The embeddings are tied, or nothing says that they are not.
    """
    if _tied(weights):
        raise WeightsRefused(
            "vLLM on a CPU in float32 reloads tied embeddings without an error, and wrongly: take a model with"
            " tie_word_embeddings=False, or serve it with --dtype bfloat16"
        )


def _tied(weights: Any) -> bool:
    folder = weights_folder(weights)
    if folder is None:
        tensors = named_tensors(weights)
        return _one_matrix(set(tensors), tensors.__getitem__)
    with contextlib.suppress(OSError, ValueError):
        if json.loads((folder / "config.json").read_text()).get("tie_word_embeddings"):
            return True
    safe_open: Any = require("safetensors", "trl").safe_open
    with contextlib.ExitStack() as files:
        opened: dict[str, Any] = {}
        for path in sorted(folder.glob("*.safetensors")):
            file = files.enter_context(safe_open(path, framework="pt"))
            opened |= dict.fromkeys(file.keys(), file)

        def tensor(name: str) -> Any:
            return opened[name].get_tensor(name)

        return _one_matrix(set(opened), tensor)


def _one_matrix(names: set[str], get: Callable[[str], Any]) -> bool:
    outputs = [name for name in names if name.endswith(_OUTPUT)]
    inputs = [name for name in names if name.endswith(_INPUT)]
    if not outputs:
        return True
    equal: Any = require("torch", "trl").equal
    return any(equal(get(one), get(other)) for one in outputs for other in inputs)
