"""The weights of a TRL trainer on their way to a vLLM server through the disk."""

import shutil
import tempfile
import weakref
from collections.abc import Iterable
from typing import Any

from gymhost.rollout.generators import DiskWeights, VllmServerGenerator
from gymhost.rollout.loop_thread import LoopThread

__all__ = ["ServerWeights"]


class ServerWeights:
    """Hands weights to a vLLM server: they are written to a temporary folder, which the server must see too.

    The folder goes with this object; TMPDIR says where it is.

    Args:
        url: The server, which was started with VLLM_SERVER_DEV_MODE=1.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        folder = tempfile.mkdtemp(prefix="gymhost-weights-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)  # trainers never say when they are done
        self._sync = DiskWeights(folder)
        self._version = 0

    def update(self, parameters: Iterable[tuple[str, Any]]) -> None:
        """Waits for what the server samples, and has it load weights and forget what older ones have cached.

        Args:
            parameters: The names and tensors, each of which need hold its value only until the next is taken.

        Raises:
            WeightsRefused: The server would load these weights wrongly, or has no control endpoints.
            GeneratorError: The server failed; its weights are unknown now.
            OSError: The disk is full or can't be written.
        """
        weights = {name: parameter.detach().clone() for name, parameter in parameters}
        self._version += 1
        thread = LoopThread("gymhost-weights")
        try:
            thread.run(self._update(weights))
        finally:
            thread.close()

    async def _update(self, weights: dict[str, Any]) -> None:
        generator = VllmServerGenerator(self._url, sync=self._sync)
        try:
            await generator.update(weights, self._version)
        finally:
            await generator.aclose()
