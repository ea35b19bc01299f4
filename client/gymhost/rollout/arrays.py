"""Training rows as arrays: padded, one row a line, or packed, several rows after another in a line.

Everything about a token stands at the place of that token, nothing is shifted: `loss_mask[i, t]` says whether
`input_ids[i, t]` was sampled, and `logprobs[i, t]` is its log-prob given the tokens before it. A causal model says at
`t - 1` what it thinks of `t`, so a loss compares its output for `[:, :-1]` with what stands at `[:, 1:]`:

    output = model(input_ids, position_ids=position_ids, use_cache=False).logits[:, :-1].log_softmax(-1)
    new = output.gather(-1, input_ids[:, 1:, None]).squeeze(-1)
    ratio = (new - logprobs[:, 1:]).exp()
    loss = -(ratio * advantages[:, 1:])[loss_mask[:, 1:]].mean()

The first token of a row has none before it to be predicted from: its loss mask is always False, so that in a packed
line it is never predicted from the row that stands before. `labels` are what models of transformers take, which shift
by themselves: the ids, or -100 where the loss mask is False.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gymhost.rollout.extras import require
from gymhost.rollout.trajectory import ENVIRONMENT_VERSION, Row, Trajectory

__all__ = ["as_tensors", "pack", "pad"]

IGNORED = -100
"""The label of a token that nothing is to be learned from."""

Arrays = dict[str, npt.NDArray[Any]]

_Placed = list[tuple[int, Row]]


def pad(
    items: Iterable[Trajectory | Row], pad_id: int, *, advantages: Sequence[float] | npt.NDArray[Any] | None = None
) -> Arrays:
    """Pads training rows to one length, on the right.

    Args:
        items: Trajectories, of which all rows are taken, or rows.
        pad_id: The token id that fills up.
        advantages: The advantage of each item. Items whose advantage is NaN are left out, being invalid.

    Returns:
        Arrays of shape (rows, longest): `input_ids`, `position_ids`, `policy_versions` and `labels` (int64),
        `attention_mask` and `loss_mask` (bool), `logprobs` and, if they are given, `advantages` (float32), which are
        0.0 wherever nothing was sampled; and `trajectory` of shape (rows,), the place of the row's trajectory among
        the items. The prompt counts as environment.

    Raises:
        ValueError: There is not one advantage for each item, or one is infinite.
    """
    placed, worth = _placed(items, advantages)
    width = max((len(row) for _, row in placed), default=0)
    arrays = _empty(len(placed), width, pad_id, worth is not None)
    attention = np.zeros((len(placed), width), np.bool_)
    for i, (place, row) in enumerate(placed):
        _write(arrays, (i, 0), row, None if worth is None else worth[place])
        attention[i, : len(row)] = True
    _finish(arrays)
    return arrays | {"attention_mask": attention, "trajectory": _trajectory(placed)}


def pack(
    items: Iterable[Trajectory | Row],
    length: int,
    pad_id: int,
    *,
    advantages: Sequence[float] | npt.NDArray[Any] | None = None,
) -> Arrays:
    """Puts several training rows after another into lines, so that little has to be filled up.

    Attention must not lead from one row to another. Models of transformers see to it by the `position_ids`, which begin
    again at 0 with each row, if they are given no `attention_mask` and keep no cache:

        model(input_ids, position_ids=position_ids, use_cache=False)

    Kernels for sequences of varying length take `cu_seqlens`, and whoever makes a mask compares `sequence_ids`.

    Args:
        items: Trajectories, of which all rows are taken, or rows.
        length: The most tokens of a line. The lines are as long as the longest of them needs.
        pad_id: The token id that fills up.
        advantages: The advantage of each item. Items whose advantage is NaN are left out, being invalid.

    Returns:
        Arrays of shape (lines, longest): `input_ids`, `position_ids`, `policy_versions` and `labels` (int64),
        `sequence_ids` (int64), the number of the row that a token belongs to or -1 where there is none, `loss_mask`
        (bool), `logprobs` and, if they are given, `advantages` (float32); `trajectory` of shape (rows,), the place
        among the items of the trajectory of each row; and `cu_seqlens` (int32), where the sequences begin and end in
        the lines laid end to end, what fills a line up being a sequence of its own.

    Raises:
        ValueError: A row is longer than a line, which is named; there is not one advantage for each item, or one is
            infinite.
    """
    placed, worth = _placed(items, advantages)
    for place, row in placed:
        if len(row) > length:
            raise ValueError(f"a row of item {place} has {len(row)} tokens, more than a line's {length}: raise length")
    lines = _lines([len(row) for _, row in placed], length)
    width = max((sum(len(placed[number][1]) for number in line) for line in lines), default=0)
    arrays = _empty(len(lines), width, pad_id, worth is not None)
    sequences = np.full((len(lines), width), -1, np.int64)
    ends: list[int] = [0]
    for i, line in enumerate(lines):
        at = 0
        for number in line:
            place, row = placed[number]
            _write(arrays, (i, at), row, None if worth is None else worth[place])
            sequences[i, at : at + len(row)] = number
            at += len(row)
            ends.append(i * width + at)
        if at < width:
            arrays["position_ids"][i, at:] = np.arange(width - at)
            ends.append((i + 1) * width)
    _finish(arrays)
    return arrays | {
        "sequence_ids": sequences,
        "cu_seqlens": np.array(ends, np.int32),
        "trajectory": _trajectory(placed),
    }


def as_tensors(arrays: Mapping[str, npt.NDArray[Any]], device: Any = None) -> dict[str, Any]:
    """Returns the arrays of a batch as tensors of torch.

    Args:
        arrays: What `pad` or `pack` returned.
        device: Where the tensors are to be. On the CPU, which is the default, they share the memory of the arrays.

    Raises:
        ImportError: torch is not installed.
    """
    torch = require("torch", "trl")
    return {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}


def _placed(
    items: Iterable[Trajectory | Row], advantages: Sequence[float] | npt.NDArray[Any] | None
) -> tuple[_Placed, npt.NDArray[np.float64] | None]:
    """The rows with the places of their items, and the advantages of the items."""
    items = list(items)
    worth = None if advantages is None else np.asarray(advantages, np.float64)
    if worth is not None and worth.shape != (len(items),):
        raise ValueError(f"{len(items)} items came with advantages of shape {worth.shape}")
    if worth is not None and np.isinf(worth).any():
        raise ValueError(f"the advantage of item {int(np.isinf(worth).argmax())} is infinite")
    placed = [
        (place, row)
        for place, item in enumerate(items)
        if worth is None or not np.isnan(worth[place])
        for row in (item.rows() if isinstance(item, Trajectory) else [item])
    ]
    return placed, worth


def _empty(lines: int, width: int, pad_id: int, with_advantages: bool) -> Arrays:
    shape = (lines, width)
    arrays: Arrays = {
        "input_ids": np.full(shape, pad_id, np.int64),
        "position_ids": np.zeros(shape, np.int64),
        "loss_mask": np.zeros(shape, np.bool_),
        "logprobs": np.zeros(shape, np.float32),
        "policy_versions": np.full(shape, ENVIRONMENT_VERSION, np.int64),
    }
    if with_advantages:
        arrays["advantages"] = np.zeros(shape, np.float32)
    return arrays


def _write(arrays: Arrays, corner: tuple[int, int], row: Row, advantage: float | None) -> None:
    line, start = corner
    prompt, end = start + len(row.prompt_ids), start + len(row)
    arrays["input_ids"][line, start:prompt] = row.prompt_ids
    arrays["input_ids"][line, prompt:end] = row.completion_ids
    arrays["position_ids"][line, start:end] = np.arange(end - start)
    arrays["loss_mask"][line, prompt:end] = row.mask
    arrays["loss_mask"][line, start : start + 1] = False
    arrays["logprobs"][line, prompt:end] = row.logprobs
    arrays["policy_versions"][line, prompt:end] = row.policy_versions
    if advantage is not None:
        arrays["advantages"][line, start:end] = advantage


def _finish(arrays: Arrays) -> None:
    arrays["labels"] = np.where(arrays["loss_mask"], arrays["input_ids"], IGNORED)
    if "advantages" in arrays:
        arrays["advantages"][~arrays["loss_mask"]] = 0.0


def _trajectory(placed: _Placed) -> npt.NDArray[np.int64]:
    return np.array([place for place, _ in placed], np.int64)


def _lines(lengths: Sequence[int], length: int) -> list[list[int]]:
    """Which rows share a line: the longest first, each into the fullest line that has room for it."""
    lines: list[list[int]] = []
    rooms: list[tuple[int, int]] = []  # the room that is left in a line and the line's number, the least room first
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        fitting = bisect_left(rooms, (lengths[number], 0))
        if fitting < len(rooms):
            room, line = rooms.pop(fitting)
        else:
            room, line = length, len(lines)
            lines.append([])
        lines[line].append(number)
        insort(rooms, (room - lengths[number], line))
    return lines
