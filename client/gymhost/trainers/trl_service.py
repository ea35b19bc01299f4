"""A TRL trainer's rollouts, played by a rollout service: each batch is a job."""

import asyncio
import contextlib
import hashlib
import itertools
import threading
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gymhost.client.tls import TlsLike
from gymhost.rollout import RolloutRequest, Sampling, Trajectory
from gymhost.rollout.flight import blank
from gymhost.rollout.loop_thread import LoopThread
from gymhost.rollout.service import JobSettings, RolloutClient
from gymhost.rollout.service.messages import to_limits, to_sampling, to_task
from gymhost.trainers.trl_policy import Policy
from gymhost.wire import errors

__all__ = ["Service"]

_GIVE_UP_SECONDS = 10.0
_PLACE = "gymhost.place"
_LABEL = 200
"""Characters of a job's label, which may begin with a long path."""


class Service:
    """Plays the batches of a trainer by a rollout service.

    The key of a batch is made of the run, the version of the weights, the rank, and what is played. So a trainer that
    lost its connection, or was started again from a checkpoint of the step that it was in, is given what has been
    played meanwhile. Results are acknowledged once the batch is whole.

    Args:
        service: The address of the service, or a client.
        token: The token of the service.
        tls: How TLS is spoken with it.
        weights: Where weights are written; see `Policy`.
    """

    def __init__(self, service: str | RolloutClient, token: str | None, tls: TlsLike, weights: Path | None) -> None:
        own = isinstance(service, str)
        self._client = RolloutClient(service, token, tls) if isinstance(service, str) else service
        self._thread = LoopThread("gymhost-service")
        # Trainers never say when they are done; at exit gRPC ends by itself, and before this could.
        weakref.finalize(self, _end, self._thread, self._client if own else None).atexit = False
        self._policy = Policy(_Desk(self._client, self._thread), weights)
        self._weights_of = ""
        self._played: Counter[str] = Counter()

    def splits(self, env_id: str, kwargs: dict[str, Any]) -> dict[str, int | None]:
        """How many tasks each split of an environment has; None where they have no end."""
        return dict(self._thread.run(self._client.describe(env_id, **kwargs)).splits)

    def play(
        self, requests: Sequence[RolloutRequest], trainer: Any, sampling: Sampling, limits: Mapping[str, Any]
    ) -> list[Trajectory]:
        """Returns a trajectory for each request, in their order, sampled by the trainer's present weights.

        Ctrl-C cancels the rollouts. With several ranks each of them has to come here.

        Args:
            requests: What to play.
            trainer: A `GRPOTrainer`.
            sampling: How to sample.
            limits: What ends a rollout, where that is not as the service is set up.

        Raises:
            ServerUnavailable: The service was away for longer than its client waits.
            Error: The service refused the batch, or the weights.
        """
        weights = self._policy.hand_over(trainer)
        if weights != self._weights_of:
            self._weights_of, self._played = weights, Counter()
        digest = _digest(requests, sampling, limits)
        key = f"{weights}/{trainer.accelerator.process_index}/{digest}/{self._played[digest]}"
        self._played[digest] += 1
        label = f"{trainer.args.run_name or trainer.args.output_dir}, step {trainer.state.global_step}"
        settings: JobSettings = {"sampling": sampling, "limits": limits, "label": label[-_LABEL:]}
        return self._thread.run(self._play(requests, key, settings))

    async def _play(self, requests: Sequence[RolloutRequest], key: str, settings: JobSettings) -> list[Trajectory]:
        """Plays until each request has a trajectory.

        A job of this name may be there from before a restart. What had been acknowledged of it then is no more, and
        what was cancelled is not wanted: these are played in another job.
        """
        found: dict[int, Trajectory] = {}
        for number in itertools.count():
            missing = [place for place in range(len(requests)) if place not in found]
            if not missing:
                break
            own_key = f"{key}/{number}"
            try:
                tasks = [_task(requests[place], place) for place in missing]
                job = await self._client.submit(tasks, **(settings | {"key": own_key}))
                before = (await job.status()).over
                for trajectory in await job.collect():
                    if not (before and trajectory.outcome.kind == "cancelled"):
                        place: int = trajectory.labels.pop(_PLACE)
                        trajectory.index = requests[place].index
                        found[place] = trajectory
            except asyncio.CancelledError:
                await self._give_up(own_key)
                raise
            if not before:  # what is missing now was cancelled by somebody else before it began
                break
        return [found.get(place) or blank(request) for place, request in enumerate(requests)]

    async def _give_up(self, key: str) -> None:
        """Cancels a job, if it has been submitted."""
        with contextlib.suppress(errors.Error, TimeoutError):
            async with asyncio.timeout(_GIVE_UP_SECONDS):
                await (await self._client.job(key=key)).cancel()


class _Desk:
    """What the weights' way asks of the service; see `trl_policy.Desk`."""

    def __init__(self, client: RolloutClient, thread: LoopThread) -> None:
        self._client = client
        self._thread = thread

    def policy_version(self) -> int:
        return self._thread.run(self._client.status()).policy_version

    def generators(self) -> list[str]:
        return [generator.url for generator in self._thread.run(self._client.generators())]

    def announce(self, version: int, weights: Path | None) -> None:
        self._thread.run(self._client.announce(version, weights))

    def give_up(self, run: str) -> None:
        self._thread.run(self._cancel(run))

    async def _cancel(self, run: str) -> None:
        for status in await self._client.jobs(states=["queued", "running", "paused", "waiting"], limit=1000):
            if status.key.startswith(f"{run}/"):
                with contextlib.suppress(errors.UnknownJob):
                    await (await self._client.job(id=status.id)).cancel()


def _task(request: RolloutRequest, place: int) -> RolloutRequest:
    """A request as a job takes it: its place in its group, of which other ranks may have a part, is the trainer's."""
    return replace(request, index=0, labels={**request.labels, _PLACE: place})


def _digest(requests: Sequence[RolloutRequest], sampling: Sampling, limits: Mapping[str, Any]) -> str:
    """Tells apart what is played: at the same step there may be evaluations too, and not after a restart."""
    parts = [to_task(replace(request, index=0)) for request in requests]
    messages = (*parts, to_sampling(sampling), to_limits(limits))
    said = [message.SerializeToString(deterministic=True) for message in messages]
    return hashlib.sha256(b"".join(len(one).to_bytes(4) + one for one in said)).hexdigest()[:16]


def _end(thread: LoopThread, client: RolloutClient | None) -> None:
    if thread.current:  # the garbage collector came upon it there, and it can't wait for itself
        threading.Thread(target=_end, args=(thread, client), name="gymhost-end").start()
        return
    if client is not None:
        thread.run(client.aclose())
    thread.close()
