"""How `gymhost rollout` plays: the engine, what is kept of each rollout, and Ctrl-C."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, NoReturn

from gymhost.cli import usage
from gymhost.cli.app import Failure
from gymhost.cli.rollout_model import Player
from gymhost.cli.rollout_progress import Progress, Standing
from gymhost.rollout import Concurrency, Limits, RolloutEngine, RolloutRequest, Sampling, Source
from gymhost.rollout.store import Store, StoreError
from gymhost.rollout.summary import Tally
from gymhost.rollout.trajectory import Trajectory

__all__ = ["Ending", "Job", "play"]

_REFRESH_SECONDS = 0.25
_CLOSE_SECONDS = 60.0


@dataclass(frozen=True)
class Job:
    """What is to be played.

    Attributes:
        requests: The rollouts that are still to be played.
        source: Where the environments are.
        player: What plays.
        tally: Where those go that have ended, and those of an earlier run are.
        store: Where they are kept, if anywhere.
    """

    requests: Sequence[RolloutRequest]
    source: Source
    player: Player
    sampling: Sampling
    limits: Limits
    concurrency: Concurrency
    tally: Tally = field(default_factory=Tally)
    store: Store | None = None


@dataclass
class Ending:
    """How a run ended.

    Attributes:
        signal: The signal that ended it early, if one did.
        seconds: How long it took.
        played: How many rollouts ended in it.
        tokens: How many tokens these sampled.
    """

    signal: int | None = None
    seconds: float = 0.0
    played: int = 0
    tokens: int = 0


async def play(job: Job, progress: Progress) -> Ending:
    """Plays all rollouts, or until a signal says that it is enough; those that have ended are tallied and stored.

    Raises:
        Failure: The store can't be written.
    """
    ending = Ending()
    before = len(job.tally)
    tokens_before = job.tally.sampled_tokens
    begun = time.perf_counter()
    engine = RolloutEngine(
        job.source,
        job.player.chat,
        job.player.generator,
        sampling=job.sampling,
        limits=job.limits,
        concurrency=job.concurrency,
    )

    def standing() -> Standing:
        return Standing(before + len(job.requests), job.tally, engine.status())

    def stop(number: int) -> None:
        ending.signal = number
        progress.say("ending the rollouts in flight; Ctrl-C again ends at once")
        playing.cancel()

    progress.begin(standing())
    playing = asyncio.create_task(_rollouts(engine, job))
    try:
        with _signals(stop, progress.leave):
            async with _every(_REFRESH_SECONDS, lambda: progress.show(standing())):
                await asyncio.wait([playing])
    finally:
        playing.cancel()
        progress.end(standing())
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await engine.aclose()
                await job.player.generator.aclose()
        except TimeoutError:
            progress.say(f"sessions and connections were not closed in {_CLOSE_SECONDS:g} s, and are left")
    if ending.signal is None:
        playing.result()
    ending.seconds = time.perf_counter() - begun
    ending.played = len(job.tally) - before
    ending.tokens = job.tally.sampled_tokens - tokens_before
    return ending


async def _rollouts(engine: RolloutEngine, job: Job) -> None:
    async with aclosing(engine.run(job.requests)) as finished:
        async for trajectory in finished:
            if job.store is not None:
                _keep(job.store, trajectory, job.player.tokenizer)
            job.tally.add(trajectory)


def _keep(store: Store, trajectory: Trajectory, tokenizer: Any) -> None:
    try:
        store.append(trajectory, tokenizer)
    except (StoreError, OSError) as error:
        raise Failure(f"a rollout could not be kept; those before it are, in {store.path}: {error}") from error


@contextlib.asynccontextmanager
async def _every(seconds: float, act: Callable[[], None]) -> AsyncGenerator[None]:
    """Does something again and again, beside the body."""

    async def acting() -> None:
        while True:
            await asyncio.sleep(seconds)
            act()

    task = asyncio.create_task(acting())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@contextlib.contextmanager
def _signals(stop: Callable[[int], None], leave: Callable[[], None]) -> Generator[None]:
    """Has the first Ctrl-C or SIGTERM call `stop` in the event loop, and the second end the process after `leave`.

    The second may come at any time after the first, while connections are being closed too.
    """
    loop = asyncio.get_running_loop()
    asked = False

    def handle(number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            leave()
            _end_at_once(number)
        asked = True
        loop.call_soon_threadsafe(stop, number)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        if not asked:
            for number, handler in before.items():
                signal.signal(number, handler)


def _end_at_once(number: int) -> NoReturn:
    """Ends the process without another wait, and with it what it started, such as vLLM's engine.

    An embedded server, which is in a session of its own, ends by itself when this process is gone.
    """
    for pid in usage.children():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getpgid(pid) == os.getpgrp():
                os.kill(pid, signal.SIGKILL)
    os._exit(128 + number)
