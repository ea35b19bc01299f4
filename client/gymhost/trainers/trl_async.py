"""Rollouts for TRL's asynchronous trainer, which trains while others are played.

    generator = VllmServerGenerator("http://gpu1:8000")
    worker = RolloutWorker(requests, chat, generator, server="cpu7:50051", update_groups=16)
    AsyncGRPOTrainer(model, args=config, train_dataset=dataset, reward_funcs=[], rollout_worker=worker).train()

Where TRL's own worker resets one environment after another, in a process that environments have to be sent to, this one
is the engine of `gymhost.rollout` on a thread of the trainer's process: the environments are on servers anyway.
"""

import asyncio
import contextlib
import logging
import queue
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from gymhost.client.tls import TlsLike
from gymhost.rollout import Chat, Concurrency, Limits, RolloutEngine, RolloutRequest, Trajectory
from gymhost.rollout.advantages import group_advantages
from gymhost.rollout.feed import Feed
from gymhost.rollout.generators.base import Generator, Sampling
from gymhost.rollout.groups import Group, Grouping
from gymhost.rollout.loop_thread import LoopThread
from gymhost.rollout.sessions import Source
from gymhost.trainers.connection import Connection
from gymhost.trainers.trl_samples import metrics_of, samples_of

__all__ = ["RolloutWorker"]

logger = logging.getLogger(__name__)

_FRUITLESS_BATCHES = 3
"""So many batches in a row without one rollout to learn from end the training: something is broken for good."""

_METRICS_KEPT = 4096
_BEAT_SECONDS = 1.0


class _Buffer(queue.Queue[Any]):
    """A queue that tells when something was taken out of it."""

    def __init__(self, maxsize: int, taken: Callable[[], None]) -> None:
        super().__init__(maxsize)
        self._taken = taken

    def _get(self) -> Any:
        item = super()._get()
        self._taken()
        return item


