"""Where a trainer's rollouts are played: one batch after the other, all in the same event loop."""

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from collections.abc import Generator as Yields
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

from gymhost.rollout import Generator, RolloutEngine, RolloutRequest, Trajectory
from gymhost.rollout.generators import VllmServerGenerator
from gymhost.rollout.loop_thread import LoopThread

__all__ = ["Player", "numbered"]


class Player:
    """Plays batches, each with an engine of its own.

    A generator that outlives a batch has its connections in the loop that made them, and a pool has tasks there. So it
    is the same loop for all batches. It ends when this object is collected, and at the latest when the process does:
    trainers never say when they are done.
    """

    def __init__(self) -> None:
        self._started: LoopThread | None = None
        self._servers: dict[str, VllmServerGenerator] = {}

    def play(self, make: Callable[[], RolloutEngine], requests: Sequence[RolloutRequest]) -> list[Trajectory]:
        """Returns a trajectory for each request, in their order.

        Ctrl-C cancels the rollouts and is raised once they have ended.

        Args:
            make: Makes the engine.
            requests: What to play.
        """

        async def played() -> list[Trajectory]:
            async with make() as engine:
                return await engine.collect(requests)

        return self._thread.run(played())

    def server(self, url: str, version: int) -> Generator:
        """The generator of a vLLM server: one for all batches, which asks once what it must know of the server.

        Args:
            url: The server.
            version: The policy version of the weights that it has now.
        """
        if url not in self._servers:
            self._servers[url] = VllmServerGenerator(url)
        generator = self._servers[url]
        generator.policy_version = version
        return generator

    @contextmanager
    def closing(self, generator: Generator) -> Yields[None]:
        """Closes a generator in the end that is of one batch alone."""
        try:
            yield
        finally:
            self._thread.run(_close(generator))

    @property
    def _thread(self) -> LoopThread:
        if self._started is None:
            self._started = LoopThread("gymhost-rollout")
            weakref.finalize(self, _end, self._started, self._servers)
        return self._started


async def _close(*generators: Generator) -> None:
    for generator in generators:
        await generator.aclose()  # within a time of its own


def _end(thread: LoopThread, servers: dict[str, VllmServerGenerator]) -> None:
    if thread.current:  # the garbage collector came upon it there, and it can't wait for itself
        threading.Thread(target=_end, args=(thread, servers), name="gymhost-end").start()
        return
    thread.run(_close(*servers.values()))
    thread.close()


def numbered(requests: Sequence[RolloutRequest], accelerator: Any) -> list[RolloutRequest]:
    """Gives each request its place in its group, of which several ranks may have a part each.

    With several ranks each of them has to come here.

    Args:
        requests: Those of this rank.
        accelerator: The trainer's.
    """
    taken: Counter[str | None] = Counter()
    if accelerator.num_processes > 1:
        from accelerate.utils import gather_object

        own = [Counter(request.group for request in requests)]
        of_ranks: list[Counter[str | None]] = cast("Any", gather_object)(own)
        for before in of_ranks[: accelerator.process_index]:
            taken += before
    placed: list[RolloutRequest] = []
    for request in requests:
        placed.append(replace(request, index=taken[request.group]))
        taken[request.group] += 1
    return placed
