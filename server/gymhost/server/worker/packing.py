"""Sending what is in the memory of a vector session to a client that does not share it."""

import numpy as np

from gymhost.server.worker.shared_memory import SharedMemory
from gymhost.v1 import environments_pb2 as pb
from gymhost.wire.tensors import Array

# Below this many bytes telling what has changed saves nothing.
_LEAST = 4096
# A word that has changed is told in 12 bytes; so much of the whole they may come to.
_MOST = 0.5


class Packing:
    """Packs the memory of one session: as a whole, or what has changed since it was packed before.

    Pictures change little from step to step, and comparing costs a small part of what sending costs.

    Args:
        memory: The memory.
        changes: Whether the client keeps what it was sent.
    """

    def __init__(self, memory: SharedMemory, *, changes: bool) -> None:
        self._memory = memory
        self._words = np.frombuffer(memory.map, np.uint64)
        self._changes = changes and memory.size >= _LEAST
        self._sent: Array | None = None

    def pack(self) -> bytes:
        """What makes the payload of a reset or a step whole: put it at the end."""
        if self._sent is not None:
            positions = np.flatnonzero(self._words != self._sent)
            if 12 * len(positions) <= _MOST * self._memory.size:
                words = self._words[positions]
                self._sent[positions] = words
                told = pb.Changes(positions=positions.astype("<u4").tobytes(), words=words.tobytes())
                return pb.StepResult(changes=told).SerializeToString()
        if self._changes:
            self._sent = self._words.copy()
        return pb.StepResult(packed=self._memory.copy()).SerializeToString()

    def forget(self) -> None:
        """What was sent is not what the client has now: it got the last result another way."""
        self._sent = None
