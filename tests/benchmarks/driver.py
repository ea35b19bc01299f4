"""The drivers that play the workloads in a contender's client process.

W1: a text environment answers each text of 200 characters with the same text; an episode has 10 steps. N sessions play
episode after episode, each waiting for its reply before it sends again.

W2: copies of an environment are stepped together, or one of them alone; what it is, is its client's business.

Only steps that end within the window are counted; resets cost wall time. The standard library alone is needed, since
peers run this in environments of their own.
"""

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

EPISODE = 10
TEXT = ("move the red block onto the blue one, then look at the table; " * 4)[:200]
WARM_UP = 0.5

# Sessions are opened in groups of this size, so that no queue of connections overflows.
_AT_ONCE = 64

_clock = time.perf_counter


# Something that is timed, and what undoes it.
Undo = Callable[[], Awaitable[None]]
Call = Callable[[], Awaitable[Undo | None]]


class EchoEpisode:
    """The environment, free of any host's interface."""

    def __init__(self) -> None:
        self._step = 0

    def reset(self) -> str:
        self._step = 0
        return "ready"

    def step(self, text: str) -> tuple[str, float, bool]:
        self._step += 1
        return text, 1.0, self._step >= EPISODE


class AsyncSession(Protocol):
    """What a contender with an async client gives the driver."""

    async def reset(self) -> None: ...

    async def step(self, text: str, /) -> tuple[str, float, bool]: ...

    async def close(self) -> None: ...


class ThreadSession(Protocol):
    """What a contender with a blocking client gives the driver."""

    def reset(self) -> None: ...

    def step(self, text: str, /) -> tuple[str, float, bool]: ...

    def close(self) -> None: ...


async def drive(open_session: Callable[[int], Awaitable[AsyncSession]], n: int, seconds: float) -> None:
    """Plays n sessions at once on this event loop, and prints what `_report` says."""
    sessions: list[AsyncSession] = []
    for first in range(0, n, _AT_ONCE):
        group = range(first, min(n, first + _AT_ONCE))
        sessions += await asyncio.gather(*(open_session(i) for i in group))
    latencies: list[float] = []
    begin = _clock() + WARM_UP
    end = begin + seconds

    async def play(session: AsyncSession) -> None:
        text = TEXT
        while _clock() < end:
            await session.reset()
            done = False
            while not done:
                started = _clock()
                if started >= end:
                    return
                text, _, done = await session.step(TEXT)
                now = _clock()
                if begin <= now <= end:
                    latencies.append(now - started)
            _check(text)

    tasks = [asyncio.create_task(play(session)) for session in sessions]
    await asyncio.sleep(begin - _clock())
    _mark("begin")
    await asyncio.sleep(end - _clock())
    _mark("end")
    await asyncio.gather(*tasks)
    _report(latencies, seconds)
    await asyncio.gather(*(session.close() for session in sessions))


async def drive_calls(open_one: Callable[[int], Awaitable[Call]], n: int, seconds: float) -> None:
    """Makes n calls at once on this event loop, again and again, and prints what `_report` says.

    What a call made is undone before the next one, which is not part of the call's time. Those count that begin in the
    window; each of the n makes one at least, however long it takes.
    """
    calls = [await open_one(i) for i in range(n)]
    latencies: list[float] = []
    begin = _clock() + WARM_UP
    end = begin + seconds

    async def go_on(call: Call) -> None:
        counted = False
        while (started := _clock()) < end or not counted:
            undo = await call()
            if started >= begin:
                latencies.append(_clock() - started)
                counted = True
            if undo is not None:
                await undo()
            # Some calls never wait.
            await asyncio.sleep(0)

    tasks = [asyncio.create_task(go_on(call)) for call in calls]
    await asyncio.sleep(begin - _clock())
    _mark("begin")
    await asyncio.gather(*tasks)
    elapsed = _clock() - begin
    _mark("end")
    _report(latencies, elapsed)


def drive_threads(open_session: Callable[[int], ThreadSession], n: int, seconds: float) -> None:
    """The same for a blocking client: a thread a session."""
    sessions = [open_session(i) for i in range(n)]
    latencies: list[list[float]] = [[] for _ in sessions]
    begin = _clock() + WARM_UP
    end = begin + seconds
    failures: list[BaseException] = []

    def play(session: ThreadSession, mine: list[float]) -> None:
        text = TEXT
        while _clock() < end:
            session.reset()
            done = False
            while not done:
                started = _clock()
                if started >= end:
                    return
                text, _, done = session.step(TEXT)
                now = _clock()
                if begin <= now <= end:
                    mine.append(now - started)
            _check(text)

    def play_or_fail(session: ThreadSession, mine: list[float]) -> None:
        try:
            play(session, mine)
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=play_or_fail, args=pair) for pair in zip(sessions, latencies, strict=True)]
    for thread in threads:
        thread.start()
    time.sleep(max(0.0, begin - _clock()))
    _mark("begin")
    time.sleep(max(0.0, end - _clock()))
    _mark("end")
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    _report([latency for mine in latencies for latency in mine], seconds)
    for session in sessions:
        session.close()


def drive_steps(reset: Callable[[], object], step: Callable[[], bool], copies: int, seconds: float) -> None:
    """Steps copies together, and prints what `_report` says.

    Args:
        reset: Starts the first episode, and each one after `step` said that one is over.
        step: Steps all copies once; says whether there is something to reset.
        copies: How many steps that is.
        seconds: The window.
    """
    reset()
    latencies: list[float] = []
    begin = _clock() + WARM_UP
    while (started := _clock()) < begin:
        if step():
            reset()
    _mark("begin")
    end = started + seconds
    while started < end:
        over = step()
        now = _clock()
        if now <= end:
            latencies.append(now - started)
        if over:
            reset()
        started = _clock()
    _mark("end")
    _report(latencies, seconds, copies)


def _check(text: str) -> None:
    if text != TEXT:
        raise ValueError(f"the environment answered {text[:50]!r}... to another text")


def _mark(name: str) -> None:
    """Tells the runner where in the run this client is: it looks at what processes have used."""
    print(name, flush=True)


def _report(latencies: list[float], seconds: float, copies: int = 1) -> None:
    """Prints how many steps were taken, of which each entry stands for that of all copies, and how long they took."""
    latencies.sort()
    count = len(latencies)

    def quantile(q: float) -> float | None:
        return latencies[min(count - 1, int(q * count))] * 1e6 if count else None

    steps = count * copies
    result = {"steps": steps, "steps_per_second": steps / seconds, "p50_us": quantile(0.5), "p99_us": quantile(0.99)}
    print(json.dumps(result), flush=True)
