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

    Pictures change little from step to step, and comparing costs a small part of what sending costs. The client says
    which batch it has kept, so what it did not get, or did not want, is never taken for granted.

    Args:
        memory: The memory.
        changes: Whether the client keeps what it was sent.
    """

    def __init__(self, memory: SharedMemory, *, changes: bool) -> None:
        self._memory = memory
        self._words = np.frombuffer(memory.map, np.uint64)
        self._changes = changes and memory.size >= _LEAST
        # What was packed last, and the number of the command that it was for.
        self._sent: Array | None = None
        self._sequence = 0

    def pack(self, sequence: int, kept: int) -> bytes:
        """What makes the payload of a reset or a step whole: put it at the end.

        Args:
            sequence: The number of the command.
            kept: The number of the command whose batch the client has kept; 0 for none.
        """
        before, self._sequence = self._sequence, sequence
        if self._sent is not None and kept and kept == before:
            positions = np.flatnonzero(self._words != self._sent)
            if 12 * len(positions) <= _MOST * self._memory.size:
                words = self._words[positions]
                self._sent[positions] = words
                told = pb.Changes(positions=positions.astype("<u4").tobytes(), words=words.tobytes())
                return pb.StepResult(changes=told).SerializeToString()
        if self._changes:
            self._sent = self._words.copy()
        return packed(self._memory)


def packed(memory: SharedMemory) -> bytes:
    """The same, always as a whole."""
    return pb.StepResult(packed=memory.copy()).SerializeToString()