class RolloutWorker:
    """The `rollout_worker` of TRL's `AsyncGRPOTrainer`.

    Rewards and advantages are those of the environments, so the trainer's `reward_funcs` are not asked. A rollout that
    failed is left out, and counts for nothing in its group; if there are none but such, `check_health` raises. A sample
    is as new as the newest weights that a part of it was sampled with: slow episodes are not thrown away for being
    slow, and each token has the log-prob of the weights that sampled it.

    How the weights get to the vLLM server is the trainer's affair (`weight_transfer`); this worker is told by
    `update_model_version` that they have.

    Attributes:
        rollout_buffer: The samples, for the trainer to take.
        metrics_queue: What there is to log: means of turns, lengths and seconds, failures by whose fault they were.
        engine: The engine that plays.

    Args:
        requests: What to play, one for each group. Played from the first again when they have come to their end.
        chat: Turns messages into ids and back.
        generator: Samples; several vLLM servers are a `GeneratorPool`. `stop` closes it.
        server: The address of a server of environments, an open connection of `gymhost.client.connect`, or None for an
            embedded server.
        token: The server's token.
        tls: How TLS is spoken with it, as for `gymhost.client.connect`.
        update_groups: How many groups the trainer trains on between two updates of the weights: `weight_sync_steps` *
            `gradient_accumulation_steps` * samples of a micro-batch / size of a group. So many are a batch of the feed.
        grouping: How large a group is (`num_generations`), when it has enough, and whether it is kept.
        max_staleness: How many updates a sample may wait until the trainer takes it; the same as in the
            `AsyncGRPOConfig`. It is 1 or more, since the trainer takes a batch ahead.
        scale_rewards: Whether advantages are divided by the deviation of the group.
        queue_maxsize: How many samples wait for the trainer.
        sampling: How to sample.
        limits: What ends a rollout.
        concurrency: How many rollouts at once.

    Raises:
        ValueError: A number makes no sense.
    """

    def __init__(
        self,
        requests: Iterable[RolloutRequest],
        chat: Chat,
        generator: Generator,
        *,
        server: str | Source | None = None,
        token: str | None = None,
        tls: TlsLike = None,
        update_groups: int,
        grouping: Grouping | None = None,
        max_staleness: int = 4,
        scale_rewards: bool = True,
        queue_maxsize: int = 1024,
        sampling: Sampling | None = None,
        limits: Limits | None = None,
        concurrency: Concurrency | None = None,
    ) -> None:
        if max_staleness < 1:
            raise ValueError("max_staleness must be 1 or more: the trainer takes a batch ahead")
        # As Any they are what the protocol has: queues whose items it does not name.
        self.rollout_buffer: Any = _Buffer(queue_maxsize, self._sample_taken)
        self.metrics_queue: Any = queue.Queue(_METRICS_KEPT)
        self._connection = Connection(server, token, tls)
        self._generator: Any = generator
        self._scale_rewards = scale_rewards
        self.engine = RolloutEngine(
            self._connection.source, chat, generator, sampling=sampling, limits=limits, concurrency=concurrency
        )
        self._feed: Feed[Group] = self.engine.feed(
            _forever(requests),
            batch_size=update_groups,
            max_staleness=max_staleness - 1,  # one more update comes while a batch waits in the buffer
            grouping=grouping or Grouping(size=8),
        )
        self._thread: LoopThread | None = None
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = False
        self._taken = asyncio.Event()
        self._error: Exception | None = None
        self._beat = time.monotonic()
        self._status = self.engine.status()
        self._groups = 0
        self._fruitless = 0

    # -- what the trainer calls ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begins to play. Twice is no error.

        Raises:
            RuntimeError: The worker was stopped: it is for one training.
        """
        if self._thread is not None:
            return
        if self._stopped:
            raise RuntimeError("this worker was stopped: make another one")
        self._beat = time.monotonic()
        self._thread = LoopThread("gymhost-rollout-worker")
        self._thread.call(self._begin)

    def stop(self) -> None:
        """Cancels what is in flight, closes all sessions and the generator. Twice is no error."""
        if self._stopped:
            return
        self._stopped = True
        # If it was never started, the generator is open all the same.
        thread, self._thread = self._thread or LoopThread("gymhost-rollout-worker"), None
        try:
            thread.run(self._end())
        finally:
            thread.close()

    def update_model_version(self, model_version: int) -> None:
        """Takes in that the weights of the generator are of another version."""
        if self._thread is None:
            self._adopt(model_version)
        else:
            self._thread.call(lambda: self._adopt(model_version))

    def check_health(self, stale_after_s: float) -> None:
        """Sees that there are samples to come.

        Args:
            stale_after_s: Seconds in which some turn must have been taken or some rollout have ended.

        Raises:
            RuntimeError: The worker has failed, which its cause tells, or nothing has moved for so long.
        """
        if self._error is not None:
            raise RuntimeError(f"the rollouts have ended: {self._error}") from self._error
        age = time.monotonic() - self._beat
        if age > stale_after_s:
            status = self._status
            raise RuntimeError(
                f"no rollout has moved for {age:.0f} s (heartbeat_stale_after_s={stale_after_s:g}):"
                f" {status.init} are being reset, {status.generating} are sampling,"
                f" {status.run - status.generating} wait for their environment, {status.eval} are being scored"
            )

    # -- on the worker's thread ----------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.create_task(self._work())

    async def _end(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None
        await self._feed.aclose()
        await self.engine.aclose()
        await self._generator.aclose()

    def _adopt(self, version: int) -> None:
        self._generator.policy_version = version
        self._feed.policy_version = version

    async def _work(self) -> None:
        beating = asyncio.create_task(self._beats())
        try:
            while batch := await self._feed.batch():
                await self._hand_over(batch)
            raise RuntimeError("there were no requests to play")
        except Exception as error:
            logger.exception("the rollouts have ended")
            self._error = error
        finally:
            beating.cancel()

    async def _hand_over(self, batch: Sequence[Group]) -> None:
        """Gives the trainer a batch, and returns when it has taken all of it."""
        before = self._groups
        for group in batch:
            self._push(metrics_of([*group.trajectories, *group.spare]))
            advantages = group_advantages(group.trajectories, scale=self._scale_rewards)
            samples = samples_of(group.trajectories, advantages, self._groups)
            self._groups += bool(samples)
            waited = time.monotonic()
            for sample in samples:
                await self._until(lambda: not self.rollout_buffer.full())
                sample.enqueued_at = time.time()
                self.rollout_buffer.put_nowait(sample)
            self._push({"rollout/backpressure_s": time.monotonic() - waited})
        self._look_over(batch, fruitful=self._groups > before)
        await self._until(self.rollout_buffer.empty)

    def _look_over(self, batch: Sequence[Group], *, fruitful: bool) -> None:
        """Tells of failures, and ends the training if there are only such."""
        failed: list[Trajectory] = [t for group in batch for t in group.trajectories if t.outcome.kind == "failed"]
        if failed:
            logger.warning("%d rollouts of %d groups failed; one %s", len(failed), len(batch), failed[-1].outcome)
        self._fruitless = 0 if fruitful else self._fruitless + 1
        if self._fruitless >= _FRUITLESS_BATCHES:
            raise RuntimeError(
                f"{_FRUITLESS_BATCHES} batches in a row had no rollout to learn from; the last one"
                f" {batch[-1].trajectories[-1].outcome}"
            )

    def _push(self, metrics: dict[str, Any]) -> None:
        with contextlib.suppress(queue.Full):  # the trainer no longer logs, and need not hold up rollouts
            self.metrics_queue.put_nowait(metrics)

    async def _until(self, holds: Callable[[], bool]) -> None:
        """Waits for the trainer to take samples, until something holds."""
        while not holds():
            self._taken.clear()
            if not holds():
                await self._taken.wait()

    def _sample_taken(self) -> None:
        """Called on the trainer's thread."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._taken.set)

    async def _beats(self) -> None:
        """Notes when something has moved last. While the trainer has samples to take, nothing needs to."""
        while True:
            status = self.engine.status()
            if status != self._status or not self.rollout_buffer.empty():
                self._beat = time.monotonic()
            self._status = status
            await asyncio.sleep(_BEAT_SECONDS)


def _forever(requests: Iterable[RolloutRequest]) -> Iterator[RolloutRequest]:
    """Begins anew at the end, if there is something to begin with."""
    some = True
    while some:
        some = False
        for request in requests:
            some = True
            yield request
