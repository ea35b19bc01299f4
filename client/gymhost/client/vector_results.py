"""From the replies of shards to what a vector environment returns."""

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.vector.utils import batch_space, iterate

from gymhost.client import batches
from gymhost.client.session import parse
from gymhost.client.shards import Replied, Shard
from gymhost.client.vector_infos import ShardInfo, add_lost, combine
from gymhost.v1 import environments_pb2 as pb
from gymhost.wire import errors, tensors, values
from gymhost.wire.layout import Batch, Layout
from gymhost.wire.tensors import Array

__all__ = ["Results", "StepResult"]

# What `step` and `recv` return.
StepResult = tuple[Any, Array, Array, Array, dict[str, Any]]


class _Part(NamedTuple):
    batch: Batch
    info: ShardInfo
    # Whether the arrays are the reader's own, and not a view of what is filled again or can't be written.
    own: bool


class Results:
    """Puts the replies of shards together.

    Args:
        space: The observation space of one copy.
        keep: Whether to keep the last observations of each shard, for the case that it is lost.
    """

    def __init__(self, space: gymnasium.Space[Any], *, keep: bool = False) -> None:
        self._space = space
        self._keep = keep
        self._layouts: dict[int, Layout] = {}

    def reset(self, replies: Sequence[Replied]) -> tuple[Any, dict[str, Any]]:
        """What a reset returns."""
        parts = [self._part(reply) for reply in replies]
        return self._observation(parts), self._info(replies, parts)

    def step(self, replies: Sequence[Replied]) -> StepResult:
        """What a step returns. Of a shard that was reset, or lost, the rewards are 0."""
        seen = [reply.shard.seen for reply in replies]
        parts = [self._part(reply) for reply in replies]
        if len(parts) == 1 and parts[0].own:
            rewards, terminations, truncations, _ = parts[0].batch
        else:
            rewards = np.concatenate([part.batch.rewards for part in parts])
            terminations = np.concatenate([part.batch.terminations for part in parts])
            truncations = np.concatenate([part.batch.truncations for part in parts])
        infos = self._info(replies, parts)
        start = 0
        for reply, before in zip(replies, seen, strict=True):
            copies = slice(start, start + reply.shard.size)
            if reply.kind == pb.COMMAND_KIND_RESET:
                for flags in (rewards, terminations, truncations):
                    flags[copies] = 0
            if reply.lost:
                truncations[copies] = True
                infos = add_lost(infos, len(truncations), range(start, copies.stop), self._finals(reply, before))
            start = copies.stop
        return self._observation(parts), rewards, terminations, truncations, infos

    def _finals(self, reply: Replied, seen: Any) -> list[Any] | None:
        """The last observations of copies that are lost and reset already; None where they are what is returned."""
        if reply.kind != pb.COMMAND_KIND_RESET:
            return None
        return list(iterate(batch_space(self._space, reply.shard.size), seen))

    def _observation(self, parts: Sequence[_Part]) -> Any:
        return batches.join(self._space, [part.batch.observation for part in parts], own=parts[0].own)

    @staticmethod
    def _info(replies: Sequence[Replied], parts: Sequence[_Part]) -> dict[str, Any]:
        if not any(part.info for part in parts):
            return {}
        return combine([part.info for part in parts], [reply.shard.size for reply in replies])

    def _part(self, reply: Replied) -> _Part:
        shard = reply.shard
        if reply.lost and reply.kind == pb.COMMAND_KIND_STEP:
            none = np.zeros(shard.size), np.zeros(shard.size, np.bool_), np.zeros(shard.size, np.bool_)
            return _Part(Batch(*none, shard.seen), {}, own=False)
        part = self._read(reply)
        if self._keep:
            shard.seen = copy.deepcopy(part.batch.observation)
        return part

    def _read(self, reply: Replied) -> _Part:
        shard, kind, payload, _ = reply
        if not payload:
            # The usual thing on the same host: arrays in shared memory, and no infos.
            return _Part(self._shared(shard), {}, own=False)
        result = parse(pb.StepResult, payload) if kind == pb.COMMAND_KIND_STEP else parse(pb.ResetResult, payload)
        info: ShardInfo = {}
        if result.HasField("info"):
            info = values.decode(result.info)
        elif result.HasField("infos"):
            info = values.decode(result.infos)
        if result.packed or result.HasField("changes"):
            return _Part(self._sent(shard, result.packed, result.changes), info, own=False)
        if not result.HasField("observation"):
            return _Part(self._shared(shard), info, own=False)
        if isinstance(result, pb.StepResult):
            decode = tensors.decode_array
            flags = decode(result.rewards), decode(result.terminations), decode(result.truncations)
        else:
            flags = np.zeros(shard.size), np.zeros(shard.size, np.bool_), np.zeros(shard.size, np.bool_)
        return _Part(Batch(*flags, values.decode(result.observation)), info, own=True)

    def _shared(self, shard: Shard) -> Batch:
        """What the worker left in the memory that it shares."""
        link = shard.lane.link
        if link is None or link.memory is None:
            raise errors.DecodeError("the server's reply has no observation")
        if shard.memory is not link.memory:
            shard.memory = link.memory
            shard.batch = self._layout(shard).batch(link.memory)
            shard.kept = 0
        assert shard.batch is not None
        return shard.batch

    def _sent(self, shard: Shard, packed: bytes, changes: pb.Changes) -> Batch:
        """What was sent in place of shared memory; kept, since the next result may tell only what has changed."""
        kept = shard.memory
        before, shard.kept = shard.kept, 0
        if packed:
            words = np.frombuffer(packed, np.uint64)
            if isinstance(kept, np.ndarray) and len(kept) == len(words):
                kept[:] = words
            else:
                shard.memory = words.copy()
                shard.batch = self._layout(shard).batch(shard.memory.data.cast("B"))
        else:
            positions = np.frombuffer(changes.positions, np.uint32)
            fits = isinstance(kept, np.ndarray) and (not len(positions) or positions.max() < len(kept))
            if not before or not isinstance(kept, np.ndarray) or not fits:
                raise errors.DecodeError("the server's reply tells what has changed in something else")
            kept[positions] = np.frombuffer(changes.words, np.uint64)
        # Whatever a shard replies is read before it gets another command.
        shard.kept = shard.lane.lane.sequence
        assert shard.batch is not None
        return shard.batch

    def _layout(self, shard: Shard) -> Layout:
        layout = self._layouts.get(shard.size)
        if layout is None:
            layout = self._layouts[shard.size] = Layout(self._space, shard.size)
        return layout
